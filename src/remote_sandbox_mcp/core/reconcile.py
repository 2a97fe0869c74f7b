"""Two sides of a workspace and their last common state: what each takes over from the other, and what is a conflict.

What changed on one side is carried to the other; what changed on both is a conflict, of which nothing is overwritten.
A change wins over a deletion. Everything here is a pure function of three scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .errors import SandboxError
from .files import Problem
from .plan import Attributes, Item, Plan
from .tree import LEADS_OUT, SECOND, Tree, child, leads_out, read_meta, size_of, without_special_bits

# Who has to take something over.
HERE, THERE = "here", "there"


class SideLost(SandboxError):
    """One side is gone, empty or unreadable all of a sudden: carrying that over would delete the other one."""

    code = "workspace"


@dataclass(frozen=True)
class Conflict:
    """A path that changed on both sides, and each side's entry as it was scanned; empty where there is none."""

    path: bytes
    here: bytes
    there: bytes


@dataclass(frozen=True)
class Doubt:
    """A file that changed on both sides and has the same size there: its content decides whether that is a conflict."""

    path: bytes
    here: bytes
    there: bytes


@dataclass
class Reconciled:
    """What to do: `push` makes the other side like this one where only this one changed, `pull` the reverse.

    `base` is the common state once all of it is done; paths in conflict or doubt keep what they had.
    """

    push: Plan = field(default_factory=Plan)
    pull: Plan = field(default_factory=Plan)
    conflicts: list[Conflict] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    base: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)

    @property
    def is_quiet(self) -> bool:
        """Whether both sides are the same already."""
        return not (self.conflicts or self.doubts or moves(self.push) or moves(self.pull))


def moves(plan: Plan) -> int:
    """How many things a plan changes."""
    deleted = len(plan.clear) + len(plan.delete_files) + len(plan.delete_folders)
    return deleted + len(plan.send) + len(plan.touch) + len(plan.finish)


def check_sides(base: Mapping[bytes, bytes], here: Tree, there: Tree) -> None:
    """Raises SideLost where a side cannot be what it was: an unmounted disk, a folder that somebody emptied."""
    had_something = any(base.values())
    for tree, other in ((here, there), (there, here)):
        if tree.kind != "dir" and (had_something or other.kind != "dir" or tree is here):
            raise SideLost(f"{tree.path} is not a folder any more; nothing was changed on either side")
        if had_something and tree.is_empty:
            raise SideLost(
                f"{tree.path} is empty, and was not when both sides were last the same: its disk may not be mounted; "
                f"nothing was changed on either side"
            )


def reconcile(base: Mapping[bytes, bytes], here: Tree, there: Tree) -> Reconciled:
    """Decide about every path. `base` maps a folder to its raw entries, as Tree.folders does. Raises SideLost."""
    check_sides(base, here, there)
    return _Reconciler(Tree("dir", "", "", "", folders=dict(base)), here, there).reconcile()


@dataclass(frozen=True)
class _Choice:
    """One path: `to` is the side that takes over `text` (None: it deletes what it has, which is `found`)."""

    to: str
    text: bytes | None
    found: bytes | None


