"""Changes one member of a JSON text, and leaves every other character of it as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_USUAL_INDENT = "  "


class NotEditable(ValueError):
    """The text is no plain JSON, or not of the expected shape; the message is the end of a sentence."""


@dataclass(frozen=True)
class JsonMember:
    """One member of an object: where its key and its value begin, and where the value ends."""

    key: str
    at: int
    value_at: int
    end: int


@dataclass(frozen=True)
class JsonObject:
    """An object of the text, from its brace at `start` to the closing one at `close`."""

    start: int
    close: int
    members: tuple[JsonMember, ...]

    def member(self, key: str) -> JsonMember | None:
        # Of a key that stands there twice, readers take the last.
        return next((it for it in reversed(self.members) if it.key == key), None)


def read(text: str) -> dict[str, Any]:
    """The document; an empty text is an empty one. Raises NotEditable."""
    try:
        document = json.loads(text.removeprefix("\ufeff") or "{}")
    except (ValueError, RecursionError):
        raise NotEditable("it is not plain JSON: it may hold comments, or a mistake") from None
    if not isinstance(document, dict):
        raise NotEditable("it holds no JSON object")
    return document


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with the value at this path, added or in place of the one there. Raises NotEditable."""
    wanted = _with(read(text), path, value)
    if not text.strip("\ufeff \t\r\n"):
        return json.dumps(wanted, indent=_USUAL_INDENT, ensure_ascii=False) + "\n"
    return checked(_put(text, _object(text, _start(text)), path, value), wanted)


def remove(text: str, path: Sequence[str]) -> str:
    """The text without the member at this path, which must be there. Raises NotEditable."""
    wanted = less(read(text), path)
    found = _object(text, _start(text))
    for key in path[:-1]:
        member = found.member(key)
        assert member is not None
        found = _object(text, member.value_at)
    return checked(_without(text, found, path[-1]), wanted)


def restore(text: str, path: Sequence[str], value: Any) -> str:
    """The text with what a path had before: put back, or taken out for None. Raises NotEditable."""
    if value_at(read(text), path) == value:
        return text
    return remove(text, path) if value is None else put(text, path, value)


def value_at(document: Any, path: Sequence[str]) -> Any:
    """Return a document's value at a path; None for none."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _with(document: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {**document, key: value}
    inner = document.get(key, {})
    if not isinstance(inner, dict):
        raise NotEditable(f"its {key!r} is no object")
    return {**document, key: _with(inner, rest, value)}


def less(document: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The document without the value at a path."""
    key, *rest = path
    kept = {name: value for name, value in document.items() if name != key}
    return {**kept, key: less(document[key], rest)} if rest else kept


def checked(text: str, wanted: dict[str, Any], read: Callable[[str], dict[str, Any]] = read) -> str:
    """Raises NotEditable where the new text does not say exactly what it should."""
    if read(text) != wanted:
        raise NotEditable("its layout is unusual")
    return text


def _start(text: str) -> int:
    return _skip(text, 1 if text.startswith("\ufeff") else 0)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _object(text: str, start: int) -> JsonObject:
    """The object whose brace is at `start`, in a text that is valid JSON."""
    decoder = json.JSONDecoder()
    members: list[JsonMember] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = decoder.raw_decode(text, at)
        value_at = _skip(text, _skip(text, after) + 1)
        _, end = decoder.raw_decode(text, value_at)
        members.append(JsonMember(key, at, value_at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return JsonObject(start, at, tuple(members))


def _put(text: str, found: JsonObject, path: Sequence[str], value: Any) -> str:
    key, *rest = path
    member = found.member(key)
    if member and rest:
        return _put(text, _object(text, member.value_at), rest, value)
    for inner in reversed(rest):
        value = {inner: value}
    if member:
        return text[: member.value_at] + _dumped(text, value, _indent_at(text, member.at)) + text[member.end :]
    return _add(text, found, key, value)


def _add(text: str, found: JsonObject, key: str, value: Any) -> str:
    name = json.dumps(key, ensure_ascii=False)
    if found.members:
        last = found.members[-1]
        indent = _indent_at(text, last.at)
        between = "," + ("\n" + indent if indent is not None else " ")
        return text[: last.end] + _lines(text, f"{between}{name}: {_dumped(text, value, indent)}") + text[last.end :]
    if "\n" not in text.strip():
        return f"{text[: found.start + 1]}{name}: {_dumped(text, value, None)}{text[found.close :]}"
    outer = _indent_at(text, found.start) or ""
    indent = outer + _unit(text)
    inside = _lines(text, f"\n{indent}{name}: {_dumped(text, value, indent)}\n{outer}")
    return text[: found.start + 1] + inside + text[found.close :]


def _without(text: str, found: JsonObject, key: str) -> str:
    member = found.member(key)
    assert member is not None
    if place := found.members.index(member):
        # With the comma before it, so that a last member leaves none behind.
        return text[: found.members[place - 1].end] + text[member.end :]
    if len(found.members) > 1:
        return text[: member.at] + text[found.members[1].at :]
    return text[: found.start + 1] + text[found.close :]


def _indent_at(text: str, at: int) -> str | None:
    """The blanks before what stands at `at`; None where it is not the first on its line."""
    line = text.rfind("\n", 0, at) + 1
    blanks = re.match(r"[ \t]*", text[line:])
    indent = blanks[0] if blanks else ""
    return indent if line and (line + len(indent) == at or text[at] == "{") else None


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else _USUAL_INDENT


def _dumped(text: str, value: Any, indent: str | None) -> str:
    """The value, on lines of its own below `indent`, or on one line."""
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return _lines(text, f"\n{indent}".join(lines))


def _lines(text: str, added: str) -> str:
    return added.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in text else added


def keys_of(document: Any) -> Iterator[str]:
    return iter(document) if isinstance(document, dict) else iter(())
