"""Two sides of a workspace and their last common state: what each takes over from the other, and what is a conflict.

What changed on one side is carried to the other; what changed on both is a conflict, of which nothing is overwritten.
A change wins over a deletion. Everything here is a pure function of three scans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import SandboxError
from ..sync.plan import Attributes, Item, Plan
from ..sync.scope import ASK, EVERYTHING, HELD, YES, AppliedScope, Scope, folders_above, is_among
from ..sync.tree import (
    PLAIN_HEAD,
    SECOND,
    SPECIAL,
    Tree,
    child,
    has_special_bits,
    read_meta,
    size_of,
    without_special_bits,
)
from .workspace import MOST_NEW, MOST_UNASKED_FILES

# Who has to take something over.
HERE, THERE = "here", "there"
# To what file systems round times: NTFS and SMB, servers of NFS, exFAT, HFS+ and older ones, FAT.
ROUND_UNITS = (100, 1000, 1_000_000, 10_000_000, SECOND, 2 * SECOND)
LEFT_ALONE = (
    "nothing was changed on either side. Bring its files back or, if they are to stay away, unlink and link again"
)


class SideLost(SandboxError):
    """One side is gone, empty or unreadable all of a sudden: carrying that over would delete the other one."""

    code = "workspace"


def other_folder_here(folder: str) -> SideLost:
    """The error for a local folder that is not the one that was linked."""
    return SideLost(
        f"{folder} is not the folder that was linked: another one is in its place, as where a disk is not mounted; "
        "nothing was changed on either side. If it is your project all the same, unlink and link again"
    )


@dataclass(frozen=True)
class Conflict:
    """A path that changed on both sides, and each side's entry as it was scanned; empty where there is none."""

    path: bytes
    here: bytes
    there: bytes


class Doubt(Conflict):
    """A file that changed on both sides and has the same size there: its content decides whether that is a conflict."""


@dataclass
class Reconciled:
    """Plans of a pass: `push` makes the other side like this one where only this one changed, `pull` the reverse.

    `base` is the common state once all of it is done, as Tree.folders has one; paths in conflict or doubt keep what
    they had.
    """

    push: Plan = field(default_factory=Plan)
    pull: Plan = field(default_factory=Plan)
    conflicts: list[Conflict] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    # Files of which it must be known whether they are text before they come.
    unseen: list[bytes] = field(default_factory=list)
    # How many new files are too many to come, and how many deletions there are too many to be carried over.
    stayed: int = 0
    spared: int = 0
    # Files that stay there, or deletions that do not come, because of their names, with the other side's entry.
    held: dict[bytes, bytes] = field(default_factory=dict)
    # What pull patterns bring.
    came: set[bytes] = field(default_factory=set)
    base: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def is_quiet(self) -> bool:
        """Whether both sides are the same already."""
        return not (self.conflicts or self.doubts or moves(self.push) or moves(self.pull))


def moves(plan: Plan) -> int:
    """Return how many things a plan changes."""
    deleted = len(plan.clear) + len(plan.delete_files) + len(plan.delete_folders)
    return deleted + len(plan.send) + len(plan.touch) + len(plan.finish)


def check_sides(base: Mapping[bytes, bytes], here: Tree, there: Tree, name_there: str = "") -> None:
    """Raises SideLost where a side cannot be what it was: an unmounted disk, a folder that somebody emptied."""
    had_something = any(base.values())
    for tree, other, name in ((here, there, here.path), (there, here, name_there or there.path)):
        if tree.kind != "dir" and (had_something or other.kind != "dir" or tree is here):
            raise SideLost(f"{name} is not a folder any more; {LEFT_ALONE}")
        if had_something and tree.is_empty:
            raise SideLost(
                f"{name} is empty, and was not when both sides were last the same: its disk may not be mounted; "
                f"{LEFT_ALONE}"
            )


def reconcile(base: Mapping[bytes, bytes], here: Tree, there: Tree, scope: Scope = EVERYTHING) -> Reconciled:
    """Decide about every path. `base` maps a folder to its raw entries, as Tree.folders does. Raises SideLost.

    Where the result has doubts or unseen files, they are to be settled, and asked about again with what is known.
    """
    check_sides(base, here, there)
    return _Reconciler(_as_tree(base), here, there, scope).reconcile()


