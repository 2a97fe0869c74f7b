"""Two sides and their last common state: every pair of changes by a table, and random histories against a model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.plan import Plan
from remote_sandbox_mcp.core.reconcile import SideLost, blocks, moves, reconcile
from remote_sandbox_mcp.core.tree import Tree, read_meta

Entries = dict[str, str]

F, F_NEW, F_OTHER = "f644 3 5000000000", "f644 4 6000000000", "f644 5 7000000000"
F_MODE, F_SAME_SIZE = "f755 3 5000000000", "f644 4 8000000000"
D, D_TIME, D_MODE = "d755 0 5000000000", "d755 0 6000000000", "d700 0 5000000000"
L, L_NEW, L_OTHER, L_OUT = "l777 0 0 a", "l777 0 0 b", "l777 0 0 c", "l777 0 0 /etc"


def folders(entries: Mapping[str, str]) -> dict[bytes, bytes]:
    """The folders of a tree from its paths and metas."""
    found: dict[bytes, dict[bytes, bytes]] = {b"": {}}
    for path, meta in entries.items():
        above, _, name = path.encode().rpartition(b"/")
        found.setdefault(above, {})[name] = meta.encode()
        if meta.startswith("d"):
            found.setdefault(path.encode(), {})
    return blocks(found)


def tree(entries: Mapping[str, str], **fields: int) -> Tree:
    return Tree("dir", "/side", "/side", "/home/me", folders=folders(entries), **fields)  # type: ignore[arg-type]


def apply(plan: Plan, side: Mapping[str, str], source: Mapping[str, str]) -> Entries:
    """What a side is after a plan, in the order in which the engine carries one out."""
    after = dict(side)

    def check(path: bytes) -> None:
        found = plan.found_at(path).decode()
        assert found == ("" if after.get(path.decode(), "d")[0] == "d" else after[path.decode()]), path

    for path in plan.clear:
        check(path)
        assert not any(each.startswith(f"{path.decode()}/") for each in after), path
        del after[path.decode()]
    for item in plan.send:
        above = item.folder.decode()
        while above and above not in after:
            after[above] = source[above]
            above = above.rpartition("/")[0]
        assert not above or after[above].startswith("d"), item.path
        check(item.path)
        after[item.path.decode()] = item.text.decode()
    for touched in plan.touch:
        check(touched.path)
        meta = read_meta(after[touched.path.decode()].encode())
        after[touched.path.decode()] = f"{meta.kind}{touched.mode:o} {meta.size} {touched.mtime}"
    for path in plan.delete_files:
        check(path)
        del after[path.decode()]
    for path in plan.delete_folders:
        if not any(each.startswith(f"{path.decode()}/") for each in after):
            del after[path.decode()]
    for finished in plan.finish:
        after[finished.path.decode()] = f"d{finished.mode:o} 0 {finished.mtime}"
    return after


def changes(plan: Plan) -> str:
    """A plan in a line."""
    parts = [f"-{path.decode()}" for path in (*plan.clear, *plan.delete_files, *plan.delete_folders)]
    parts += [f"+{item.path.decode()}" for item in plan.send]
    parts += [f"~{each.path.decode()}" for each in (*plan.touch, *plan.finish)]
    return " ".join(sorted(parts))


# The common state, this side, the other side; what is pushed, what is pulled, what is in conflict and in doubt.
PAIRS: dict[str, tuple[Entries, Entries, Entries, str, str, str, str]] = {
    "nothing": ({"a": F}, {"a": F}, {"a": F}, "", "", "", ""),
    "created here": ({}, {"a": F}, {}, "+a", "", "", ""),
    "created there": ({}, {}, {"a": F}, "", "+a", "", ""),
    "created on both, the same": ({}, {"a": F}, {"a": F}, "", "", "", ""),
    "created on both, other sizes": ({}, {"a": F}, {"a": F_NEW}, "", "", "a", ""),
    "created on both, one size": ({}, {"a": F_NEW}, {"a": F_SAME_SIZE}, "", "", "", "a"),
    "edited here": ({"a": F}, {"a": F_NEW}, {"a": F}, "+a", "", "", ""),
    "edited there": ({"a": F}, {"a": F}, {"a": F_NEW}, "", "+a", "", ""),
    "edited on both": ({"a": F}, {"a": F_NEW}, {"a": F_OTHER}, "", "", "a", ""),
    "edited on both, one size": ({"a": F}, {"a": F_NEW}, {"a": F_SAME_SIZE}, "", "", "", "a"),
    "edited on both, the same": ({"a": F}, {"a": F_NEW}, {"a": F_NEW}, "", "", "", ""),
    "deleted here": ({"a": F, "b": F}, {"b": F}, {"a": F, "b": F}, "-a", "", "", ""),
    "deleted there": ({"a": F, "b": F}, {"a": F, "b": F}, {"b": F}, "", "-a", "", ""),
    "deleted on both": ({"a": F, "b": F}, {"b": F}, {"b": F}, "", "", "", ""),
    "deleted here, edited there": ({"a": F, "b": F}, {"b": F}, {"a": F_NEW, "b": F}, "", "+a", "", ""),
    "edited here, deleted there": ({"a": F, "b": F}, {"a": F_NEW, "b": F}, {"b": F}, "+a", "", "", ""),
    "mode here": ({"a": F}, {"a": F_MODE}, {"a": F}, "~a", "", "", ""),
    "mode there": ({"a": F}, {"a": F}, {"a": F_MODE}, "", "~a", "", ""),
    "mode here, edited there": ({"a": F}, {"a": F_MODE}, {"a": F_NEW}, "", "", "a", ""),
    "mode of a folder": ({"d": D}, {"d": D_MODE}, {"d": D}, "~d", "", "", ""),
    "time of a folder": ({"d": D}, {"d": D_TIME}, {"d": D}, "", "", "", ""),
    "renamed here": ({"a": F}, {"b": F}, {"a": F}, "+b -a", "", "", ""),
    "renamed here and there": ({"a": F}, {"b": F}, {"c": F}, "+b", "+c", "", ""),
    "only the case of a name": ({"a": F}, {"A": F}, {"a": F}, "+A -a", "", "", ""),
    "folder created here": ({}, {"d": D, "d/x": F}, {}, "+d/x ~d", "", "", ""),
    "folder deleted here": ({"d": D, "d/x": F, "b": F}, {"b": F}, {"d": D, "d/x": F, "b": F}, "-d -d/x", "", "", ""),
    "folder deleted here, file added there": (
        {"d": D, "d/x": F, "b": F}, {"b": F}, {"d": D, "d/x": F, "d/y": F, "b": F}, "-d/x", "+d/y ~d", "", "",
    ),
    "folder deleted there, file edited here": (
        {"d": D, "d/x": F, "b": F}, {"d": D, "d/x": F_NEW, "b": F}, {"b": F}, "+d/x ~d", "", "", "",
    ),
    "file becomes a folder here": ({"a": F}, {"a": D, "a/x": F}, {"a": F}, "+a/x -a ~a", "", "", ""),
    "folder becomes a file here": ({"a": D, "a/x": F}, {"a": F}, {"a": D, "a/x": F}, "+a -a -a/x", "", "", ""),
    "folder becomes a file here, file in it edited there": (
        {"a": D, "a/x": F}, {"a": F}, {"a": D, "a/x": F_NEW}, "", "", "a", "",
    ),
    "folder becomes a file on both": ({"a": D, "a/x": F}, {"a": F}, {"a": F_NEW}, "", "", "a", ""),
    "file and folder created": ({}, {"a": F}, {"a": D, "a/x": F}, "", "", "a", ""),
    "file becomes a link here": ({"a": F}, {"a": L}, {"a": F}, "+a", "", "", ""),
    "link changed on both": ({"a": L}, {"a": L_NEW}, {"a": L_OTHER}, "", "", "a", ""),
    "link changed there": ({"a": L}, {"a": L}, {"a": L_NEW}, "", "+a", "", ""),
    "link out of the project there": ({}, {}, {"a": L_OUT}, "", "", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "here", "there", "pushed", "pulled", "conflicts", "doubts"), PAIRS.values(), ids=PAIRS
)
def test_each_pair_of_changes(
    base: Entries, here: Entries, there: Entries, pushed: str, pulled: str, conflicts: str, doubts: str
) -> None:
    result = reconcile(folders(base), tree(here), tree(there))
    assert changes(result.push) == " ".join(sorted(pushed.split()))
    assert changes(result.pull) == " ".join(sorted(pulled.split()))
    assert " ".join(each.path.decode() for each in result.conflicts) == conflicts
    assert " ".join(each.path.decode() for each in result.doubts) == doubts


@pytest.mark.parametrize("lost", ["here", "there"])
def test_a_side_that_is_suddenly_empty_stops_everything(lost: str) -> None:
    sides = {"here": tree({"a": F}), "there": tree({"a": F}), lost: tree({})}
    with pytest.raises(SideLost, match="is empty, and was not"):
        reconcile(folders({"a": F}), sides["here"], sides["there"])


def test_a_side_that_was_always_empty_is_filled() -> None:
    assert changes(reconcile({}, tree({"a": F}), tree({})).push) == "+a"


def test_what_may_only_be_out_of_sight_is_not_deleted() -> None:
    result = reconcile(folders({"a": F, "b": F}), tree({"b": F}, unread=1), tree({"a": F, "b": F}))
    assert result.is_quiet
    assert result.base == folders({"a": F, "b": F})


def test_times_in_whole_seconds_are_compared_as_such() -> None:
    coarse, fine = {"a": "f644 3 5000000000"}, {"a": "f644 3 5000000123"}
    assert reconcile(folders(fine), tree(fine), tree(coarse, coarse=True)).is_quiet


# Random histories

PATHS = ("a", "A", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "d/e/w")


@st.composite
def histories(draw: st.DrawFn) -> tuple[Entries, Entries, Entries]:
    """A common state, and what two people made of it."""
    base: Entries = {"keep": "f644 1 1"}
    clock = iter(range(10, 10_000))
    edit(draw, base, clock, draw(st.integers(0, 8)))
    here, there = dict(base), dict(base)
    edit(draw, here, clock, draw(st.integers(0, 6)))
    edit(draw, there, clock, draw(st.integers(0, 6)))
    return base, here, there


def edit(draw: st.DrawFn, side: Entries, clock: object, times: int) -> None:
    for _ in range(times):
        path, kind = draw(st.sampled_from(PATHS)), draw(st.sampled_from("ffffdl-m"))
        moment = next(clock)  # type: ignore[call-overload]
        above = path.rpartition("/")[0]
        if above and not side.get(above, "").startswith("d"):
            continue
        if kind == "m":
            if side.get(path, "").startswith("f"):
                side[path] = side[path].replace("f644", "f755")
            continue
        if not (kind == "d" and side.get(path, "").startswith("d")):
            for gone in [each for each in side if each == path or each.startswith(f"{path}/")]:
                del side[gone]
        if kind != "-":
            size = moment % 3 if kind == "f" else 0
            side[path] = f"{kind}{'777' if kind == 'l' else '755' if kind == 'd' else '644'} {size} {moment}"
            side[path] += f" t{moment}" if kind == "l" else ""


def bare(text: str) -> str:
    """Without the time of a folder, and without the mode and time of a link, which say nothing."""
    fields = text.split(" ")
    return fields[0] if text[0] == "d" else fields[3] if text[0] == "l" else text


@settings(max_examples=400, deadline=None)
@given(histories())
@example(({"keep": "f644 1 1", "d": "d755 0 2"}, {"keep": "f644 1 1", "d": "f644 2 3"}, {"keep": "f644 1 1"}))
def test_nothing_that_a_person_wrote_is_lost_and_both_sides_become_the_same(
    history: tuple[Entries, Entries, Entries],
) -> None:
    base, here, there = history
    result = reconcile(folders(base), tree(here), tree(there))
    after_there = apply(result.push, there, here)
    after_here = apply(result.pull, here, there)
    undecided = [each.path.decode() for each in (*result.conflicts, *result.doubts)]

    def is_undecided(path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in undecided)

    for path in {*after_here, *after_there}:
        if not is_undecided(path):
            assert bare(after_here.get(path, "?")) == bare(after_there.get(path, "?")), path
    for side in (here, there):
        for path, text in side.items():
            if text[0] != "d" and bare(text) != bare(base.get(path, "?")) and text != F_MODE:
                kept = {bare(after.get(path, "?")) for after in (after_here, after_there)}
                only_mode = {each.replace("f755", "f644") for each in kept}
                assert bare(text) in kept or bare(text).replace("f755", "f644") in only_mode, path
    again = reconcile(result.base, tree(after_here), tree(after_there))
    assert (moves(again.push), moves(again.pull)) == (0, 0)
    assert {each.path for each in again.conflicts} == {each.path for each in result.conflicts}
    assert {each.path for each in again.doubts} == {each.path for each in result.doubts}
