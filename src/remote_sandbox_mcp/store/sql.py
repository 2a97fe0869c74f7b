"""SQL from its files: named statements, and the steps that bring a database up to date."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

_HEADING = "-- name: "


@functools.cache
def statements(name: str) -> Mapping[str, str]:
    """The statements of NAME.sql, each under the name in the comment before it."""
    text = resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    pieces = (piece.split("\n", 1) for piece in text.split(_HEADING)[1:])
    return {heading.strip(): statement.strip() for heading, statement in pieces}


@functools.cache
def migrations(folder: str) -> Sequence[str]:
    """The scripts of a folder in the order of their numbers: the first makes version 1 of a database, and so on."""
    scripts = (file for file in resources.files(__package__).joinpath(folder).iterdir() if file.name.endswith(".sql"))
    return [file.read_text(encoding="utf-8") for file in sorted(scripts, key=lambda file: file.name)]


def split(script: str) -> Iterator[str]:
    """The statements of a script one by one; a trigger, which holds several, stays whole."""
    import sqlite3

    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
