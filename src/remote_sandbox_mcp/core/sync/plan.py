"""The plan of a sync: what to send and delete to make one tree like another, and which parts of large files."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import UNCONFIRMED, BadArgument, FileProblem
from ..sandboxes.files import Problem
from .ignore import NAMES_OF_SECRETS, Ignore
from .incoming import HELD, Sieve
from .secret_names import secret_lines_in
from .starters import acts
from .transfer import Order
from .tree import (
    LEADS_OUT,
    SECOND,
    Meta,
    Tree,
    child,
    has_special_bits,
    leads_out,
    read_meta,
    size_of,
    without_special_bits,
)

# Larger files are sent in parts, and by what has changed in them.
LARGE = 1 << 20
# Stands for a target's entry whose folder could not be read completely: it is replaced without a comparison.
UNKNOWN = b"?"
# Extras below these are deleted only with confirm_delete; see precious_place.
HOMES = ("/home", "/Users", "/var/home", "/export/home")
ABOVE_OTHERS = (*HOMES, "/root", "/var", "/var/lib", "/opt", "/srv", "/mnt", "/media", "/tmp", "/var/tmp", "/private")
OF_THE_SYSTEM = (
    *("/bin", "/boot", "/dev", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/proc", "/run", "/sbin"),
    *("/snap", "/sys", "/usr", "/Applications", "/Library", "/System", "/private/etc", "/private/var/db"),
)
IN_HIDING = "a hidden folder of a home folder, where keys and settings are"
# Length and digest of a piece, one after the other as they follow each other in the file.
PIECE = struct.Struct(">I16s")


class Item(NamedTuple):
    """A file or link to send, and why. `text` is its meta as the scan reported it; a tree has very many items."""

    folder: bytes
    name: bytes
    text: bytes
    size: int
    why: str

    @property
    def meta(self) -> Meta:
        return read_meta(self.text)

    @property
    def path(self) -> bytes:
        return child(self.folder, self.name)


class Items:
    """Items in their order, packed as a scan is: as objects they would take several times as much memory."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        # Folder, why, and names and metas as in a block of a scan.
        self._blocks: list[tuple[bytes, str, bytearray]] = []
        self._count = self.bytes = 0
        for item in items:
            self.append(item)

    def append(self, item: Item) -> None:
        if not self._blocks or self._blocks[-1][:2] != (item.folder, item.why):
            self._blocks.append((item.folder, item.why, bytearray()))
        self._blocks[-1][2].extend(b"%b\0%b\0" % (item.name, item.text))
        self._count += 1
        self.bytes += item.size

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        for folder, why, block in self._blocks:
            fields = bytes(block).split(b"\0")
            for name, text in zip(fields[0::2], fields[1::2]):  # noqa: B905 the last field is empty
                yield Item(folder, name, text, size_of(text), why)


@dataclass(frozen=True)
class Attributes:
    """The mode and time that a path gets at the end."""

    path: bytes
    mode: int
    mtime: int


@dataclass
class Plan:
    """Actions of a sync, in the order of doing them: clear, send, touch, delete, finish."""

    clear: list[bytes] = field(default_factory=list)
    send: Items = field(default_factory=Items)
    touch: list[Attributes] = field(default_factory=list)
    # Same size on both sides: whether they are sent depends on their content. (The item; whether its meta differs.)
    doubtful: list[tuple[Item, bool]] = field(default_factory=list)
    delete_files: list[bytes] = field(default_factory=list)
    delete_folders: list[bytes] = field(default_factory=list)
    finish: list[Attributes] = field(default_factory=list)
    # What the scan found in the target where something is replaced, changed or deleted; if it has changed since, it
    # stays.
    found: dict[bytes, bytes] = field(default_factory=dict)
    # What the scan found in all other places: nothing, if all of the target could be read.
    otherwise_found: bytes = b""
    new_folders: int = 0
    skipped: int = 0
    problems: list[Problem] = field(default_factory=list)

    def found_at(self, path: bytes) -> bytes:
        """Return the entry that the scan found at this path in the target; empty for none."""
        return self.found.get(path, self.otherwise_found)

    def found_of(self, items: list[Item]) -> list[bytes]:
        """Return the entries found at the paths of many items; often there was none at all."""
        if not self.found:
            return [self.otherwise_found] * len(items)
        return [self.found_at(item.path) for item in items]

    @property
    def bytes(self) -> int:
        return self.send.bytes


def secrets_in(items: Iterable[Item], root: str) -> list[bytes]:
    """The paths that an agent's order would not send because of their names, from a tree at `root`."""
    secret = Ignore([NAMES_OF_SECRETS, *(line.encode() for line in secret_lines_in(root))])
    is_inside = functools.cache(lambda folder: bool(folder) and secret.leaves_out_below(folder, True))
    return [item.path for item in items if is_inside(item.folder) or secret.leaves_out(item.path, False)]


