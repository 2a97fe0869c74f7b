"""Follows trees: answers what differs from the last listing, and reads only folders that changed since."""

import errno
import hashlib
import json
import os
import struct
import sys
import time
from typing import Any, Callable

from ...core.orders import FollowAnswer, FollowOrder, InspectPathAnswer
from ..outpost.place import RUN_NAME, find_run, is_locked, read_record, to_bytes, to_text
from .snapshot import FolderSnapshot, FolderSnapshots
from .tree import (
    MOST_GITIGNORED,
    MOST_LEFTOVERS,
    MOST_SECRETS_NAMED,
    MOST_TREE_PROBLEMS,
    OURS,
    Problems,
    Refusal,
    Survey,
    Teller,
    child,
    ids_along,
    inspect_path,
    scan,
    stat_at,
)

# See inotify(7).
IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE = 0x2, 0x4, 0x8
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_DONT_FOLLOW, IN_ISDIR = 0x1000000, 0x2000000, 0x40000000
IN_EVENT = struct.Struct("iIII")
# A name has come or gone, which also changes the time of the folder.
IN_NAMES = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
# The watched folder is no longer at its path.
IN_LOST = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
# IN_CLOSE_WRITE, because writing through a mapping of a file causes no other event.
IN_FOLDER = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_NAMES | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
IN_RECORD = IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE_SELF
# How many events are read before one look; with more of them, everything is read again.
MOST_EVENT_READS, EVENTS_AT_ONCE = 64, 1 << 16
# File systems (by statfs) that only this machine changes: ext, XFS, Btrfs, tmpfs, ramfs, overlay, ZFS, F2FS, bcachefs,
# JFS, ReiserFS, FAT, exFAT, NTFS. On all others inotify may miss what other machines do.
LOCAL_FILE_SYSTEMS = frozenset(
    [0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x858458F6, 0x794C7630, 0x2FC12FC1]
    + [0xF2F52010, 0xCA451A4E, 0x3153464A, 0x52654973, 0x4D44, 0x2011BAB0, 0x7366746E]
)
# We take half of the watches that a user may have: editors need some, too.
WATCHES_FILE, PART_OF_WATCHES, USUAL_WATCHES = "/proc/sys/fs/inotify/max_user_watches", 2, 8192
# Some changes cause no event (a write through another name of a file, or a mapping that is still open, a mount), so no
# folder stays unread for longer than WHOLE_S. While a tree is in use, its folders are read in idle moments.
WHOLE_S, SWEEP_S, IN_USE_S, SLICE_S = 60.0, 40.0, 300.0, 0.02
# How many trees a lane remembers, how many folders of each, and how many bytes of news and of names of folders.
MOST_FOLLOWED, MOST_CACHED, MOST_NEWS, MOST_GONE = 4, 200000, 32 << 20, 2 << 20
# For how long the folder of a run is looked for, and how often that and the end of a run are looked at.
UNKNOWN_RUN_S, SEEK_RUN_S, POLL_RUN_S, POLL_WATCHED_RUN_S = 1.0, 0.001, 0.05, 0.5
# While a run is waited for, a BEAT is sent this often: the near side gives up a lane that is silent.
RUN_BEAT_S = 240.0


class Outdated(Exception):
    """Memory of a tree that cannot be brought up to date folder by folder."""


class Inotify:
    """A queue of changes in watched folders and files. Raises OSError where the system has none."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, "no inotify")
        try:
            # Loading it takes longer than opening a lane, and most lanes do not follow anything.
            import ctypes
        except ImportError:
            raise OSError(errno.ENOSYS, "no ctypes")
        self.ctypes: "Any" = ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.succeed(self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def succeed(self, result: int) -> int:
        if result < 0:
            number = self.ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def watch(self, path: bytes, mask: int) -> int:
        return self.succeed(self.libc.inotify_add_watch(self.fd, path, mask))

    def unwatch(self, watch: int) -> None:
        # Fails for one that went with its folder.
        self.libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> "list[tuple[int, int, bytes]]":
        """Watch, mask and name of all that has happened, or an overflow."""
        events: "list[tuple[int, int, bytes]]" = []
        for _ in range(MOST_EVENT_READS):
            try:
                data = os.read(self.fd, EVENTS_AT_ONCE)
            except BlockingIOError:
                return events
            at = 0
            while at < len(data):
                watch, mask, _, length = IN_EVENT.unpack_from(data, at)
                at += IN_EVENT.size + length
                events.append((watch, mask, data[at - length : at].rstrip(b"\0")))
        return [(-1, IN_Q_OVERFLOW, b"")]

    def sees_all(self, path: bytes) -> bool:
        """Whether this machine's kernel sees every change on the file system of a path."""
        answer = self.ctypes.create_string_buffer(256)
        if self.libc.statfs(path, answer) < 0:
            return False
        # The first field of the structure.
        kind: int = self.ctypes.c_long.from_buffer(answer).value
        return kind & 0xFFFFFFFF in LOCAL_FILE_SYSTEMS

    def close(self) -> None:
        os.close(self.fd)


