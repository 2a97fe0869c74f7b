"""One pass over a workspace: look at its sides, decide, carry over what changed, keep the new common state."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...core.errors import BadArgument, FileProblem, SandboxError
from ...core.gate import Ground
from ...core.sandboxes.files import Problem
from ...core.sync.incoming import Sieve
from ...core.sync.plan import Item, Items, Plan
from ...core.sync.scope import AppliedScope, Scope, folders_above, is_among, survey
from ...core.sync.transfer import IN_WORKSPACE, Listener, Order, Outcome, Place
from ...core.sync.tree import LEADS_OUT, Tree, text_of
from ...core.texts.text import counted
from ...core.workspaces.reconcile import (
    Entries,
    Reconciled,
    SideLost,
    amend,
    check_sides,
    decide,
    moves,
    other_folder_here,
    reconcile,
)
from ...core.workspaces.workspace import (
    LARGE_PULL,
    LARGEST_RESULT,
    MOST_STAYING,
    SMALL_FILE,
    LinkOrder,
    Moved,
    Preview,
    Workspace,
    room_for_results,
)
from ..sync.ends import End
from ..sync.engine import NONSENSE, Synchronization
from ..sync.patience import CutOff
from ..sync.sending import BATCH_FILES
from ..sync.service import Syncs
from ..sync.streams import batches, names_of
from .followers import Followers
from .records import Base, Pending, WorkspaceRecords

# How often something that cannot be carried over is tried, until it changes.
MOST_TRIES = 3
# How many names of each kind a result has.
NAMED = 20
DIGEST = 16
# Names that file systems of Windows, cameras and sticks do not have, and what systems say of that and of links.
FOREIGN_NAME = re.compile(r'[<>:"|?*\\\x00-\x1f]|[ .](?:/|\Z)|[\udc80-\udcff]')
BAD_NAME = ("Invalid argument", "No such file or directory", "Invalid or incomplete multibyte or wide character")
NO_LINKS = ("Function not implemented", "Operation not permitted", "Operation not supported", "Not supported")
FILE_META = re.compile(rb"f[0-7]{1,4} [0-9]{1,18} -?[0-9]{1,19}")


@dataclass(frozen=True)
class Decisions:
    """Paths at which the caller has decided which side is right."""

    keep_here: frozenset[bytes] = frozenset()
    keep_there: frozenset[bytes] = frozenset()

    @property
    def all(self) -> frozenset[bytes]:
        return self.keep_here | self.keep_there


@dataclass(frozen=True)
class Carried:
    """Result of one plan: its outcome, the paths that failed, and what was put in place instead of what."""

    plan: Plan
    outcome: Outcome | None = None
    failed: frozenset[bytes] = frozenset()
    otherwise: Mapping[bytes, bytes] = field(default_factory=dict)

    def arrived(self) -> list[Item]:
        return [item for item in self.plan.send if item.path not in self.failed]

    @property
    def gone(self) -> list[bytes]:
        """Files that were deleted, and do not come back under a name that differs in its case only."""
        every = (*self.plan.clear, *self.plan.delete_files)
        return [path for path in every if path in self.plan.found and path not in self.failed]


NOTHING = Carried(Plan())
NO_TREE = Tree("", "", "", "")


class Pass:
    """One pass. A quick one looks at this side only, and takes the common state for the other one."""

    def __init__(
        self,
        workspace: Workspace,
        inode: int,
        syncs: Syncs,
        records: WorkspaceRecords,
        followers: Followers,
        listener: Listener,
    ) -> None:
        """Raises BadArgument where the gate closes the folder by now, SideLost where another one is in its place."""
        self.workspace = workspace
        self._syncs = syncs
        self._records = records
        self._followers = followers
        # The run before this pass: the other side may have been looked at when that ended.
        self.after_run = ""
        # What a send has carried over before it found that a whole pass is needed.
        self.sent_part = Moved()
        # This side was not looked at again after that run, and something in it has changed meanwhile.
        self.is_outdated = False
        self._listener = listener
        self.base = records.base(workspace)
        here, there = workspace.here, Place(workspace.sandbox, workspace.remote)
        self._push = syncs.begin(Order(source=here, target=there))
        self._pull = syncs.begin(Order(source=there, target=here))
        self._here, self._there = self._push.ends.source, self._push.ends.target
        self._check_folder(inode)
        self.scope = self._scope()
        lines = workspace.rules.scan_lines(self.scope.closed)
        self._order = Order(source=here, target=there, excludes=(*IN_WORKSPACE, *lines), respect_gitignore=True)
        self._resting: frozenset[bytes] = frozenset()
        # What is not carried over in this pass: what a transfer in the background brings, what stays there.
        self._left: frozenset[bytes] = frozenset()
        self._is_as_sent = False

    def _check_folder(self, inode: int) -> None:
        assert self._here.admitted is not None
        way, folder = self._here.admitted.way, self.workspace.folder
        if way.path != folder or (way.id is not None and way.id[1] != inode):
            raise other_folder_here(folder)

    def _scope(self) -> Scope:
        reading, writing = self._here.admitted, self._pull.ends.target.admitted
        assert reading is not None
        assert writing is not None
        # Also for a folder that a person linked: people do not check the files that each command brings back.
        sieve = writing.sieve or Sieve(writing.way, Ground())
        # What is closed to writing alone, such as a folder of PATH in the project, goes; the sieve holds what comes.
        return Scope(self.workspace.rules, reading.rules, sieve, came=self.base.came)

    # The two kinds of pass

    async def send(self) -> Moved | None:
        """Send what changed here since the last pass, without a look at the other side.

        None where that does not do, and a whole pass is needed. Raises SandboxError.
        """
        base = self.base
        if base.is_coarse or not base.ids or self._records.pending(self.workspace):
            return None
        async with self._closing():
            here = await self._scan(self._here)
            if {folder: block for folder, block in here.folders.items() if block} == base.folders:
                self._note_sent(here)
                return Moved()
            if "t" in base.rough[1]:
                # The times of files there are not those of the common state.
                return None
            there = Tree("dir", base.real, base.real, "", folders=base.folders, ids=base.ids)
            self._rest(here, there)
            frozen = self._resting.union(base.conflicts, base.fetching)
            result = reconcile(base.folders, here, there, replace(self.scope, frozen=frozen))
            if not moves(result.push):
                self._keep(base, result, NOTHING)
                self._note_sent(here)
                return Moved()
            self._announce(result, here, there)
            try:
                pushed = await self._carry(self._push, result.push, here, there)
            except FileProblem as problem:
                if problem.reason != "moved":
                    raise
                # The folder there is another one: the whole pass tells it.
                return None
            self._keep(replace(base, rough=self._rough_by_now()), result, pushed)
            if pushed.failed:
                self.sent_part = replace(moved(pushed, NOTHING, ()), problems=())
                return None
            self._note_sent(here)
            return moved(pushed, NOTHING, ())

    def _rough_by_now(self) -> tuple[frozenset[str], frozenset[str]]:
        here, there = self.base.rough
        return here | self._pull.tally.rough, there | self._push.tally.rough

    async def whole(self, decisions: Decisions | None = None) -> Moved:
        """Look at both sides and carry over what changed on either. Raises SideLost, SandboxError."""
        decisions = decisions or Decisions()
        async with self._closing():
            here, there = await self._scan_both()
            if not decisions.all and self._followers.is_settled(self.workspace.id, here, there, self.base):
                return Moved()
            before, unended = self.base, self._records.pending(self.workspace) or Pending()
            base = replace(self.base, folders=self._with_arrived(here, there, unended))
            if base != self.base:
                # The next announcement takes the place of the one by which it was found.
                self._records.keep(self.workspace, replace(base))
            if decisions.all:
                base.folders = decide(base.folders, here, there, decisions.keep_here, decisions.keep_there)
            self._rest(here, there, decisions.all)
            frozen = self._resting.union(base.fetching)
            scope = replace(self.scope, frozen=frozen, decided=decisions.all)
            result = await self._decide(base, here, there, scope)
            large = await self._leave_results(result.pull, decisions.all)
            base.fetching += self._leave_large(result.pull)
            notes = self._notes(result)
            batch = await self._keep_old(result.pull, notes)
            if moves(result.push) or moves(result.pull):
                self._announce(result, here, there)
            pushed = await self._carry(self._push, result.push, here, there)
            self._push.release()
            pulled = await self._carry(self._pull, result.pull, there, here)
            await self._settle_trash(batch)
            # What is not as it was seen before the run has been left alone.
            self.is_outdated = self._is_as_sent and bool(pulled.failed)
            base.rough = self._rough_by_now()
            if there.kind == "dir":
                base.real, base.ids, base.is_coarse = there.real, there.ids, there.coarse
            base.conflicts = tuple(conflict.path for conflict in result.conflicts)
            staying = self._note_staying(base, result.held, large)
            stayed = result.stayed if result.stayed != base.stayed else 0
            base.stayed = result.stayed
            self._keep(base, result, pushed, pulled)
            if late := unended.only(pushed.failed, pulled.failed):
                # Lanes of the process that did not end it may be writing still, and were quicker than this pass.
                self._records.announce(self.workspace, late)
            done = replace(moved(pushed, pulled, base.conflicts, notes), stayed_there=stayed, **staying)
            if done.is_quiet and self._records.base(self.workspace) is before:
                self._followers.settle(self.workspace.id, here, there, before)
            return done

    def _leave_large(self, plan: Plan) -> tuple[bytes, ...]:
        """Take out of a plan what is too large to be waited for; the smallest files stay in it."""
        room, large = LARGE_PULL, set()
        for item in sorted(plan.send, key=lambda item: item.size):
            room -= item.size
            if room < 0:
                large.add(item.path)
        self._leave(plan, large)
        return tuple(sorted(large))

    def _leave(self, plan: Plan, paths: Collection[bytes]) -> None:
        plan.send = Items(item for item in plan.send if item.path not in paths)
        self._left = self._left.union(paths)

    async def _leave_results(self, plan: Plan, decided: frozenset[bytes]) -> dict[bytes, bytes]:
        """Take out of a plan what is too large to come unasked, or for the disk; the smallest files stay in it."""
        applied = AppliedScope(self.scope, NO_TREE, NO_TREE)
        results = [
            item
            for item in plan.send
            if (item.size > SMALL_FILE or applied.is_pulled(item.path)) and not is_among(item.path, decided)
        ]
        large: dict[bytes, bytes] = {}
        if sum(item.size for item in results) <= LARGE_PULL:
            return large
        room = await asyncio.to_thread(_room_on_disk, self.workspace.folder)
        for item in sorted(results, key=lambda item: item.size):
            room -= item.size
            if room < 0 or item.size > LARGEST_RESULT:
                large[item.path] = item.text
        self._leave(plan, large)
        return large

    async def _keep_old(self, plan: Plan, notes: list[str]) -> Path | None:
        """Keep in the trash what a plan deletes or replaces here. Where that has no room, the plan only adds files."""
        sent = [item.path for item in plan.send if item.path not in self.base.came]
        paths = [path for path in dict.fromkeys((*plan.clear, *plan.delete_files, *sent)) if path in plan.found]
        if not paths:
            return None
        try:
            return await asyncio.to_thread(self._records.trash.keep, self.workspace, paths)
        except SandboxError as problem:
            count = counted(len(paths), "file")
            notes.append(f"{count} deleted or changed there stay as they were here, because {problem}")
            self._leave_old(plan, frozenset((*paths, *plan.clear)))
            return None

    def _leave_old(self, plan: Plan, paths: frozenset[bytes]) -> None:
        """Take out of a plan all that deletes or replaces something, and what depends on that."""
        same_names = {path.lower() for path in paths}
        self._left = self._left.union(paths, plan.delete_folders)
        plan.clear, plan.delete_files, plan.delete_folders = [], [], []
        self._leave(
            plan, [item.path for item in plan.send if item.path.lower() in same_names or is_among(item.path, paths)]
        )
        plan.finish = [each for each in plan.finish if not is_among(each.path, paths)]

    async def _settle_trash(self, batch: Path | None) -> None:
        if batch:
            await asyncio.to_thread(self._records.trash.settle, self.workspace, batch)

    def _note_staying(self, base: Base, held: Mapping[bytes, bytes], large: Mapping[bytes, bytes]) -> dict[str, Any]:
        """Remember what stays there, and give what of it is new to tell."""
        staying = base.staying
        base.staying = dict(sorted({**held, **large}.items())[:MOST_STAYING])
        fresh = [path for path, entry in base.staying.items() if staying.get(path) != entry]
        kept, left = [path for path in fresh if path in held], [path for path in fresh if path in large]
        return {
            "kept_there": kept_names(kept[:NAMED], held),
            "kept_there_count": len(kept),
            "too_large": tuple(map(text_of, left[:NAMED])),
            "too_large_count": len(left),
        }

    async def fetch(self) -> Carried:
        """Bring what was too large to be waited for, as far as it is to come still. Raises SideLost, SandboxError.

        Other passes may be made meanwhile: they leave these files alone.
        """
        wanted = frozenset(self.base.fetching)
        async with self._closing():
            here, there = await self._scan_both()
            result = await self._decide(self.base, here, there, replace(self.scope, decided=wanted))
            items = (item for item in result.pull.send if item.path in wanted)
            plan = Plan(send=Items(items), found=result.pull.found)
            self._push.release()
            # They may have grown since they were left.
            await self._leave_results(plan, frozenset())
            batch = await self._keep_old(plan, [])
            fetched = await self._carry(self._pull, plan, there, here)
            await self._settle_trash(batch)
            return fetched

    def note_fetched(self, fetched: Carried) -> None:
        """Keep what has arrived in the common state, as other passes have left it; the rest is left to the next one."""
        base, applied = self._records.base(self.workspace), AppliedScope(self.scope, NO_TREE, NO_TREE)
        arrived = {item.path: fetched.otherwise.get(item.path, item.text) for item in fetched.arrived()}
        folders, before = dict(base.folders), Entries(base.folders)
        amend(folders, arrived)
        came = {path for path in arrived if before.at(path) is None and applied.is_pulled(path)}
        self._records.keep(
            self.workspace, replace(base, folders=folders, came=base.came | came, fetching=(), transfer="")
        )

    async def preview(self) -> Reconciled:
        """Return the plan of a whole pass, as far as the scans show. Raises SideLost, SandboxError."""
        async with self._closing():
            here, there = await self._scan_both()
            pending = self._records.pending(self.workspace) or Pending()
            folders = self._with_arrived(here, there, pending)
            return await self._decide(replace(self.base, folders=folders), here, there, self.scope)

    def _notes(self, result: Reconciled) -> list[str]:
        notes = []
        if result.spared:
            notes.append(
                f"{result.spared} files were deleted there, which is more than is carried over at once; they are "
                "still here. To delete them here too, name their folder in keep_remote"
            )
        return notes

    # Looking

    def _closing(self) -> Closing:
        return Closing(self._push, self._pull)

    async def _scan(self, end: End) -> Tree:
        return await self._followers.scan(self.workspace.id, end, self._order)

    def _note_sent(self, here: Tree) -> None:
        self._followers.note_sent(self.workspace.id, self._here, here, self._records.base(self.workspace))

    async def _scan_here(self) -> Tree:
        """After a run as it was seen before it, where a look costs much: what is written is compared with it anyway."""
        tree = self._followers.sent(self.workspace.id, self.base) if self.after_run else None
        self._is_as_sent = tree is not None
        return tree or await self._scan(self._here)

    async def _scan_there(self) -> Tree:
        where = self.workspace.id, self._there, self._order
        tree = await self._followers.expected(*where, self.after_run, self.base) if self.after_run else None
        return tree or await self._followers.scan(*where)

    def expect(self, run_id: str) -> None:
        """Look at the other side as soon as a run there has ended; the pass after that run is given what was seen."""
        if not self._records.pending(self.workspace):
            self._followers.expect(self.workspace.id, self._there, self._order, run_id, self.base)

    async def watch(self) -> Callable[[], Awaitable[object]]:
        """Gives what looks at the folder here, with a result that is equal as long as nothing changes."""
        follower = await self._followers.follower(self.workspace.id, self._here, self._order)

        async def scan() -> object:
            await follower.scan()
            return follower, follower.version

        return scan

    async def _scan_both(self) -> tuple[Tree, Tree]:
        followers = asyncio.gather(self._scan_here(), self._scan_there())
        try:
            here, there = await followers
        except BaseException:
            followers.cancel()
            await asyncio.gather(followers, return_exceptions=True)
            raise
        self._here.settle(here)
        self._there.settle(there)
        check_sides(self.base.folders, here, there, f"{self.workspace.sandbox}:{self.workspace.remote}")
        if self.base.ids and there.ids and there.ids[-1][1] != self.base.ids[-1][1]:
            raise SideLost(
                f"{self.workspace.sandbox}:{self.workspace.remote} is not the folder that was linked: another one is "
                "in its place, as where a disk is not mounted; nothing was changed on either side. If it is the right "
                "one all the same, unlink and link again"
            )
        return replace(here, rough=self.base.rough[0]), replace(there, rough=self.base.rough[1])

    def _with_arrived(self, here: Tree, there: Tree, pending: Pending) -> dict[bytes, bytes]:
        """The common state, with what a pass that did not end had carried over already."""
        folders = dict(self.base.folders)
        for wanted, tree in ((pending.going, there), (pending.coming, here)):
            found, before = Entries(tree.folders), Entries(folders)
            arrived = {path: entry for path, entry in wanted.items() if _is_like(found.at(path), entry)}
            # Folders are made for what comes into them, and get their modes at the end.
            made = {above: found.at(above) for path in wanted for above in folders_above(path)}
            new = {path: entry for path, entry in made.items() if entry and entry[:1] == b"d" and not before.at(path)}
            amend(folders, {**new, **arrived})
        return folders

    def _rest(self, here: Tree, there: Tree, decided: frozenset[bytes] = frozenset()) -> None:
        """Leave alone what could not be carried over several times, and has not changed since."""
        sides = (Entries(here.folders), Entries(there.folders))
        self._resting = frozenset(
            path
            for path, (entry, count) in self.base.tries.items()
            if count >= MOST_TRIES and path not in decided and any(side.at(path) == entry for side in sides)
        )

    async def _decide(self, base: Base, here: Tree, there: Tree, scope: Scope) -> Reconciled:
        """Decide, and find out what the scans do not tell: whether files are text, and whether they are equal."""
        try:
            result = reconcile(base.folders, here, there, scope)
            if result.unseen or result.doubts:
                texts = await self._texts(result.unseen)
                equal = await self._equal([doubt.path for doubt in result.doubts])
                result = reconcile(base.folders, here, there, replace(scope, texts=texts, equal=equal))
        except NONSENSE as nonsense:
            raise FileProblem(f"{self.workspace}: a listing cannot be understood ({nonsense!r})", "hostile") from None
        return result

    async def _texts(self, paths: list[bytes]) -> dict[bytes, bool]:
        found = {}
        if paths:
            await self._there.open()
        for batch in _batches(paths):
            said = await self._there.ask({"verb": "texts", "root": self._there.root_name}, names_of(batch))
            found.update({item.path: said.out[at : at + 1] == b"\1" for at, item in enumerate(batch)})
        return found

    async def _equal(self, paths: list[bytes]) -> dict[bytes, bool]:
        found = {}
        if paths:
            await asyncio.gather(self._here.open(), self._there.open())
        for batch in _batches(paths):
            raw = names_of(batch)
            ours, theirs = await asyncio.gather(
                *(end.ask({"verb": "digests", "root": end.root_name}, raw) for end in (self._here, self._there))
            )
            for at, item in enumerate(batch):
                span = slice(DIGEST * at, DIGEST * (at + 1))
                found[item.path] = ours.out[span] == theirs.out[span] != bytes(DIGEST)
        return found

    # Carrying over

    def _announce(self, result: Reconciled, here: Tree, there: Tree) -> None:
        self._records.announce(self.workspace, Pending(_written(result.push, here), _written(result.pull, there)))

    async def _carry(self, job: Synchronization, plan: Plan, source: Tree, target: Tree) -> Carried:
        if not moves(plan):
            return Carried(plan)
        await job.open()
        job.adopt(plan, source, target)
        try:
            outcome = await self._syncs.attempt(job.order, self._listener, job)
        except CutOff as cut:
            raise cut.problem from cut
        otherwise = dict(_believed(plan, job.tally.otherwise))
        if outcome.problem_count > len(outcome.problems):
            # Not all are named: whatever has arrived is the same on both sides, and the next pass finds it so.
            return Carried(plan, outcome, frozenset(_paths(plan)), otherwise)
        # What is left out on purpose has not failed; what changed while it was read has arrived as it was then.
        notes = [problem for problem in outcome.problems if problem not in plan.problems]
        failed = frozenset(problem.path.encode("utf-8", "surrogateescape") for problem in notes)
        return Carried(plan, outcome, failed.difference(otherwise), otherwise)

    def _keep(self, base: Base, result: Reconciled, *carried: Carried) -> None:
        """Keep the common state that was really reached."""
        folders, before = dict(result.base), Entries(base.folders)
        amend(folders, {path: before.at(path) for path in self._left})
        for part in carried:
            amend(folders, {path: before.at(path) for path in part.failed})
            amend(folders, part.otherwise)
        folders = {folder: block for folder, block in folders.items() if block}
        now = Entries(folders)
        tries = {path: tries for path, tries in self.base.tries.items() if path in self._resting}
        kept = replace(
            base,
            folders=folders,
            came=frozenset(path for path in base.came | result.came if now.at(path)),
            tries={**tries, **{path: tried for part in carried for path, tried in self._tries(part)}},
        )
        if kept != self.base or self._records.pending(self.workspace):
            self._records.keep(self.workspace, kept)
        self.base = kept

    def _tries(self, carried: Carried) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
        wanted = {item.path: item.text for item in carried.plan.send}
        for path in carried.failed & wanted.keys():
            entry, count = self.base.tries.get(path, (b"", 0))
            yield path, (wanted[path], count + 1 if entry == wanted[path] else 1)


class Closing:
    """Gives the lanes of a pass back at its end, or closes them where it failed."""

    def __init__(self, *jobs: Synchronization) -> None:
        self._jobs = jobs

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        for job in self._jobs:
            if problem is None or isinstance(problem, SideLost):
                job.release()
            else:
                await job.ends.drop()


def _batches(paths: Iterable[bytes]) -> Iterator[list[Item]]:
    parts = (path.rpartition(b"/") for path in sorted(paths))
    items = [Item(folder, name, b"", 0, "") for folder, _, name in parts]
    return batches(items, BATCH_FILES, 1 << 62)


def _believed(plan: Plan, otherwise: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Check a target's report about the files that it was sent: it may be another machine, and say anything."""
    for item in plan.send:
        meta = otherwise.get(item.path, b"")
        if FILE_META.fullmatch(meta):
            yield item.path, meta


