"""Decisions are made on data: nothing compares our sentences, and above the backends nothing asks for a kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.syntax import parsed

import remote_sandbox_mcp
from remote_sandbox_mcp.core.sandboxes.disposable import Traits
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities

# One worker reads the whole source, once.
pytestmark = pytest.mark.xdist_group("source")
ROOT = Path(remote_sandbox_mcp.__file__).parent
KINDS = {"ssh", "local", "embedded", "opensandbox"}
# Backends know what they are; the operator writes the name of a provider.
MAY_NAME_KINDS = {"backends", "config"}
READERS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "replace"}
READERS |= {"find", "index", "count", "lower", "search", "match", "fullmatch", "findall"}
# What tomllib says of a file; it has no field for the place before Python 3.14.
FOREIGN_WORDS = {"config/problems.py", "services/setup/toml_text.py"}


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """All modules of the program by their paths."""
    return {file.relative_to(ROOT).as_posix(): parsed(file) for file in sorted(ROOT.rglob("*.py"))}


def outside(rooms: set[str], modules: dict[str, ast.Module]) -> Iterator[tuple[str, ast.Module]]:
    return ((path, tree) for path, tree in modules.items() if path.partition("/")[0] not in rooms)


def strings(node: ast.AST, named: dict[str, str]) -> Iterator[str]:
    """What a side of a comparison may be equal to."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and part.id in named:
            yield named[part.id]


def constants(module: ast.Module) -> dict[str, str]:
    """Texts that have a name in a module."""
    found = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def compared_kinds(module: ast.Module) -> Iterator[int]:
    named = constants(module)
    for node in ast.walk(module):
        sides: list[ast.AST] = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.pattern] if isinstance(node, ast.match_case) else []
        if any(KINDS & {*strings(side, named)} for side in sides):
            yield getattr(node, "lineno", 0)


def asked_classes(module: ast.Module) -> Iterator[int]:
    """Where isinstance asks for a class of a backend."""
    theirs = {
        name.asname or name.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and "backends" in (node.module or "").split(".")
        for name in node.names
    }
    for node in ast.walk(module):
        is_asked = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if is_asked and theirs & {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}:
            yield getattr(node, "lineno", 0)


def is_text_of(node: ast.AST) -> bool:
    """Whether it is str(x) of a plain name, as errors are told."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "str"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id in ("problem", "refusal", "error", "failure", "lost", "fate", "refused")
    )


def read_sentences(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        parts: tuple[ast.AST, ...] = ()
        if isinstance(node, ast.Compare):
            parts = (node.left, *node.comparators)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            parts = (node.func.value, *node.args)
        if any(map(is_text_of, parts)):
            yield getattr(node, "lineno", 0)


def test_no_module_above_the_backends_compares_the_name_of_a_kind(modules: dict[str, ast.Module]) -> None:
    found = [f"{path}:{line}" for path, tree in outside(MAY_NAME_KINDS, modules) for line in compared_kinds(tree)]
    assert found == []


def test_no_module_above_the_backends_asks_for_a_class_of_theirs(modules: dict[str, ast.Module]) -> None:
    found = [f"{path}:{line}" for path, tree in outside({"backends"}, modules) for line in asked_classes(tree)]
    assert found == []


def test_no_module_above_the_backends_reads_the_words_of_an_error(modules: dict[str, ast.Module]) -> None:
    found = [
        f"{path}:{line}"
        for path, tree in outside({"backends"}, modules)
        if path not in FOREIGN_WORDS
        for line in read_sentences(tree)
    ]
    # The watchdog logs an error once, until it is another.
    assert [place for place in found if not place.startswith("services/watchdog/daemon.py:")] == []


@pytest.mark.parametrize(
    "source",
    [
        'if member.describe().kind == "opensandbox": pass',
        'if kind in ("ssh", "local"): pass',
        'EMBEDDED = "embedded"\nif provider != EMBEDDED: pass',
        'match kind:\n    case "ssh": pass',
    ],
    ids=["equal", "one of several", "by a constant", "match"],
)
def test_a_kind_that_is_compared_is_found(source: str) -> None:
    assert [*compared_kinds(ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    ['"quota" in str(problem)', 'str(problem).removeprefix("unable")', "re.search(r'x', str(refusal))"],
    ids=["in", "prefix", "expression"],
)
def test_a_sentence_that_is_read_is_found(source: str) -> None:
    assert [*read_sentences(ast.parse(source))]


@pytest.mark.parametrize("value", [Capabilities, Traits], ids=lambda value: value.__name__)
def test_what_backends_differ_in_is_read_by_somebody(value: type, modules: dict[str, ast.Module]) -> None:
    read = {
        node.attr
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert {field.name for field in fields(value)} - read == set()
