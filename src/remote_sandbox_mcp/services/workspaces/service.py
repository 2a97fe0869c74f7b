"""The verbs on workspaces: link a folder, send before a command, bring back after it, decide conflicts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.workspace_file import accepted_file, current_rules, notice, rules_of
from ...core import check
from ...core.commands.command import Command, Completed
from ...core.commands.shell import join
from ...core.errors import UNCONFIRMED, BadArgument, ConnectError, FileProblem, SandboxError
from ...core.lazy import lazy
from ...core.sandboxes.files import Span
from ...core.sync.ignore import Ignore
from ...core.sync.plan import precious_place
from ...core.sync.transfer import Listener, Order, Outcome, Place, unheard
from ...core.sync.tree import LEADS_OUT
from ...core.texts.text import counted, last_line, size
from ...core.workspaces.reconcile import Reconciled, SideLost, moves, other_folder_here
from ...core.workspaces.workspace import (
    Linked,
    LinkOrder,
    Moved,
    Preview,
    Rules,
    Unlinked,
    Workspace,
    WorkspaceState,
    mark_of,
    mark_text,
    not_brought,
    not_sent,
    word_in,
)
from ...local.waiting import within
from ..fleet import Fleet
from ..session import absolute
from ..transfers.service import TransferService
from .records import WorkspaceRecords

if TYPE_CHECKING:
    from .followers import BackgroundSend, Followers
    from .passes import Pass
    from .trash import Trash

# A path of the longest kind, and a word.
MARK_BYTES = 8192
# How long a machine is waited for to remove a mark. Folders that are empty then go, too.
UNMARK_S = 10.0
UNMARK = 'rm -f -- "$1" && { rmdir -- "${1%/*}" && rmdir -- "${1%/*/*}"; } 2>/dev/null; [ ! -e "$1" ]'
# How many problems are remembered as told.
MOST_REPORTED = 10_000


class WorkspaceService:
    """The workspaces of one configuration; what passes need is imported with the first one."""

    def __init__(self, fleet: Fleet, transfers: TransferService, state: Path, configuration: str = "") -> None:
        """`configuration`: only its workspaces are seen, because names of sandboxes mean the same only there."""
        self._fleet = fleet
        self._transfers = transfers
        self._records = WorkspaceRecords(state, configuration)
        self._turns: dict[str, asyncio.Lock] = {}
        # Connections over which the mark of a workspace was seen.
        self._marked: dict[str, object] = {}
        self._reported: set[tuple[str, str]] = set()
        # In a process that serves calls: changes are sent as they are made, while a workspace is in use.
        self.sends_in_background = False

    async def close(self) -> None:
        if WorkspaceService._live.made(self):
            await self._live.close()
        if WorkspaceService._followers.made(self):
            await self._followers.close()
        self._records.close()

    @lazy
    def _followers(self) -> Followers:
        from .followers import Followers

        return Followers()

    @lazy
    def _live(self) -> BackgroundSend:
        from .followers import BackgroundSend

        return BackgroundSend(lambda workspace: self._new_pass(workspace, unheard).watch(), self._send_in_background)

    @property
    def trash(self) -> Trash:
        return self._records.trash

    # Finding

    def find(self, folder: str) -> Workspace | None:
        """The workspace that a local folder lies in. Asked with every call: reads only after a change."""
        rows = self._records.mine()
        real = os.path.realpath(folder) if rows and folder else ""
        found = [row.workspace for row in rows if row.workspace.holds(real)]
        inner = max(found, key=lambda workspace: len(workspace.folder), default=None)
        return inner and _in_force(inner)

    def all(self) -> list[Workspace]:
        return [_in_force(row.workspace) for row in self._records.mine()]

    def seen_last(self, workspace: Workspace) -> tuple[float, tuple[str, ...]]:
        """Return when its sides were last made the same, 0 for never, and the conflicts then; asks no machine."""
        conflicts = self._records.base(workspace).conflicts
        return self._records.written(workspace), tuple(map(os.fsdecode, conflicts))

    def given(self, workspace: Workspace) -> Rules:
        """The rules that were given when it was linked, without those of the project's file. Raises SandboxError."""
        return self._records.row(workspace).workspace.rules

    def named(self, folder: str) -> tuple[str, str]:
        """Sandbox and folder there that the accepted file of a project names; empty for none. Raises ConfigError."""
        file = accepted_file(os.path.realpath(absolute(folder)))
        return file.target(self._fleet.configured_names) if file else ("", "")

    # Linking

    async def preview(self, order: LinkOrder) -> Preview:
        """Preview a link: its files, and where they go. Raises BadArgument, SandboxError."""
        from .passes import preview_link

        folder = self._folder_of(order)
        name = self._fleet.member(order.sandbox).name
        remote = check.text_argument("remote", order.remote or posixpath.basename(folder))
        rules = rules_of(accepted_file(folder), order.rules)
        order = replace(order, folder=folder, sandbox=name, remote=remote, rules=rules)

        def check_remote(real: str, home: str) -> None:
            self._check_place(f"{name}:{real}", real, home)
            self._check_others(replace(order, remote=real))

        return await preview_link(self._transfers.syncs, order, check_remote)

    async def link(self, order: LinkOrder, listener: Listener = unheard) -> Linked:
        """Make a workspace, or change the rules of one, and do its first pass. Raises BadArgument, SandboxError.

        A link that is cut off in its first pass stays: linking again goes on. It raises SideLost where either side is
        not the one that was linked: only unlinking forgets the common state.
        """
        preview = await self.preview(order)
        if preview.is_large and not order.confirmed:
            raise BadArgument(
                f"{preview.folder} has {counted(preview.files, 'file')} ({size(preview.bytes)}) to send to "
                f"{preview.sandbox}, so this needs a confirmation; leave out what need not go there by excludes, or "
                "confirm it",
                UNCONFIRMED,
            )
        workspace, is_new = await self._put(order, preview)

        async def first(work: Pass) -> Moved:
            moved = await work.whole()
            if not work.base.ids:
                # This pass has made the folder there: it is looked at, so that another one in its place is noticed.
                moved = moved.and_then(await self._new_pass(workspace, listener).whole())
            return moved

        try:
            moved = self._noticed(workspace, await self._pass(workspace, listener, first))
            said = {f"{name} {LEADS_OUT}" for name in preview.links}
            problems = tuple(problem for problem in moved.problems if problem not in said)
            return Linked(_in_force(workspace), preview, replace(moved, problems=problems))
        except (BadArgument, SideLost):
            if is_new:
                self._records.remove(workspace)
                await self._unmark(workspace)
            raise

    async def _put(self, order: LinkOrder, preview: Preview) -> tuple[Workspace, bool]:
        """Keep a link, and mark its machine; whether it is a new one. Raises BadArgument, SandboxError."""
        folder, rules = preview.folder, rules_of(accepted_file(preview.folder), order.rules)
        async with self._records.linking():
            # Again, because others may have been linked since the preview.
            self._check_others(LinkOrder(folder=folder, sandbox=preview.sandbox, remote=preview.remote, rules=rules))
            path = next((row for row in self._records.rows() if row.workspace.folder == folder), None)
            inode = os.stat(folder).st_ino
            if path and path.inode != inode:
                # Its common state is that of another folder: what is missing in this one was not deleted by anybody.
                raise other_folder_here(folder)
            workspace_id = path.workspace.id if path else secrets.token_hex(8)
            workspace = Workspace(workspace_id, folder, preview.sandbox, preview.remote, order.rules, order.free)
            if path is None:
                await self._mark(workspace, ())
                self._records.put(workspace, inode)
                return workspace, True
        async with self._turn(workspace):
            if self._records.written(workspace):
                await self._check_mark(workspace)
            else:
                await self._mark(workspace, self._records.words(workspace))
            self._records.put(workspace, inode)
        return workspace, False

    async def unlink(self, folder: str) -> Unlinked:
        """Forget a workspace; both sides keep their files. Raises BadArgument where the folder is in none."""
        workspace = self.find(absolute(folder))
        if workspace is None:
            linked = ", ".join(each.folder for each in self.all())
            others = f"linked are: {linked}" if linked else "none is linked"
            raise BadArgument(f"{folder} is not in a linked folder; {others}")
        async with self._turn(workspace):
            self._records.remove(workspace)
            self._live.forget(workspace)
            await self._followers.forget(workspace.id)
        return Unlinked(workspace, await self._unmark(workspace))

    def _folder_of(self, order: LinkOrder) -> str:
        check.text_argument("folder", order.folder)
        folder = os.path.realpath(absolute(order.folder))
        if not os.path.isdir(folder):
            raise BadArgument(f"{order.folder} is not a folder")
        with contextlib.suppress(UnicodeEncodeError):
            folder.encode()
            self._check_place(folder, folder, os.path.realpath(os.path.expanduser("~")))
            return folder
        raise BadArgument(f"the name of {folder!a} is not UTF-8, so it cannot be linked; rename it")

    def _check_place(self, said: str, real: str, home: str) -> None:
        if what := precious_place(real, home):
            raise BadArgument(f"{said} is not linked, because it is {what}; link a folder that holds one project only")

    def _check_others(self, order: LinkOrder) -> None:
        """Refuse what would make two workspaces write the same files. Raises BadArgument."""
        for other in (_in_force(row.workspace) for row in self._records.rows()):
            if other.folder == order.folder:
                if (other.sandbox, other.remote) != (order.sandbox, order.remote):
                    raise BadArgument(f"{other.folder} is linked to {other.sandbox}:{other.remote}; unlink it first")
            elif _is_nested(other.folder, other.rules, order.folder) or _is_nested(
                order.folder, order.rules, other.folder
            ):
                raise BadArgument(
                    f"{order.folder} cannot be linked, because {other.folder} is linked and one lies in the other; "
                    "unlink that one, or exclude the inner folder from the outer one"
                )
            elif other.sandbox == order.sandbox and _overlap(other.remote, order.remote):
                raise BadArgument(
                    f"{order.sandbox}:{order.remote} cannot be linked, because {other.folder} is linked to "
                    f"{other.sandbox}:{other.remote}, and one lies in the other; choose another remote folder"
                )

    # Passes

    async def send(self, workspace: Workspace, listener: Listener = unheard) -> Moved:
        """Carry over what changed here since the last pass. Raises SideLost, SandboxError."""

        async def send(work: Pass) -> Moved:
            moved = await work.send()
            if moved is None:
                moved = work.sent_part.and_then(await self._new_pass(workspace, listener).whole())
            return moved

        try:
            return self._noticed(workspace, await self._pass(workspace, listener, send, scans_there=False))
        finally:
            if self.sends_in_background:
                self._live.use(workspace)

    async def _send_in_background(self, workspace: Workspace) -> None:
        """Send what changed here, if that needs no whole pass; the next command tells what could not be sent."""
        async with self._turn(workspace):
            await self._check_mark(workspace)
            await self._new_pass(workspace, unheard).send()

    async def bring(self, workspace: Workspace, after_run: str = "", listener: Listener = unheard) -> Moved:
        """Carry over what changed on either side, after a run that has ended. Raises SideLost, SandboxError."""

        async def bring(work: Pass) -> Moved:
            work.after_run = after_run
            moved = await work.whole()
            if work.is_outdated:
                moved = replace(moved, problems=()).and_then(await self._new_pass(workspace, listener).whole())
            return moved

        return self._noticed(workspace, await self._pass(workspace, listener, bring))

    def expect(self, workspace: Workspace, run_id: str) -> None:
        """Called as a run begins whose id `bring` will be given: saves that a round trip. Raises nothing."""
        with contextlib.suppress(SandboxError):
            self._new_pass(workspace, unheard).expect(run_id)

    async def fetch(self, order: Order, listener: Listener) -> Outcome:
        """Bring the large files of a workspace that were left to the background. Raises SandboxError."""
        workspace = next((row.workspace for row in self._records.rows() if row.workspace.id == order.workspace), None)
        if workspace is None:
            raise SandboxError(f"{order.target.path} is not linked any more, so its large files are not fetched")
        # The pass that left them may not be over yet.
        async with self._turn(workspace):
            await self._check_mark(workspace)
            work = self._new_pass(workspace, listener)
        fetched = await work.fetch()
        async with self._turn(workspace):
            work.note_fetched(fetched)
        return fetched.outcome or Outcome(synced_type="directory")

    async def _leave_to_background(self, workspace: Workspace, moved: Moved) -> Moved:
        """Begin to bring the files that a pass has left, if it has."""
        base = self._records.base(workspace)
        if not base.fetching or base.transfer:
            return moved
        there, here = Place(workspace.sandbox, workspace.remote), workspace.here
        # The rules are for versions that do not know of workspaces: they would bring these files, and no others.
        rules = ["*", *(f"!{line}" for path in base.fetching for line in _lines_to(path))]
        order = Order(source=there, target=here, excludes=tuple(dict.fromkeys(rules)), workspace=workspace.id)
        transfer = await self._transfers.begin_fetching(replace(order, default_excludes=False))
        self._records.keep(workspace, replace(base, transfer=transfer.id))
        return replace(moved, transfer=transfer.id)

    async def _forget_ended_fetch(self, workspace: Workspace) -> None:
        """Decide again about files that a transfer in the background was to bring and did not."""
        base = self._records.base(workspace)
        if base.fetching and (not base.transfer or await self._has_ended(base.transfer)):
            self._records.keep(workspace, replace(base, fetching=(), transfer=""))

    async def _has_ended(self, transfer: str) -> bool:
        try:
            return (await self._transfers.check(transfer)).is_over
        except BadArgument:
            return True

    async def decide(
        self, workspace: Workspace, keep_local: Sequence[str], keep_remote: Sequence[str], listener: Listener = unheard
    ) -> Moved:
        """Make both sides the same at these paths, as one of them has it. Raises BadArgument, SandboxError."""
        from .passes import Decisions

        here, there = (_relative(workspace, paths) for paths in (keep_local, keep_remote))
        if both := here & there:
            raise BadArgument(f"{os.fsdecode(min(both))} is in both keep_local and keep_remote; choose one of them")
        decisions = Decisions(here, there)
        return await self._pass(workspace, listener, lambda work: work.whole(decisions))

    async def state(self, workspace: Workspace) -> WorkspaceState:
        """Return the state of its sides. Raises nothing that concerns this workspace alone: that is its trouble."""
        found: list[Reconciled] = []

        async def preview_pass(work: Pass) -> Moved:
            found.append(await work.preview())
            return Moved()

        try:
            await self._pass(workspace, unheard, preview_pass)
        except (SideLost, ConnectError, BadArgument, FileProblem) as problem:
            return WorkspaceState(workspace, trouble=str(problem))
        from .passes import NAMED, kept_names

        result = found[-1]
        conflicts = tuple(os.fsdecode(conflict.path) for conflict in result.conflicts)
        kept = kept_names(sorted(result.held)[:NAMED], result.held)
        return WorkspaceState(workspace, moves(result.push), moves(result.pull), conflicts, kept, len(result.held))

    async def _pass(
        self,
        workspace: Workspace,
        listener: Listener,
        work: Callable[[Pass], Awaitable[Moved]],
        scans_there: bool = True,
    ) -> Moved:
        """Do one piece of work on a workspace, again after a cut. Problems that were told before are not repeated."""
        from ..sync.patience import persist

        async def attempt(hear: Listener) -> Moved:
            # Also before files are sent without a look: a copy of a machine has folders with the same numbers.
            await self._check_mark(workspace)
            if scans_there:
                await self._forget_ended_fetch(workspace)
            return await work(self._new_pass(workspace, hear))

        async with self._turn(workspace):
            moved = self._without_reported(workspace, await persist(attempt, listener))
            return await self._leave_to_background(workspace, moved)

    def _new_pass(self, workspace: Workspace, listener: Listener) -> Pass:
        from .passes import Pass

        row = self._records.row(workspace)
        workspace = _in_force(row.workspace)
        return Pass(workspace, row.inode, self._transfers.syncs, self._records, self._followers, listener)

    @contextlib.asynccontextmanager
    async def _turn(self, workspace: Workspace) -> AsyncIterator[None]:
        async with self._turns.setdefault(workspace.id, asyncio.Lock()), self._records.locked(workspace):
            yield

    def _noticed(self, workspace: Workspace, moved: Moved) -> Moved:
        """With a sentence, once, where the project's file is not what its user has accepted."""
        problems = self._without_reported(workspace, Moved(problems=(notice(workspace.folder).rstrip("."),))).problems
        return replace(moved, problems=(*moved.problems, *filter(None, problems)))

    def _without_reported(self, workspace: Workspace, moved: Moved) -> Moved:
        new = tuple(problem for problem in moved.problems if (workspace.id, problem) not in self._reported)
        if len(self._reported) < MOST_REPORTED:
            self._reported.update((workspace.id, problem) for problem in new)
        return replace(moved, problems=new)

    # The mark on the machine

    async def _mark(self, workspace: Workspace, before: Sequence[str], version: str | None = None) -> None:
        """Leave the mark on the machine, with a new word. Raises SandboxError.

        `before` are the words of which the present mark has one. They count until the new mark is known to be written:
        a process may end in between. A write that comes late finds another `version` of the mark, and is refused.
        """
        sandbox, word = await self._fleet.get(workspace.sandbox), secrets.token_hex(16)
        if before:
            self._records.keep_words(workspace, (*before, word))
        await sandbox.write(mark_of(workspace), mark_text(workspace, word), expected=version)
        self._records.keep_words(workspace, (word,))
        self._marked[workspace.id] = sandbox.connection

    async def _check_mark(self, workspace: Workspace) -> None:
        """Once for each connection, in the workspace's turn. Raises SideLost where it is another or an older machine.

        A machine that was restored from a snapshot, and a copy of one, has an earlier word than was left last.
        """
        sandbox = await self._fleet.get(workspace.sandbox)
        if sandbox.connection is not None and self._marked.get(workspace.id) is sandbox.connection:
            return
        try:
            mark = await sandbox.read(mark_of(workspace), Span(limit=MARK_BYTES))
        except FileProblem as problem:
            raise SideLost(
                f"{workspace.sandbox} is not the machine that {workspace.folder} was linked to ({problem}); nothing "
                "was changed on either side. If it is the right one all the same, unlink and link again"
            ) from None
        word, words = word_in(mark.data), self._records.words(workspace)
        if words and word not in words:
            raise SideLost(
                f"{workspace.sandbox} is not as it was when {workspace.folder} was last in step with it: it was "
                "restored from a snapshot or a backup, or is a copy of that machine; nothing was changed on either "
                "side. Unlink and link again: then files that differ are conflicts to decide, and none is deleted"
            )
        try:
            await self._mark(workspace, (word,) if word else (), mark.version or None)
        except FileProblem:
            # Its disk may be full. The mark is as it was, and its word still counts.
            self._marked[workspace.id] = sandbox.connection

    async def _unmark(self, workspace: Workspace) -> str:
        """Remove the mark; returns why that could not be done. The link is gone already, so nothing fails by it."""
        self._marked.pop(workspace.id, None)
        try:
            return await within(self._remove_mark(workspace), UNMARK_S)
        except asyncio.TimeoutError:
            return f"{workspace.sandbox} did not answer within {UNMARK_S:.0f} s"
        except SandboxError as problem:
            return str(problem)

    async def _remove_mark(self, workspace: Workspace) -> str:
        sandbox = await self._fleet.get(workspace.sandbox)
        # The shell of a machine may be any; it expands the ~.
        script = f"exec {join(['sh', '-c', UNMARK, 'sh'])} {mark_of(workspace)}"
        done = await sandbox.run(Command(script, timeout_s=UNMARK_S))
        sandbox.forget(done.run_id)
        if isinstance(done, Completed) and done.exit_code == 0:
            return ""
        return last_line(done.stderr.head) or "it could not be removed"


