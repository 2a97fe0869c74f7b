"""The MCP server: our tools on the SDK's MCPServer, and the one place where exceptions become sentences."""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Annotated, Any
from weakref import WeakKeyDictionary, WeakSet

from mcp.server.apps import Apps
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver import server as sdk
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    EmptyResult,
    GetPromptResult,
    InputRequiredResult,
    Resource,
    SubscribeRequestParams,
    ToolAnnotations,
    UnsubscribeRequestParams,
)
from pydantic import BeforeValidator, Field, ValidationError

from ... import __version__
from ...app import App
from ...core.address import sandboxes_named
from ...core.client import Client, current_call
from ...core.errors import BadArgument, Defect, SandboxError, UnknownSandbox
from ...core.gate import NotAllowed
from ...local.waiting import Chores, within
from ...services.session import InProgress, Session, begin, current
from ...views.results import sentence
from .arguments import sentence_about
from .clients import LEAST_PATIENCE_S, CallContext, Clients, OneClient, calling, client_of, own_front
from .events import EventDesk
from .forms import Forms
from .job_logs import JobLogs
from .journal import Journal, begun, ended, is_kept
from .outside import learn_roots, make_way
from .results import Answer, as_shown, code_of, failure, with_sandbox
from .skills import Skills
from .toolbox import OTHER_NAMES, PLAIN, Declaration, OfferedTool, Toolbox, ToolFunction, as_meant, picture
from .waking import Waker
from .workspace import Workspaces

log = logging.getLogger(__name__)

# Claude Code shows its model 2,048 characters of it, the note on channels included.
INSTRUCTIONS = (Path(__file__).parent / "instructions.txt").read_text(encoding="utf-8")

NAME = "remote-sandbox-mcp"
# Two squares, as the page's icon has them.
ICONS = [picture("M0 0h4v8h4V4H0z")]
# Requests whose answers depend on the configuration.
UP_TO_DATE = frozenset({"tools/call", "tools/list", "resources/list", "resources/read", "prompts/get"})
# Requests about what is offered besides tools.
ABOUT_THE_REST = ("resources/", "prompts/")
# Arguments that name a sandbox.
PLACES = ("sandbox_name", "sandbox_id")
# The argument that names several.
SEVERAL = "sandbox_names"
# Over HTTP the client itself has to repeat the request.
MOVED = "the configuration has just changed, so this was not begun; send it once more"
# The first messages of clients that want change notifications; since 2026-07-28 they have to ask for them.
CAN_BE_NOTIFIED = frozenset({"initialize", "subscriptions/listen"})
# Their answers say what the server can do.
GREETINGS = frozenset({"initialize", "server/discover"})
MOST_SUBSCRIBED = 1000
# How many places of this computer the user is asked about for one call.
MOST_ASKED = 4
TELL_S = 5.0
SandboxName = Annotated[str, Field(description="Default: the active one")]


def _one_text(names: object) -> object:
    """A list of names as one text; anything else is refused by its type."""
    is_list = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    return ",".join(names) if isinstance(names, list) and is_list else names


Places = Annotated[
    str, BeforeValidator(_one_text), Field(description='Default: the active one; "any", or a list: the best of these')
]
Gpus = Annotated[int, Field(description="Free ones, for itself")]
GpuMemory = Annotated[str, Field(description="Of each, as 40g")]


@contextmanager
def sdk_logs_nothing_of_its_own() -> Iterator[None]:
    """Keep the SDK from setting up logging: ours is set up already, and the SDK would import rich for it."""
    module: Any = sdk
    usual, module.configure_logging = module.configure_logging, lambda level: None
    try:
        yield
    finally:
        module.configure_logging = usual


