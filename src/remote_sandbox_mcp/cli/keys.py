"""What a terminal sends for keys, as names: "up", "enter", "esc", or the character itself."""

from __future__ import annotations

import re

_SEQUENCES = {
    **{"[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down"},
    **{"[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end"},
}
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "ctrl-c", "\x1b": "esc"}
# A whole sequence, or one character; sequences that have no name here are still one key.
_KEY = re.compile(r"\x1b(?P<sequence>\[[0-9;?]*[ -/]*[@-~]|O[@-~])|(?P<character>.)", re.DOTALL)


def keys_of(typed: bytes) -> list[str]:
    """The keys in what was typed; those without a name or a visible character are left out.

    >>> keys_of(b"j\\x1b[A\\r"), keys_of(b"\\x1b"), keys_of("é".encode()), keys_of(b"\\x1b[99~\\x01")
    (['j', 'up', 'enter'], ['esc'], ['é'], [])
    """
    found = []
    for key in _KEY.finditer(typed.decode("utf-8", "replace")):
        character = key["character"] or ""
        visible = character if character.isprintable() else ""
        found.append(_SEQUENCES.get(key["sequence"], "") if key["sequence"] else _NAMES.get(character, visible))
    return [key for key in found if key]
