"""What is known of client programs: how long they wait, how much of a result they take, and which part they show."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """A client program, found by a part of the name that it gives itself.

    `patience_s`: seconds within which a call should be answered. `result_chars`: the longest result, counted as JSON
    and as text, that reaches its model whole. `drops_text`: its model sees the structured part of a good result and
    never the text; of the others it is not known which of the two they show.
    """

    name: str
    patience_s: float
    result_chars: int
    drops_text: bool = False


# A little less than what each was seen to allow: an answer has to be on its way in time, and is wrapped before it is
# shown. Claude Code begins to count tokens at 50,000 characters; Codex cuts out the middle from about 12,000 on.
KNOWN = (
    Client("claude-code", patience_s=110.0, result_chars=45_000, drops_text=True),
    Client("codex", patience_s=280.0, result_chars=10_000, drops_text=True),
)
STRANGER = Client("", patience_s=50.0, result_chars=100_000)


@functools.lru_cache(maxsize=64)
def client_named(name: str) -> Client:
    """What is known of the client that calls itself so.

    >>> client_named("Claude Code").patience_s, client_named("codex-mcp-client").result_chars, client_named("").name
    (110.0, 10000, '')
    """
    given = name.lower().replace(" ", "-")
    return next((known for known in KNOWN if known.name in given), STRANGER)
