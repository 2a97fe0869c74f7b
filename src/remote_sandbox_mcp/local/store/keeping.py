"""Decides what of a text gets into a row or a file: no secret of it, and no more than the operator keeps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ..files import write_private
from .library import sqlite3

# The folder of TrueTexts beside a database.
TRUE_TEXTS = "again"
# A text of an old row is not made shorter.
LONGEST_KEPT = 100_000
LONGEST_COMMAND, LONGEST_STORED = 4000, 4000
# Texts of a watch's policy that are run or asked again.
NEEDED = ("resume_command", "checkpoint_command", "webhook_url")
# The one that is needed after the watch's end: it is announced there.
NEEDED_LATER = "webhook_url"


class Keeper:
    """The one way of texts into the database. With `days` 0, commands and what they printed are not kept at all.

    `configuration` is that of the process; commands of another one are not read. Empty: all are.
    """

    def __init__(self, days: float = 1, configuration: str = "") -> None:
        self.days = days
        self.configuration = configuration

    def command(self, text: str, most: int = LONGEST_COMMAND) -> str:
        """A command, as it may be kept."""
        from ...core.texts.redact import shorten_safely
        from ...core.texts.shown import values_in_use

        return clean(shorten_safely(text, values_in_use(), most)) if text and self.days > 0 else ""

    def output(self, text: str, most: int) -> str:
        """The end of what a command printed, as it may be kept."""
        return self.stored(text, most) if self.days > 0 else ""

    def stored(self, text: str, most: int = LONGEST_STORED) -> str:
        """The end of a sentence of ours or of a machine's, which is always kept."""
        from ...core.texts.redact import end_safely
        from ...core.texts.shown import values_in_use

        return clean(end_safely(text, values_in_use(), most)) if text else ""

    def values(self, value: Any) -> Any:
        """A value of JSON with nothing secret in it."""
        from ...core.texts.redact import hide_in
        from ...core.texts.shown import values_in_use

        return hide_in(value, values_in_use())

    def wanted(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a job or a watch into what is kept and the texts of its policy that are needed as they are."""
        command, metadata = self.command(fields.get("command", "")), self.values(fields.get("metadata"))
        kept = {**fields, "command": command, "metadata": metadata}
        policy = dict(fields.get("policy", {}))
        hidden = {name: self.command(policy[name]) for name in NEEDED if policy.get(name)}
        if policy.get("resume_env"):
            hidden["resume_env"] = self.values(policy["resume_env"])
        apart = {name: policy[name] for name, text in hidden.items() if text != policy[name]}
        return kept | {"policy": policy | hidden, "apart": [*apart]}, apart

    def may_read(self, configuration: str) -> bool:
        """Whether commands of that configuration are shown to this process."""
        return self.configuration in ("", configuration)


class TrueTexts:
    """Texts that are needed again as they are, each under a number in a file of its own, until they are dropped.

    Not in the database: what is deleted there stays in its file for a while. Raises ConfigError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, number: int, texts: Mapping[str, Any]) -> None:
        """Write them; nothing is left where there are none."""
        if not texts:
            self.drop(number)
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._file(number), json.dumps(dict(texts)))
        except OSError as error:
            raise ConfigError(f"unable to write {self._file(number)}: {error.strerror or error}") from error

    def get(self, number: int) -> dict[str, Any]:
        """Empty where they were dropped, or cannot be read."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self._file(number).read_bytes()))
        return {}

    def drop(self, number: int) -> None:
        with suppress(OSError):
            self._file(number).unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """List the numbers that have texts."""
        names = (file.stem for file in self._folder.glob("*.json"))
        return [int(name) for name in names if name.isdecimal()]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"


def clean(text: str) -> str:
    """A text that SQLite takes: a command may hold bytes that are not valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def fields_of(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows; a newer version may have written more."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}


def read_json(text: str) -> Any:
    """Parse JSON; an empty object where it cannot be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {}


def offer_functions(connection: sqlite3.Connection, file: Path) -> None:
    """Let the statements of a migration keep texts as we do: kept(text), kept_json(text), kept_wanted(...)."""
    keeper, truths = Keeper(), TrueTexts(file.with_name(TRUE_TEXTS))

    def kept_json(text: str | None) -> str | None:
        return text and json.dumps(keeper.values(read_json(text)))

    def kept_wanted(number: int, status: str, text: str) -> str:
        kept, apart = keeper.wanted(read_json(text))
        if number:
            truths.put(number, apart if status == "active" else {})
        return json.dumps(kept)

    connection.create_function("kept", 1, lambda text: keeper.stored(text, LONGEST_KEPT))
    connection.create_function("kept_json", 1, kept_json)
    connection.create_function("kept_wanted", 3, kept_wanted)
