"""Two sides and their last common state: every pair of changes by a table, and random histories against a model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.gate import Ground, ResolvedPath
from remote_sandbox_mcp.core.sync.ignore import Ignore
from remote_sandbox_mcp.core.sync.incoming import Sieve
from remote_sandbox_mcp.core.sync.plan import Plan
from remote_sandbox_mcp.core.sync.scope import Scope, survey
from remote_sandbox_mcp.core.sync.transfer import DEFAULT_EXCLUDES
from remote_sandbox_mcp.core.sync.tree import Tree, read_meta
from remote_sandbox_mcp.core.workspaces.reconcile import (
    Reconciled,
    SideLost,
    amend,
    block_of,
    blocks,
    decide,
    moves,
    reconcile,
)
from remote_sandbox_mcp.core.workspaces.workspace import MOST_NEW, MOST_UNASKED_FILES, SMALL_FILE, Rules

Entries = dict[str, str]

F, F_NEW, F_OTHER = "f644 3 5000000000", "f644 4 6000000000", "f644 5 7000000000"
F_MODE, F_SAME_SIZE = "f755 3 5000000000", "f644 4 8000000000"
HOUR, HOUR_LATER = "f644 4 9000000000", "f644 4 3609000000000"
D, D_TIME, D_MODE = "d755 0 5000000000", "d755 0 6000000000", "d700 0 5000000000"
D_SETGID, F_SETUID = "d2755 0 5000000000", "f4644 3 5000000000"
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


def tree(entries: Mapping[str, str], **fields: object) -> Tree:
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
    "mode on both, the same": ({"a": F}, {"a": F_MODE}, {"a": F_MODE}, "", "", "", ""),
    "mode on both": ({"a": F}, {"a": F_MODE}, {"a": "f600 3 5000000000"}, "~a", "", "", ""),
    "mode here, deleted there": ({"a": F, "b": F}, {"a": F_MODE, "b": F}, {"b": F}, "+a", "", "", ""),
    "special bits of a folder here": ({"d": D_SETGID}, {"d": D_SETGID}, {"d": D}, "", "", "", ""),
    "special bits of a folder there": ({"d": D}, {"d": D}, {"d": D_SETGID}, "", "", "", ""),
    "special bits of a file here": ({"a": F_SETUID}, {"a": F_SETUID}, {"a": F}, "", "", "", ""),
    "special bits and a mode there": ({"d": D_SETGID}, {"d": D_SETGID}, {"d": D_MODE}, "", "~d", "", ""),
    "mode of a folder": ({"d": D}, {"d": D_MODE}, {"d": D}, "~d", "", "", ""),
    "time of a folder": ({"d": D}, {"d": D_TIME}, {"d": D}, "", "", "", ""),
    "renamed here": ({"a": F}, {"b": F}, {"a": F}, "+b -a", "", "", ""),
    "renamed here and there": ({"a": F}, {"b": F}, {"c": F}, "+b", "+c", "", ""),
    "renamed here, edited there": ({"a": F}, {"b": F}, {"a": F_NEW}, "+b", "+a", "", ""),
    "renamed on both to one name": ({"a": F}, {"b": F}, {"b": F}, "", "", "", ""),
    "folder renamed here": ({"d": D, "d/x": F}, {"e": D, "e/x": F}, {"d": D, "d/x": F}, "+e/x -d -d/x ~e", "", "", ""),
    "only the case of a name there": ({"a": F}, {"a": F}, {"A": F}, "", "+A -a", "", ""),
    "only the case of a name on both": ({"a": F}, {"A": F}, {"A": F}, "", "", "", ""),
    "only the case of a folder's name": (
        {"d": D, "d/x": F}, {"D": D, "D/x": F}, {"d": D, "d/x": F}, "+D/x -d -d/x ~D", "", "", "",
    ),
    "clock an hour off there": ({}, {"a": HOUR}, {"a": HOUR_LATER}, "", "", "", "a"),
    "clock an hour off there, one edit on both": ({"a": F}, {"a": HOUR}, {"a": HOUR_LATER}, "", "", "", "a"),
    "clock an hour off there, edited there": ({"a": F}, {"a": F}, {"a": HOUR_LATER}, "", "+a", "", ""),
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


def test_an_edit_within_a_second_goes_to_a_side_that_has_whole_seconds() -> None:
    base, edited, there = {"a": "f644 3 5000000123"}, {"a": "f644 3 5000000456"}, {"a": "f644 3 5000000000"}
    assert changes(reconcile(folders(base), tree(edited), tree(there, coarse=True)).push) == "+a"


@pytest.mark.parametrize(
    ("base", "here", "there", "rough", "pushed", "pulled"),
    [
        pytest.param("f644 3 5123456789", "f644 3 5123456789", "f777 3 5120000000", "mt", "", "", id="exFAT"),
        pytest.param("f644 3 5123456789", "f644 3 5123456789", "f644 3 5123456700", "t", "", "", id="NTFS"),
        pytest.param("f644 3 5123456789", "f644 3 5123456789", "f777 3 5120000000", "t", "", "+a", id="has modes"),
        pytest.param("f644 3 5123456789", "f644 3 5123456789", "f644 3 5130000000", "t", "", "+a", id="later there"),
        pytest.param("f644 3 5123456789", "f644 3 5129999999", "f644 3 5120000000", "t", "+a", "", id="edited here"),
        pytest.param("f644 3 5123456789", "f755 3 5123456789", "f777 3 5120000000", "mt", "", "", id="chmod here"),
        pytest.param("f640 3 5123456789", "f640 3 5123456789", "f777 4 6000000000", "mt", "", "+a", id="edited there"),
        pytest.param("f644 3 5123456789", "f644 3 5123456789", "f644 3 5120000000", "", "", "+a", id="none of it"),
    ],
)
def test_what_a_file_system_does_not_keep_is_no_change(
    base: str, here: str, there: str, rough: str, pushed: str, pulled: str
) -> None:
    sides = folders({"a": base}), tree({"a": here}), tree({"a": there}, rough=frozenset(rough))
    result = reconcile(*sides)
    assert (changes(result.push), changes(result.pull), result.conflicts) == (pushed, pulled, [])
    # The common state has the mode of the side that has modes.
    assert result.base[b""].startswith(b"a\0" + (there if pulled and "m" not in rough else here)[:4].encode())


@pytest.mark.parametrize(
    ("equal", "pushed", "conflicts"), [(True, "~a", ""), (False, "", "a")], ids=["the same", "another"]
)
def test_a_doubt_is_settled_by_the_content(equal: bool, pushed: str, conflicts: str) -> None:
    sides = folders({"a": F}), tree({"a": HOUR}), tree({"a": HOUR_LATER})
    result = reconcile(*sides, Scope(equal={b"a": equal}))
    assert (changes(result.push), changes(result.pull), result.doubts) == (pushed, "", [])
    assert "".join(each.path.decode() for each in result.conflicts) == conflicts
    assert result.base == folders({"a": HOUR if equal else F})


@pytest.mark.parametrize("side", ["here", "there"])
def test_a_folder_keeps_its_own_special_bits_when_its_mode_is_carried_over(side: str) -> None:
    before, changed = tree({"d": D_SETGID}), tree({"d": D_MODE})
    sides = (before, changed) if side == "here" else (changed, before)
    result = reconcile(folders({"d": D}), *sides)
    (finished,) = (result.pull if side == "here" else result.push).finish
    assert finished.mode == 0o2700


# What goes and what comes

LARGE = f"f644 {SMALL_FILE + 1} 5000000000"
TEXT, BINARY = {b"a": True, b"d/x": True}, {b"a": False, b"d/x": False}
RULES = Rules(excludes=("/left out/",), includes=("given.key",), pull=("/r/**", "*.png"))

# Base, here, there, what is text there; what is pushed, what is pulled.
SCOPED: dict[str, tuple[Entries, Entries, Entries, dict[bytes, bool], str, str]] = {
    "new here": ({}, {"a": F}, {}, {}, "+a", ""),
    "large here": ({}, {"a": LARGE}, {}, {}, "+a", ""),
    "secret here": ({}, {"k.key": F, "id_rsa": F}, {}, {}, "", ""),
    "secret that is included": ({}, {"given.key": F}, {}, {}, "+given.key", ""),
    "secret there": ({}, {}, {"k.key": F}, {}, "", ""),
    "ignored here": ({}, {"i": D, "i/x": F}, {}, {}, "", ""),
    "ignored there": ({}, {}, {"i": D, "i/x": F}, {}, "", ""),
    "ignored on both, deleted here": ({"b": F}, {"b": F}, {"b": F, "i": D, "i/x": F}, {}, "", ""),
    "ignored since it was sent": ({"i": D, "i/x": F, "b": F}, {"b": F}, {"i": D, "i/x": F, "b": F}, {}, "", ""),
    "ignored there since it came": ({"i": D, "i/x": F, "b": F}, {"i": D, "i/x": F, "b": F}, {"b": F}, {}, "", ""),
    "left out": ({}, {"left out": D, "left out/x.png": F}, {"left out": D, "left out/y.png": F}, {}, "", ""),
    "text there": ({}, {}, {"a": F}, TEXT, "", "+a"),
    "no text there": ({}, {}, {"a": F}, BINARY, "", ""),
    "large there": ({}, {}, {"a": LARGE}, TEXT, "", ""),
    "text edited there": ({"a": F}, {"a": F}, {"a": F_NEW}, TEXT, "", "+a"),
    "no text, edited there": ({"a": F}, {"a": F}, {"a": F_NEW}, BINARY, "", ""),
    "no text, mode there": ({"a": F}, {"a": F}, {"a": F_MODE}, BINARY, "", "~a"),
    "deleted there": ({"a": F, "b": F}, {"a": F, "b": F}, {"b": F}, {}, "", "-a"),
    "large, deleted there": ({"a": LARGE, "b": F}, {"a": LARGE, "b": F}, {"b": F}, {}, "", ""),
    "folder there": ({}, {}, {"d": D, "d/x": F, "d/e": D}, TEXT, "", "+d/x ~d"),
    "folder without text there": ({}, {}, {"d": D, "d/x": F}, BINARY, "", ""),
    "folder with a large file deleted there": (
        {"d": D, "d/x": LARGE, "b": F}, {"d": D, "d/x": LARGE, "b": F}, {"b": F}, {}, "", "",
    ),
    "folder deleted here, no text in it there": (
        {"d": D, "b": F}, {"b": F}, {"d": D, "d/x": F, "b": F}, BINARY, "", "",
    ),
    "result there": ({}, {}, {"r": D, "r/x": LARGE, "d": D, "d/p.png": F}, {}, "", "+d/p.png +r/x ~d ~r"),
    "result deleted there": ({"r": D, "r/x": F}, {"r": D, "r/x": F}, {"r": D}, {}, "", ""),
    "picture of the project": ({}, {"p.png": F}, {}, {}, "+p.png", ""),
    "link out of the project": ({}, {"a": L_OUT}, {"b": L_OUT}, {}, "", ""),
}  # fmt: skip
IGNORES_I = ((b"", b"i/\n"),)


@pytest.mark.parametrize("row", SCOPED.values(), ids=SCOPED)
def test_what_goes_and_what_comes(row: tuple[Entries, Entries, Entries, dict[bytes, bool], str, str]) -> None:
    base, here, there, texts, pushed, pulled = row
    sides = folders(base), tree(here, gitignores=IGNORES_I), tree(there, gitignores=IGNORES_I)
    result = reconcile(*sides, Scope(RULES, texts=texts))
    assert changes(result.push) == " ".join(sorted(pushed.split()))
    assert changes(result.pull) == " ".join(sorted(pulled.split()))
    assert (result.conflicts, result.doubts, result.unseen) == ([], [], [])


def test_a_gitignore_of_one_side_is_enough_to_delete_nothing() -> None:
    """The other side has not got it yet, or a command there has changed it."""
    both = {"i": D, "i/x": F, "b": F}
    for side in ("here", "there"):
        sides = {"here": tree(both), "there": tree(both), side: tree({"b": F}, gitignores=IGNORES_I)}
        result = reconcile(folders(both), sides["here"], sides["there"], Scope(RULES))
        assert result.is_quiet


def test_of_a_new_file_it_is_asked_first_whether_it_is_text() -> None:
    result = reconcile({}, tree({}), tree({"a": F, "r": D, "r/x": F}), Scope(RULES))
    assert (result.unseen, changes(result.pull)) == ([b"a"], "+r/x ~r")


# The common state, here, there; what is pushed, what is pulled and what is in conflict, of what a pattern has brought.
ONE_WAY: dict[str, tuple[Entries, Entries, Entries, str, str, str]] = {
    "edited here": ({"r": D, "r/x": F}, {"r": D, "r/x": F_NEW}, {"r": D, "r/x": F}, "", "", ""),
    "deleted here": ({"r": D, "r/x": F}, {"r": D}, {"r": D, "r/x": F}, "", "", ""),
    "deleted there": ({"r": D, "r/x": F}, {"r": D, "r/x": F}, {"r": D}, "", "", ""),
    "edited there": ({"r": D, "r/x": F}, {"r": D, "r/x": F}, {"r": D, "r/x": F_NEW}, "", "+r/x", ""),
    "deleted here, edited there": ({"r": D, "r/x": F}, {"r": D}, {"r": D, "r/x": F_NEW}, "", "+r/x", ""),
    "edited on both": ({"r": D, "r/x": F}, {"r": D, "r/x": F_NEW}, {"r": D, "r/x": F_OTHER}, "", "", "r/x"),
}


@pytest.mark.parametrize("row", ONE_WAY.values(), ids=ONE_WAY)
def test_what_a_pattern_brought_is_not_carried_back(row: tuple[Entries, Entries, Entries, str, str, str]) -> None:
    base, here, there, pushed, pulled, conflicts = row
    result = reconcile(folders(base), tree(here), tree(there), Scope(RULES, came=frozenset({b"r/x"})))
    assert (changes(result.push), changes(result.pull)) == (pushed, pulled)
    assert " ".join(each.path.decode() for each in result.conflicts) == conflicts


def test_a_pattern_marks_what_it_brings() -> None:
    there = {"r": D, "r/x": F, "p.png": F, "a": F}
    result = reconcile(folders({"p.png": F_NEW}), tree({"p.png": F_NEW}), tree(there), Scope(RULES, texts=TEXT))
    assert result.came == {b"r/x"}


def test_too_many_new_files_stay_there_and_too_many_deletions_do_not_come() -> None:
    many = {f"f{number}": F for number in range(MOST_NEW + 1)}
    texts = {path.encode(): True for path in many}
    result = reconcile({}, tree({}), tree({**many, "r": D, "r/x": F}), Scope(RULES, texts=texts))
    assert (result.stayed, changes(result.pull)) == (MOST_NEW + 1, "+r/x ~r")
    result = reconcile(folders({**many, "b": F}), tree({**many, "b": F}), tree({"b": F}), Scope(RULES))
    assert (result.spared, changes(result.pull)) == (MOST_NEW + 1, "")
    # So many that it is not even asked which of them are text.
    more = {f"f{number}": F for number in range(4 * MOST_NEW + 1)}
    result = reconcile({}, tree({}), tree(more), Scope(RULES))
    assert (result.stayed, result.unseen) == (4 * MOST_NEW + 1, [])


def test_a_whole_data_set_does_not_come_although_it_fits_a_pattern() -> None:
    names = {f"n{number}.png".encode(): F.encode() for number in range(MOST_UNASKED_FILES + 1)}
    there = Tree("dir", "/side", "/side", "/home/me", folders={b"": block_of(names)})
    result = reconcile({}, tree({}), there, Scope(RULES))
    assert (result.stayed, changes(result.pull)) == (MOST_UNASKED_FILES + 1, "")


@pytest.mark.parametrize("path", [".vscode/tasks.json", ".envrc", "sub/.git/hooks/pre-commit"])
def test_what_would_start_a_program_never_comes(path: str) -> None:
    there, above = {path: F}, path.rpartition("/")[0]
    while above:
        there[above], above = D, above.rpartition("/")[0]
    sieve = Sieve(ResolvedPath("/home/me/project"), Ground())
    rules = Rules(includes=(".envrc",), excludes=("!.git",), pull=("*",))
    result = reconcile({}, tree({}), tree(there), Scope(rules, sieve=sieve))
    assert changes(result.pull) == ""
    assert list(result.held) == [path.encode()]
    decided = reconcile({}, tree({}), tree(there), Scope(rules, sieve=sieve, decided=frozenset({path.encode()})))
    assert changes(decided.pull) == ""
    assert "left out" in decided.pull.problems[0].reason


# What a decision makes of a conflict: here, there, what is pushed and pulled if this side or the other is kept.
DECIDED: dict[str, tuple[Entries, Entries, tuple[str, str], tuple[str, str]]] = {
    "a file": ({"a": F_NEW}, {"a": F_OTHER}, ("+a", ""), ("", "+a")),
    "a file that is deleted there": ({"a": F_NEW}, {}, ("+a", ""), ("", "-a")),
    "a large file": ({"a": F}, {"a": LARGE}, ("+a", ""), ("", "+a")),
    "a file and a folder": ({"a": F}, {"a": D, "a/x": F}, ("+a -a -a/x", ""), ("", "+a/x -a ~a")),
    "a folder": ({"a": D, "a/x": F}, {"a": D, "a/y": LARGE}, ("+a/x -a/y", ""), ("", "+a/y -a/x")),
}


@pytest.mark.parametrize("row", DECIDED.values(), ids=DECIDED)
@pytest.mark.parametrize("keep", ["here", "there"])
def test_a_decision_makes_one_side_like_the_other(
    row: tuple[Entries, Entries, tuple[str, str], tuple[str, str]], keep: str
) -> None:
    here, there = tree({**row[0], "b": F}), tree({**row[1], "b": F})
    decided = frozenset({b"a"})
    kept = (decided, frozenset()) if keep == "here" else (frozenset(), decided)
    base = decide(folders({"a": F, "b": F}), here, there, *kept)
    result = reconcile(base, here, there, Scope(RULES, decided=decided))
    wanted = row[2] if keep == "here" else row[3]
    assert (changes(result.push), changes(result.pull)) == tuple(" ".join(sorted(part.split())) for part in wanted)
    assert result.conflicts == result.doubts == []


# What a decision for this side does not send, and what it does: the common state, here, there, and what is pushed.
HELD_BACK: dict[str, tuple[Entries, Entries, Entries, str]] = {
    "a secret that only this side has": ({}, {"r": D, "r/.env": F}, {"r": D}, ""),
    "a secret that the other side has, too": ({}, {"r": D, "r/.env": F}, {"r": D, "r/.env": F_NEW}, ""),
    "a secret that no pattern brings": ({}, {"k.key": F}, {"k.key": F_NEW}, ""),
    "an excluded result": ({}, {"left out": D, "left out/x.png": F}, {"left out": D, "left out/x.png": F_NEW}, ""),
    "an ignored result that only this side has": ({}, {"r": D, "r/i.o": F}, {"r": D}, ""),
    "an ignored result that both sides have": ({}, {"r": D, "r/i.o": F}, {"r": D, "r/i.o": F_NEW}, "+r/i.o"),
    "a result": ({"r": D, "r/x": F}, {"r": D, "r/x": F_NEW}, {"r": D, "r/x": F_OTHER}, "+r/x"),
}


@pytest.mark.parametrize("row", HELD_BACK.values(), ids=HELD_BACK)
def test_a_decision_sends_nothing_that_rules_leave_out(row: tuple[Entries, Entries, Entries, str]) -> None:
    base, here, there, pushed = row
    ignores = ((b"", b"*.o\n"),)
    sides = tree({**here, "b": F}, gitignores=ignores), tree({**there, "b": F}, gitignores=ignores)
    decided = frozenset(path.encode() for path in here)
    known = decide(folders({**base, "b": F}), *sides, decided, frozenset())
    result = reconcile(known, *sides, Scope(RULES, decided=decided, came=frozenset({b"r/x"})))
    assert (changes(result.push), changes(result.pull), result.conflicts) == (pushed, "", [])


def test_a_survey_counts_what_goes_and_names_what_does_not() -> None:
    found = survey(
        tree({"a": F, "k.key": F, "i": D, "i/x": F, "l": L_OUT, "credentials": D, "credentials/x": F, "d": D}),
        RULES,
        ("/closed",),
    )
    assert (found.files, found.bytes, sorted(found.secrets), found.links) == (2, 6, ["credentials", "k.key"], ["l"])


def test_entries_of_a_common_state_can_be_amended() -> None:
    base = folders({"a": F, "d": D, "d/x": F})
    amend(base, {b"a": None, b"d/x": F_NEW.encode(), b"e/z": F.encode()})
    assert {folder: block for folder, block in base.items() if block} == folders({"d": D, "d/x": F_NEW}) | {
        b"e": b"z\0" + F.encode()
    }


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


def edit(draw: st.DrawFn, side: Entries, clock: object, times: int, paths: tuple[str, ...] = PATHS) -> None:
    for _ in range(times):
        path, kind = draw(st.sampled_from(paths)), draw(st.sampled_from("ffffdl-m"))
        if path == "i" and kind != "d":
            continue
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
            size = (moment % 3 if moment % 5 else SMALL_FILE + 1) if kind == "f" else 0
            side[path] = f"{kind}{'777' if kind == 'l' else '755' if kind == 'd' else '644'} {size} {moment}"
            side[path] += f" t{moment}" if kind == "l" else ""


def bare(text: str) -> str:
    """Without the time of a folder, and without the mode and time of a link, which say nothing."""
    fields = text.split(" ")
    return fields[0] if text[0] == "d" else fields[3] if text[0] == "l" else text


@settings(max_examples=80, deadline=None)
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


# With rules. Paths of each kind: ordinary ones, results, secrets, ignored ones, and those that act by their names.
ACTING = (".gitignore", "d/CLAUDE.md", "r/.x")
SCOPED_PATHS = (*PATHS, "r", "r/x", "r/y", "d/p.png", "k.key", "i", "i/x", "d/k.key", *ACTING)


@st.composite
def scoped_histories(draw: st.DrawFn) -> tuple[Entries, Entries, Entries, tuple[bytes, bytes], frozenset[bytes]]:
    """The same, with the .gitignore of each side, and what a pattern has brought."""
    base: Entries = {"keep": "f644 1 1"}
    clock = iter(range(10, 10_000))
    edit(draw, base, clock, draw(st.integers(0, 10)), SCOPED_PATHS)
    here, there = dict(base), dict(base)
    edit(draw, here, clock, draw(st.integers(0, 7)), SCOPED_PATHS)
    edit(draw, there, clock, draw(st.integers(0, 7)), SCOPED_PATHS)
    ignores = draw(st.tuples(st.sampled_from([b"", b"i/\n"]), st.sampled_from([b"", b"i/\n"])))
    came = draw(st.frozensets(st.sampled_from([b"r/x", b"r/y"])))
    return base, here, there, ignores, came


def shown(side: Entries, gitignore: bytes) -> Entries:
    """What a scan of a side shows."""
    ignore = Ignore([line.encode() for line in (*DEFAULT_EXCLUDES, *RULES.scan_lines())])
    ignore.add(b"", gitignore)
    return {
        path: text for path, text in side.items() if not ignore.leaves_out_below(path.encode(), text.startswith("d"))
    }


def listed(side: Entries, gitignore: bytes) -> Tree:
    """A side as a scan lists it."""
    return tree(shown(side, gitignore), gitignores=((b"", gitignore),) if gitignore else ())


def replaces_more_than_it_sees(plan: Plan, side: Entries, gitignore: bytes) -> bool:
    """Whether a folder is to go that holds what no scan shows: refused when it is tried."""
    hidden = side.keys() - shown(side, gitignore).keys()
    return any(path.startswith(f"{cleared.decode()}/") for cleared in plan.clear for path in hidden)


def is_text(text: str) -> bool:
    return int(text.split(" ")[2]) % 2 == 0


def settle(base: dict[bytes, bytes], here: Tree, there: Tree, came: frozenset[bytes], there_all: Entries) -> Reconciled:
    result = reconcile(base, here, there, Scope(RULES, came=came))
    texts = {path: is_text(there_all[path.decode()]) for path in result.unseen}
    return reconcile(base, here, there, Scope(RULES, came=came, texts=texts))


# A folder got a file here, and became a file there that does not come.
IN_THE_WAY: tuple[Entries, Entries, Entries, tuple[bytes, bytes], frozenset[bytes]] = (
    {"keep": "f644 1 1", "r": "d755 0 11"},
    {"keep": "f644 1 1", "r": "d755 0 11", "r/x": "f644 1 16"},
    {"keep": "f644 1 1", "r": "f644 2 17"},
    (b"", b""),
    frozenset(),
)
# Deleted here, and there meanwhile too large to come: each side keeps what it made of it.
GROWN_THERE: tuple[Entries, Entries, Entries, tuple[bytes, bytes], frozenset[bytes]] = (
    {"keep": "f644 1 1", "a": "f644 1 16", ".gitignore": "f644 2 17"},
    {"keep": "f644 1 1", "a": "f644 2 23"},
    {"keep": "f644 1 1", "a": "f644 0 24", ".gitignore": "f644 262145 25"},
    (b"", b""),
    frozenset(),
)


@settings(max_examples=80, deadline=None)
@given(scoped_histories())
@example(IN_THE_WAY)
@example(GROWN_THERE)
def test_within_its_scope_nothing_is_lost_and_both_sides_become_the_same(
    history: tuple[Entries, Entries, Entries, tuple[bytes, bytes], frozenset[bytes]],
) -> None:
    base, here, there, ignores, came = history
    common = dict(listed(base, b"").folders)
    result = settle(common, listed(here, ignores[0]), listed(there, ignores[1]), came, there)
    assume(not replaces_more_than_it_sees(result.push, there, ignores[1]))
    assume(not replaces_more_than_it_sees(result.pull, here, ignores[0]))
    after_there, after_here = apply(result.push, there, here), apply(result.pull, here, there)
    undecided = [each.path.decode() for each in (*result.conflicts, *result.doubts)]

    for side, after in ((here, after_here), (there, after_there)):
        for path, text in side.items():
            changed = bare(text) != bare(base.get(path, "?"))
            is_out = path.endswith(".key") or (path.startswith("i") and any(ignores))
            if text[0] != "d" and (changed or is_out or path.encode() in came):
                # Only a mode may be carried over to what a side wrote itself, and a newer result to one that came.
                newer = path.encode() in came and not changed and side is here
                kept = bare(after.get(path, "?")).replace("f755", "f644")
                assert kept == bare(text).replace("f755", "f644") or (newer and path in after), path
    for path in ACTING:
        assert bare(after_here.get(path, "?")) == bare(here.get(path, "?")), path
    for path in {*after_here, *after_there}:
        one, other = after_here.get(path, "?"), after_there.get(path, "?")
        if bare(one) == bare(other) or any(path == each or path.startswith(f"{each}/") for each in undecided):
            continue
        why = reasons(path, one, other, base.get(path, "?"), came)
        assert why, (path, one, other)
    now_here, now_there = listed(after_here, ignores[0]), listed(after_there, ignores[1])
    again = settle(result.base, now_here, now_there, came | result.came, after_there)
    assert (moves(again.push), moves(again.pull)) == (0, 0)
    assert {each.path for each in again.conflicts} == {each.path for each in result.conflicts}


def reasons(path: str, here: str, there: str, base: str, came: frozenset[bytes]) -> str:
    """Why two sides may differ at a path; empty where they may not."""
    if path in ACTING and here == base:
        return "what is there does not come"
    if path.endswith(".key") or path.startswith("i"):
        return "it is left out"
    if "d" in (here[0], there[0]):
        return "a folder may hold what does not come"
    if path.startswith("r/") or path.endswith(".png"):
        return "results do not go back, and are not deleted" if there == "?" or path.encode() in came else ""
    if there[0] == "f" and (read_meta(there.encode()).size > SMALL_FILE or not is_text(there)):
        return "it is not a small text file"
    return "it was large" if there == "?" and read_meta(here.encode()).size > SMALL_FILE else ""
