"""One sync: scan both ends, plan, carry out. Push and pull are the same with the ends exchanged."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import FileProblem
from ...core.sync.plan import Attributes, Plan, check_deletion, make_plan, secrets_in, source_entries
from ...core.sync.secret_names import secret_lines_in
from ...core.sync.transfer import Headway, Listener, Order, Outcome, unheard
from ...core.sync.tree import Tree, read_meta, text_of
from ...far.lane.target import ATTRIBUTES
from ...far.lane.tree import MOST_SECRETS_NAMED
from .ends import End, Ends
from .large import IndexMemory
from .meter import Meter, Tally
from .sending import BATCH_FILES, Bridging, Sending
from .streams import batches, names_of, portions

if TYPE_CHECKING:
    from ...core.orders import ClearOrder, DeleteOrder, FinishOrder, TidyOrder, TouchOrder

    TargetOrder = TidyOrder | ClearOrder | TouchOrder | DeleteOrder | FinishOrder

SLASH = ord("/")
# What may be raised by an answer that makes no sense, from a broken or hostile machine.
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)


class Synchronization:
    """One order from the first scan to the outcome. It may be planned and not carried out."""

    def __init__(
        self, order: Order, source: End, target: End, chunks: IndexMemory, bridge: Bridging | None = None
    ) -> None:
        self.order = order
        self._bridge = bridge
        self.ends = Ends(order, source, target)
        self.chunks = chunks
        self.plan = Plan()
        # A plan can be carried out once.
        self.is_prepared = False
        self.source_tree: Tree | None = None
        self.target_tree: Tree | None = None
        self.tally = Tally(str(order.target))
        self._sending: Sending | None = None
        self._spent_s = 0.0
        self._direct = False
        self._wire_bytes = 0

    # Plan

    async def open(self) -> None:
        """Reach both ends. Raises ConnectError, Unsupported."""
        try:
            await self.ends.open()
        except BaseException:
            await self.ends.drop()
            raise

    async def prepare(self, listener: Listener = unheard) -> Plan:
        """Look at both ends and decide. Raises FileProblem, BadArgument, ConnectError."""
        listener(Headway("scanning"))
        begun = time.monotonic()
        try:
            await self.ends.open()
            self.source_tree, self.target_tree = await self.ends.scan()
            check_deletion(self.order, self.source_tree, self.target_tree)
            # For a single file, its name has already been checked.
            sieve = None if self.ends.source.name else self.ends.target.sieve
            self.plan = make_plan(self.source_tree, self.target_tree, self.order, sieve)
            await self._settle_doubts(self.plan)
        except NONSENSE as nonsense:
            await self.ends.drop()
            raise self._nonsense(nonsense) from nonsense
        except BaseException:
            await self.ends.drop()
            raise
        for problem in (*self.source_tree.problems, *self.plan.problems):
            self.tally.note(problem)
        self.tally.problem_count += self.source_tree.problem_count - len(self.source_tree.problems)
        self.is_prepared = True
        self._spent_s += time.monotonic() - begun
        return self.plan

    def adopt(self, plan: Plan, source: Tree, target: Tree) -> None:
        """Take a plan that was made elsewhere, from scans of both ends, in the place of `prepare`."""
        self.plan, self.source_tree, self.target_tree = plan, source, target
        self.ends.source.settle(source)
        self.ends.target.settle(target)
        for problem in plan.problems:
            self.tally.note(problem)
        self.is_prepared = True

    async def _settle_doubts(self, plan: Plan) -> None:
        """Compare the content of what has the same size on both sides."""
        if not plan.doubtful:
            return
        for batch in batches([item for item, _ in plan.doubtful], BATCH_FILES, 1 << 62):
            raw = names_of(batch)
            ours, theirs = await asyncio.gather(
                self.ends.source.ask({"verb": "digests", "root": self.ends.source.root_name}, raw),
                self.ends.target.ask(
                    {"verb": "digests", "root": self.ends.target.root_name}, self.ends.target_names(batch)
                ),
            )
            for at, item in enumerate(batch):
                digest = ours.out[16 * at : 16 * at + 16]
                if digest != theirs.out[16 * at : 16 * at + 16] or digest == bytes(16):
                    plan.send.append(item)
        self._finish_again(plan)
        changed = {(item.folder, item.name) for item in plan.send}
        for item, differs in plan.doubtful:
            if (item.folder, item.name) not in changed:
                plan.skipped += 1
                if differs:
                    plan.touch.append(Attributes(item.path, item.meta.mode, item.meta.mtime))
        plan.doubtful = []

    def _finish_again(self, plan: Plan) -> None:
        """Restore folder times also for files that were added to the plan late."""
        assert self.source_tree is not None
        assert self.target_tree is not None
        finished = {item.path for item in plan.finish}
        sent = {item.folder for item, _ in plan.doubtful} & {item.folder for item in plan.send}
        for folder in sent - finished - {b""}:
            above, _, name = folder.rpartition(b"/")
            entries = source_entries(self.source_tree, self.target_tree, above, self.order)
            if found := entries.get(name):
                meta = read_meta(found)
                plan.finish.append(Attributes(folder, meta.mode, meta.mtime))
        plan.finish.sort(key=lambda item: (-item.path.count(b"/"), item.path))

    def release(self) -> None:
        """Give the lanes back: it will not be carried out."""
        self.ends.give_back()

    # Carry out

    async def carry_out(self, listener: Listener = unheard) -> Outcome:
        """Carry out the plan. Raises FileProblem, Unreachable; what has arrived by then stays."""
        assert self.source_tree is not None
        plan, self.is_prepared = self.plan, False
        meter, begun = Meter(listener, len(plan.send), plan.bytes), time.monotonic()
        meter.report(begun, always=True)
        try:
            await self._carry(meter)
        except NONSENSE as nonsense:
            await self._give_up(begun)
            raise self._nonsense(nonsense) from nonsense
        except BaseException:
            await self._give_up(begun)
            raise
        self._settle(begun)
        if self._sending:
            await self._sending.leave_bridges()
        meter.phase = "done"
        meter.report(time.monotonic(), always=True)
        self.ends.give_back()
        return self.outcome()

    async def _give_up(self, begun: float) -> None:
        self._settle(begun)
        if self._sending:
            await self._sending.leave_bridges()
        await self.ends.drop()

    def _nonsense(self, problem: Exception) -> FileProblem:
        message = f"{self.order.source} to {self.order.target}: a machine's answer cannot be understood ({problem!r})"
        return FileProblem(message, "hostile")

    def _settle(self, begun: float) -> None:
        self._spent_s += time.monotonic() - begun
        self._direct = bool(self._sending and self._sending.bridged)
        self._wire_bytes = sum(end.moved for end in (self.ends.source, self.ends.target) if end.place.sandbox)

    async def _carry(self, meter: Meter) -> None:
        plan, root = self.plan, self.ends.target.root_name
        assert self.target_tree is not None
        leftovers = [path.encode("utf-8", "surrogateescape") for path in self.target_tree.leftovers]
        if plan.clear:
            await self._request({"verb": "tidy", "root": root}, _below(plan.clear, leftovers), b"\0")
            await self._request_with_found({"verb": "clear", "root": root}, plan.clear, plan.clear, b"\0")
        if plan.send:
            self._sending = Sending(self.ends, plan, self.chunks, self.tally, meter, self._bridge)
            await self._sending.send()
        meter.phase = "deleting" if plan.delete_files or plan.delete_folders else meter.phase
        meter.report(time.monotonic(), always=True)
        touched = [item.path for item in plan.touch]
        await self._request_with_found({"verb": "touch", "root": root}, self._packed(plan.touch), touched)
        # Before what they lie in is removed or gets its time, after what could be resumed.
        await self._request({"verb": "tidy", "root": root}, leftovers, b"\0")
        delete: DeleteOrder = {"verb": "delete", "root": root}
        await self._request_with_found({**delete}, plan.delete_files, plan.delete_files, b"\0", end=b"\0\0")
        await self._request(delete, plan.delete_folders, b"\0", begin=b"\0\0")
        await self._request({"verb": "finish", "root": root}, self._packed(plan.finish))
        if self.target_tree.kind == "missing" and not self.ends.target.name and not plan.finish:
            self.tally.hear(await self.ends.target.ask({"verb": "finish", "root": root}))

    async def _request(
        self, order: TidyOrder | DeleteOrder | FinishOrder, parts: list[bytes], between: bytes = b"", begin: bytes = b""
    ) -> None:
        """Ask the target for all of these, in as many requests as they take."""
        for portion, _ in portions(parts):
            await self._ask_target(order, begin + between.join(portion))

    async def _request_with_found(
        self, order: ClearOrder | DeleteOrder | TouchOrder, parts: list[bytes], paths: Sequence[bytes],
        between: bytes = b"", end: bytes = b"",
    ) -> None:  # fmt: skip
        """Send requests with the scan's finding at the path of each part: the target keeps what has changed since."""
        for portion, found in portions(parts, [self.plan.found_at(path) for path in paths]):
            order["found"] = found
            await self._ask_target(order, between.join(portion) + end)

    async def _ask_target(self, order: TargetOrder, raw: bytes) -> None:
        reply = self.tally.hear(await self.ends.target.ask(order, raw))
        if order["verb"] == "delete":
            self.tally.deleted_files += reply.number("files")
            self.tally.deleted_dirs += reply.number("dirs")

    def outcome(self) -> Outcome:
        """Summarize the work, complete or up to a failure."""
        assert self.source_tree is not None
        secrets, count = self._secrets()
        return Outcome(
            synced_type="file" if self.ends.source.name else "directory",
            made_dirs=self.plan.new_folders,
            sent_files=self.tally.sent,
            skipped_files=self.plan.skipped,
            deleted_files=self.tally.deleted_files,
            deleted_dirs=self.tally.deleted_dirs,
            bytes=self.tally.bytes,
            wire_bytes=self._wire_bytes,
            seconds=self._spent_s,
            problems=tuple(self.tally.problems),
            problem_count=self.tally.problem_count,
            excluded=self.source_tree.hits,
            direct=self._direct,
            secrets=secrets,
            secret_count=count,
        )

    def _secrets(self) -> tuple[tuple[str, ...], int]:
        """Names of secrets on this computer: those that were not sent for an agent, or those that go for a person."""
        source, tree = self.order.source, self.source_tree
        root, is_file = self.ends.source.root, bool(self.ends.source.name)
        if tree is None or source.sandbox or (is_file and not source.free):
            # Another machine may say anything, and a file's very path sends it.
            return (), 0
        if not source.free:
            inner = [line[1:] for line in secret_lines_in(root) if os.path.lexists(root + line)]
            return (*inner, *tree.secrets), len(inner) + tree.secret_count
        found = secrets_in(self.plan.send, root) if self.order.target.sandbox else []
        return tuple(map(text_of, found[:MOST_SECRETS_NAMED])), len(found)

    def _packed(self, attributes: list[Attributes]) -> list[bytes]:
        paths = [self.ends.target.name or item.path for item in attributes]
        return [
            ATTRIBUTES.pack(item.mode, item.mtime, len(path)) + path
            for item, path in zip(attributes, paths, strict=True)
        ]


def _below(folders: list[bytes], paths: list[bytes]) -> list[bytes]:
    """Select the paths that lie in one of the folders."""
    found = set(folders)
    return [path for path in paths if any(path[:at] in found for at, byte in enumerate(path) if byte == SLASH)]
