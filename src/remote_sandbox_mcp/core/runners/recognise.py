"""What a command of unknown kind printed: the last words of every runner that we know."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import golang, javascript, python_pytest, python_unittest, rust_cargo, tap
from .reading import Reading, joined

Reader = Callable[[str], "Reading | None"]

# How each is called in a command, by words that stand in one line in this order, and who reads what it prints.
_KNOWN: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("pytest|py.test",), python_pytest.read_text),
    (("unittest",), python_unittest.read_text),
    (("cargo", "test|t"), rust_cargo.read_text),
    (("go", "test", "-json"), golang.read_json),
    (("go", "test"), golang.read_text),
    (("vitest",), javascript.read_vitest_text),
    (("jest",), javascript.read_jest_text),
    (("mocha",), javascript.read_mocha_text),
    (("node", "--test"), javascript.read_node_text),
    (("prove|tap|bats",), tap.read_text),
)
# A word with what may belong to it: `my-pytest` is not pytest, and neither is `pytest-like`.
_WORD = re.compile(r"[\w.-]+")


def recognise(text: str, command: str = "") -> Reading | None:
    """One reading of all that was recognised; of the runner that the command names, where it names one.

    A failing test may quote the output of another runner: what the command says it runs is believed first.
    """
    lines = [[word.rstrip(".") for word in _WORD.findall(line)] for line in command.split("\n")]
    named = [reader for names, reader in _KNOWN if any(_has_in_order(line, names) for line in lines)]
    return _read(named, text) or _read([reader for _, reader in _KNOWN], text)


def _has_in_order(words: list[str], names: tuple[str, ...]) -> bool:
    rest = iter(words)
    return all(any(word in name.split("|") for word in rest) for name in names)


def _read(readers: list[Reader], text: str) -> Reading | None:
    readings = {reader: reading for reader in readers if (reading := reader(text)) is not None}
    if tap.read_text in readings:
        # node's TAP ends with the same counts again; the lines tell more.
        readings.pop(javascript.read_node_text, None)
    if golang.read_json in readings:
        readings.pop(golang.read_text, None)
    told = [reading for reading in readings.values() if reading.total] or list(readings.values())[:1]
    return joined(told) if told else None