def decide(
    base: Mapping[bytes, bytes], here: Tree, there: Tree, keep_here: Collection[bytes], keep_there: Collection[bytes]
) -> dict[bytes, bytes]:
    """A common state by which this side wins at the first paths, and the other one at the second ones."""
    losers = [(frozenset(keep_here), there), (frozenset(keep_there), here)]
    folders = {folder: dict(_as_tree(base).entries(folder)) for folder in {*base, *here.folders, *there.folders}}
    for paths, loser in losers if keep_here or keep_there else ():
        for folder, entries in folders.items():
            found = loser.entries(folder)
            for name in {*entries, *found}:
                if is_among(child(folder, name), paths):
                    # It counts as unchanged since both were the same, so the other one's change is carried over.
                    entries.pop(name, None)
                    entries |= {name: found[name]} if name in found else {}
    return blocks(folders)


def _as_tree(base: Mapping[bytes, bytes]) -> Tree:
    return Tree("dir", "", "", "", folders=dict(base))


@dataclass(frozen=True)
class _Choice:
    """One path: `to` is the side that takes over `text` (None: it deletes what it has, which is `found`)."""

    to: str
    text: bytes | None
    found: bytes | None


class _Reconciler:
    def __init__(self, base: Tree, here: Tree, there: Tree, scope: Scope) -> None:
        self.base, self.here, self.there = base, here, there
        self.applied = AppliedScope(scope, here, there)
        self.is_coarse = here.coarse or there.coarse
        self.is_modeless = "m" in here.rough | there.rough
        self.is_rounding = "t" in there.rough
        # Where a part of a side could not be read, what seems to be missing there may be in that part.
        self.blind = {HERE: bool(here.unread), THERE: bool(there.unread)}
        self.choices: dict[bytes, _Choice] = {}
        self.result = Reconciled()
        # Paths at which something stays or comes, in folders that are not the same everywhere.
        self.staying: set[bytes] = set()
        # Paths that are left out of the workspace.
        self.out: set[bytes] = set()
        # Where the other side has times in whole seconds, an edit within one shows on this side only.
        self.edited: set[bytes] = set()
        # Files whose content was found to be the same.
        self.equal: set[bytes] = set()

    def reconcile(self) -> Reconciled:
        folders = sorted({*self.base.folders, *self.here.folders, *self.there.folders})
        for folder in folders:
            self.judge_folder(folder)
        self.drop_below_conflicts()
        self.bound_what_comes()
        self.drop_folders_in_which_nothing_comes()
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
        if here is not None or there is not None:
            self.staying.add(path)
        if (self.is_coarse or self.is_rounding) and base is not None and not self.same(base, here, exactly=True):
            self.edited.add(path)
        if self.same(here, there) and path not in self.edited:
            return
        if self.applied.is_out(path, b"d" in {(text or b"")[:1] for text in (base, here, there)}):
            self.out.add(path)
        elif self.applied.is_frozen(path):
            return
        elif self.same(base, here, exactly=True):
            self.take_over(path, HERE, there, here)
        elif self.same(base, there):
            self.take_over(path, THERE, here, there)
        else:
            self.judge_both(path, here, there)

    def judge_both(self, path: bytes, here: bytes | None, there: bytes | None) -> None:
        """Decide about a path that both sides changed differently."""
        if here is None or there is None:
            # Deleted on one side and changed on the other: who changed it wants it.
            self.take_over(path, HERE if here is None else THERE, there if here is None else here, None)
            if self.result.held.pop(path, None):
                self.conflict(path, here, there)
        elif here[:1] == there[:1] == b"d" or self.same_content(here, there):
            # Only their modes differ.
            self.take_over(path, THERE, here, there)
        elif here[:1] == there[:1] == b"f" and size_of(here) == size_of(there):
            self.judge_doubt(Doubt(path, here, there))
        else:
            self.conflict(path, here, there)

    def judge_doubt(self, doubt: Doubt) -> None:
        is_equal = self.applied.scope.equal.get(doubt.path)
        if is_equal is None:
            self.result.doubts.append(doubt)
        elif not is_equal:
            self.conflict(doubt.path, doubt.here, doubt.there)
        else:
            # Only the time is carried over, so that both are the same from now on.
            self.equal.add(doubt.path)
            one_way = self.applied.is_one_way(doubt.path)
            texts = (doubt.there, doubt.here) if one_way else (doubt.here, doubt.there)
            self.choices[doubt.path] = _Choice(HERE if one_way else THERE, *texts)

    def take_over(self, path: bytes, to: str, text: bytes | None, found: bytes | None) -> None:
        came_from = THERE if to == HERE else HERE
        if text is None and self.blind[came_from]:
            # It may only be out of sight.
            return
        if to == HERE:
            answer = self.applied.comes(path, text, found, self.result.pull.problems)
        else:
            answer = self.applied.goes(path, text, found, self.result.push.problems)
        if answer == YES:
            giver = self.there if to == HERE else self.here
            self.choose(path, _Choice(to, _with_mode_of(text, found) if "m" in giver.rough else text, found))
        elif answer == ASK:
            self.result.unseen.append(path)
        elif answer == HELD:
            self.hold(path, text, found)

    def hold(self, path: bytes, text: bytes | None, found: bytes | None) -> None:
        """Leave something there. Where only its time is another one than here, it gets that of this side."""
        if text and found and _plain_head(text) == _plain_head(found) and size_of(text) == size_of(found):
            is_equal = self.applied.scope.equal.get(path)
            if is_equal is None:
                self.result.doubts.append(Doubt(path, found, text))
                return
            if is_equal:
                self.equal.add(path)
                self.choices[path] = _Choice(THERE, found, text)
                return
        if (text or found or b"d")[:1] != b"d":
            self.result.held[path] = text or b""

    def choose(self, path: bytes, choice: _Choice) -> None:
        self.choices[path] = choice
        if choice.text is None:
            self.staying.discard(path)

    def conflict(self, path: bytes, here: bytes | None, there: bytes | None) -> None:
        self.choices.pop(path, None)
        self.result.conflicts.append(Conflict(path, here or b"", there or b""))

    # What counts as the same

    def same(self, one: bytes | None, other: bytes | None, *, exactly: bool = False) -> bool:
        if one is None or other is None or one == other:
            return one == other
        same_head = one[:1] == other[:1] if self.is_modeless else _plain_head(one) == _plain_head(other)
        return same_head and self.same_content(one, other, exactly=exactly)

    def same_content(self, one: bytes, other: bytes, *, exactly: bool = False) -> bool:
        """Compare kind, size and time, as the scans have them; the time of a folder says nothing.

        `exactly`: the times are known exactly, although the other side rounds them.
        """
        left, right = read_meta(one), read_meta(other)
        if left.kind != right.kind or left.size != right.size or left.target != right.target:
            return False
        if left.kind != "f" or left.mtime == right.mtime:
            return True
        if exactly or not (self.is_coarse or self.is_rounding):
            return False
        if self.is_coarse:
            return left.mtime // SECOND == right.mtime // SECOND
        return any(right.mtime == left.mtime - left.mtime % unit for unit in ROUND_UNITS)

    # What depends on other paths

    def drop_below_conflicts(self) -> None:
        """Report a folder as a conflict where a file takes its place and something in it stays.

        Below a conflict nothing is done, because one of the sides may have no folder there.
        """
        holders = {above for path in self.staying for above in folders_above(path)}
        for path, choice in list(self.choices.items()):
            if choice.text is not None and choice.text[:1] != b"d" and path in holders:
                texts = (choice.found, choice.text) if choice.to == HERE else (choice.text, choice.found)
                self.conflict(path, *texts)
        self.find_files_in_the_way()
        closed = {conflict.path for conflict in self.result.conflicts}
        doomed = [path for path in self.choices if any(above in closed for above in folders_above(path))]
        for path in doomed:
            del self.choices[path]
        inside = closed.intersection
        self.result.conflicts = [each for each in self.result.conflicts if not inside(folders_above(each.path))]
        self.result.doubts = [each for each in self.result.doubts if not inside(folders_above(each.path))]
        self.staying = {path for path in self.staying if not inside(folders_above(path))}

    def find_files_in_the_way(self) -> None:
        """Report a file as a conflict if it stands where something is to go into a folder, and does not come itself."""
        entries = {HERE: Entries(self.here.folders), THERE: Entries(self.there.folders)}
        decided = {*self.choices, *(each.path for each in self.result.conflicts)}
        for side in (HERE, THERE):
            for path in self.above_what_moves(side, with_folders=True) - decided:
                if (entries[side].at(path) or b"d")[:1] != b"d":
                    self.conflict(path, entries[HERE].at(path), entries[THERE].at(path))

    def bound_what_comes(self) -> None:
        """Refuse new files if too many come at once: they are an unpacked archive or a data set, or a mistake."""
        coming = [path for path, choice in self.choices.items() if choice.to == HERE]
        unasked = [path for path in coming if self.applied.is_by_itself(path)]
        new = [path for path in unasked if self.is_new_file(path)]
        results = [path for path in coming if self.is_new_file(path) and self.applied.is_pulled(path)]
        gone = [path for path in unasked if self.choices[path].text is None]
        here = Entries(self.here.folders)
        unseen = [path for path in self.result.unseen if here.at(path) is None]
        if len(new) > MOST_NEW or len(new) + len(unseen) > 4 * MOST_NEW:
            self.result.stayed = len(new) + len(unseen)
            self.drop(new)
            dropped = set(unseen)
            self.result.unseen = [path for path in self.result.unseen if path not in dropped]
        if len(results) > MOST_UNASKED_FILES:
            self.result.stayed += len(results)
            self.drop(results)
        if len(gone) > MOST_NEW:
            self.result.spared = len(gone)
            self.drop(gone)

    def is_new_file(self, path: bytes) -> bool:
        return self.choices[path].found is None and self.brings_file(path)

    def brings_file(self, path: bytes) -> bool:
        return (self.choices[path].text or b"d")[:1] != b"d"

    def drop(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            del self.choices[path]
            self.staying.add(path)

    def drop_folders_in_which_nothing_comes(self) -> None:
        """A new folder there comes with the first file in it that comes."""
        if self.applied.scope.rules is None:
            return
        needed = self.above_what_moves(HERE, with_folders=False)
        self.drop(
            [
                path
                for path, choice in self.choices.items()
                if choice.to == HERE and choice.found is None and not self.brings_file(path)
                if choice.text is not None and path not in needed
            ]
        )

    def keep_folders_that_hold_something(self) -> None:
        """A folder that one side deleted stays where something in it stays; it comes back where that is to go there."""
        holders = {above for path in self.staying for above in folders_above(path)}
        needed = {side: self.above_what_moves(side, with_folders=True) for side in (HERE, THERE)}
        for path, choice in list(self.choices.items()):
            if choice.text is None and choice.found is not None and choice.found[:1] == b"d" and path in holders:
                back = THERE if choice.to == HERE else HERE
                if path in needed[back]:
                    self.choose(path, _Choice(back, choice.found, None))
                else:
                    self.drop([path])

    def above_what_moves(self, side: str, *, with_folders: bool) -> set[bytes]:
        """The folders into which a side gets something."""
        moving = [
            path
            for path, choice in self.choices.items()
            if choice.to == side and choice.text is not None and (with_folders or self.brings_file(path))
        ]
        return {above for path in moving for above in folders_above(path)}

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
            # What is deleted in it is cleared before, too, not deleted after.
            inside = ((below, its) for below, its in self.choices.items() if below.startswith(path + b"/"))
            plan.clear += [below for below, its in inside if its.to == choice.to and its.text is None]
            found = None
        text = _with_special_bits_of(text, found or b"")
        meta = read_meta(text)
        if meta.kind == "d":
            plan.new_folders += found is None
            plan.finish.append(Attributes(path, meta.mode, meta.mtime))
        elif found is not None and self.is_only_furnished(path, text, found):
            plan.touch.append(Attributes(path, meta.mode, meta.mtime))
        else:
            folder, _, name = path.rpartition(b"/")
            plan.send.append(Item(folder, name, text, meta.size, "new" if found is None else "changed"))
            if choice.to == HERE and found is None and self.applied.is_pulled(path):
                self.result.came.add(path)

    def is_only_furnished(self, path: bytes, text: bytes, found: bytes) -> bool:
        """Whether a file has the right content already, and needs a mode and a time."""
        return path in self.equal or (path not in self.edited and self.same_content(text, found))

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
        undecided = frozenset(each.path for each in self.result.conflicts).union(
            each.path for each in self.result.doubts
        )
        for folder in folders:
            here, there = self.here.folders.get(folder), self.there.folders.get(folder)
            if here is not None and here == there:
                block = here
            elif is_among(folder, undecided):
                block = self.base.folders.get(folder, b"")
            else:
                block = block_of(dict(self.agreed(folder, undecided)))
            if block or not folder:
                self.result.base[folder] = block

    def agreed(self, folder: bytes, undecided: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
        base, here, there = (tree.entries(folder) for tree in (self.base, self.here, self.there))
        for name in sorted({*base, *here, *there}):
            path = child(folder, name)
            choice = self.choices.get(path)
            if path in self.out:
                text = None
            elif choice is not None:
                text = choice.text
            elif path in undecided or not self.same(here.get(name), there.get(name)):
                text = base.get(name)
            else:
                text = here.get(name)
            if text is not None:
                yield name, text


def amend(base: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
    """Give paths of a common state another entry, or none."""
    by_folder: dict[bytes, dict[bytes, bytes | None]] = {}
    for path, text in changes.items():
        folder, _, name = path.rpartition(b"/")
        by_folder.setdefault(folder, {})[name] = text
    for folder, wanted in by_folder.items():
        entries = {**_as_tree({folder: base.get(folder, b"")}).entries(folder), **wanted}
        base[folder] = block_of({name: text for name, text in entries.items() if text is not None})


class Entries:
    """Finds the entries of single paths in a common state or a scan; each folder is read once."""

    def __init__(self, folders: Mapping[bytes, bytes]) -> None:
        self._tree = _as_tree(folders)
        self._read: dict[bytes, dict[bytes, bytes]] = {}

    def at(self, path: bytes) -> bytes | None:
        folder, _, name = path.rpartition(b"/")
        if folder not in self._read:
            self._read[folder] = self._tree.entries(folder)
        return self._read[folder].get(name)


def block_of(entries: Mapping[bytes, bytes]) -> bytes:
    """A folder's entries as a scan writes them."""
    return b"\0".join(part for name in sorted(entries) for part in (name, entries[name]))


def blocks(base: Mapping[bytes, Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """A common state as it is kept: each folder's entries as a scan writes them."""
    return {folder: block_of(entries) for folder, entries in base.items()}


def _with_mode_of(text: bytes | None, found: bytes | None) -> bytes | None:
    """Give an entry from a side without modes the mode that it replaces, else that of new files and folders."""
    if text is None or text[:1] == b"l":
        return text
    usual = b"d755" if text[:1] == b"d" else b"f644"
    head = _head(found) if found and found[:1] == text[:1] else usual
    return head + text[len(_head(text)) :]


def _with_special_bits_of(text: bytes, found: bytes) -> bytes:
    """Carry over no setuid, setgid and sticky bits; the folder that is changed keeps its own."""
    plain = without_special_bits(text, b"")
    own = int(_head(found)[1:], 8) & SPECIAL if plain[:1] == found[:1] == b"d" and has_special_bits(found) else 0
    return b"d%o %s" % (own | int(_head(plain)[1:], 8), plain.partition(b" ")[2]) if own else plain


def _head(text: bytes) -> bytes:
    """Kind and mode. The mode of a link says nothing."""
    return b"l" if text[:1] == b"l" else text.partition(b" ")[0]


def _plain_head(text: bytes) -> bytes:
    """Return kind and mode without setuid, setgid and sticky bits: each side has its own; they are not carried over."""
    head = _head(text)
    return head if len(head) <= PLAIN_HEAD else b"%s%o" % (head[:1], int(head[1:], 8) & ~SPECIAL)