def _written(plan: Plan, source: Tree) -> dict[bytes, bytes]:
    """List the entries that a plan writes: its files, and entries that get another mode or time."""
    found = Entries(source.folders)
    furnished = {each.path: found.at(each.path) or b"" for each in (*plan.touch, *plan.finish)}
    return {**furnished, **{item.path: item.text for item in plan.send}}


def _is_like(found: bytes | None, entry: bytes) -> bool:
    """Whether an entry is the one that was to be written; the time of a folder says nothing."""
    if found is not None and found[:1] == entry[:1] == b"d":
        return found.partition(b" ")[0] == entry.partition(b" ")[0]
    return found == entry


def _paths(plan: Plan) -> Iterator[bytes]:
    yield from (item.path for item in plan.send)
    yield from (each.path for each in (*plan.touch, *plan.finish))
    yield from (*plan.clear, *plan.delete_files, *plan.delete_folders)


def moved(pushed: Carried, pulled: Carried, conflicts: Collection[bytes], more: Collection[str] = ()) -> Moved:
    """A pass in the words of its result."""
    sent, came, gone = pushed.arrived(), pulled.arrived(), pulled.gone
    problems = [_sentence(problem, part.plan) for part in (pushed, pulled) for problem in _problems(part)]
    return Moved(
        sent=tuple(text_of(item.path) for item in sent[:NAMED]),
        sent_count=len(sent),
        sent_bytes=sum(item.size for item in sent),
        deleted_there=len(pushed.gone),
        came=tuple(text_of(item.path) for item in came[:NAMED]),
        came_count=len(came),
        came_bytes=sum(item.size for item in came),
        deleted_here=tuple(map(text_of, gone[:NAMED])),
        deleted_here_count=len(gone),
        conflicts=tuple(map(text_of, conflicts)),
        problems=(*problems, *more),
    )