class FolderWatches:
    """The watches on the folders of a tree. A watch belongs to a folder itself, whatever path leads to it."""

    def __init__(self) -> None:
        self.inotify = Inotify()
        self.folders: "dict[int, bytes]" = {}
        self.numbers: "dict[bytes, int]" = {}
        try:
            with open(WATCHES_FILE) as file:
                self.most = int(file.read()) // PART_OF_WATCHES
        except (OSError, ValueError):
            self.most = USUAL_WATCHES // PART_OF_WATCHES

    def set(self, folder: bytes, where: bytes) -> "tuple[bool, bytes | None]":
        """Watch a folder; whether another was at its path before, and what other path leads to it. Raises OSError."""
        if len(self.numbers) >= self.most:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # The top alone may be named by a link.
        watch = self.inotify.watch(where, IN_FOLDER | IN_DONT_FOLLOW if folder else IN_FOLDER)
        before, other = self.numbers.get(folder), self.folders.get(watch)
        if before is not None and before != watch:
            self.drop(folder)
        if other is not None and other != folder:
            del self.numbers[other]
        self.folders[watch], self.numbers[folder] = folder, watch
        return before not in (None, watch), other if other != folder else None

    def drop(self, folder: bytes) -> None:
        watch = self.numbers.pop(folder, None)
        if watch is not None:
            del self.folders[watch]
            self.inotify.unwatch(watch)

    def events(self) -> "list[tuple[bytes | None, int, bytes]]":
        """Folder, mask and name of all that has happened; the folder is None for an overflow."""
        found: "list[tuple[bytes | None, int, bytes]]" = []
        for watch, mask, name in self.inotify.events():
            if mask & IN_Q_OVERFLOW:
                return [(None, mask, b"")]
            if watch in self.folders:
                found.append((self.folders[watch], mask, name))
                if mask & IN_IGNORED:
                    del self.numbers[self.folders.pop(watch)]
        return found

    def keep_only(self, folders: "dict[bytes, CachedFolder]") -> None:
        for folder in [folder for folder in self.numbers if folder not in folders]:
            self.drop(folder)

    def close(self) -> None:
        self.inotify.close()


class CachedFolder:
    """Memory of a folder: the digest of its block, empty if it cannot be read, and its folders."""

    __slots__ = ("digest", "inner")

    def __init__(self, digest: bytes, inner: "list[bytes]") -> None:
        self.digest = digest
        self.inner = inner


class FollowedSurvey(Survey):
    """A survey that reads folders one at a time, and again; what it notes is of the folder that it has just read."""

    def __init__(self, following: "Following", order: "FollowOrder", fields: "InspectPathAnswer") -> None:
        Survey.__init__(self, order, fields)
        self.following = following
        self.texts: "dict[bytes, bytes]" = {}
        # The file systems that folders were found on, each with one of them.
        self.devices: "dict[int, bytes]" = {}
        # Times of new folders, as they are in the blocks of the folders above.
        self.times: "dict[bytes, int]" = {}

    def begin_notes(self) -> None:
        self.problems, self.hits, self.leftovers = Problems(), set(), []
        self.secrets, self.secret_count = [], 0

    def enter(self, folder: bytes) -> bytes:
        """Watch a folder before it is read: no change can fall in between."""
        where = Survey.enter(self, folder)
        self.following.watch(folder, where)
        time_above = self.times.pop(folder, None)
        if time_above is not None and os.stat(where).st_mtime_ns != time_above:
            # Something came into it or went before it was watched.
            self.following.late.add(folder.rpartition(b"/")[0])
        return where

    def note_folder(self, path: bytes, found: os.stat_result) -> None:
        self.devices.setdefault(found.st_dev, path)
        if self.following.watches and path not in self.following.cached:
            self.times[path] = found.st_mtime_ns

    def describe(self, folder: bytes, entries: "list[Any]", folders: "list[bytes]") -> "list[bytes]":
        """Without watches, with what later looks compare the folder with."""
        self.snapshot = None if self.following.watches else FolderSnapshot(entries)
        return Survey.describe(self, folder, entries, folders)

    def apply_gitignore(self, folder: bytes, entries: "list[Any]") -> None:
        """Take the rules of a new folder. Raises Outdated if those of a known one are others than before."""
        if any(entry.name == b".gitignore" and entry.is_symlink() for entry in entries):
            # What the link leads to may change without an event here.
            self.following.unsure.add(folder)
        text = self.read_gitignore(folder, entries)
        if folder in self.following.cached:
            if text != self.texts.get(folder) or self.ignored_bytes > MOST_GITIGNORED:
                raise Outdated
        elif text is not None:
            self.texts[folder] = text
            self.add_rules(folder, text)