def check_deletion(order: Order, source: Tree, target: Tree) -> None:
    """Refuse delete_extras where a mistake would be most expensive. Raises BadArgument."""
    if not order.delete_extras or order.confirmed:
        return
    terms, found = order.terms, ""
    if what := precious_place(target.real, target.home):
        found = f"{target.real} is {what}"
    elif source.is_empty and target.kind == "dir" and not target.is_empty:
        found = f"{source.path} is empty, so everything would be deleted"
    if found:
        hint = f"{terms.confirm} if that is really meant, or look first with {terms.dry_run}"
        raise BadArgument.of_parts(f"{terms.delete} is refused", found, hint, reason=UNCONFIRMED)


def precious_place(real: str, home: str) -> str:
    """Describes a folder on which more than one project depends, such as ~/.ssh; empty for all others."""
    if real == "/":
        return "the root of the file system"
    if _is_within(home, real):
        return "the home folder, or a folder around it"
    if any(_is_within(real, folder) for folder in OF_THE_SYSTEM):
        return "a folder of the operating system"
    if real in ABOVE_OTHERS:
        return "a folder that the whole machine uses"
    if real.rpartition("/")[0] in HOMES:
        return "a home folder"
    return IN_HIDING if any(part.startswith(".") for part in _home_entry(real, home)) else ""


def _home_entry(real: str, home: str) -> list[str]:
    """The name right below a home folder (anyone's) on the path to a folder."""
    homes = [home, "/root", *(f"{folder}/{_first(real, folder)}" for folder in HOMES if _is_within(real, folder))]
    return [_first(real, folder) for folder in homes if _is_within(real, folder)]


def _first(path: str, folder: str) -> str:
    return path[len(folder.rstrip("/")) :].strip("/").partition("/")[0]


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def make_plan(source: Tree, target: Tree, order: Order, sieve: Sieve | None = None) -> Plan:
    """Compare two trees, without what the sieve excludes. Raises FileProblem for a tree that cannot be real."""
    try:
        return _Planner(source, target, order, sieve).plan_all()
    except (ValueError, IndexError):
        raise FileProblem("a listing holds an entry that cannot be read; its machine is broken or hostile") from None


def source_entries(source: Tree, target: Tree, folder: bytes, order: Order) -> dict[bytes, bytes]:
    """Entries of the source's folder. Setuid bits from another machine are dropped, because it is not trusted."""
    ours = source.entries(folder)
    special = [name for name, text in ours.items() if has_special_bits(text)] if order.crosses_machines else []
    theirs = target.entries(folder) if special else {}
    return {**ours, **{name: without_special_bits(ours[name], theirs.get(name, b"")) for name in special}}