def kept_names(paths: Iterable[bytes], held: Mapping[bytes, bytes]) -> tuple[str, ...]:
    return tuple(text_of(path) if held[path] else f"{text_of(path)} (deleted there)" for path in paths)


def _room_on_disk(folder: str) -> int:
    found = os.statvfs(folder)
    return room_for_results(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _problems(carried: Carried) -> Iterable[Problem]:
    return carried.outcome.problems if carried.outcome else carried.plan.problems


def _sentence(problem: Problem, plan: Plan) -> str:
    path, reason = problem.path, problem.reason
    if reason == LEADS_OUT:
        return f"{path} {reason}"
    raw = path.encode("utf-8", "surrogateescape")
    if reason in NO_LINKS and any(item.path == raw and item.text[:1] == b"l" for item in plan.send):
        return f"{path} is a link, and the file system of the other side has none ({reason}); it stays where it is"
    if reason in BAD_NAME and FOREIGN_NAME.search(path):
        return f"{path} has a name that the other side cannot write ({reason}); rename or exclude it"
    return f"{path}: {reason}"


async def preview_link(syncs: Syncs, order: LinkOrder, check: Callable[[str, str], None]) -> Preview:
    """Look at both sides of a link that is not made yet. Raises BadArgument, SandboxError.

    `check` gets the folder there and the home folder before anything in them is scanned: it may be a whole machine.
    """
    here, there = Place("", order.folder, order.free), Place(order.sandbox, order.remote)
    # Both ways have to be open to an agent: reading the folder, and writing to it.
    syncs.begin(Order(source=there, target=here))
    rules = order.rules
    job = syncs.begin(Order(source=here, target=there))
    async with Closing(job):
        await job.open()
        admitted = job.ends.source.admitted
        closed = admitted.rules if admitted else ()
        lines = rules.scan_lines(closed)
        everything = Order(source=here, target=there, excludes=(*IN_WORKSPACE, *lines), respect_gitignore=True)
        top = await job.ends.target.scan(replace(everything, excludes=("*",)))
        check(top.real, top.home)
        # With secret-like names, so that they can be named.
        with_secrets = replace(everything, excludes=rules.scan_lines(closed, secrets=()))
        ours, theirs = await asyncio.gather(job.ends.source.scan(with_secrets), job.ends.target.scan(everything))
    if theirs.kind not in ("dir", "missing"):
        raise BadArgument(f"{there} is not a folder")
    if not theirs.real.startswith("/") or not theirs.real.isprintable():
        raise FileProblem(f"{order.sandbox} names its folder in a way that is not possible", "hostile")
    # Somebody may have put a link in its place meanwhile.
    check(theirs.real, theirs.home)
    found = survey(ours, rules, closed)
    return Preview(
        folder=order.folder,
        sandbox=order.sandbox,
        remote=theirs.real,
        files=found.files,
        bytes=found.bytes,
        secrets=tuple(found.secrets[:NAMED]),
        secret_count=len(found.secrets),
        links=tuple(found.links[:NAMED]),
        link_count=len(found.links),
        excluded=ours.hits,
        files_there=sum(theirs.counts.values()),
    )