def _in_force(workspace: Workspace) -> Workspace:
    """With the rules that hold at this moment: those of the project's accepted file, and those of its row."""
    return replace(workspace, rules=current_rules(workspace))


def _lines_to(path: bytes) -> list[str]:
    """.gitignore lines that fit a file and the folders that it is in, and nothing else."""
    names = re.sub(r"[*?\[\\ ]", r"\\\g<0>", os.fsdecode(path)).split("/")
    folders = [f"/{'/'.join(names[:depth])}/" for depth in range(1, len(names))]
    return [*folders, f"/{'/'.join(names)}"]


def _overlap(one: str, other: str) -> bool:
    """Whether two folders are the same, or one lies in the other."""
    first, second = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return first.startswith(second) or second.startswith(first)


def _is_nested(outer: str, rules: Rules, inner: str) -> bool:
    """Whether a folder lies in another one that does not exclude it."""
    start = f"{outer.rstrip('/')}/"
    if not inner.startswith(start):
        return False
    excludes = Ignore([line.encode("utf-8", "surrogateescape") for line in rules.excludes])
    return not excludes.leaves_out_below(inner[len(start) :].encode("utf-8", "surrogateescape"), True)


def _relative(workspace: Workspace, paths: Collection[str]) -> frozenset[bytes]:
    """Paths as callers write them: relative to the workspace, or absolute on either side. Raises BadArgument."""
    found = set()
    for path in paths:
        check.text_argument("path", path)
        there = workspace.remote_path(path)
        below = posixpath.relpath(there, workspace.remote)
        if below == "." or below.startswith("../") or below == "..":
            raise BadArgument(f"{path} is not a path in {workspace.folder}")
        found.add(below.encode("utf-8", "surrogateescape"))
    return frozenset(found)


