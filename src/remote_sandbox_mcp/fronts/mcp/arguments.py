"""Sentences for arguments that do not fit a tool's schema, in place of pydantic's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

Details = Mapping[str, Any]
# How an error names one of several types that a parameter may have; it is no part of the arguments.
UNION_PARTS = ("str", "int", "float", "bool", "list", "dict", "tuple", "literal", "function", "nullable", "Sequence")
_LIST, _OBJECT = 'a list, such as ["a", "b"]', 'an object, such as {"name": "value"}'
# What a value has to be, by the type of the error or by its beginning.
WANTED: Mapping[str, Callable[[Details], str]] = {
    "string_": lambda found: "text",
    "int_": lambda found: "a whole number",
    "float_": lambda found: "a number",
    "finite_number": lambda found: "a number",
    "bool_": lambda found: "true or false",
    "list_type": lambda found: _LIST,
    "tuple_type": lambda found: _LIST,
    "sequence_str": lambda found: _LIST,
    "is_instance_of": lambda found: _LIST if found.get("class") == "Sequence" else "another kind of value",
    "dict_type": lambda found: _OBJECT,
    "model_": lambda found: _OBJECT,
    "mapping_type": lambda found: _OBJECT,
    "dataclass_type": lambda found: _OBJECT,
    "greater_than_equal": lambda found: f"{found['ge']:.15g} or more",
    "greater_than": lambda found: f"more than {found['gt']:.15g}",
    "less_than_equal": lambda found: f"{found['le']:.15g} or less",
    "less_than": lambda found: f"less than {found['lt']:.15g}",
    "literal_error": lambda found: str(found["expected"]),
    "too_short": lambda found: f"at least {found['min_length']} long",
    "too_long": lambda found: f"at most {found['max_length']} long",
}
KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


def sentence_about(tool: str, problem: ValidationError, takes: Sequence[str]) -> str:
    """Errors in a call's arguments: the first wrong one, and what it has to be; values are not quoted."""
    errors = problem.errors(include_url=False)
    first = errors[0]
    where = _place(first["loc"])
    if first["type"] == "missing":
        inside = _place(first["loc"][:-1])
        return f"{tool} needs {where}" + ("" if inside else f"; it takes: {', '.join(takes) or 'nothing'}")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{tool}: {where} is not one of its arguments; leave it out"
    # A parameter of several types has an error for each of them.
    same = [each for each in errors if _place(each["loc"]) == where]
    wanted = " or ".join(dict.fromkeys(_wanted(each["type"], each.get("ctx", {})) for each in same))
    other = "other " if first["type"] == "literal_error" else ""
    return f"{tool}: {where or 'its arguments'} must be {wanted}, and is {other}{_given(first['input'])}"


def _wanted(kind: str, found: Details) -> str:
    words = next((words for begins, words in WANTED.items() if kind.startswith(begins)), None)
    return words(found) if words else "another kind of value"


def _given(value: Any) -> str:
    """A number or flag as it is; of a text only that it is one, because it may be secret."""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return KINDS.get(type(value), "something else")


def _place(parts: Sequence[str | int]) -> str:
    """The place of a value in the arguments."""
    told = ""
    for part in parts:
        if isinstance(part, int):
            told += f"[{part}]"
        elif not told:
            told = part
        elif part.partition("[")[0] not in UNION_PARTS:
            told += f".{part}"
    return told
