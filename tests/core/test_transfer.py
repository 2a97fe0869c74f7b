"""Orders and outcomes as values: what they say, and that they come back from JSON as they went."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.transfer import DEFAULT_EXCLUDES, Headway, Order, Outcome, Place, unheard

# Names that are not UTF-8 come as surrogates, and JSON keeps them.
TEXTS = st.text(max_size=12) | st.sampled_from(["", "a\udcff", "日本 語", "two\nlines", "!*.c"])
PLACES = st.builds(Place, TEXTS, TEXTS)
NUMBERS = st.integers(0, 1 << 62)
ORDERS = st.builds(
    Order,
    source=PLACES,
    target=PLACES,
    excludes=st.lists(TEXTS, max_size=3).map(tuple),
    default_excludes=st.booleans(),
    respect_gitignore=st.booleans(),
    checksum=st.booleans(),
    delete_extras=st.booleans(),
    confirmed=st.booleans(),
)
OUTCOMES = st.builds(
    Outcome,
    synced_type=st.sampled_from(["file", "directory"]),
    made_dirs=NUMBERS,
    sent_files=NUMBERS,
    skipped_files=NUMBERS,
    deleted_files=NUMBERS,
    deleted_dirs=NUMBERS,
    bytes=NUMBERS,
    wire_bytes=NUMBERS,
    seconds=st.floats(0, 1e9),
    problems=st.lists(st.builds(Problem, TEXTS, TEXTS), max_size=3).map(tuple),
    problem_count=NUMBERS,
    excluded=st.lists(TEXTS, max_size=3).map(tuple),
)


@given(ORDERS)
def test_an_order_comes_back_from_json(order: Order) -> None:
    assert Order.from_json(json.loads(json.dumps(asdict(order)))) == order


@given(OUTCOMES)
def test_an_outcome_comes_back_from_json(outcome: Outcome) -> None:
    assert Outcome.from_json(json.loads(json.dumps(asdict(outcome)))) == outcome


RULES: dict[str, tuple[tuple[str, ...], bool, tuple[str, ...]]] = {
    "the usual ones": ((), True, DEFAULT_EXCLUDES),
    "the caller's come last, so that they decide": (("!.git", "*.o"), True, (*DEFAULT_EXCLUDES, "!.git", "*.o")),
    "only the caller's": (("*.o",), False, ("*.o",)),
    "none": ((), False, ()),
}


@pytest.mark.parametrize(("excludes", "default", "rules"), RULES.values(), ids=RULES)
def test_an_order_gives_its_exclude_rules(excludes: tuple[str, ...], default: bool, rules: tuple[str, ...]) -> None:
    here = Place("", "/a")
    assert Order(source=here, target=here, excludes=excludes, default_excludes=default).rules == rules


@pytest.mark.parametrize(
    ("place", "text"),
    [(Place("gpu1", "/data"), "gpu1:/data"), (Place("", "/data"), "/data")],
    ids=["on a sandbox", "here"],
)
def test_a_place_is_shown_with_its_sandbox(place: Place, text: str) -> None:
    assert str(place) == text


def test_the_silent_listener_ignores_everything() -> None:
    unheard(Headway("sending"))
