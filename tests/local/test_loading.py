"""Dataclasses that are defined while a server loads are as all others, but their methods are compiled when called."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from remote_sandbox_mcp.local.processes import loading

PARAMETERS = [
    pytest.param({"frozen": True}, id="frozen"),
    pytest.param({}, id="plain"),
    pytest.param({"eq": False}, id="without equality"),
    pytest.param({"frozen": True, "order": True, "slots": True, "kw_only": True}, id="with order and slots"),
    pytest.param({"unsafe_hash": True}, id="with a hash"),
]


def make(**parameters: Any) -> Any:
    class Base:
        name: str
        size: int = 1

    class Value(dataclasses.dataclass(**parameters)(Base)):  # type: ignore[misc]
        """A value with a default that is made for each."""

        parts: list[str] = dataclasses.field(default_factory=list, compare=False, repr=False)

    return dataclasses.dataclass(**parameters)(Value)


@pytest.fixture
def is_loading() -> Iterator[None]:
    loading.defer_methods()
    yield
    loading.make_methods_at_once()


def seen(cls: Any) -> list[object]:
    """All that can be seen of a dataclass."""

    def tried(action: Any) -> object:
        try:
            return action()
        except (TypeError, AttributeError) as problem:
            return type(problem), str(problem)

    a, same, other = cls(name="a"), cls(name="a", size=1, parts=["x"]), cls(name="b")
    return [
        str(inspect.signature(cls)),
        [(it.name, it.default, it.compare) for it in dataclasses.fields(cls)],
        [repr(it).partition(".<locals>.")[2] for it in (a, same, other)],
        [a == same, a == other, a != same, a == "a", same == a],
        tried(lambda: hash(a) == hash(same)),
        tried(lambda: [a < other, a >= other, sorted((other, a)) == [a, other]]),
        tried(lambda: setattr(a, "name", "c")),
        tried(lambda: delattr(a, "size")),
        dataclasses.asdict(dataclasses.replace(other, size=3)),
        [cls.__eq__.__name__, cls.__doc__, cls.__dataclass_params__.frozen],
    ]


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_a_dataclass_is_the_same_as_ever(parameters: dict[str, Any], request: pytest.FixtureRequest) -> None:
    usual = seen(make(**parameters))
    request.getfixturevalue("is_loading")
    made = make(**parameters)
    # The second time its methods are compiled.
    assert seen(made) == usual
    assert seen(made) == usual


def test_a_method_is_compiled_with_its_first_call_and_then_takes_its_place(is_loading: None) -> None:
    made = make(frozen=True)
    before = made.__eq__
    assert before.__code__.co_filename == loading.__file__
    assert made(name="a") == made(name="a")
    assert made.__eq__ is not before
    assert made.__eq__.__code__.co_filename == "<string>"
    assert made.__eq__.__qualname__ == before.__qualname__


def test_all_is_as_usual_once_everything_is_loaded() -> None:
    steps = (
        "import dataclasses, gc",
        "was = dict(vars(dataclasses))",
        "from remote_sandbox_mcp.local.processes import loading",
        "loading.begin()",
        "assert not gc.isenabled()",
        "loading.end()",
        "assert gc.isenabled() and vars(dataclasses) == was",
    )
    subprocess.run([sys.executable, "-c", "; ".join(steps)], check=True)