class WorkspaceCall:
    """One call from a folder of a workspace; `moved` is what it has moved so far."""

    def __init__(self, service: WorkspaceService, workspace: Workspace, client_folder: str) -> None:
        self._service = service
        self._workspace = workspace
        self._client_folder = client_folder
        self.moved = Moved()

    @property
    def sandbox(self) -> str:
        return self._workspace.sandbox

    def start_folder(self, named: str) -> str:
        """The folder over there in which it starts: the named one, else the one that the caller is in."""
        return self._workspace.start_folder(named, self._client_folder)

    def source(self, script: str, cwd: str) -> str:
        """The script after the workspace's init lines."""
        return self._workspace.source(script, self.start_folder(cwd))

    async def send(self) -> None:
        """Send what changed here. Raises SandboxError where it cannot be sent; then nothing may be run."""
        try:
            self.moved = self.moved.and_then(await self._service.send(self._workspace))
        except ConnectError:
            raise
        except SandboxError as problem:
            raise not_sent(self._workspace, problem) from None

    async def bring(self) -> None:
        """Bring back what changed there; what cannot come is told in `moved`."""
        try:
            brought = await self._service.bring(self._workspace)
        except SandboxError as problem:
            brought = not_brought(self._workspace, problem)
        self.moved = self.moved.and_then(brought)