class Following:
    """One tree: what the near side was told of it, what is known of it now, and the watches on its folders."""

    # Made when everything is read for the first time.
    survey: "FollowedSurvey"

    def __init__(self) -> None:
        self.order: "Any" = None
        self.cached: "dict[bytes, CachedFolder]" = {}
        # Digests of the blocks that the near side has; and the blocks that it lacks, None for folders that are gone.
        self.sent: "dict[bytes, bytes]" = {}
        self.news: "dict[bytes, tuple[bytes, int] | None]" = {}
        self.news_size = 0
        self.rules_sent: "list[list[str]]" = []
        # Problems, hits and leftovers of folders that have some.
        self.notes: "dict[bytes, tuple[Problems, set[bytes], list[str], list[str], int]]" = {}
        # The first number is random, so that it is not taken for one of another lane's.
        self.first = self.number = int.from_bytes(os.urandom(5), "big") + 1
        # Device and inode of the top folder.
        self.top = (0, 0)
        self.watches: "FolderWatches | None" = None
        self.may_watch = True
        # Without watches: by what changed folders are found.
        self.snapshots = FolderSnapshots()
        # Folders that are read at every look, because they cannot be watched.
        self.unsure: "set[bytes]" = set()
        # Folders that changed while they were read, and are read at the next look.
        self.late: "set[bytes]" = set()
        self.is_outdated = True
        # When the last reading of everything began; when the tree was last looked at; and what the sweep has to read.
        self.read_since = self.used = self.sweep_began = 0.0
        self.sweep: "list[bytes]" = []

    def scan(self, order: "FollowOrder", send: "Callable[[bytes], None]") -> "FollowAnswer":
        """Send the blocks that differ from listing `since`, or all if that is not known; returns the other fields."""
        # An order may be carried out long after it was sent. The near side has received all listings up to the newest
        # by then, because answers come in their order: so any number that it was told means the newest.
        self.order, self.used = order, time.monotonic()
        fields = inspect_path(order)
        if fields["kind"] != "dir":
            single = scan(dict(order, verb="scan"), send)  # type: ignore[arg-type]
            return dict(single, number=0, since=0, whole=True, gone=[], inode=0, watched=False)  # type: ignore
        since = self.number if self.first < int(order["since"]) <= self.number else 0
        if not since:
            self.sent, self.rules_sent = {}, []
        found = stat_at(to_bytes(fields["path"]), order.get("exact"))
        top, before = (found.st_dev, found.st_ino), self.top
        self.top = top
        teller = Teller(send, bool(order.get("squeeze")))
        self.bring_up_to_date(fields, teller, not since or top != before)
        gone = self.send_news(teller)
        teller.flush()
        return self.answer(since, gone, teller.count > 0)

    def answer(self, since: int, gone: "list[bytes]", is_new: bool) -> "FollowAnswer":
        rules = self.survey.gitignores
        self.gather_notes()
        fields = self.survey.result()
        if is_new or gone or not since or rules != self.rules_sent:
            self.number += 1
        answer: "Any" = dict(fields, ids=ids_along(to_bytes(fields["real"])))
        if since and rules == self.rules_sent:
            del answer["gitignores"]
        self.rules_sent = list(rules)
        answer.update(
            number=self.number if len(self.cached) <= MOST_CACHED else 0,
            since=since,
            whole=not since,
            gone=[to_text(folder) for folder in gone],
            inode=self.top[1] & ((1 << 63) - 1),
            watched=self.watches is not None,
        )
        result: "FollowAnswer" = answer
        return result

    def gather_notes(self) -> None:
        """Put together what was noted of each folder, as one scan would have noted it."""
        self.survey.begin_notes()
        problems = self.survey.problems
        for noted, hits, leftovers, secrets, secret_count in self.notes.values():
            problems.listed += noted.listed[: MOST_TREE_PROBLEMS - len(problems.listed)]
            problems.count += noted.count
            problems.unread += noted.unread
            self.survey.hits |= hits
            self.survey.leftovers += leftovers[: MOST_LEFTOVERS - len(self.survey.leftovers)]
            self.survey.secrets += secrets[: MOST_SECRETS_NAMED - len(self.survey.secrets)]
            self.survey.secret_count += secret_count

    def send_news(self, teller: Teller) -> "list[bytes]":
        """Tell the blocks that are kept for it; returns the folders that are gone, but not those that are in them."""
        gone = {folder for folder, listed in self.news.items() if listed is None}
        for folder, listed in self.news.items():
            if listed is None:
                self.sent.pop(folder, None)
            else:
                teller.report(folder, *listed)
                self.sent[folder] = self.cached[folder].digest
        self.forget_news()
        topmost = sorted(folder for folder in gone if folder.rpartition(b"/")[0] not in gone)
        if sum(map(len, topmost)) > MOST_GONE:
            raise Refusal("again", "too many folders have gone to name them all")
        return topmost

    # Reading folders

    def bring_up_to_date(self, fields: "InspectPathAnswer", teller: Teller, is_other: bool) -> None:
        exact = self.order.get("exact")
        is_old = self.used - self.read_since > WHOLE_S
        is_current = not (is_other or self.is_outdated)
        if is_current and (not self.may_watch or (self.watches is not None and not is_old)):
            try:
                self.survey.fields = fields
                with self.survey.opened(exact):
                    self.catch_up() if self.watches else self.compare_all()
                    return
            except Outdated:
                pass
        self.survey = FollowedSurvey(self, self.order, fields)
        with self.survey.opened(exact):
            self.read_everything(teller)

    def catch_up(self) -> None:
        """Read the folders in which something changed. Raises Outdated."""
        changed, replaced = self.changes()
        for folder in replaced:
            self.forget(folder)
        changed |= self.unsure | self.late
        self.late = set()
        self.read_all([folder for folder in changed if folder in self.cached])

    def compare_all(self) -> None:
        """Read the folders that do not show what they showed. Raises Outdated."""
        survey = self.survey
        # Raises for a top folder that cannot be read, as in read_everything.
        os.listdir(Survey.enter(survey, b""))
        self.read_since = time.monotonic()
        self.late = set()
        try:
            changed = self.snapshots.changed(list(self.cached), lambda folder: os.chdir(Survey.enter(survey, folder)))
        finally:
            os.chdir(b"/")
        # Parents first: a folder that has become something else is forgotten with the reading of the one above.
        for folder in sorted(self.unsure.union(changed)):
            if folder in self.cached:
                self.read_all([folder])

    def changes(self) -> "tuple[set[bytes], set[bytes]]":
        """Folders in which something changed, and those that are gone, new, or others than before. Raises Outdated."""
        assert self.watches
        changed: "set[bytes]" = set()
        replaced: "set[bytes]" = set()
        for folder, mask, name in self.watches.events():
            if folder is None or (mask & IN_LOST and not folder):
                raise Outdated
            if mask & IN_LOST:
                replaced.add(folder)
                changed.add(folder.rpartition(b"/")[0])
            elif mask & IN_NAMES:
                # The folder's own time is in the block of the one above.
                changed.update((folder, folder.rpartition(b"/")[0]))
                if mask & IN_ISDIR:
                    replaced.add(child(folder, name))
            elif not name.startswith(OURS):
                # What is written to a temporary file of ours changes nothing in a listing.
                changed.add(folder)
        return changed, replaced

    def read_everything(self, teller: Teller) -> None:
        self.begin_watching()
        if self.watches:
            # Everything is read after these changes.
            self.watches.events()
        self.read_since = time.monotonic()
        self.cached, self.notes, self.unsure, self.late, self.sweep = {}, {}, set(), set(), []
        self.snapshots.seen = {}
        self.forget_news()
        # Raises for a top folder that cannot be read; below it that is only a problem in the answer.
        os.listdir(Survey.enter(self.survey, b""))
        self.read_all([b""], teller)
        for folder in self.sent:
            if folder not in self.cached or not self.cached[folder].digest:
                self.news[folder] = None
        if self.watches:
            self.watches.keep_only(self.cached)
        self.is_outdated = False

    def read_all(self, folders: "list[bytes]", teller: "Teller | None" = None) -> None:
        """Read folders, and those in them that are new. Raises Outdated."""
        while folders:
            folders += self.read(folders.pop(), teller)
        self.check_file_systems()

    def read(self, folder: bytes, teller: "Teller | None" = None) -> "list[bytes]":
        """Read one folder; returns the new ones in it."""
        self.survey.begin_notes()
        listed = self.survey.read(folder)
        self.keep_notes(folder)
        before = self.cached.get(folder)
        if listed is None:
            if not folder:
                raise Outdated
            self.unsure.add(folder)
        inner: "list[bytes]" = listed[2] if listed else []
        digest = hashlib.blake2b(listed[0], digest_size=16).digest() if listed else b""
        self.cached[folder] = CachedFolder(digest, inner)
        self.keep_snapshot(folder)
        self.note_news(folder, listed[:2] if listed else None, teller)
        if before is None:
            return inner
        for gone in set(before.inner).difference(inner):
            self.forget(gone)
        return [new for new in inner if new not in self.cached]

    def keep_snapshot(self, folder: bytes) -> None:
        """Unless there was a problem with an entry: then the folder is read again."""
        snapshot, self.survey.snapshot = self.survey.snapshot, None
        if snapshot and not self.survey.problems.unread:
            self.snapshots.seen[folder] = snapshot
        else:
            self.snapshots.seen.pop(folder, None)

    def keep_notes(self, folder: bytes) -> None:
        found = self.survey
        if found.problems.count or found.hits or found.leftovers or found.secrets:
            self.notes[folder] = found.problems, found.hits, found.leftovers, found.secrets, found.secret_count
        else:
            self.notes.pop(folder, None)

    def note_news(self, folder: bytes, listed: "tuple[bytes, int] | None", teller: "Teller | None") -> None:
        """Tell a block that the near side lacks, or keep it until the next look."""
        digest = self.cached[folder].digest if listed else None
        if self.sent.get(folder) == digest:
            self.news.pop(folder, None)
        elif teller and listed:
            teller.report(folder, *listed)
            self.sent[folder] = self.cached[folder].digest
        else:
            self.news[folder] = listed
            self.news_size += len(listed[0]) if listed else 0

    def forget_news(self) -> None:
        self.news, self.news_size = {}, 0

    def forget(self, folder: bytes) -> None:
        """Forget a folder and all in it. Raises Outdated if rules in it counted."""
        folders = [folder]
        while folders:
            folder = folders.pop()
            entry = self.cached.pop(folder, None)
            if entry is None:
                continue
            if folder in self.survey.texts:
                raise Outdated
            folders += entry.inner
            self.unsure.discard(folder)
            self.notes.pop(folder, None)
            self.snapshots.seen.pop(folder, None)
            if self.watches:
                self.watches.drop(folder)
            if folder in self.sent:
                self.news[folder] = None
            else:
                self.news.pop(folder, None)

    # Watches

    def begin_watching(self) -> None:
        if self.watches or not self.may_watch:
            return
        try:
            self.watches = FolderWatches()
        except OSError:
            self.may_watch = False
            return
        if not self.watches.inotify.sees_all(self.survey.root):
            self.stop_watching()

    def stop_watching(self) -> None:
        """From now on everything is read at every look."""
        self.may_watch = False
        self.rest()

    def rest(self) -> None:
        """Let the watches go until the next look."""
        if self.watches:
            self.watches.close()
            self.watches = None
        self.sweep = []

    def watch(self, folder: bytes, where: bytes) -> None:
        if not self.watches:
            return
        try:
            is_other, robbed = self.watches.set(folder, where)
        except OSError as problem:
            if problem.errno in (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self.unsure.add(folder)
            else:
                self.stop_watching()
            return
        self.unsure.discard(folder)
        if robbed is not None and robbed in self.cached:
            # Two paths lead to one folder, which can have one watch only.
            self.unsure.add(robbed)
        if is_other and folder in self.cached:
            # Something was mounted there, or it was replaced a moment ago: what was in it says nothing about this one.
            for inner in self.cached[folder].inner:
                self.forget(inner)

    def check_file_systems(self) -> None:
        """Folders may be on other file systems than the top."""
        for device, folder in self.survey.devices.items():
            if self.watches and device != self.top[0]:
                if not self.watches.inotify.sees_all(os.path.join(self.survey.root, folder)):
                    self.stop_watching()

    # Reading everything again in idle moments

    def due_s(self, now: float) -> float:
        """Return in how many seconds there is something to read in an idle moment."""
        if not self.watches or now - self.used > IN_USE_S or self.is_outdated:
            return IN_USE_S
        return 0.0 if self.sweep else max(0.0, self.read_since + SWEEP_S - now)

    def read_a_slice(self) -> None:
        """Read a few folders again, so that changes without an event are found before the next look needs them."""
        now = time.monotonic()
        if not self.sweep:
            self.sweep, self.sweep_began = list(self.cached), now
        try:
            with self.survey.opened(self.order.get("exact")):
                while self.sweep:
                    folder = self.sweep.pop()
                    if folder in self.cached:
                        self.read_all([folder])
                    if time.monotonic() > now + SLICE_S:
                        break
            self.is_outdated = self.news_size > MOST_NEWS
        except (Outdated, OSError, Refusal):
            self.is_outdated = True
        if self.is_outdated:
            self.sweep = []
        elif not self.sweep:
            self.read_since = self.sweep_began


def follow(followed: "dict[str, Following]", order: "FollowOrder", send: "Callable[[bytes], None]") -> "FollowAnswer":
    """Answer what changed in a tree since a listing; `followed` are the trees that the lane remembers."""
    fields: "Any" = order
    key = json.dumps([fields.get(name) for name in ("path", "rules", "watched", "gitignore", "exact")])
    following = followed.pop(key, None) or Following()
    try:
        answer = following.scan(order, send)
    except BaseException:
        # Some of it may have been told.
        following.rest()
        raise
    if answer["number"]:
        followed[key] = following
    else:
        following.rest()
    while len(followed) > MOST_FOLLOWED:
        followed.pop(next(iter(followed))).rest()
    return answer


class AwaitedRun:
    """A run after whose end a tree is to be looked at."""

    def __init__(self, request: int, order: "FollowOrder") -> None:
        self.request = request
        self.order = order
        self.run_id = str(order.get("after"))
        if not RUN_NAME.match(self.run_id):
            raise ValueError("%r is not the name of a run" % self.run_id)
        self.folder: "bytes | None" = None
        self.alarm: "Inotify | None" = None
        self.is_unknown = False
        self.began = self.beaten = time.monotonic()

    @property
    def fd(self) -> int:
        return self.alarm.fd if self.alarm else -1

    @property
    def pause_s(self) -> float:
        if self.folder is None:
            return SEEK_RUN_S
        return POLL_WATCHED_RUN_S if self.alarm else POLL_RUN_S

    def is_over(self) -> bool:
        """Whether the run has ended, or nothing is known of it here."""
        if self.alarm:
            self.alarm.events()
        if self.folder is None:
            self.folder = find_run(self.run_id)
            if self.folder is None:
                self.is_unknown = time.monotonic() - self.began > UNKNOWN_RUN_S
                return self.is_unknown
            if self.has_ended():
                return True
            self.watch(os.path.join(self.folder, b"run"))
        return self.has_ended()

    def has_ended(self) -> bool:
        assert self.folder
        return bool(read_record(self.folder)[1]) or not is_locked(self.folder)

    def watch(self, record: bytes) -> None:
        """Be woken by the keeper's last word and by its end; where that cannot be, the record is looked at often."""
        try:
            self.alarm = Inotify()
            self.alarm.watch(record, IN_RECORD)
        except OSError:
            self.close()

    def is_beat_due(self) -> bool:
        now = time.monotonic()
        is_due = now - self.beaten > RUN_BEAT_S
        self.beaten = now if is_due else self.beaten
        return is_due

    def close(self) -> None:
        if self.alarm:
            self.alarm.close()
            self.alarm = None
