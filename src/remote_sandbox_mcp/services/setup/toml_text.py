"""Adds tables and elements of lists to a TOML text, and leaves every other character of it as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from ...config.problems import parse_toml
from . import json_text
from .json_text import NotEditable

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"^[ \t]*\[", re.M)
# Parts of an array of texts: a text in either kind of quotes, a comment, or its end.
_PART = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|\]')


def read(text: str) -> dict[str, Any]:
    """Raises NotEditable."""
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:
        # The parser's message may quote the file, and with it a password.
        place = re.search(r"line \d+, column \d+", str(error))
        raise NotEditable(f"it is not valid TOML{f' ({place[0]})' if place else ''}") from None


def table(path: Sequence[str], values: Mapping[str, Any]) -> str:
    """A table as people write it."""
    header = ".".join(map(_key, path))
    return f"[{header}]\n" + "".join(f"{_key(key)} = {json.dumps(value)}\n" for key, value in values.items())


def add_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with one more table at its end. Raises NotEditable."""
    wanted = _with(read(text), path, dict(values))
    line_end = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith("\n") else text + line_end
    added = before + (line_end if before else "") + table(path, values).replace("\n", line_end)
    return json_text.checked(added, wanted, read)


def add_hosts(text: str, names: Sequence[str]) -> str:
    """The text with more names in its top-level array `hosts`. Raises NotEditable."""
    document = read(text)
    wanted = {**document, "hosts": [*_list(document, "hosts"), *names]}
    top = _HEADER.search(text)
    found = _list_start("hosts").search(text, 0, top.start() if top else len(text))
    added = _extend(text, found.end(), names) if found else _begin(text, top, names)
    return json_text.checked(added, wanted, read)


def add_to_list(text: str, name: str, key: str, values: Sequence[str]) -> str:
    """The text with more elements in the array `key` of the table `name`. Raises NotEditable."""
    document = read(text)
    header = re.search(rf"^[ \t]*\[[ \t]*{name}[ \t]*\][^\n]*", text, re.M)
    if header is None:
        return add_table(text, (name,), {key: list(values)})
    wanted = {**document, name: {**document[name], key: [*_list(document[name], key), *values]}}
    following = _HEADER.search(text, header.end())
    found = _list_start(key).search(text, header.end(), following.start() if following else len(text))
    if found:
        return json_text.checked(_extend(text, found.end(), values), wanted, read)
    line_end = "\r\n" if "\r\n" in text else "\n"
    line = text.find("\n", header.end()) + 1
    before, after = (text[:line], text[line:]) if line else (text + line_end, "")
    return json_text.checked(f"{before}{key} = {json.dumps(list(values))}{line_end}{after}", wanted, read)


def set_values(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with these values in a table that it has, and without keys of it that are not named; variables, a table
    of their own, are among them. Raises NotEditable.
    """
    wanted = _with(json_text.less(read(text), path), path, dict(values))
    named = ((path, values), ((*path, "env"), values.get("env", {})))
    tables = {f"[{'.'.join(map(_key, place))}]": chosen for place, chosen in named}
    lines: list[str] = []
    chosen: Mapping[str, Any] | None = None
    for line in text.splitlines(keepends=True):
        is_header = line.lstrip().startswith("[")
        chosen = tables.get(line.partition("#")[0].strip()) if is_header else chosen
        lines.append(line if is_header or chosen is None else _set(line, chosen))
    return json_text.checked("".join(lines), wanted, read)


def _set(line: str, values: Mapping[str, Any]) -> str:
    """A line of a table with its new value; those that span several lines are found out by who checks the result."""
    key = line.partition("=")[0].strip().strip("\"'") if "=" in line and not line.lstrip().startswith("#") else ""
    if not key or key not in values:
        return "" if key else line
    new = values[key]
    is_same = isinstance(new, dict) or read(line).get(key) == new
    return line if is_same else f"{_key(key)} = {json.dumps(new)}\n"


Hunks = list[tuple[str, str]]


def hunks(before: str, after: str) -> Hunks:
    """List the lines that differ, before and after, without all that stayed as it was."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [("".join(old[i1:i2]), "".join(new[j1:j2])) for kind, i1, i2, j1, j2 in codes if kind != "equal"]


def without(changed: Hunks, now: str) -> str | None:
    """The present text with these lines as they were; None where they are not to be found any more."""
    fresh = now
    for old, new in changed:
        if not new or fresh.count(new) != 1:
            return None
        fresh = fresh.replace(new, old)
    # Lines that were added below a table of ours would have become part of another one.
    return fresh if _is_part(read(fresh), read(now)) else None


def _is_part(fresh: Any, document: Any) -> bool:
    if isinstance(fresh, dict) and isinstance(document, dict):
        return all(key in document and _is_part(value, document[key]) for key, value in fresh.items())
    if isinstance(fresh, list) and isinstance(document, list):
        return all(one in document for one in fresh)
    return bool(fresh == document)


def _key(word: str) -> str:
    return word if _BARE.fullmatch(word) else json.dumps(word)


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    there = values.get(key, [])
    if not isinstance(there, list):
        raise NotEditable(f"its {key} is no list")
    return there


def _list_start(key: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*\[", re.M)


def _with(document: dict[str, Any], path: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    key, *rest = path
    inner = document.get(key, {})
    if not isinstance(inner, dict) or (not rest and key in document):
        raise NotEditable(f"it has another {key!r} already")
    return {**document, key: _with(inner, rest, value) if rest else value}


def _begin(text: str, top: re.Match[str] | None, names: Sequence[str]) -> str:
    """The array as a line of its own before the first table, and before the comments that belong to that."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    lines = (text[: top.start()] if top else text).splitlines(keepends=True)
    place = len(lines)
    while top and place and (not lines[place - 1].strip() or lines[place - 1].lstrip().startswith("#")):
        place -= 1
    head = "".join(lines[:place])
    head += "" if not head or head.endswith("\n") else line_end
    rest = text[len("".join(lines[:place])) :]
    gap = line_end if rest and not rest.startswith(("\n", "\r\n")) else ""
    return f"{head}hosts = {json.dumps(list(names))}{line_end}{gap}{rest}"


def _extend(text: str, at: int, names: Sequence[str]) -> str:
    """More elements for the array whose bracket ends at `at`."""
    last, close = at, len(text)
    for part in _PART.finditer(text, at):
        if part[0] == "]":
            close = part.start()
            break
        if not part[0].startswith("#"):
            last = part.end()
    added = [json.dumps(name) for name in names]
    line = text.find("\n", last, close)
    if line < 0:
        return text[:last] + ("" if last == at else ", ") + ", ".join(added) + text[last:]
    # One element for each line: the new ones come below the last, whose comment stays beside it.
    comma = "" if last == at or "," in text[last:line].partition("#")[0] else ","
    blanks = re.match(r"[ \t]*", text[text.rfind("\n", 0, last) + 1 :])
    indent = (blanks[0] if blanks else "") + ("    " if last == at else "")
    below = "".join(f"{indent}{name},\n" for name in added)
    return text[:last] + comma + text[last : line + 1] + below + text[line + 1 :]
