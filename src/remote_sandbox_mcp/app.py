"""The verbs that every front end calls, and the composition root, where the parts are put together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import posixpath
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from .asking import Questions
from .config import paths
from .config.load import identity_of
from .config.schema import Configuration, Settings
from .core import check
from .core.client import Call, is_again, name_for_call, run_begins
from .core.command import RUN_ID, Command, Completed, Missing, Observation, Running, new_run_id
from .core.disposable import DISPOSABLE_ID, Offer, Provider
from .core.errors import (
    BadArgument,
    ConnectError,
    Defect,
    FileProblem,
    LostContact,
    SandboxError,
    UnknownSandbox,
    Unreachable,
    Unsupported,
)
from .core.files import FileSlice, Found, Listing, Search, Span, Written
from .core.machine import CommandPlace, Engine, LocalPlace, Machine
from .core.pages import read_cursor
from .core.progress import Progress, silent
from .core.sandbox import Description, Sandbox
from .core.session_handle import PYTHON, SHELL, Sessions, check_session, read_handle
from .core.slurm import Cluster
from .core.text import Clipped, clip_both, replace_shown, visible
from .core.usage import Usage, idle_score
from .fleet import Fleet, Member, unforeseen
from .gate import private_files
from .history import History
from .jobs.commands import forgetting
from .jobs.service import ELSEWHERE_S, JobService, there
from .probe.measure import measure
from .session import current
from .transfers.service import TransferService, no_routes, routes_between
from .waiting import Chores, within

if TYPE_CHECKING:
    from .apps.service import AppService
    from .backends.ssh.connection import LoginGate
    from .disposable.verbs import Disposables
    from .interpreters.service import PythonService
    from .shells.service import ShellService
    from .store.disposables import DisposableRows
    from .suites.service import SuiteService
    from .sync.service import Routes
    from .workspaces.service import WorkspaceService
# How long a local sandbox may take to list its running jobs.
JOBS_S = 2.0
# Bound for paging: for each page, all earlier entries are listed again.
MOST_LISTED, MOST_FOUND = 50_000, 10_000
# Of many sandboxes, this many are opened at once; each may take so long to tell the end of a command after its limit.
MOST_OPENING, LATE_S = 32, 8.0
# How long each of them may take to open, unless the caller's own time limit is shorter.
OPEN_S = 60.0
MOST_FOUND_HOSTS = 100
UNASKED = "it was not asked, because only a pattern of `hosts` offers it; name it in a call, and it is opened"


class Stock:
    """Configured sandboxes, shared between the apps of this process: equal configurations get the same member.

    Machines are equal if all their settings are, including secrets and the variables that select them.
    """

    def __init__(self) -> None:
        self._shelf: list[_Shared] = []

    def take(self, configuration: Configuration) -> tuple[Member, ...]:
        """The members of a configuration, in its order; return them with give_back."""
        local = (configuration.local,) if configuration.local else ()
        return tuple(map(self._take, (*configuration.machines, *configuration.commands, *local)))

    def _take(self, what: Machine | CommandPlace | LocalPlace) -> Member:
        found = next((shared for shared in self._shelf if shared.what == what), None)
        if found is None:
            found = _Shared(what, member_of(what))
            self._shelf.append(found)
        found.users += 1
        return found.member

    async def give_back(self, members: Iterable[Member]) -> None:
        """Close the members that no app uses any more."""
        given = set(map(id, members))
        for shared in self._shelf:
            shared.users -= id(shared.member) in given
        unused = [shared for shared in self._shelf if shared.users <= 0]
        self._shelf = [shared for shared in self._shelf if shared.users > 0]
        await asyncio.gather(*(shared.member.close() for shared in unused), return_exceptions=True)

    @property
    def members(self) -> list[Member]:
        return [shared.member for shared in self._shelf]


@dataclass(eq=False)
class _Shared:
    """A member and the number of apps that use it."""

    what: Machine | CommandPlace | LocalPlace
    member: Member
    users: int = 0


def member_of(what: Machine | CommandPlace | LocalPlace) -> Member:
    if isinstance(what, Machine):
        return machine_member(what)
    return command_member(what) if isinstance(what, CommandPlace) else local_member(what)


def machine_member(machine: Machine) -> Member:
    questions = Questions()
    gates: list[LoginGate] = []

    async def opener() -> Sandbox:
        from .backends.ssh.connection import LoginGate
        from .backends.ssh.machine import open_through

        if not gates:
            # What ~/.ssh/config says of it is asked now, with its first use.
            complete = await asyncio.to_thread(machine.complete) if machine.asking else machine
            gates.append(LoginGate(complete, paths.known_hosts_file(), questions))
        if gates[0].machine.openssh or machine.transport != "auto":
            from .backends.ssh.openssh import choose_transport, open_over_openssh

            choice = await choose_transport(gates[0].machine)
            if choice.is_openssh:
                return await open_over_openssh(gates[0], choice)
        return await open_through(gates[0])

    def prepare() -> None:
        from .backends.ssh.connection import load

        load()
        if machine.asking or machine.openssh:
            from .backends.ssh import openssh  # noqa: F401

    def describe() -> Description:
        known = gates[0].machine if gates else machine
        return Description(known.name, "ssh", known.host, known.port, known.login.user)

    return Member(
        machine.name, describe, opener, prepare=prepare,
        questions=questions, engine=machine.engine, slurm=machine.slurm, is_by_pattern=machine.is_by_pattern,
        environment=machine.environment,
    )  # fmt: skip


def command_member(place: CommandPlace) -> Member:
    async def opener() -> Sandbox:
        from .backends.command.sandbox import open_place

        return await open_place(place)

    return Member(place.name, lambda: Description(place.name, "command"), opener)


def local_member(place: LocalPlace) -> Member:
    def describe() -> Description:
        from .backends.bubblewrap import local

        return local.describe(place)

    async def opener() -> Sandbox:
        from .backends.bubblewrap import local

        return await local.open_local(place, paths.state_folder())

    async def why_not() -> str:
        from .backends.bubblewrap import local

        return await local.why_not()

    return Member(place.name, describe, opener, why_not)


def disposable_rows() -> DisposableRows:
    from .store.database import STATE_FILE, Database
    from .store.disposables import DisposableRows

    return DisposableRows(Database(paths.state_folder() / STATE_FILE))


def disposable_mark() -> Path:
    from .store.mark import mark_in

    # Looked for every second: a state folder that was removed must not come back by that.
    return mark_in(paths.state_path())


def offers_of(settings: Settings, fleet: Fleet) -> Mapping[str, Offer]:
    """The providers of disposable sandboxes that can be used here, by kind."""
    from .backends import bubblewrap, opensandbox
    from .backends.engine import kind_of
    from .backends.slurm import kind_of as kind_of_cluster

    def make_embedded() -> Provider:
        from .backends.bubblewrap.provider import EmbeddedProvider

        return EmbeddedProvider(paths.state_folder(), rules=settings.rules)

    def make_platform() -> Provider:
        from .backends.opensandbox.provider import OpenSandboxProvider

        return OpenSandboxProvider(settings.platform, settings.rules, paths.installation())

    offers = {bubblewrap.KIND: Offer(bubblewrap.TRAITS, make_embedded)}
    if settings.platform.server_url:
        offers[opensandbox.KIND] = Offer(opensandbox.TRAITS, make_platform, settings.platform)
    for member in fleet.clusters:
        if member.slurm:
            offers[kind_of_cluster(member.name)] = cluster_offer(member, member.slurm, settings)
    for member in fleet.with_engines:
        if member.engine:
            offers[kind_of(member.engine.tool, member.name)] = engine_offer(member, member.engine, settings)
    return offers


def engine_offer(member: Member, engine: Engine, settings: Settings) -> Offer:
    """The engine of a machine; another connection to the machine is another offer."""
    from .backends.engine import traits_of

    def make() -> Provider:
        from .backends.command.way import MachineWay
        from .backends.engine.provider import EngineProvider

        way = MachineWay(member.name, member.open)
        return EngineProvider(member.name, engine, way, settings.rules, paths.installation())

    return Offer(traits_of(member.name), make, member)


def cluster_offer(member: Member, cluster: Cluster, settings: Settings) -> Offer:
    """The queue of a login node, which all apps share that have its connection."""
    from .backends.slurm import traits_of

    def make() -> Provider:
        from .backends.command.way import MachineWay
        from .backends.slurm.allocation import LoginWay
        from .backends.slurm.provider import SlurmProvider
        from .backends.slurm.queue import ClusterQueue

        way = LoginWay(MachineWay(member.name, member.open), member.environment)
        member.queue = member.queue or ClusterQueue(member.name, cluster, way)
        return SlurmProvider(member.queue, member.environment, settings.rules, paths.installation())

    return Offer(traits_of(member.name), make, member)


@dataclass(frozen=True)
class View:
    """A sandbox as it stands: what it is, whether it answers, what it has. `name` is that in the fleet.

    `cause` is why it does not answer; `trouble` is the whole sentence, which also says what was tried.
    """

    name: str
    description: Description
    active: bool
    alive: bool
    trouble: str = ""
    usage: Usage | None = None
    usage_trouble: str = ""
    cause: str = ""

    @property
    def score(self) -> float:
        return idle_score(self.usage) if self.usage else 0.0


@dataclass(frozen=True)
class Report:
    """Result of a command, with its output clipped for the caller."""

    seen: Completed | Running | Missing
    stdout: Clipped
    stderr: Clipped
    # What became of the session in which it ran; empty without one.
    session: str = ""


Ended = TypeVar("Ended")
Clip = Callable[[Completed | Running | Missing], Report]


@dataclass(frozen=True)
class Row:
    """What came of a command on one of several sandboxes: a report, or a problem."""

    name: str
    seconds: float
    report: Report | None = None
    problem: SandboxError | None = None

    @property
    def is_good(self) -> bool:
        return self.report is not None and isinstance(self.report.seen, Completed) and not self.report.seen.exit_code


@dataclass(frozen=True)
class CommandLimits:
    """Limits for one of several commands at once: one sandbox that does not answer must not delay the others.

    `opening` is held while the sandbox is opened; `open_s` and `run_s` are how long opening and running may take.
    """

    opening: AbstractAsyncContextManager[object]
    open_s: float | None = None
    run_s: float | None = None

    async def opened(self, member: Member) -> Sandbox:
        if self.open_s is None:
            return await member.open()
        try:
            return await within(self._opened(member), self.open_s)
        except asyncio.TimeoutError:
            problem = f"it could not be opened within {self.open_s:.0f} s"
            raise Unreachable.of_parts(f"unable to open {member.name}", problem) from None

    async def _opened(self, member: Member) -> Sandbox:
        async with self.opening:
            return await member.open()

    async def ended(self, run: Awaitable[Ended], member: Member, command: Command) -> Ended:
        if self.run_s is None:
            return await run
        try:
            return await within(run, self.run_s)
        except asyncio.TimeoutError:
            why = f"no answer within {self.run_s:.0f} s"
            raise LostContact.while_running(member.name, why, Running(command.run_id)) from None


NO_BOUNDS = CommandLimits(nullcontext())


class App:
    """One user's sandboxes and the verbs on them."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        problems: tuple[str, ...] = (),
        patience_s: float | None = None,
        settings: Settings | None = None,
        config_file: Path | None = None,
        routes: Routes = no_routes,
        identity: str = "",
        private: Sequence[str] = (),
    ) -> None:
        """`identity` identifies the configuration; without one, all disposable sandboxes are visible."""
        self.fleet = fleet
        self.identity = identity
        self.problems = problems
        self.patience_s = patience_s
        self.settings = settings or Settings()
        self.transfers = TransferService(fleet, self.settings, routes, private, identity)
        # Not the method itself: it would make the service, which most processes do not need.
        self.transfers.fetch = lambda order, listener: self.workspaces.fetch(order, listener)
        self.jobs = JobService(fleet, self.settings, config_file, identity)
        # Local changes of workspaces in use are sent before a command asks for it.
        self.sends_ahead = False
        self.history = History(self.settings.keep_calls_days, identity)
        # Makes this process the watchdog; None: the hub is asked to be it.
        self.begin_watching: Callable[[Path | None], Awaitable[None]] | None = None
        self._ending = Chores("ending a command")
        fleet.find = self._find_disposable
        # Hosts of ~/.ssh/config that were found by their names, and those that mean something else by now.
        self._found_hosts: dict[str, tuple[Machine, Member]] = {}
        self._outdated: list[Member] = []

    @functools.cached_property
    def disposables(self) -> Disposables:
        from .disposable.verbs import Disposables

        return Disposables(
            self.fleet,
            self.settings.rules,
            offers_of(self.settings, self.fleet),
            disposable_rows,
            mark=disposable_mark,
            configuration=self.identity,
        )

    @functools.cached_property
    def apps(self) -> AppService:
        from .apps.service import AppService

        local_ports = self.settings.forward_ports
        return AppService(self.fleet, self.jobs, self.disposables, local_ports, self.identity)

    @functools.cached_property
    def suites(self) -> SuiteService:
        from .suites.service import SuiteService

        return SuiteService(self.fleet, self.jobs.commands)

    @functools.cached_property
    def workspaces(self) -> WorkspaceService:
        from .workspaces.service import WorkspaceService

        service = WorkspaceService(self.fleet, self.transfers, paths.state_path(), self.identity)
        service.sends_ahead = self.sends_ahead
        return service

    @functools.cached_property
    def pythons(self) -> PythonService:
        from .interpreters.service import PythonService

        return PythonService(self.fleet, self.jobs.commands, self.jobs.known.sessions(PYTHON))

    @functools.cached_property
    def sessions(self) -> Sessions:
        """Sessions that keep their state between calls, of every kind."""
        return Sessions({SHELL: lambda: self.shells, PYTHON: lambda: self.pythons})

    @functools.cached_property
    def shells(self) -> ShellService:
        from .shells.service import ShellService

        return ShellService(self.fleet, self.jobs.known)

    def _find_disposable(self, name: str) -> Member | None:
        """An unknown name may be a disposable sandbox's, which the fleet learns only when the service is created."""
        # Creating the service replaces fleet.find, so this function is not called again.
        return self.fleet.find(name) if self.disposables else None

    def find_hosts_by(self, configuration: Configuration) -> None:
        """Let callers name hosts of ~/.ssh/config, as far as this configuration allows it."""
        rule = configuration.host_rule
        for name, (machine, member) in [*self._found_hosts.items()]:
            if configuration.find_host(name) != machine:
                self.fleet.remove(member.name)
                self._outdated.append(self._found_hosts.pop(name)[1])

        def find(name: str) -> Member | None:
            machine = configuration.find_host(name)
            # Its name may differ by a colon, and be there already.
            if machine is None or machine.name != name:
                return None
            self._make_room_for_host()
            member = machine_member(machine)
            self._found_hosts[name] = machine, member
            self.fleet.add(member)
            return member

        self.fleet.find_host = find
        fitting = ", ".join(rule.patterns)
        self.fleet.also_found = f"and each host of ~/.ssh/config that fits {fitting}" if rule.at_run_time else ""

    def _make_room_for_host(self) -> None:
        """Forget one that was named and never opened: a caller may try any number of names."""
        unopened = [name for name, (_, member) in self._found_hosts.items() if not member.opening]
        if len(self._found_hosts) >= MOST_FOUND_HOSTS and unopened:
            del self._found_hosts[unopened[0]]
            self.fleet.remove(unopened[0])

    @property
    def has_disposables(self) -> bool:
        """Whether the service was created: only then does closing take a moment."""
        return "disposables" in self.__dict__

    async def needs(self) -> list[str]:
        """Why this process is needed even without clients, as sentences."""
        needed = [*self.transfers.needs()]
        if "apps" in self.__dict__:
            needed += self.apps.needs()
        if self.has_disposables:
            needed += self.disposables.needs()
        return [*needed, *self._logins_of_people(), *await self._jobs_that_end_with_us()]

    def _logins_of_people(self) -> list[str]:
        """Connections that only a person can open again."""
        members = (self.fleet.member(name) for name in self.fleet.names if not DISPOSABLE_ID.match(name))
        return [f"{member.name} is logged in with a code that a person gave" for member in members if is_kept(member)]

    async def is_busy(self) -> bool:
        return bool(await self.needs())

    async def _jobs_that_end_with_us(self) -> list[str]:
        """Background jobs in configured sandboxes whose processes end with the connection, such as `local`."""
        members = {name: self.fleet.member(name) for name in self.fleet.names if not DISPOSABLE_ID.match(name)}
        told: list[str] = []
        for name, member in members.items():
            # Not disposable ones: their own service reports them, and a question would renew them.
            if member.name == name and member.sandbox:
                told += await _jobs_that_end_with(name, member.sandbox)
        return told

    async def reconfigure(self, configuration: Configuration, members: Sequence[Member]) -> Sequence[Member]:
        """Switch to another configuration, whose sandboxes are `members`. Returns those that are no longer used.

        Calls in progress, disposable sandboxes and forwards into sandboxes that stay are not touched. The
        `identity` stays as it was at the start.
        """
        settings = configuration.settings
        dropped = self.fleet.configure(members, configuration.default, configuration.refusal)
        self.find_hosts_by(configuration)
        gone = [member.name for member in dropped]
        self.problems, self.settings, self.patience_s = configuration.problems, settings, settings.patience_s
        await self.transfers.reconfigure(
            settings, routes_between(configuration.machines), private_files(configuration), gone
        )
        self.jobs.reconfigure(settings)
        self.history.reconfigure(settings.keep_calls_days)
        if self.has_disposables:
            self.disposables.reconfigure(settings.rules, offers_of(settings, self.fleet))
        if "apps" in self.__dict__:
            await self.apps.reconfigure(settings.forward_ports, gone)
        return dropped

    async def restart(self, name: str) -> bool:
        """End everything in a configured sandbox whose processes end with its connection; False for any other."""
        if name not in self.fleet.names or await self.disposables.find(name):
            return False
        sandbox = self.fleet.member(name).sandbox
        if sandbox is None or sandbox.description.capabilities.survives_disconnect:
            return False
        await sandbox.close()
        return True

    async def close(self) -> None:
        """Close everything. Running transfers are left for another process to continue, and jobs to their machines."""
        if "apps" in self.__dict__:
            await self.apps.close()
        if self.has_disposables:
            await self.disposables.close()
        if "workspaces" in self.__dict__:
            await self.workspaces.close()
        await self.transfers.close()
        await self.jobs.close()
        await self.history.close()
        await asyncio.gather(*(member.close() for member in self._outdated), return_exceptions=True)
        await self.fleet.close()

    # Sandboxes

    async def survey(self, *, resources: bool = False, active: str | None = None) -> list[View]:
        """The state of every sandbox, asked at once. `active` is by default the configured one."""
        members = await self.fleet.offered()
        views = [self._seen(member, resources=resources, active=active) for member in members]
        seen = await asyncio.gather(*views, return_exceptions=True)
        return [self._told(member, view, active) for member, view in zip(members, seen, strict=True)]

    def _told(self, member: Member, view: View | BaseException, active: str | None) -> View:
        """Turn an unexpected exception into a problem of that one sandbox, so that all others are still listed."""
        if isinstance(view, View):
            return view
        problem = unforeseen(view, f"looking at {member.name}")
        return View(member.name, member.describe(), self._is_active(member, active), False, problem, cause=problem)

    def _is_active(self, member: Member, active: str | None) -> bool:
        return member.name == (self.fleet.default if active is None else active)

    async def _seen(self, member: Member, *, resources: bool, active: str | None) -> View:
        """Like `view`, but a host that is offered with many others is not logged in to for a mere list."""
        is_active = self._is_active(member, active)
        if is_active or member.may_open_unasked:
            return await self.view(member, resources=resources, active=active)
        return View(member.name, member.describe(), is_active, False, UNASKED, cause=UNASKED)

    async def view(self, member: Member, *, resources: bool = False, active: str | None = None) -> View:
        is_active = self._is_active(member, active)
        try:
            sandbox = await member.open()
            if not resources:
                await sandbox.open()
                return View(member.name, sandbox.description, is_active, True)
            # A successful measurement also shows that it answers: one round trip instead of two.
            usage = await measure(sandbox, cluster=member.slurm)
            return View(member.name, sandbox.description, is_active, True, usage=usage)
        except (ConnectError, Unsupported) as problem:
            return View(member.name, member.describe(), is_active, False, str(problem), cause=problem.cause)
        except SandboxError as problem:
            return View(member.name, member.describe(), is_active, True, usage_trouble=str(problem))

    # Commands

    async def run(
        self, script: str, *, cwd: str = "", timeout_s: float = 120, limit: int = 20_000, name: str = "",
        patience_s: float | None = None, room: int | None = None, progress: Progress = silent, as_root: bool = False,
        session: str = "",
    ) -> Report:  # fmt: skip
        """Run a script within the caller's patience; returns up to `limit` characters per stream, `room` in all.

        With a `session` it runs in the shell of that name, in whose folder it begins unless `cwd` names another.
        """
        check_run(script, cwd, timeout_s, limit, session)
        member = self.fleet.member(name)
        run_id = name_for_call("run") or new_run_id()
        command = Command(script, cwd, timeout_s, keep=2 * limit + 8, run_id=run_id, as_root=as_root)
        clip = functools.partial(make_report, limit=limit, room=room)
        return await self._run(member, command, clip, patience_s, progress, session=session)

    async def several(self, names: Sequence[str] | Literal["all"]) -> list[Member]:
        """The named sandboxes, each once; "all": those that are configured. Raises BadArgument, UnknownSandbox."""
        if not names:
            raise BadArgument(
                'sandbox_names is empty; name sandboxes, or pass "all", or leave it out for the active one'
            )
        for name in () if names == "all" else names:
            check.text_argument("a name in sandbox_names", name)
        try:
            members = await self.fleet.configured() if names == "all" else self.fleet.distinct(names)
        except UnknownSandbox as problem:
            raise problem.with_more("nothing was run") from None
        # Without any, the sentence for this is that of a call that names none.
        return members or [self.fleet.member()]

    async def run_on_each(
        self, members: Sequence[Member], script: str, *, cwd: str = "", timeout_s: float = 120, limit: int = 20_000,
        clip: Clip | None = None, patience_s: float | None = None, ended: Callable[[Row], None] = lambda row: None,
        progress: Callable[[str], Progress] = lambda name: silent, as_root: bool = False, session: str = "",
    ) -> list[Row]:  # fmt: skip
        """Run a script on all of them at once. What fails is told in its row; `ended` gets each row as it is there."""
        check_run(script, cwd, timeout_s, limit, session)
        opening, begun = asyncio.Semaphore(MOST_OPENING), time.monotonic()
        make = clip or functools.partial(make_report, limit=limit)

        async def run_on(member: Member) -> Row:
            run_id = name_for_call("run", member.name) or new_run_id()
            command = Command(script, cwd, timeout_s, keep=2 * limit + 8, run_id=run_id, as_root=as_root)
            turn = nullcontext() if member.sandbox and member.sandbox.is_open else opening
            bounds = CommandLimits(turn, patience_s or OPEN_S, min(timeout_s, patience_s or timeout_s) + LATE_S)
            try:
                report = await self._run(member, command, make, patience_s, progress(member.name), bounds, session)
                row = Row(member.name, time.monotonic() - begun, report)
            except SandboxError as problem:
                row = Row(member.name, time.monotonic() - begun, problem=problem)
            ended(row)
            return row

        seen = await asyncio.gather(*map(run_on, members), return_exceptions=True)
        return [_row_of(member, row, begun) for member, row in zip(members, seen, strict=True)]

    async def _run(
        self, member: Member, command: Command, clip: Clip, patience_s: float | None, progress: Progress,
        bounds: CommandLimits = NO_BOUNDS, session: str = "",
    ) -> Report:  # fmt: skip
        commands = self.jobs.commands
        try:
            sandbox = await bounds.opened(member)
            if command.as_root and (why_not := sandbox.description.capabilities.why_not_root):
                raise Unsupported(f"nothing can be run as root on {member.name}: {why_not}; nothing was run")
            if is_again() and (known := await self._known_end(sandbox, command)):
                return clip(known)
        except asyncio.CancelledError:
            if is_again():
                self._end_later(member, command.run_id)
            raise
        commands.begin(member, command)
        if begins := run_begins.get():
            begins(command.run_id)
        state = ""
        try:
            if session:
                running = self.shells.run(member, sandbox, command, session, patience_s, progress)
                seen, state = await bounds.ended(running, member, command)
            else:
                run = sandbox.run(command, patience_s=patience_s, progress=progress)
                seen = await bounds.ended(run, member, command)
        except LostContact:
            # It may be running, so its record stays.
            raise
        except SandboxError:
            commands.never_began(command)
            raise
        report = replace(clip(seen), session=state)
        is_whole = isinstance(seen, Completed) and not (report.stdout.omitted or report.stderr.omitted)
        # The result is stored before the machine is told to drop its own copy.
        then = forgetting(sandbox, command.run_id) if is_whole else None
        commands.note(seen, printed(report), in_time=True, then=then)
        return report

    def _end_later(self, member: Member, run_id: str) -> None:
        """Stop a command that an earlier process of ours may have begun; no other process would."""

        async def end() -> None:
            with contextlib.suppress(SandboxError):
                await (await member.open()).stop(run_id)

        self._ending.start(end())

    async def give_up(self, call: str, name: str = "", several: Sequence[str] | str = ()) -> None:
        """Stop the commands of a call that was cancelled while the hub died, if the call had begun any.

        `name` is the call's sandbox, for a command that began too shortly before to be recorded; `several` are those
        of a call on many.
        """
        if not several:
            return await self._give_up(Call(call).name_of("run"), name)
        names = several if isinstance(several, (list, tuple)) else [it.name for it in await self.fleet.configured()]
        members = {self.fleet.member(it).name for it in names if it in self.fleet.names}
        await asyncio.gather(*(self._give_up(Call(call).name_of("run", name), name) for name in members))

    async def _give_up(self, run_id: str, name: str) -> None:
        row = await self.jobs.commands.find(run_id)
        where = row.sandbox if row else name
        if not where or where in self.fleet.names:
            with contextlib.suppress(SandboxError):
                await (await self.fleet.get(where)).stop(run_id)

    async def _known_end(self, sandbox: Sandbox, command: Command) -> Completed | Missing | None:
        """The end of a command that an earlier process of ours may have started; None if it may be run now."""
        seen = await sandbox.observe(command.run_id, keep=1)
        if not isinstance(seen, Missing):
            return None
        if known := await self.jobs.commands.recall(command.run_id):
            return known
        if sandbox.description.capabilities.survives_disconnect:
            return None
        return replace(seen, reason="the process that ran it was killed, and the command with it, if it had begun")

    async def was_begun(self, name: str) -> bool:
        """Whether an earlier process of ours has begun the command or the job of the current call."""
        if not is_again():
            return False
        run_id = name_for_call("run")
        seen = await (await self.fleet.get(name)).observe(run_id, keep=1)
        is_run = not isinstance(seen, Missing) or await self.jobs.commands.recall(run_id) is not None
        return is_run or await asyncio.to_thread(self.jobs.known.begun, name_for_call("job")) is not None

    async def check(self, handle: str, *, limit: int = 20_000, name: str = "", room: int | None = None) -> Report:
        """State of a run that outlasted its call."""
        run_id, keep = check.run_handle(handle), 2 * limit + 8
        return await self._told_of_run(run_id, limit, room, name, lambda sandbox: sandbox.observe(run_id, keep=keep))

    async def stop(self, handle: str, *, limit: int = 20_000, name: str = "", room: int | None = None) -> Report:
        """End a run's whole process tree."""
        run_id, keep = check.run_handle(handle), 2 * limit + 8
        return await self._told_of_run(run_id, limit, room, name, lambda sandbox: sandbox.stop(run_id, keep=keep))

    async def _told_of_run(
        self, run_id: str, limit: int, room: int | None, name: str, ask: Callable[[Sandbox], Awaitable[Observation]]
    ) -> Report:
        """A run's state from its machine or, where the machine does not know its end, from our records."""
        commands = self.jobs.commands
        try:
            seen = await ask(await self.fleet.get(name))
        except (ConnectError, LostContact, UnknownSandbox):
            known = await commands.recall(run_id)
            if known is None:
                raise
            return make_report(known, limit, room)
        if isinstance(seen, Missing) and not (seen.stdout.total or seen.stderr.total):
            seen = await commands.recall(run_id) or await self._missed(seen, self.fleet.member(name).name)
            return make_report(seen, limit, room)
        report = make_report(seen, limit, room)
        commands.note(seen, printed(report))
        return report

    async def _missed(self, seen: Missing, name: str) -> Missing:
        """A run that is not on this sandbox: add the name of the sandbox that has it, if we can find out."""
        row = await self.jobs.commands.find(seen.run_id)
        if row is not None and row.sandbox != name:
            usable = row.sandbox in self.fleet.names
            where = there(row.sandbox) if usable else f"it was started on {row.sandbox}, which cannot be used here"
            return replace(seen, reason=where)
        for member in await self.jobs.others(name) if row is None else ():
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                asked = (await member.open()).observe(seen.run_id, keep=1)
                if not isinstance(await within(asked, ELSEWHERE_S), Missing):
                    return replace(seen, reason=there(member.name))
        return seen

    async def whereabouts(self, session: str, watch_id: int = 0) -> str:
        """The sandbox of a job, of a run that outlasted its call, or of a session; empty where it is unknown here."""
        if handle := read_handle(session):
            return await self.sessions.whereabouts(handle)
        if not RUN_ID.match(session):
            return await self.jobs.whereabouts(session, watch_id)
        row = await self.jobs.commands.find(session)
        return row.sandbox if row and row.sandbox in self.fleet.names else ""

    # Files

    async def read(self, path: str, span: Span, *, name: str = "") -> FileSlice:
        check.text_argument("remote_path", path)
        member = self.fleet.member(name)
        found = await (await member.open()).read(path, span)
        current().versions.remember(member.name, path, found.version)
        return found

    async def write(self, path: str, data: bytes, *, create_only: bool = False, name: str = "") -> Written:
        """Write a file; refused if this client has read it and it has changed since."""
        check.text_argument("remote_path", path)
        if len(data) > check.LARGEST_WRITE:
            raise BadArgument(
                f"content has {len(data)} bytes; at most {check.LARGEST_WRITE} can be written in one call"
            )
        member = self.fleet.member(name)
        expected = "" if create_only else current().versions.get(member.name, path)
        try:
            return await self._put(member, path, data, expected)
        except FileProblem as problem:
            # A process of ours that died before it could answer may have written it: then that is what has changed.
            if problem.reason == "stale" and is_again() and (written := await self._as_written(member, path, data)):
                return written
            raise

    async def edit(self, path: str, old: str, new: str, *, every: bool = False, name: str = "") -> tuple[Written, int]:
        """Replace an exact text that occurs once (or all); the file must be as this client last read it."""
        check.text_argument("remote_path", path)
        if not old:
            raise BadArgument("old_text is empty; give the exact text to replace (write_remote_file makes a new file)")
        member = self.fleet.member(name)
        found = await (await member.open()).read(path, Span(limit=check.LARGEST_WRITE))
        if found.more:
            raise FileProblem(f"{path} is larger than {check.LARGEST_WRITE} bytes, too large to edit", "too_large")
        known = current().versions.get(member.name, path)
        if known is not None and known != found.version:
            current().versions.forget(member.name, path)
            raise FileProblem(f"{path} has changed since it was read; read it again, then repeat the edit", "stale")
        data, count = replaced(found.data, old, new)
        if count == 0 or (count > 1 and not every):
            raise FileProblem(_mismatch(path, count), "no_match" if not count else "ambiguous")
        return await self._put(member, path, data, found.version), count

    async def list(
        self, path: str, *, recursive: bool = False, limit: int = 200, name: str = "", cursor: str = ""
    ) -> Listing:
        """One page of a folder's entries; `cursor` is where the page before it ended."""
        check.text_argument("remote_path", path, required=False)
        check.in_range("max_entries", limit, 1, 10_000)
        page = read_cursor(cursor)
        check.in_range("the place of cursor", page.skip, 0, MOST_LISTED)
        sandbox = await self.fleet.get(name)
        found = await sandbox.list(path, recursive=recursive, limit=page.skip + limit)
        start = page.begin([entry.path for entry in found.entries])
        # The very first entry is directly in the folder.
        folder = posixpath.dirname(found.entries[0].path) if found.entries else ""
        return replace(found, entries=found.entries[start:], folder=folder, start=start)

    async def search(self, search: Search, *, name: str = "", cursor: str = "") -> Found:
        for argument in ("path", "glob", "pattern"):
            check.text_argument(argument, getattr(search, argument), required=False)
        if not search.glob and not search.pattern:
            raise BadArgument("give a glob (which files), a pattern (which lines), or both")
        check.in_range("max_results", search.limit, 1, 2000)
        page = read_cursor(cursor)
        check.in_range("the place of cursor", page.skip, 0, MOST_FOUND)
        found = await (await self.fleet.get(name)).search(replace(search, limit=page.skip + search.limit))
        start = page.begin([match.key for match in found.matches])
        return replace(found, matches=found.matches[start:], start=start)

    async def _put(self, member: Member, path: str, data: bytes, expected: str | None) -> Written:
        try:
            written = await (await member.open()).write(path, data, expected=expected)
        except FileProblem as problem:
            if problem.reason == "stale":
                current().versions.forget(member.name, path)
            raise
        current().versions.remember(member.name, path, written.version)
        return written

    async def _as_written(self, member: Member, path: str, data: bytes) -> Written | None:
        """The file, if it holds exactly this."""
        found = await (await member.open()).read(path, Span(limit=len(data) + 1))
        if found.data != data or found.more:
            return None
        current().versions.remember(member.name, path, found.version)
        return Written(len(data), found.version)