class _Reconciler:
    def __init__(self, base: Tree, here: Tree, there: Tree) -> None:
        self.base, self.here, self.there = base, here, there
        self.is_coarse = here.coarse or there.coarse
        # Where a part of a side could not be read, what seems to be missing there may be in that part.
        self.blind = {HERE: bool(here.unread), THERE: bool(there.unread)}
        self.choices: dict[bytes, _Choice] = {}
        self.result = Reconciled()
        # Paths at which something stays or comes, in folders that are not the same everywhere.
        self.staying: set[bytes] = set()

    def reconcile(self) -> Reconciled:
        folders = sorted({*self.base.folders, *self.here.folders, *self.there.folders})
        for folder in folders:
            self.judge_folder(folder)
        self.drop_below_conflicts()
        self.keep_folders_that_hold_something()
        self.write_plans()
        self.write_base(folders)
        return self.result

    # One folder, one path

    def judge_folder(self, folder: bytes) -> None:
        blocks = {tree.folders.get(folder, b"") for tree in (self.here, self.there)}
        if len(blocks) == 1:
            return
        base, here, there = (tree.entries(folder) for tree in (self.base, self.here, self.there))
        for name in sorted({*base, *here, *there}):
            self.judge(child(folder, name), base.get(name), here.get(name), there.get(name))

    def judge(self, path: bytes, base: bytes | None, here: bytes | None, there: bytes | None) -> None:
        if self.same(here, there):
            if here is not None:
                self.staying.add(path)
        elif self.same(base, here):
            self.take_over(path, HERE, there, here)
        elif self.same(base, there):
            self.take_over(path, THERE, here, there)
        else:
            self.judge_both(path, here, there)

    def judge_both(self, path: bytes, here: bytes | None, there: bytes | None) -> None:
        """Both sides changed, and differ."""
        if here is None or there is None:
            # Deleted on one side and changed on the other: who changed it wants it.
            self.take_over(path, HERE if here is None else THERE, there if here is None else here, None)
        elif here[:1] == there[:1] == b"d" or self.same_content(here, there):
            # Only their modes differ.
            self.take_over(path, THERE, here, there)
        elif here[:1] == there[:1] == b"f" and size_of(here) == size_of(there):
            self.staying.add(path)
            self.result.doubts.append(Doubt(path, here, there))
        else:
            self.conflict(path, here, there)

    def take_over(self, path: bytes, to: str, text: bytes | None, found: bytes | None) -> None:
        came_from = THERE if to == HERE else HERE
        if text is None and self.blind[came_from]:
            # It may only be out of sight.
            self.staying.add(path)
            return
        if to == HERE and text is not None and self.leads_out(path, text):
            self.result.pull.problems.append(Problem(path.decode("utf-8", "surrogateescape"), LEADS_OUT))
            return
        self.choices[path] = _Choice(to, text, found)
        if text is not None:
            self.staying.add(path)

    def leads_out(self, path: bytes, text: bytes) -> bool:
        """Whether the other machine has made a link that leads out of the project: it must not reach this computer."""
        return text[:1] == b"l" and leads_out(path.rpartition(b"/")[0], read_meta(text).target)

    def conflict(self, path: bytes, here: bytes | None, there: bytes | None) -> None:
        self.staying.add(path)
        self.choices.pop(path, None)
        self.result.conflicts.append(Conflict(path, here or b"", there or b""))

    # What counts as the same

    def same(self, one: bytes | None, other: bytes | None) -> bool:
        if one is None or other is None or one == other:
            return one == other
        return _head(one) == _head(other) and self.same_content(one, other)

    def same_content(self, one: bytes, other: bytes) -> bool:
        """By kind, size and time, as the scans have them; the time of a folder says nothing."""
        left, right = read_meta(one), read_meta(other)
        if left.kind != right.kind or left.size != right.size or left.target != right.target:
            return False
        unit = SECOND if self.is_coarse else 1
        return left.kind != "f" or left.mtime // unit == right.mtime // unit

    # What depends on other paths

    def drop_below_conflicts(self) -> None:
        """Where a file takes the place of a folder in which something stays, that is a conflict of the folder itself.

        Below a conflict nothing is done, because one of the sides may have no folder there.
        """
        holders = {above for path in self.staying for above in _above(path)}
        for path, choice in list(self.choices.items()):
            if choice.text is not None and choice.text[:1] != b"d" and path in holders:
                texts = (choice.found, choice.text) if choice.to == HERE else (choice.text, choice.found)
                self.conflict(path, *texts)
        closed = {conflict.path for conflict in self.result.conflicts}
        doomed = [path for path in self.choices if any(above in closed for above in _above(path))]
        for path in doomed:
            del self.choices[path]
        inside = closed.intersection
        self.result.conflicts = [each for each in self.result.conflicts if not inside(_above(each.path))]
        self.result.doubts = [each for each in self.result.doubts if not inside(_above(each.path))]
        self.staying = {path for path in self.staying if not inside(_above(path))}

    def keep_folders_that_hold_something(self) -> None:
        """A folder that one side deleted comes back where the other side has changed something in it."""
        holders = {above for path in self.staying for above in _above(path)}
        for path, choice in list(self.choices.items()):
            if choice.text is None and choice.found is not None and choice.found[:1] == b"d" and path in holders:
                self.choices[path] = _Choice(THERE if choice.to == HERE else HERE, choice.found, None)
                self.staying.add(path)

    # The plans

    def write_plans(self) -> None:
        for path in sorted(self.choices):
            choice = self.choices[path]
            self.write_choice(self.result.push if choice.to == THERE else self.result.pull, path, choice)
        for plan in (self.result.push, self.result.pull):
            self.delete_before_a_name_comes_back(plan)
            plan.finish.sort(key=lambda item: (-item.path.count(b"/"), item.path))
            plan.delete_folders.sort(key=lambda path: -path.count(b"/"))
            plan.clear.sort(key=lambda path: -path.count(b"/"))

    def write_choice(self, plan: Plan, path: bytes, choice: _Choice) -> None:
        text, found = choice.text, choice.found
        if found is not None and found[:1] != b"d":
            plan.found[path] = found
        if text is None:
            (plan.delete_folders if found is not None and found[:1] == b"d" else plan.delete_files).append(path)
            return
        if found is not None and found[:1] != text[:1] and b"d" in (found[:1], text[:1]):
            plan.clear.append(path)
            plan.clear += [below for below in self.deleted_below(path, choice.to)]
            found = None
        text = without_special_bits(text, found or b"")
        meta = read_meta(text)
        if meta.kind == "d":
            plan.new_folders += found is None
            plan.finish.append(Attributes(path, meta.mode, meta.mtime))
        elif found is not None and self.same_content(text, found):
            plan.touch.append(Attributes(path, meta.mode, meta.mtime))
        else:
            folder, _, name = path.rpartition(b"/")
            plan.send.append(Item(folder, name, text, meta.size, "new" if found is None else "changed"))

    def deleted_below(self, folder: bytes, side: str) -> Iterator[bytes]:
        """What a side has in a folder whose place something else takes: cleared before, not deleted after."""
        start = folder + b"/"
        for path, choice in self.choices.items():
            if path.startswith(start) and choice.to == side and choice.text is None:
                yield path

    def delete_before_a_name_comes_back(self, plan: Plan) -> None:
        """A name of which only the case has changed is deleted first: both may be one file on the other side."""
        coming = {item.path.lower() for item in plan.send} | {item.path.lower() for item in plan.finish}
        cleared = set(plan.clear)
        first = [path for path in plan.delete_files if path.lower() in coming and path not in cleared]
        plan.clear += first
        gone = cleared.union(first)
        plan.delete_files = [path for path in plan.delete_files if path not in gone]
        plan.delete_folders = [path for path in plan.delete_folders if path not in gone]

    # The next common state

    def write_base(self, folders: Iterable[bytes]) -> None:
        undecided = {each.path for each in self.result.conflicts} | {each.path for each in self.result.doubts}
        for folder in folders:
            if any(above in undecided for above in (folder, *_above(folder))):
                entries: dict[bytes, bytes] = self.base.entries(folder)
            else:
                entries = {name: text for name, text in self.agreed(folder, undecided)}
            if entries or not folder:
                self.result.base[folder] = entries

    def agreed(self, folder: bytes, undecided: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
        base, here, there = (tree.entries(folder) for tree in (self.base, self.here, self.there))
        for name in sorted({*base, *here, *there}):
            path = child(folder, name)
            choice = self.choices.get(path)
            if choice is not None:
                text = choice.text
            elif path in undecided or not self.same(here.get(name), there.get(name)):
                text = base.get(name)
            else:
                text = here.get(name)
            if text is not None:
                yield name, text


def without(base: Mapping[bytes, Mapping[bytes, bytes]], old: Callable[[bytes, bytes], bytes | None],
            failed: Iterable[bytes]) -> dict[bytes, dict[bytes, bytes]]:  # fmt: skip
    """A common state in which what could not be carried out is as it was before."""
    changed = {folder: dict(entries) for folder, entries in base.items()}
    for path in failed:
        folder, _, name = path.rpartition(b"/")
        before = old(folder, name)
        if before is None:
            changed.get(folder, {}).pop(name, None)
        else:
            changed.setdefault(folder, {})[name] = before
    return changed


def blocks(base: Mapping[bytes, Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """A common state as it is kept: each folder's entries as a scan writes them."""
    return {
        folder: b"\0".join(part for name in sorted(entries) for part in (name, entries[name]))
        for folder, entries in base.items()
    }


def _head(text: bytes) -> bytes:
    """Kind and mode. The mode of a link says nothing."""
    return b"l" if text[:1] == b"l" else text.partition(b" ")[0]


def _above(path: bytes) -> Iterator[bytes]:
    """The folders that a path is in, without the project's own."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
