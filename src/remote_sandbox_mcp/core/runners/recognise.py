"""What a command of unknown kind printed: the last words of every runner that we know."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import golang, javascript, python_pytest, python_unittest, rust_cargo, tap
from .reading import Reading, joined

Reader = Callable[[str], "Reading | None"]

# How each is called in a command, and who reads what it prints.
_KNOWN: tuple[tuple[str, Reader], ...] = (
    (r"pytest|py\.test", python_pytest.read_text),
    (r"unittest", python_unittest.read_text),
    (r"cargo\b.*\b(?:test|t)\b", rust_cargo.read_text),
    (r"go\b.*\btest\b.* -json", golang.read_json),
    (r"go\b.*\btest", golang.read_text),
    (r"vitest", javascript.read_vitest_text),
    (r"jest", javascript.read_jest_text),
    (r"mocha", javascript.read_mocha_text),
    (r"node\b.* --test", javascript.read_node_text),
    (r"prove|tap|bats", tap.read_text),
)


def recognise(text: str, command: str = "") -> Reading | None:
    """One reading of all that was recognised; of the runner that the command names, where it names one.

    A failing test may quote the output of another runner: what the command says it runs is believed first.
    """
    named = [reader for pattern, reader in _KNOWN if re.search(rf"(?<![\w.-])(?:{pattern})(?![\w-])", command)]
    return _read(named, text) or _read([reader for _, reader in _KNOWN], text)


def _read(readers: list[Reader], text: str) -> Reading | None:
    readings = {reader: reading for reader in readers if (reading := reader(text)) is not None}
    if tap.read_text in readings:
        # node's TAP ends with the same counts again; the lines tell more.
        readings.pop(javascript.read_node_text, None)
    if golang.read_json in readings:
        readings.pop(golang.read_text, None)
    told = [reading for reading in readings.values() if reading.total] or list(readings.values())[:1]
    return joined(told) if told else None
