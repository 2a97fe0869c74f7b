"""Finds every regular expression of the program, and tells whether its work grows no faster than the text."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.syntax import parsed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from re import _constants as ops  # type: ignore[attr-defined]
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_constants as ops
        import sre_parse as parser

SOURCE = Path(__file__).parents[2] / "src"
METHODS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
# A repetition that goes further is taken for one without an end.
SHORT = 64
MOST_WAYS = 2000
# Characters are looked at one by one up to here; those above by an example of each kind: letter, digit, space, sign.
OTHER = 256
KINDS = {code: chr(code) for code in (0x4E2D, 0x0663, 0x2003, 0x2502)}
OTHERS = frozenset(KINDS)
ALL = frozenset(range(OTHER)) | OTHERS
NEWLINE = frozenset({10})
# By which methods each name is used.
Uses = dict[str, set[str]]


@dataclass(frozen=True)
class Expression:
    """One expression where it stands; `text` is None where it is made while the program runs."""

    module: str
    source: str
    text: str | bytes | None
    flags: int
    # Tried at one place of the text alone; others are tried at each place, from the first on.
    anchored: bool

    @property
    def title(self) -> str:
        return f"{self.module.removeprefix('remote_sandbox_mcp.')}: {self.source[:40]}"


# Finding them


def all_expressions() -> Iterator[Expression]:
    used: Uses = {}
    with_some: dict[str, ast.Module] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        tree = parsed(file)
        for name, methods in uses_in(tree).items():
            used.setdefault(name, set()).update(methods)
        if any(
            isinstance(node, ast.Import) and any(name.name == "re" for name in node.names) for node in ast.walk(tree)
        ):
            parts = file.relative_to(SOURCE).with_suffix("").parts
            with_some[".".join(part for part in parts if part != "__init__")] = tree
    for module, tree in with_some.items():
        yield from in_module(module, tree, used)


def in_module(module: str, tree: ast.Module, used_anywhere: Uses) -> Iterator[Expression]:
    names = vars(importlib.import_module(module))
    compiled = names_of_compiled(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            continue
        if function.value.id != "re" or function.attr not in METHODS:
            continue
        flags = next((word.value for word in call.keywords if word.arg == "flags"), None)
        after = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2}.get(
            function.attr, 99
        )
        flags = flags or (call.args[after] if len(call.args) > after else None)
        used = uses_of(tree, compiled[call], used_anywhere) if call in compiled else {function.attr}
        yield Expression(
            module,
            ast.unparse(call.args[0]),
            evaluated(call.args[0], names, None),
            int(evaluated(flags, names, 0)) if flags else 0,
            bool(used) and used <= {"match", "fullmatch"},
        )


def names_of_compiled(tree: ast.Module) -> dict[ast.Call, str]:
    """The names of the module that hold a compiled expression."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            found[node.value] = node.targets[0].id
    return found


def uses_of(tree: ast.Module, name: str, used_anywhere: Uses) -> set[str]:
    """By which methods it is used, here or, where its name is public, anywhere."""
    return (uses_in(tree) if name.startswith("_") else used_anywhere).get(name, set())


def uses_in(tree: ast.Module) -> Uses:
    used: Uses = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            for name in (getattr(node.value, "id", ""), getattr(node.value, "attr", "")):
                used.setdefault(name, set()).add(node.attr)
    return used


def evaluated(node: ast.expr | None, names: dict[str, Any], otherwise: Any) -> Any:
    if node is None:
        return otherwise
    try:
        return eval(compile(ast.Expression(node), "", "eval"), dict(names))
    except NameError:
        return otherwise


# Judging them


@dataclass(frozen=True)
class Step:
    """A character of a set, or any number of them (`endless`); or, without a set, an anchor."""

    chars: frozenset[int]
    needed: bool = True
    endless: bool = False
    anchor: str = ""


class Unclear(Exception):
    """Why nothing can be said of an expression."""


def objection(text: str | bytes, flags: int = 0, *, anchored: bool = False) -> str:
    """Why the work for an expression may grow faster than the text; empty where it does not."""
    tree = parser.parse(text, flags)
    try:
        for way in ways(list(tree), tree.state.flags):
            if why := objection_to(way, anchored):
                return why
    except Unclear as problem:
        return str(problem)
    return ""


def objection_to(way: Sequence[Step], anchored: bool) -> str:
    for at, step in enumerate(way):
        if not step.endless:
            continue
        if not anchored and not is_tried_once(way, at):
            return "an endless repetition is begun again inside of what it ran over before"
        for later in range(at + 1, len(way)):
            if way[later].endless and not is_divided(step, way[later], way[at + 1 : later]):
                return "two endless repetitions may share the same characters in any way"
    return ""


def is_tried_once(way: Sequence[Step], at: int) -> bool:
    """Whether two attempts cannot run over the same characters: something before it is not among them.

    Or else the attempt that gets so far is a match, after which the next begins.
    """
    chars = way[at].chars
    for step in way[:at]:
        if step.anchor == "start" or (step.anchor == "line" and not chars & NEWLINE):
            return True
        if step.needed and not step.anchor and not step.chars & chars:
            return True
    return not any(step.needed for step in way[at + 1 :])