class SandboxServer(MCPServer[None]):
    """MCPServer with our rules: unknown arguments are refused, and every failure is one useful sentence."""

    def __init__(self, app: App, clients: Clients | None = None) -> None:
        with sdk_logs_nothing_of_its_own():
            # Without resources of its own: the one that it needs is offered with the rest, on first use.
            more = [Apps(), Skills()]
            super().__init__(NAME, version=__version__, instructions=INSTRUCTIONS, extensions=more, icons=ICONS)
        self.app = app
        self.take_name()
        self.clients: Clients = clients or OneClient()
        self._tool_manager = self._toolbox = Toolbox()
        self._journal = Journal(lambda: app.settings.keep_calls_days > 0)
        self._forms = Forms()
        self.workspaces = Workspaces(app)
        # Offers resources and prompts. Called with the first request about them: the SDK makes models for each of
        # them, and a first call would wait for that.
        self.offer_rest: Callable[[], None] | None = None
        # Awaited before each call.
        self.before_call: Callable[[], Awaitable[None]] = _nothing
        self.calls = InProgress()
        # Connections of clients before 2026-07-28, which get change notifications without asking.
        self._connections: WeakSet[Connection] = WeakSet()
        # The resources that they have subscribed to.
        self._subscribed: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()
        self.job_logs = JobLogs(app, lambda: {uri for uris in self._subscribed.values() for uri in uris})
        self._announcing = Chores("telling a client of a change", expected=(asyncio.TimeoutError, TimeoutError))
        self._follows = False
        self.waker = Waker(app)
        self.events = EventDesk(app)
        self.events.offer(self._lowlevel_server)
        self._lowlevel_server.middleware.append(self._attend)
        self._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, self._subscribe)
        self._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe)

    async def _attend(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Runs around each message: waits for a new configuration, and sets the context of the call."""
        if ctx.method == "initialize":
            self._connections.add(ctx.session._connection)
        if ctx.method in CAN_BE_NOTIFIED and not self._follows:
            self._follows = True
            # In an empty context: it outlives the call that begins it, and must not see that call's session.
            contextvars.Context().run(self.app.disposables.follow, self._announce_sandboxes)
        if self.offer_rest and ctx.method.startswith(ABOUT_THE_REST):
            self.offer_rest()
            self.offer_rest = None
        if ctx.method in GREETINGS:
            client, answer = self.clients.session(None), await call_next(ctx)
            if ctx.method == "initialize":
                answer = self.waker.welcome(ctx.params or {}, ctx.session._connection, client, answer)
            return self.events.declare(answer)
        if ctx.method == "subscriptions/listen":
            return await self._listen(ctx, call_next)
        if ctx.method not in UP_TO_DATE:
            return await call_next(ctx)
        await self.before_call()
        session = current()
        if session.moved.is_set():
            if session.is_of_many:
                raise MCPError(INTERNAL_ERROR, MOVED)
            # The call is answered where the conversation continues.
            await asyncio.Event().wait()
        # Counted: after a change of the configuration, sandboxes are given back when these calls have ended.
        with self.calls.one(), session.calls.one():
            return await call_next(ctx)

    async def _listen(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Serve a stream of notifications; logs that it names are followed meanwhile."""
        named = ((ctx.params or {}).get("notifications") or {}).get("resourceSubscriptions") or ()
        with self.job_logs.heard([str(uri) for uri in named]):
            self.job_logs.follow(self.announce_changes)
            return await call_next(ctx)

    async def run_over(self, incoming: Any, outgoing: Any) -> None:
        """Serve one client over a pair of streams until it goes."""
        lowlevel, options = self._lowlevel_server, NotificationOptions(tools_changed=True, resources_changed=True)
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options(options))

    def take_name(self) -> None:
        """Be called as configured, from the next client on; under another name, the title says what it really is."""
        said, lowlevel = self.app.settings.announced, self._lowlevel_server
        lowlevel.name, lowlevel.version = said.name or NAME, said.version or __version__
        lowlevel.title = f"{NAME} {__version__}" if said.name or said.version else None
        lowlevel.description = said.description or None
        # The SDK keeps what it has made of them.
        vars(lowlevel).pop("_server_info_stamp_source", None)

    def take_tools_of(self, other: SandboxServer) -> None:
        """Offer what another server offers, which has the same app and clients."""
        self._tool_manager = self._toolbox = other._toolbox
        self._resource_manager, self._prompt_manager = other._resource_manager, other._prompt_manager
        self.offer_rest = other.offer_rest

    async def _subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        subscribed = self._subscribed.setdefault(ctx.session._connection, set())
        if len(subscribed) >= MOST_SUBSCRIBED:
            raise MCPError(INVALID_PARAMS, f"a client may subscribe to {MOST_SUBSCRIBED} resources; unsubscribe first")
        subscribed.add(str(params.uri))
        self.job_logs.follow(self.announce_changes)
        return EmptyResult()

    async def _unsubscribe(self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        self._subscribed.get(ctx.session._connection, set()).discard(str(params.uri))
        return EmptyResult()

    async def list_resources(self) -> list[Resource]:
        """List also the logs of the latest jobs."""
        return [*await super().list_resources(), *await self.job_logs.listed()]

    async def _announce_sandboxes(self, names: Collection[str]) -> None:
        """Disposable sandboxes with these ids and names were created, have ended, or changed state."""
        updated = ["sandbox://list", *(f"sandbox://{name}/status" for name in sorted(names))]
        await self.announce_changes(updated, resources=True)

    async def announce_changes(
        self, updated: Sequence[str] = (), *, tools: bool = False, resources: bool = False
    ) -> None:
        """Notify clients that the list of tools or of sandboxes has changed, and subscribers of what was `updated`."""
        events = [ToolsListChanged()] * tools + [ResourcesListChanged()] * resources
        for event in (*events, *map(ResourceUpdated, updated)):
            await self._subscriptions.publish(event)
        for connection in tuple(self._connections):
            # In the background: a client that has stopped reading must not delay the others.
            announcing = self._notify(connection, tools=tools, resources=resources, updated=updated)
            self._announcing.start(within(announcing, TELL_S))

    async def _notify(self, connection: Connection, *, tools: bool, resources: bool, updated: Sequence[str]) -> None:
        if tools:
            await connection.send_tool_list_changed()
        if resources:
            await connection.send_resource_list_changed()
        subscribed = self._subscribed.get(connection, set())
        for uri in filter(subscribed.__contains__, updated):
            await connection.send_resource_updated(uri)

    def offer(
        self, tool: ToolFunction, title: str, hints: ToolAnnotations, declaration: Declaration = PLAIN, *,
        is_listed: bool = True,
    ) -> None:  # fmt: skip
        """Register a tool, whose first parameter is this server; one that is not listed can be called all the same."""
        self._toolbox.offer(OfferedTool(MethodType(tool, self), title, hints, is_listed, declaration))

    def offer_own(self, tool: ToolFunction, title: str, hints: ToolAnnotations) -> None:
        """Register a tool of the operator's, with its schema made at once. Raises what is wrong with it."""
        if self._toolbox.has(name := tool.__name__):
            raise BadArgument(f"{name} is the name of another tool; give it another name")
        self._toolbox.offer(OfferedTool(tool, title, hints))
        try:
            self._toolbox.get_tool(name)
        except BaseException:
            self._toolbox.withdraw(name)
            raise

    @property
    def declarations(self) -> Mapping[str, Declaration]:
        """The facts about each tool."""
        return self._toolbox.declarations

    async def call_tool(self, name: str, arguments: dict[str, Any], context: CallContext = None) -> Answer:
        # If no answer comes, the call was cancelled.
        outcome, answer, call = "cancelled", None, None
        since = time.monotonic()
        called_by = calling.set(self._client(context))
        if session := self.clients.session(context):
            begin(session)
            session.client = calling.get().name
        takes, declaration = {*self._toolbox.parameters(name).all, *OTHER_NAMES}, self._toolbox.declaration(name)
        try:
            call = begun(self.app.history, context, name, arguments, takes)
            await learn_roots(context)
            async with self._turn(session, name):
                answer = await self._make(name, arguments, context)
            outcome = outcome_of(answer)
            return as_shown(answer, declaration, arguments)
        finally:
            calling.reset(called_by)
            known = name if self._toolbox.has(name) else "unknown"
            self.app.history.tally.add(known, outcome, time.monotonic() - since)
            if call is not None:
                ended(self.app.history, call, answer, outcome, declaration)
            if log.isEnabledFor(logging.INFO):
                log.info("%s: %s in %.3f s", self._described(name, arguments), outcome, time.monotonic() - since)

    async def call_as(self, front: str, name: str, arguments: dict[str, Any]) -> Answer:
        """A call that a front end of ours makes in the current session; it is kept in the history under that name."""
        await self.before_call()
        named = own_front.set(front)
        try:
            with self.calls.one():
                return await self.call_tool(name, arguments)
        finally:
            own_front.reset(named)

    def _turn(self, session: Session | None, name: str) -> AbstractAsyncContextManager[None]:
        """Waits while the client, or all HTTP clients that cannot be told apart, have too many calls at work."""
        one = session or (current() if current().is_of_many else None)
        return one.turns if one and not self._toolbox.declaration(name).only_waits else nullcontext()

    async def _make(self, name: str, arguments: dict[str, Any], context: CallContext) -> Answer:
        """Make the call; at most once, where another process may be asked for the same call."""
        call, tool = current_call(), self._tool_manager.get_tool(name)
        if call is None or tool is None or not is_kept(self._toolbox.declaration(name), tool.annotations, arguments):
            return await self._answer(name, arguments, context)
        return await self._journal.once(call, name, lambda: self._answer(name, arguments, context))

    def _client(self, context: CallContext) -> Client:
        """The client's known limits, unless the operator has set others."""
        client, call, settings = client_of(context), current_call(), self.app.settings
        patience_s = self.app.patience_s or client.patience_s
        if call and call.waited_s:
            patience_s = max(LEAST_PATIENCE_S, patience_s - call.waited_s)
        return replace(
            client,
            patience_s=patience_s,
            result_chars=settings.result_chars or client.result_chars,
            hides_tokens=settings.redact_output,
            text=settings.result_text or client.text,
        )

    def _described(self, name: str, arguments: dict[str, Any]) -> str:
        """A call for the log, without its arguments' content: commands and files may contain secrets."""
        named = str(arguments.get("sandbox_name") or arguments.get("sandbox_id") or arguments.get(SEVERAL) or "")
        where = " ".join(sentence(named[:60]).split())
        tool = name if self._toolbox.has(name) else "a tool that is not there"
        return f"{tool} on {where}" if where else tool

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: CallContext = None
    ) -> GetPromptResult | InputRequiredResult:
        """Return a prompt; an unknown prompt or argument is reported as invalid in every protocol version."""
        prompts = {prompt.name: prompt for prompt in self._prompt_manager.list_prompts()}
        if name not in prompts:
            raise MCPError(INVALID_PARAMS, f"unknown prompt {sentence(name[:60])!r}; there are: {', '.join(prompts)}")
        takes = [argument.name for argument in prompts[name].arguments or ()]
        for argument in arguments or ():
            if argument not in takes:
                message = f"{name} has no argument {sentence(argument[:60])!r}; it takes: {', '.join(takes)}"
                raise MCPError(INVALID_PARAMS, message)
        return await super().get_prompt(name, arguments, context)

    async def _answer(self, name: str, arguments: dict[str, Any], context: CallContext) -> Answer:
        try:
            named = as_meant(arguments, self._toolbox.parameters(name))
            self._refuse_unknown(name, named)
            # Some clients send null for arguments that they leave out.
            given = {argument: value for argument, value in named.items() if value is not None}
            given = self._with_named(name, given)
            place = self._left_open(name, given)
            where = await self._where(place, given, context) if place else ""
        except SandboxError as problem:
            return failure(problem, starts=self._toolbox.declaration(name).starts)
        # Since 2026-07-28 a call is made again with the user's answers to a login's questions.
        self._forms.deliver(context)
        with self._forms.asker(context, self._sandboxes_in(name, given, where), calling.get().patience_s) as asker:
            answer = await self._carry_out(name, given | ({place: where} if where else {}), context)
        answer = asker.finish(answer)
        return with_sandbox(answer, where) if where and isinstance(answer, CallToolResult) else answer

    async def _carry_out(self, name: str, given: dict[str, Any], context: CallContext) -> Answer:
        """Call the tool, in the client's workspace where that has a part in it; what it raises becomes an answer."""
        inside = self.workspaces.of_call(self._toolbox.declaration(name), given, sandbox_named_in(given))
        if inside is None:
            return await self._call(name, given, context)
        try:
            return await inside.answer(lambda filled: self._call(name, filled, context), context)
        except SandboxError as problem:
            return failure(problem, starts=self._toolbox.declaration(name).starts)

    async def _call(self, name: str, given: dict[str, Any], context: CallContext) -> Answer:
        for _ in range(MOST_ASKED):
            try:
                return await super().call_tool(name, given, context)
            except SandboxError as raised:
                problem = raised
            except ToolError as raised:
                problem = explain(name, raised, self._toolbox.parameters(name).listed)
            # Refused before anything was done: where its user allows it, the call is made again.
            if not isinstance(problem, NotAllowed):
                break
            try:
                await make_way(problem, self.app.transfers.gate, context)
            except SandboxError as refused:
                problem = refused
                break
        return failure(problem, starts=self._toolbox.declaration(name).starts)

    # The sandbox of a call that names none

    async def meant(self, context: CallContext) -> str:
        """The sandbox for calls of this client that name none. Raises UnknownSandbox if it is gone."""
        session = self.clients.session(context)
        selected = await session.selection.name() if session else ""
        workspace = None if selected else self.workspaces.at_hand()
        try:
            if session and not selected and not workspace:
                is_there = session.default in self.app.fleet.configured_names
                session.default = session.default if is_there else self.app.fleet.member().name
                return session.default
            return self.app.fleet.member(workspace.sandbox if workspace else selected).name
        except UnknownSandbox as problem:
            if not selected and not workspace:
                raise
            what = f"the one of the workspace {workspace.folder}" if workspace else "the selected one"
            # Not the default instead: a command meant for a sandbox must not run on a machine by accident.
            raise UnknownSandbox(
                f"{problem}. It was {what}, so nothing was done: name another as sandbox_name, or select it "
                "with select_sandbox"
            ) from None

    def _left_open(self, name: str, given: Mapping[str, Any]) -> str:
        """The argument that would name the sandbox, if the tool has one and the call leaves it out."""
        parameters = self._toolbox.parameters(name)
        place = self._place(name) if self._toolbox.declaration(name).means_selected else ""
        # A required argument that is missing is refused when the arguments are validated, unless a workspace has it.
        is_missing = place in parameters.required and place not in given and not self.workspaces.at_hand()
        is_named = given.get(place, "") != "" or SEVERAL in given
        return "" if is_missing or is_named else place

    def _place(self, name: str) -> str:
        """The argument of a tool that names its sandbox."""
        takes = self._toolbox.parameters(name).all
        return next((argument for argument in PLACES if argument in takes), "")

    def _with_named(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with the sandbox that a path names, as gpu1:data does, where no other one does."""
        place, paths = self._place(name), self._toolbox.declaration(name).paths
        named = next(sandboxes_named(map(given.get, paths)), "") if place and not given.get(place) else ""
        return {**given, place: named} if named else given

    def _sandboxes_in(self, name: str, given: Mapping[str, Any], where: str) -> frozenset[str]:
        """The sandboxes that a call is about: named by an argument or by a path, or `where` it runs.

        Only their logins may ask the client's user.
        """
        others = sandboxes_named(map(given.get, self._toolbox.declaration(name).other_paths))
        named = (where, *(given.get(place) for place in PLACES), *others)
        return frozenset(name for name in named if isinstance(name, str) and name)

    async def _where(self, place: str, given: Mapping[str, Any], context: CallContext) -> str:
        """The sandbox of the job that the call names, else the client's."""
        session, watch_id = given.get("tmux_session", ""), given.get("watch_id", 0)
        is_job = isinstance(session, str) and isinstance(watch_id, int) and bool(session or watch_id)
        found = await self.app.whereabouts(session, watch_id) if is_job else ""
        return found or await self._created(place, context) or await self.meant(context)

    async def _created(self, place: str, context: CallContext) -> str:
        """The sandbox that the client created last, for tools of disposable sandboxes, where it has selected none."""
        session = self.clients.session(context) if place == "sandbox_id" else None
        return session.created if session and not await session.selection.name() else ""

    def _refuse_unknown(self, name: str, arguments: Iterable[str]) -> None:
        # An unknown tool is reported as such, whatever its arguments.
        client = self._toolbox.parameters(name).all if self._toolbox.has(name) else list(arguments)
        for argument in arguments:
            if argument not in client:
                near = difflib.get_close_matches(argument, client, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                takes = ", ".join(client) or "none"
                raise BadArgument(f"{name} has no argument {argument[:60]!r}; {hint}it takes: {takes}")


async def _nothing() -> None:
    """The default for before_call: do nothing."""


def sandbox_named_in(given: Mapping[str, Any]) -> str:
    """The one sandbox that a call's arguments name; empty where they name none, or several."""
    named = next((given[place] for place in PLACES if given.get(place)), "")
    return named if isinstance(named, str) and SEVERAL not in given else ""


def outcome_of(answer: Answer) -> str:
    """The outcome in a word, for the log."""
    if isinstance(answer, InputRequiredResult):
        return "asks its user"
    failed = isinstance(answer, CallToolResult) and answer.is_error
    return code_of(answer) if failed else "done"


def explain(name: str, problem: ToolError, takes: Sequence[str] = ()) -> SandboxError:
    """The SandboxError inside what the SDK raised; a defect is logged with its stack and reported without it."""
    cause = problem.__cause__
    if isinstance(cause, SandboxError):
        return cause
    if isinstance(cause, ValidationError):
        return BadArgument(sentence_about(name, cause, takes))
    if isinstance(problem, UnexpectedToolError):
        log.error("%s failed unexpectedly", name, exc_info=problem)
        return Defect(f"{name} failed because of a defect in remote-sandbox-mcp; its log has the details")
    return BadArgument(str(problem))


def build(app: App, clients: Clients | None = None) -> SandboxServer:
    """The server with all of its tools. By default all calls come from one client."""
    # Imported here, because these modules import SandboxServer from this one.
    from . import prompts, resources
    from .tools import apps, containers, exec, files, jobs, lifecycle, python, sandboxes, sync, watches, workspaces

    server = SandboxServer(app, clients)
    for subject in (sandboxes, exec, python, jobs, files, sync, workspaces, containers, apps, watches, lifecycle):
        subject.offer(server)
    prompts.offer_completions(server)
    app.extension_problems = ()
    if app.settings.extensions:
        from .extensions import offer

        offer(server)

    def offer_rest() -> None:
        resources.offer(server)
        prompts.offer(server)

    server.offer_rest = offer_rest
    return server


async def prepare(app: App) -> None:
    """Load the files of the operator's own tools, before a server is built."""
    if app.settings.extensions:
        from .extensions import load_all

        app.extensions = await load_all([path for path, _ in app.settings.extensions])
