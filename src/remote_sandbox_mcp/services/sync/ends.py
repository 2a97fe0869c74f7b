"""The two ends of a transfer: their places, lanes and contents."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import BadArgument, FileProblem
from ...core.gate import Admitted
from ...core.orders import InspectPathOrder, LaneOrder, ScanOrder
from ...core.sync.ignore import Ignore
from ...core.sync.incoming import Sieve
from ...core.sync.plan import Item
from ...core.sync.transfer import DEFAULT_EXCLUDES, Lane, Order, Place, Reply, RootName
from ...core.sync.tree import MOST_BYTES, Tree, TreeReader, bytes_of, is_name
from ...core.workspaces.workspace import SECRET_LIKE
from .lanes import Lanes
from .large import place_stem
from .streams import names_of

# A line this slow is worth a compressed listing, and more than two lanes.
LONG_S = 0.004
# Lanes beside the first that are opened before it is known what there is to send.
AHEAD = 2


@dataclass
class End:
    """One end. Its lanes are given `root`, a folder, and for a single file its `name` in it.

    A local end was admitted by the gate: what the lanes open is compared with what the gate saw.
    """

    place: Place
    lanes: Lanes
    admitted: Admitted | None = None
    root: str = ""
    name: bytes = b""
    taken: list[Lane] = field(default_factory=list)
    # Of the folders to a root on another machine, which has to be the same still.
    ids: Sequence[tuple[int, int]] = ()
    _before: int = 0

    @property
    def moved(self) -> int:
        """Bytes of this transfer over the network."""
        return sum(lane.moved for lane in self.taken) - self._before

    @property
    def root_name(self) -> RootName:
        ids = self.exact or list(self.ids)
        return [self.root, ids] if ids else self.root

    @property
    def exact(self) -> list[tuple[int, int]] | None:
        return list(self.admitted.way.ids) if self.admitted else None

    @property
    def path(self) -> str:
        return self.admitted.way.path if self.admitted else self.place.path

    @property
    def sieve(self) -> Sieve | None:
        return self.admitted.sieve if self.admitted else None

    @property
    def is_far(self) -> bool:
        return self.lanes.round_trip_s > LONG_S

    @property
    def lane(self) -> Lane:
        return self.taken[0]

    async def open(self) -> None:
        """Raises ConnectError, Unsupported."""
        if not self.taken:
            self._add(await self.lanes.take())

    def _add(self, lane: Lane) -> None:
        self.taken.append(lane)
        self._before += lane.moved

    async def widen(self, count: int, worth: int) -> None:
        """Take further lanes, up to this number, if possible; `worth` of them may have to be opened."""
        wanted = min(count, self.lanes.most, max(worth, len(self.taken) + self.lanes.ready)) - len(self.taken)
        if wanted > 0:
            for lane in await self.lanes.take_more(wanted):
                self._add(lane)

    def give_back(self) -> None:
        for lane in self.taken:
            self.lanes.give_back(lane)
        self.taken, self._before = [], 0

    async def drop(self) -> None:
        """Close the lanes, whatever they are doing."""
        taken, self.taken, self._before = self.taken, [], 0
        await asyncio.gather(*(lane.close() for lane in taken), return_exceptions=True)

    async def inspect(self) -> dict[str, Any]:
        order: InspectPathOrder = {"verb": "look", "path": self.path}
        if self.exact is not None:
            order["exact"] = self.exact
        return (await self.ask(order)).end

    def settle(self, tree: Tree) -> None:
        """Take the folder that was scanned as its root."""
        self.root, self.ids = tree.path, ()
        if tree.ids and not self.admitted:
            self.root, self.ids = tree.real, tree.ids

    async def ask(self, order: LaneOrder, raw: bytes = b"") -> Reply:
        return await self.lane.begin(order, raw)

    async def scan(self, order: Order, path: str = "", beside: bytes = b"") -> Tree:
        """The tree without excluded entries; with `beside`, also partial files that transfers left beside a file.

        Raises FileProblem, Unreachable.
        """
        reader = TreeReader(str(self.place))
        wanted: ScanOrder = {
            "verb": "scan",
            "path": path or self.path,
            "rules": list(order.rules),
            "watched": list(DEFAULT_EXCLUDES) if order.default_excludes else [],
            "gitignore": order.respect_gitignore,
            "squeeze": self.is_far,
        }
        if beside:
            wanted["beside"] = beside.decode()
        if self.exact is not None:
            wanted["exact"] = self.exact
        return reader.finish((await self.lane.begin(wanted, heard=reader.feed, room=MOST_BYTES)).end)


class Ends:
    """Ends of a sync, scanned."""

    def __init__(self, order: Order, source: End, target: End) -> None:
        self.order = order
        self.source = source
        self.target = target

    async def open(self) -> None:
        """Raises ConnectError, Unsupported, after both attempts have ended: a late success would be leaked."""
        tried = await asyncio.gather(self._open_source(), self.target.open(), return_exceptions=True)
        for problem in tried:
            if problem is not None:
                raise problem

    async def _open_source(self) -> None:
        """Open the source and, for a folder of this computer, lanes ahead: a few are opened in the time of one."""
        await self.source.open()
        if not self.source.place.sandbox and (await self.source.inspect())["kind"] == "dir":
            self.target.lanes.open_ahead(AHEAD)

    def give_back(self) -> None:
        self.source.give_back()
        self.target.give_back()

    async def drop(self) -> None:
        await asyncio.gather(self.source.drop(), self.target.drop())

    def target_names(self, batch: list[Item]) -> bytes:
        """The items' names at the target: a single file may have another name there."""
        return b"\0" + self.target.name + b"\0" if self.target.name else names_of(batch)

    async def scan(self) -> tuple[Tree, Tree]:
        """Scan both trees. A single file is a tree of one entry. Raises FileProblem, BadArgument, Unreachable."""
        found = await self.source.inspect() if not self.source.place.sandbox or self.target.place.sandbox else None
        if found and found["kind"] != "dir":
            return await self._scan_file(await self.source.scan(self.order))
        # A folder, or what will become one: scan both sides at once.
        scanning = asyncio.ensure_future(self._scan_target())
        # If both fail, only one failure is reported.
        scanning.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            source = await self.source.scan(self.order)
            if source.kind != "dir":
                scanning.cancel()
                await self.target.drop()
                await self.target.open()
                return await self._scan_file(source)
            target = await scanning
        finally:
            scanning.cancel()
        self.source.root, self.target.root = source.path, target.path
        if target.kind in ("file", "other"):
            raise FileProblem(f"{self.target.place} is not a folder, but {self.source.place} is", "not_a_folder")
        return source, target

    async def _scan_target(self) -> Tree:
        closed = self.target.admitted.rules if self.target.admitted else ()
        excludes = (*self.order.excludes, *closed)
        return await self.target.scan(replace(self.order, respect_gitignore=False, excludes=excludes))

    async def _scan_file(self, source: Tree) -> tuple[Tree, Tree]:
        if source.kind == "missing":
            raise FileProblem(f"{self.source.place} does not exist", "ENOENT")
        if source.kind != "file":
            raise FileProblem(f"{self.source.place} is neither a file nor a folder", "not_a_file")
        if not source.meta.startswith(b"f"):
            raise FileProblem(
                f"{self.source.place}: its machine calls it a file, and describes something else", "hostile"
            )
        # A link that the user named is followed, for files as for folders.
        self.source.root, real_name = posixpath.split(source.real)
        found = await self.target.inspect()
        path = str(found["path"])
        if found["kind"] == "dir" or self.target.place.path.endswith("/"):
            path = posixpath.join(path, self._name_in_folder())
        if self.target.sieve:
            self.target.sieve.check_file(path)
        self.target.root, target_name = posixpath.split(path)
        self.source.name, self.target.name = bytes_of(real_name), bytes_of(target_name)
        # Partial files of earlier transfers of this file lie beside it.
        target = await self.target.scan(self.order, path, beside=place_stem(b"\0" + self.target.name))
        if target.kind == "dir":
            raise FileProblem(f"{path} is a folder, but {self.source.place} is a file", "is_dir")
        entry = self.source.name + b"\0"
        source.folders, source.counts = {b"": entry + source.meta}, {b"": 1}
        target.folders = {b"": entry + target.meta} if target.kind == "file" else {}
        if not self.target.name:
            raise BadArgument(f"{self.target.place} does not name a file")
        return source, target

    def _name_in_folder(self) -> str:
        """Name of the file in the target folder: as the user wrote it, whatever the source machine reports."""
        said = posixpath.normpath(self.source.place.path)
        name = posixpath.basename(said)
        if not is_name(bytes_of(name)) or (name == said and name.startswith("~")):
            raise BadArgument(f"{self.source.place} does not name a file")
        # A file of any name goes where its very path is named.
        excludes = [bytes_of(line) for line in self.order.excludes if line not in SECRET_LIKE]
        if Ignore(excludes).leaves_out(bytes_of(name), False):
            raise BadArgument(f"{self.source.place} is among what is not synced to {self.target.place}")
        return name