def is_divided(first: Step, second: Step, between: Sequence[Step]) -> bool:
    """Whether no character can belong to either, or something between them ends the first or begins the second:
    then what the second one runs over is not run over again for another end of the first.
    """
    if not first.chars & second.chars:
        return True
    needed = [step.chars for step in between if step.needed and not step.anchor]
    return any(not chars & first.chars or not chars & second.chars for chars in needed)


def ways(tokens: list[Any], flags: int) -> list[list[Step]]:
    """Every way through an expression, as steps; what is looked ahead at is a way of its own."""
    found: list[list[Step]] = [[]]
    aside: list[list[Step]] = []
    for token in tokens:
        op, value = token
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            aside += [way + ahead for way in found for ahead in ways(list(value[1]), flags)]
            continue
        choices = of_token(op, value, flags)
        found = [way + choice for way, choice in itertools.product(found, choices)]
        if len(found) > MOST_WAYS:
            raise Unclear("there are too many ways through it")
    return found + aside


def of_token(op: Any, value: Any, flags: int) -> list[list[Step]]:
    if op in REPEATS:
        least, most, body = value
        return of_repeat(least, most, body, flags)
    if op is ops.SUBPATTERN:
        return ways(list(value[-1]), (flags | value[1]) & ~value[2])
    if op is ops.BRANCH:
        return [way for branch in value[1] for way in ways(list(branch), flags)]
    if op is ops.AT:
        return [[Step(frozenset(), anchor=ANCHORS.get((value, bool(flags & re.MULTILINE)), "other"))]]
    return [[Step(chars_of(op, value, flags))]]


REPEATS = (
    ops.MAX_REPEAT,
    ops.MIN_REPEAT,
    *(getattr(ops, name) for name in ("POSSESSIVE_REPEAT",) if hasattr(ops, name)),
)
ANCHORS = {
    (ops.AT_BEGINNING_STRING, False): "start",
    (ops.AT_BEGINNING_STRING, True): "start",
    (ops.AT_BEGINNING, False): "start",
    (ops.AT_BEGINNING, True): "line",
}


def of_repeat(least: int, most: int, body: Any, flags: int) -> list[list[Step]]:
    inner = ways(list(body), flags)
    if most == 1:
        return [*inner, []]
    if all(len(way) == 1 and not way[0].endless and not way[0].anchor for way in inner):
        chars = frozenset[int]().union(*(way[0].chars for way in inner))
        return [[Step(chars, needed=least > 0, endless=most > SHORT)]]
    if most > SHORT:
        raise Unclear("something that is no single character is repeated without an end")
    if any(step.endless for way in inner for step in way):
        raise Unclear("an endless repetition is repeated")
    steps = [Step(step.chars, step.needed and least > 0, anchor=step.anchor) for way in inner for step in way]
    return [[*steps]] if len(inner) == 1 else [[Step(step.chars, needed=False) for step in steps]]


def chars_of(op: Any, value: Any, flags: int) -> frozenset[int]:
    if op is ops.LITERAL:
        return one(value, flags)
    if op is ops.NOT_LITERAL:
        return ALL - (one(value, flags) - OTHERS)
    if op is ops.ANY:
        return ALL if flags & re.DOTALL else ALL - NEWLINE
    if op is ops.IN:
        return of_set(value, flags)
    raise Unclear(f"{op} is not understood")


def of_set(items: list[Any], flags: int) -> frozenset[int]:
    negated = items[0][0] is ops.NEGATE
    found = frozenset[int]()
    for op, value in items[negated:]:
        if op is ops.LITERAL:
            found |= one(value, flags)
        elif op is ops.RANGE:
            found |= frozenset().union(*(one(code, flags) for code in range(value[0], min(value[1], OTHER - 1) + 1)))
            found |= OTHERS if value[1] >= OTHER else frozenset()
        elif op is ops.CATEGORY:
            found |= of_category(value)
        else:
            raise Unclear(f"{op} is not understood in a set")
    # A set that leaves out one letter above still has the others.
    kept = OTHERS if negated and not any(op is ops.CATEGORY for op, _ in items) else frozenset[int]()
    return (ALL - found) | kept if negated else found


def one(code: int, flags: int) -> frozenset[int]:
    if code >= OTHER:
        return frozenset(kind for kind in OTHERS if kind_of(KINDS[kind]) == kind_of(chr(code)))
    if not flags & re.IGNORECASE:
        return frozenset({code})
    cases = (ord(case) for case in (chr(code).lower(), chr(code).upper()) if len(case) == 1)
    return frozenset(case for case in cases if case < OTHER) | frozenset({code})


def kind_of(letter: str) -> tuple[bool, bool, bool]:
    return letter.isalnum(), letter.isdecimal(), letter.isspace()


CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d", ops.CATEGORY_NOT_DIGIT: r"\D", ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S", ops.CATEGORY_WORD: r"\w", ops.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def of_category(category: Any) -> frozenset[int]:
    return frozenset(code for code in ALL if re.match(CATEGORIES[category], chr(code)))
