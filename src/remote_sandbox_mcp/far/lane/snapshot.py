"""Finds the folders of a tree that changed where no event tells it: compares each with what it showed, in processes."""

import array
import os
import resource

MYPY = False
if MYPY:
    from typing import Any, Callable

    # Makes a folder of the tree the current one.
    Enter = Callable[[bytes], object]

# How many processes compare at once; and for how many entries one more is worth its start.
MOST_SNAPSHOT_WORKERS, WORTH_ENTRIES = 8, 2000
# Where we wait so often for one entry, a file server is asked for it: then one process does not keep a core busy.
WAITS_PER_ENTRY, WORTH_WAITED_ENTRIES = 0.2, 100
ALL_COMPARED = b"\0"


class FolderSnapshot:
    """Snapshot of a folder when it was read: its names and, of the entries that count, times, sizes and modes."""

    __slots__ = ("kept", "left_out", "marks", "names")

    def __init__(self, entries: "list[Any]") -> None:
        """Take entries in the order of their names."""
        self.names = [entry.name for entry in entries]
        self.kept: "list[bytes]" = []
        # Whether these are folders: a rule may leave out a folder, and no file of its name.
        self.left_out: "dict[bytes, bool]" = {}
        self.marks = array.array("q")

    def add(self, name: bytes, found: os.stat_result) -> None:
        try:
            self.marks.extend((found.st_mtime_ns, found.st_size, found.st_mode))
            self.kept.append(name)
        except OverflowError:
            # A time that is out of any range: no folder has an empty name in it, so this one never shows the same.
            self.names = [b""]

    def is_same(self) -> bool:
        """Whether the current folder shows the same."""
        try:
            if not self.shows_names():
                return False
            marks = array.array("q")
            note, lstat = marks.extend, os.lstat
            for name in self.kept:
                found = lstat(name)
                note((found.st_mtime_ns, found.st_size, found.st_mode))
            return marks == self.marks
        except (OSError, OverflowError):
            return False

    def shows_names(self) -> bool:
        """Whether the current folder has the same names, and folders and files among those that are left out."""
        if not self.left_out:
            return sorted(os.listdir(b".")) == self.names
        with os.scandir(b".") as found:
            entries = list(found)
        left_out = self.left_out
        return sorted([entry.name for entry in entries]) == self.names and all(
            # A listing says it without a stat.
            entry.is_dir(follow_symlinks=False) == left_out[entry.name]
            for entry in entries
            if entry.name in left_out
        )


class FolderSnapshots:
    """A glance at each folder that was read. Folders without one count as changed."""

    def __init__(self) -> None:
        self.seen: "dict[bytes, FolderSnapshot]" = {}
        self.is_waiting = False

    def changed(self, folders: "list[bytes]", enter: "Enter") -> "list[bytes]":
        """List the folders that differ from their snapshots, parents first. Moves the current folder."""
        folders.sort()
        shares = self.shares(folders)
        others = [SnapshotWorker(self, share, enter) for share in shares[1:]]
        before = waits()
        changed = self.compare(shares[0], enter)
        self.is_waiting = waits() - before > WAITS_PER_ENTRY * self.entries(shares[0])
        for other in others:
            changed += other.changed()
        return sorted(changed)

    def compare(self, folders: "list[bytes]", enter: "Enter") -> "list[bytes]":
        return [folder for folder in folders if not self.is_same(folder, enter)]

    def is_same(self, folder: bytes, enter: "Enter") -> bool:
        snapshot = self.seen.get(folder)
        try:
            if snapshot is not None:
                enter(folder)
                return snapshot.is_same()
        except OSError:
            pass
        return False

    def entries(self, folders: "list[bytes]") -> int:
        return len(folders) + sum(len(self.seen[folder].kept) for folder in folders if folder in self.seen)

    def shares(self, folders: "list[bytes]") -> "list[list[bytes]]":
        """The folders in parts of about as many entries, one for each process; neighbours stay together."""
        entries = self.entries(folders)
        wanted = MOST_SNAPSHOT_WORKERS if self.is_waiting else min(MOST_SNAPSHOT_WORKERS, own_cores())
        count = max(1, min(wanted, entries // (WORTH_WAITED_ENTRIES if self.is_waiting else WORTH_ENTRIES)))
        shares: "list[list[bytes]]" = [[] for _ in range(count)]
        before = 0
        for folder in folders:
            shares[min(count - 1, before * count // max(1, entries))].append(folder)
            before += self.entries([folder])
        return shares


class SnapshotWorker:
    """A process that compares some folders: a fork of this one, which has their glances."""

    def __init__(self, snapshots: FolderSnapshots, folders: "list[bytes]", enter: "Enter") -> None:
        self.snapshots = snapshots
        self.folders = folders
        self.enter = enter
        self.end, end = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            # No more processes may be started: all of its folders are read.
            self.pid = 0
        else:
            if not self.pid:
                self.work(end)
        os.close(end)

    def work(self, end: int) -> None:
        """Do the fork's work, and nothing else."""
        try:
            os.close(self.end)
            changed = self.snapshots.compare(self.folders, self.enter)
            with os.fdopen(end, "wb") as answer:
                answer.write(b"".join(folder + b"\0" for folder in changed) + ALL_COMPARED)
        finally:
            os._exit(0)

    def changed(self) -> "list[bytes]":
        """Read the fork's answer; all of its folders if it has died before."""
        with os.fdopen(self.end, "rb") as answer:
            said = answer.read()
        if self.pid:
            os.waitpid(self.pid, 0)
        if not self.pid or not said.endswith(ALL_COMPARED):
            return self.folders
        # The top folder has an empty name: the last mark is no part of any.
        return said[: -len(ALL_COMPARED)].split(b"\0")[:-1]


def waits() -> int:
    """Return how often this process has waited by itself; that others had the core does not count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def own_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
