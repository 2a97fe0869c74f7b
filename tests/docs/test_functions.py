"""The examples of functions in functions.txt are true."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

TEXT = Path(__file__).with_name("functions.txt").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)


@pytest.mark.parametrize(("name", "examples"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_the_examples_of_a_module_are_true(name: str, examples: str) -> None:
    module = importlib.import_module(name)
    found = doctest.DocTestParser().get_doctest(examples, dict(vars(module)), name, "functions.txt", 0)
    assert found.examples
    said: list[str] = []
    assert doctest.DocTestRunner().run(found, out=said.append).failed == 0, "".join(said)
