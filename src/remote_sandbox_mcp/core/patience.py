"""How long a client waits for one call, by what it calls itself."""

from __future__ import annotations

# A little less than what each was seen to allow, so that an answer is always on its way in time.
_KNOWN = (("claude-code", 110.0), ("claude code", 110.0), ("codex", 280.0))
_ANYONE = 50.0


def patience_of(client: str) -> float:
    """Seconds within which a call should be answered.

    >>> patience_of("claude-code"), patience_of("codex-mcp-client"), patience_of("")
    (110.0, 280.0, 50.0)
    """
    name = client.lower()
    return next((seconds for known, seconds in _KNOWN if known in name), _ANYONE)
