"""The workspace that a call is made in: fills in sandbox, folder and paths, and moves what changed before and after."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult

from ...app import App
from ...core.address import read_address
from ...core.client import is_again, preamble, run_begins
from ...core.errors import ConnectError, Defect, SandboxError, UnknownSandbox
from ...core.sync.transfer import Headway
from ...core.workspaces.workspace import Linked, Moved, OutOfStep, Workspace, not_brought, not_sent
from ...local.waiting import Chores
from ...services.fleet import unforeseen
from ...services.session import client_folder
from ...views.results import sentence
from ...views.sync_results import headway_text
from .clients import LEAST_PATIENCE_S, CallContext, calling
from .reporting import SIGN_S, Reporting, spent_s
from .results import Answer, with_moved
from .toolbox import Declaration, WorkspacePart

if TYPE_CHECKING:
    from ...services.workspaces.service import WorkspaceService

Make = Callable[[dict[str, Any]], Awaitable[Answer]]
# How many jobs and commands are remembered whose results were fetched after their end.
MOST_FETCHED = 1000
# A shell that keeps its state keeps its folder, too: only its first command begins in the workspace's.
SESSION = "session"


class Workspaces:
    """The workspaces of one server's clients. Any number of calls may be made in one of them at the same time."""

    def __init__(self, app: App) -> None:
        self.app = app
        # Passes that outlast their call's patience, and what they moved: the next call tells it.
        self._late = Chores("bringing a workspace in step")
        self._untold: dict[str, Moved] = {}
        # Jobs and commands whose results were fetched after their end, by workspace.
        self.fetched: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def service(self) -> WorkspaceService:
        return self.app.workspaces

    def at_hand(self) -> Workspace | None:
        """The workspace that the client's current folder is in."""
        return self.service.find(client_folder())

    def of_call(self, tool: Declaration, given: Mapping[str, Any], sandbox: str) -> InWorkspace | None:
        """Decide how a call is made in the client's workspace; None where that plays no part in it."""
        workspace = self.at_hand() if tool.workspace and sandbox else None
        if tool.workspace is None or workspace is None or self._name(sandbox) != workspace.sandbox:
            return None
        return InWorkspace(self, workspace, tool, given)

    def _name(self, sandbox: str) -> str:
        try:
            return self.app.fleet.member(sandbox).name
        except UnknownSandbox:
            # The tool reports it.
            return ""

    def leave(self, workspace: Workspace, late: asyncio.Future[Moved]) -> None:
        """Let a pass go on after its call; what it moves is told with the next one."""

        def ended(done: asyncio.Future[Moved]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._untold[workspace.id] = self.take_untold(workspace).and_then(done.result())

        self._late.start(late).add_done_callback(ended)

    async def linked(self, work: Awaitable[Linked]) -> Linked | None:
        """A link with its first pass; None where that takes longer than the client waits. Then it goes on."""
        task = asyncio.ensure_future(work)
        if not await ended_within(task, max(LEAST_PATIENCE_S, calling.get().patience_s - LEAST_PATIENCE_S)):
            self._late.start(task)
            return None
        return task.result()

    def take_untold(self, workspace: Workspace) -> Moved:
        return self._untold.pop(workspace.id, Moved())

    def note_fetched(self, workspace: Workspace, handle: str) -> None:
        self.fetched[workspace.id, handle] = None
        if len(self.fetched) > MOST_FETCHED:
            self.fetched.popitem(last=False)


class InWorkspace:
    """One call in a workspace."""

    def __init__(
        self, workspaces: Workspaces, workspace: Workspace, tool: Declaration, given: Mapping[str, Any]
    ) -> None:
        self._workspaces = workspaces
        self._workspace = workspace
        self._part = part = tool.workspace or WorkspacePart()
        self._paths = tool.paths
        self._begun = time.monotonic()
        self._patience_s = calling.get().patience_s
        self._handle = str(given.get(part.handle) or "") if part.handle else ""
        # The command that this call runs, after whose end the other side is looked at.
        self._run_id = ""
        self._preamble = ""
        self.arguments = self._filled(given)

    # Arguments

    def _filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the workspace's folder where they leave it out and with paths as the sandbox has them."""
        part, workspace, filled = self._part, self._workspace, dict(given)
        named = given.get(part.folder, "") if part.folder else None
        start = self._start(named) if isinstance(named, str) else ""
        keeps_folder = bool(given.get(SESSION) and part.scripts and not named)
        if start and not keeps_folder:
            filled[part.folder] = start
        if part.prepares:
            self._preamble = workspace.preamble(start)
        for name in self._paths:
            if name in given and name != part.folder:
                filled[name] = self._mapped(given[name])
        for name in part.scripts:
            if isinstance(script := given.get(name), str):
                make = workspace.session_source if keeps_folder and script.strip() else workspace.source
                filled[name] = make(script, start)
        return filled

    def _start(self, named: str) -> str:
        is_address = self._part.folder in self._paths and bool(read_address(named).sandbox)
        return named if is_address else self._workspace.start_folder(named, client_folder())

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, str):
            # A path that names its sandbox starts at the home folder there.
            is_whole = not value or bool(read_address(value).sandbox)
            return value if is_whole else self._workspace.remote_path(value)
        if isinstance(value, (list, tuple)):
            return [self._mapped(item) for item in value]
        return {**value, "path": self._mapped(value["path"])} if isinstance(value, dict) and "path" in value else value

    # The call

    async def answer(self, make: Make, context: CallContext) -> Answer:
        """Send what changed here, make the call, and bring back what changed there. Raises SandboxError."""
        self._context = context
        sent = await self._send() if self._is_sending else Moved()
        used = time.monotonic() - self._begun
        client = calling.get()
        left = calling.set(replace(client, patience_s=max(LEAST_PATIENCE_S, client.patience_s - used)))
        spent = spent_s.set(used)
        begins = run_begins.set(self._run_begins if self._part.brings else None)
        before = preamble.set(self._preamble)
        try:
            answer = await make(self.arguments)
        finally:
            preamble.reset(before)
            run_begins.reset(begins)
            spent_s.reset(spent)
            calling.reset(left)
        if not isinstance(answer, CallToolResult):
            return answer
        self._forget_earlier_job(answer)
        brought = await self._bring() if self._is_bringing(answer) else Moved()
        moved = self._workspaces.take_untold(self._workspace).and_then(sent).and_then(brought)
        return with_moved(answer, moved.line())

    # Before it

    @property
    def _is_sending(self) -> bool:
        if self._handle or not self._part.sends:
            return False
        paths = [self.arguments.get(name) for name in (*self._paths, self._part.folder) if self._part.is_read_only]
        addresses = [read_address(path) for path in paths if isinstance(path, str)]
        named = [address.from_home if address.sandbox else address.path for address in addresses]
        # What lies elsewhere on the machine is looked at without a pass.
        return not named or any(map(self._workspace.may_hold, named))

    async def _send(self) -> Moved:
        workspace, sandbox = self._workspace, self._workspace.sandbox
        if is_again() and await self._workspaces.app.commands.was_begun(sandbox):
            # An earlier process of ours has sent it, and the command may be running on it.
            return Moved()
        hearing = Hearing(f"sending what changed to {sandbox}")
        task = asyncio.ensure_future(self._workspaces.service.send(workspace, hearing.hear))
        limit_s = max(LEAST_PATIENCE_S, self._patience_s - LEAST_PATIENCE_S)
        if not await self._ended(task, limit_s, hearing):
            raise OutOfStep(
                f"what changed in {workspace.folder} is still being sent to {sandbox} ({hearing.text}); nothing was "
                "done there yet, and the sending goes on: make this call again in a while"
            )
        problem = _problem_of(task, f"sending {workspace.folder} to {sandbox}")
        if problem is None:
            return task.result()
        if self._part.is_read_only and not isinstance(problem, ConnectError):
            return Moved(problems=(f"what changed here could not be sent, so this may be old: {sentence(problem)}",))
        raise problem if isinstance(problem, ConnectError) else not_sent(workspace, problem)

    # After it

    def _run_begins(self, run_id: str) -> None:
        self._run_id = run_id
        self._workspaces.service.expect(self._workspace, run_id)

    def _forget_earlier_job(self, answer: CallToolResult) -> None:
        """A job may have the name of one that is over and whose results were fetched: its own are fetched, too."""
        fields = answer.structured_content or {}
        if fields.get("running") or fields.get("pending") or not self._handle:
            self._workspaces.fetched.pop((self._workspace.id, str(fields.get("tmux_session") or "")), None)

    def _is_bringing(self, answer: CallToolResult) -> bool:
        fields = answer.structured_content or {}
        if not self._part.brings or answer.is_error or fields.get("running") or fields.get("pending"):
            return False
        return not (self._handle and (self._workspace.id, self._handle) in self._workspaces.fetched)

    async def _bring(self) -> Moved:
        workspace, sandbox = self._workspace, self._workspace.sandbox
        hearing = Hearing(f"fetching what changed on {sandbox}")
        task = asyncio.ensure_future(self._workspaces.service.bring(workspace, self._run_id))
        left_s = self._patience_s - (time.monotonic() - self._begun)
        if not await self._ended(task, max(LEAST_PATIENCE_S, left_s), hearing):
            return Moved(problems=(f"what changed on {sandbox} is still being fetched; the next call tells what came",))
        problem = _problem_of(task, f"fetching what changed on {sandbox}")
        if problem is not None:
            return not_brought(workspace, problem)
        if self._handle:
            self._workspaces.note_fetched(workspace, self._handle)
        return task.result()

    async def _ended(self, task: asyncio.Future[Moved], limit_s: float, hearing: Hearing) -> bool:
        """Wait for a pass; one that takes longer goes on. It is cancelled with the call."""
        until = time.monotonic() + limit_s
        async with nullcontext() if self._context is None else Reporting(self._context) as reporting:
            while not task.done() and (left_s := until - time.monotonic()) > 0:
                if not await ended_within(task, min(SIGN_S, left_s)) and reporting:
                    reporting.send(time.monotonic() - self._begun, None, hearing.text)
        if not task.done():
            self._workspaces.leave(self._workspace, task)
        return task.done()


class Hearing:
    """Progress of a pass, in words."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._newest: Headway | None = None

    def hear(self, headway: Headway) -> None:
        self._newest = headway

    @property
    def text(self) -> str:
        return f"{self._what}: {headway_text(self._newest)}" if self._newest else self._what


async def ended_within(task: asyncio.Future[Any], seconds: float) -> bool:
    """Whether the task is over by then. It is cancelled with its caller."""
    try:
        await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
    return task.done()


def _problem_of(task: asyncio.Future[Moved], doing: str) -> SandboxError | None:
    problem = asyncio.CancelledError() if task.cancelled() else task.exception()
    if problem is None or isinstance(problem, SandboxError):
        return problem
    return Defect(unforeseen(problem, doing))
