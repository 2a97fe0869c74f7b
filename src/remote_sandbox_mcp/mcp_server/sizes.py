"""Results that fit their client: cut by us, and told, before it cuts them in places of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

# Of a text that the client never shows its model, this much is sent.
MOST_DROPPED_TEXT = 2000
CUT = "this result was cut to what your client takes; ask for less at once to see the rest"

T = TypeVar("T")


# json.dumps would make one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def size_of(value: object) -> int:
    """How many characters it has as JSON, which is how clients show the structured part."""
    return len(_ENCODER.encode(value))


def fit(fields: dict[str, Any], most: int) -> dict[str, Any]:
    """The fields themselves where they fit; else with the longest texts and lists among them cut."""
    return fields if size_of(fields) <= most else _smaller_fields(fields, most - len(CUT) - 40)


def shorten(text: str, most: int) -> str:
    """A text with its middle left out where it is too long."""
    if len(text) <= most:
        return text
    note = f"\n[... {len(text) - most} of {len(text)} characters left out ...]\n"
    kept = max(0, most - len(note))
    return f"{text[: kept - kept // 3]}{note}{text[len(text) - kept // 3 :]}"


def first_that_fit(items: Sequence[T], sizes: Sequence[int], most: int) -> Sequence[T]:
    """As many items as fit, one at least: without one, nobody could ever go on."""
    used = 0
    for number, size in enumerate(sizes):
        used += size + 1
        if used > most and number:
            return items[:number]
    return items


def _smaller(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return _smaller_text(value, most)
    if isinstance(value, dict):
        return _smaller_fields(value, most)
    if isinstance(value, list) and value:
        kept = list(first_that_fit(value, [size_of(item) for item in value], most - 2))
        return kept if len(kept) > 1 else [_smaller(kept[0], most - 2)]
    return value


def _smaller_text(text: str, most: int) -> str:
    kept = text
    # What has many quotes or line ends is longer as JSON: then once is not enough.
    while (size := size_of(kept)) > most and len(kept) > 100:
        kept = shorten(text, max(100, len(kept) * most // size - 10))
    return kept


def _smaller_fields(fields: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The largest field gives way first, then the next."""
    kept = dict(fields)
    for name in sorted(kept, key=lambda name: -size_of(kept[name])):
        over = size_of(kept) - most
        if over <= 0:
            break
        kept[name] = _smaller(kept[name], max(0, size_of(kept[name]) - over))
    return kept