class _Planner:
    def __init__(self, source: Tree, target: Tree, order: Order, sieve: Sieve | None) -> None:
        self.sieve = sieve
        self.source = source
        self.target = target
        self.order = order
        self.checksum = order.checksum
        self.deletes = order.delete_extras
        self.coarse = source.coarse or target.coarse
        # On a pull, the other machine may list what it was told to exclude, such as this user's keys: check here again.
        self.distrusts = order.is_pull and source.kind == "dir"
        self.plan = Plan(otherwise_found=UNKNOWN if target.unread else b"")
        # What stays there because of its name; of a folder with all in it, only its own path.
        self.held: dict[bytes, Problem] = {}
        self.finished: set[bytes] = set()
        self.parents: dict[bytes, dict[bytes, bytes]] = {}
        self.ignore = Ignore([rule.encode("utf-8", "surrogateescape") for rule in order.rules])
        for folder, text in source.gitignores:
            self.ignore.add(folder, text)

    def plan_all(self) -> Plan:
        plan, source, target = self.plan, self.source, self.target
        if self.deletes and source.unread:
            self.deletes = False
            reason = "nothing was deleted, because parts of the source could not be read"
            plan.problems.append(Problem(source.path, reason))
        for folder in sorted(source.folders):
            if source.folders[folder] == target.folders.get(folder) and not self.checksum:
                plan.skipped += source.counts[folder]
            elif not folder or not self.leaves_out_folder(folder):
                self.compare(folder)
        plan.problems += self.held.values()
        # Deepest folders first: adding to a folder or removing from it changes its time.
        plan.finish.sort(key=lambda item: (-item.path.count(b"/"), item.path))
        plan.delete_folders.sort(key=lambda path: -path.count(b"/"))
        return plan

    def compare(self, folder: bytes) -> None:
        theirs = self.target.entries(folder)
        ours = self.wanted(folder, theirs)
        before = self.size()
        for name, text in ours.items():
            found = theirs.get(name)
            if found is None and text[:1] in b"fl" and (size := size_of(text)) <= LARGE:
                self.plan.send.append(Item(folder, name, text, size, "new"))
            elif found == text and not self.checksum:
                self.plan.skipped += not text.startswith(b"d")
            else:
                self.compare_entry(folder, name, text, found)
        if self.deletes:
            # What the source has but we do not accept from it is not an extra either.
            reason = self.source.entries(folder) if self.distrusts else ours
            for name in theirs.keys() - reason.keys():
                if not self.held_part(child(folder, name)):
                    self.delete(folder, name, theirs[name])
        if folder and self.size() != before:
            self.finish_again(folder)

    def leaves_out_folder(self, folder: bytes) -> bool:
        """Whether a folder is excluded, also where the other machine lists it without the folders above it."""
        if self.distrusts and self.ignore.leaves_out_below(folder, True):
            return True
        return self.sieve is not None and self.sieve.closes(folder)

    def wanted(self, folder: bytes, theirs: dict[bytes, bytes]) -> dict[bytes, bytes]:
        found = source_entries(self.source, self.target, folder, self.order)
        if self.distrusts:
            found = self.believed(folder, found, theirs)
        if self.sieve is None:
            return found
        return self.sieve.keep(folder, self.without_held(folder, found, theirs), self.plan.problems)

    def without_held(self, folder: bytes, found: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Without new and changed entries that stay there because of their names, or of that of a folder above."""
        names = list(found) if self.held_part(folder) else [name for name in found if acts(name)]
        for name in names:
            part, text = self.held_part(child(folder, name)), theirs.get(name, b"")
            if not part or (text == found[name] and not self.checksum):
                continue
            if text != found[name] and not text[:1] == found[name][:1] == b"d":
                self.held[part] = Problem(part.decode("utf-8", "surrogateescape"), HELD)
            del found[name]
        return found

    def held_part(self, path: bytes) -> bytes:
        return self.sieve.held(path) if self.sieve else b""

    def believed(self, folder: bytes, ours: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """List the other machine's entries, without excluded ones and without new links that lead out of the tree."""
        out = self.ignore.leaves_out
        taken = {name: text for name, text in ours.items() if not out(child(folder, name), text[:1] == b"d")}
        for name in [name for name, text in taken.items() if text[:1] == b"l" and text != theirs.get(name)]:
            if leads_out(folder, read_meta(taken[name]).target):
                del taken[name]
                self.plan.problems.append(Problem(child(folder, name).decode("utf-8", "surrogateescape"), LEADS_OUT))
        return taken

    def size(self) -> int:
        plan = self.plan
        return len(plan.send) + len(plan.delete_files) + len(plan.delete_folders) + len(plan.clear) + plan.new_folders

    def compare_entry(self, folder: bytes, name: bytes, text: bytes, found_text: bytes | None) -> None:
        path, meta = child(folder, name), read_meta(text)
        found = None if found_text is None else read_meta(found_text)
        if found_text is not None and found is not None and found.kind != "d":
            self.plan.found[path] = found_text
        if found is not None and found.kind != meta.kind and "d" in (found.kind, meta.kind):
            if not self.make_way(path, found):
                return
            found = None
        if meta.kind == "d":
            self.compare_folder(path, meta, found)
        else:
            self.compare_file(Item(folder, name, text, meta.size, "new"), meta, found)

    def compare_folder(self, path: bytes, meta: Meta, found: Meta | None) -> None:
        if found is None:
            self.plan.new_folders += 1
        if found is None or found.mode != meta.mode or not self.same_time(meta, found):
            self.finish(path, meta)

    def finish(self, path: bytes, meta: Meta) -> None:
        if path not in self.finished:
            self.finished.add(path)
            self.plan.finish.append(Attributes(path, meta.mode, meta.mtime))

    def compare_file(self, item: Item, meta: Meta, found: Meta | None) -> None:
        plan, why = self.plan, self.why_send(meta, found)
        if found is not None and meta.kind == found.kind == "f" and self.checksum and meta.size == found.size:
            changed = bool(why) or found.mode != meta.mode
            plan.doubtful.append((item._replace(why="content"), changed))
        elif why:
            plan.send.append(item._replace(why=why))
        else:
            plan.skipped += 1
            if found is not None and meta.kind == "f" and found.mode != meta.mode:
                plan.touch.append(Attributes(item.path, meta.mode, meta.mtime))

    def why_send(self, meta: Meta, found: Meta | None) -> str:
        if found is None:
            return "new"
        if found.kind != meta.kind:
            return "kind"
        if meta.kind == "l":
            return "link" if found.target != meta.target else ""
        if found.size != meta.size:
            return "size"
        return "" if self.same_time(meta, found) else "time"

    def same_time(self, meta: Meta, found: Meta) -> bool:
        if self.coarse:
            return meta.mtime // SECOND == found.mtime // SECOND
        return meta.mtime == found.mtime

    def make_way(self, path: bytes, found: Meta) -> bool:
        """Clear an entry of another kind out of the way: a file; a folder only if empty or extras may be deleted."""
        if found.kind != "d":
            self.plan.clear.append(path)
            return True
        if not self.deletes and self.target.folders.get(path, b""):
            reason = f"a folder that is not empty is in the way; {self.order.terms.with_delete} replaces it"
            self.plan.problems.append(Problem(path.decode("utf-8", "surrogateescape"), reason))
            return False
        below = list(self.below(path))
        self.plan.clear += [inner for inner, kind in below if kind != "d"]
        self.plan.clear += [inner for inner, kind in reversed(below) if kind == "d"] + [path]
        return True

    def below(self, folder: bytes) -> Iterator[tuple[bytes, str]]:
        """Walk through the target's entries in a folder, folders before what is in them."""
        folders = [folder]
        while folders:
            folder = folders.pop()
            for name, text in self.target.entries(folder).items():
                path, kind = child(folder, name), read_meta(text).kind
                if not self.ignore.leaves_out(path, kind == "d") and not self.held_part(path):
                    if kind == "d":
                        folders.append(path)
                    else:
                        self.plan.found[path] = text
                    yield path, kind

    def delete(self, folder: bytes, name: bytes, text: bytes) -> None:
        path, kind = child(folder, name), read_meta(text).kind
        if self.ignore.leaves_out(path, kind == "d"):
            return
        if kind != "d":
            self.plan.delete_files.append(path)
            self.plan.found[path] = text
            return
        for inner, inner_kind in self.below(path):
            (self.plan.delete_folders if inner_kind == "d" else self.plan.delete_files).append(inner)
        self.plan.delete_folders.append(path)

    def finish_again(self, folder: bytes) -> None:
        """Restore the time of a folder whose content changes."""
        above, _, name = folder.rpartition(b"/")
        if above not in self.parents:
            self.parents[above] = source_entries(self.source, self.target, above, self.order)
        if name in self.parents[above]:
            self.finish(folder, read_meta(self.parents[above][name]))


@dataclass(frozen=True)
class FilePart:
    """A part of the new file. `place` is where the old file has the same bytes; -1 where it has not."""

    offset: int
    length: int
    place: int = -1

    def is_followed_by(self, other: FilePart) -> bool:
        if (self.place < 0) != (other.place < 0) or self.offset + self.length != other.offset:
            return False
        return self.place < 0 or self.place + self.length == other.place


def read_index(index: bytes) -> Iterator[tuple[int, bytes]]:
    """Raises FileProblem for what is not an index."""
    if len(index) % PIECE.size:
        raise FileProblem("an index of a file cannot be read; its machine is broken or hostile", "hostile")
    return PIECE.iter_unpack(index)


class Matcher:
    """Compares the new file's index with the old one piece by piece; yields spans that are old or new, merged."""

    def __init__(self, old_index: bytes, most: int) -> None:
        self._places: dict[bytes, int] = {}
        self._at: dict[int, bytes] = {}
        offset = 0
        for length, digest in read_index(old_index):
            self._places.setdefault(digest, offset)
            self._at[offset] = digest
            offset += length
        self._most = most
        self._offset = 0
        self._pending: FilePart | None = None

    def feed(self, index: bytes) -> Iterator[FilePart]:
        for length, digest in read_index(index):
            last = self._pending
            span = FilePart(self._offset, length, self._place(digest, last))
            self._offset += length
            if last and last.is_followed_by(span) and last.length + length <= self._most:
                self._pending = replace(last, length=last.length + length)
                continue
            if last:
                yield last
            self._pending = span

    def _place(self, digest: bytes, last: FilePart | None) -> int:
        """Return where the old file has this piece; of several places the one right after the last, for one span."""
        if last and last.place >= 0 and self._at.get(last.place + last.length) == digest:
            return last.place + last.length
        return self._places.get(digest, -1)

    def rest(self) -> Iterator[FilePart]:
        if self._pending:
            yield self._pending
        self._pending = None


def joined(spans: list[FilePart]) -> Iterator[FilePart]:
    """Merge adjacent spans."""
    pending: FilePart | None = None
    for span in spans:
        if pending and pending.is_followed_by(span):
            pending = replace(pending, length=pending.length + span.length)
        else:
            if pending:
                yield pending
            pending = span
    if pending:
        yield pending