def is_kept(member: Member) -> bool:
    """Whether a member's connection is worth keeping without a client: a person has logged in for it lately."""
    is_open = member.sandbox is not None and member.sandbox.is_open
    return is_open and member.questions is not None and member.questions.were_answered_lately


async def _jobs_that_end_with(name: str, sandbox: Sandbox) -> list[str]:
    """Jobs in a sandbox that end with its connection. Not asked without a connection, because that would open one."""
    if not sandbox.is_open or sandbox.description.capabilities.survives_disconnect:
        return []
    try:
        jobs = await within(sandbox.jobs.list(), JOBS_S)
    except Unsupported:
        return []
    except (SandboxError, asyncio.TimeoutError):
        return [f"{name} does not say whether a job runs in it"]
    return [f"the job {job.session} runs in {name}" for job in jobs if job.is_running]


def _row_of(member: Member, row: Row | BaseException, begun: float) -> Row:
    """Turn an unexpected exception into a problem of that one sandbox."""
    if isinstance(row, Row):
        return row
    problem = Defect(unforeseen(row, f"running a command on {member.name}"))
    return Row(member.name, time.monotonic() - begun, problem=problem)


def check_run(script: str, cwd: str, timeout_s: float, limit: int, session: str = "") -> None:
    """Raises BadArgument."""
    if session:
        check_session(session)
    check.text_argument("command", script)
    check.text_argument("cwd", cwd, required=False)
    check.in_range("timeout_s", timeout_s, 0.1, check.LONGEST_TIMEOUT_S)
    check.in_range("max_output_chars", limit, 1, check.MOST_OUTPUT_CHARS)


def make_report(seen: Completed | Running | Missing, limit: int, room: int | None = None) -> Report:
    return Report(seen, *clip_both(seen.stdout, seen.stderr, limit, room))


def printed(report: Report) -> str:
    """The end of a command's output, for the log of its sandbox."""
    return "\n".join(filter(None, (report.stdout.text, report.stderr.text)))


def replaced(data: bytes, old: str, new: str) -> tuple[bytes, int]:
    """`data` with `old` replaced, and how often; `old` may contain escapes as read_remote_file shows them."""
    raw = old.encode("utf-8", "surrogateescape")
    # If it contains such a character itself, it was not copied from our output, and is taken literally.
    if "\\u" in old.lower() and visible(old) == old:
        with contextlib.suppress(UnicodeDecodeError):
            text, count = replace_shown(data.decode("utf-8"), old, new)
            return text.encode("utf-8", "surrogateescape"), count
    return data.replace(raw, new.encode("utf-8", "surrogateescape")), data.count(raw)


def _mismatch(path: str, count: int) -> str:
    if not count:
        return f"old_text does not occur in {path}; read the file and copy the text exactly, with its white space"
    return f"old_text occurs {count} times in {path}; add surrounding lines until it is unique, or set replace_all"


def compose(
    configuration: Configuration,
    *,
    for_all: bool = False,
    members: Sequence[Member] | None = None,
    are_lent: bool = False,
) -> App:
    """Make an App of a configuration. Opens nothing, and imports nothing that the first call does not need.

    `for_all`: the app works on what was begun under any configuration, as the watchdog does. `members`: the
    configured sandboxes; with `are_lent` other apps share them, and they are not closed with this one.
    """
    app = App(
        Fleet(
            Stock().take(configuration) if members is None else members,
            configuration.default,
            configuration.refusal,
            are_lent=are_lent,
        ),
        problems=configuration.problems,
        patience_s=configuration.settings.patience_s,
        settings=configuration.settings,
        config_file=Path(configuration.file) if configuration.file else None,
        routes=routes_between(configuration.machines),
        identity="" if for_all else identity_of(configuration),
        private=private_files(configuration),
    )
    app.find_hosts_by(configuration)
    return app
