"""The verbs that every front end calls, and the composition root, where the parts are put together."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import paths
from .config.load import identity_of
from .config.schema import Configuration, Settings
from .core.commands.session_handle import PYTHON, SHELL, Sessions
from .core.errors import SandboxError, Unsupported
from .core.lazy import lazy
from .core.sandboxes.disposable import DISPOSABLE_ID, Offer, Provider
from .core.sandboxes.machine import CommandPlace, Engine, LocalPlace, Machine
from .core.sandboxes.sandbox import Description, Sandbox
from .core.sandboxes.slurm import Cluster
from .local.asking import Questions
from .local.store.database import STATE_FILE, Database
from .local.store.mark import mark_in
from .local.store.trouble import standing_problem
from .local.waiting import within
from .services.commands import CommandService
from .services.files import FileService
from .services.fleet import Fleet, Member
from .services.gate.paths import private_files
from .services.history import History
from .services.jobs.service import JobService
from .services.jobs.values import Which
from .services.survey import Survey
from .services.tasks import Tasks
from .services.transfers.service import TransferService, routes_between

if TYPE_CHECKING:
    from .backends.ssh.connection import LoginGate
    from .core.jobs.job import Jobs
    from .local.store.disposables import DisposableRows
    from .services.apps.service import AppService
    from .services.disposable.verbs import Disposables
    from .services.machine_history import MachineHistory
    from .services.sessions.python import PythonService
    from .services.sessions.shell import ShellService
    from .services.suites.service import SuiteService
    from .services.sync.service import Routes
    from .services.workspaces.service import WorkspaceService

log = logging.getLogger(__name__)

# How long a local sandbox may take to list its running jobs.
JOBS_S = 2.0
# What is left to do after a restart is delayed, so as not to slow a client's first questions.
ADOPT_S, REVIVE_S = 1.5, 3.5
MOST_FOUND_HOSTS = 100


class Stock:
    """Configured sandboxes, shared between the apps of this process: equal configurations get the same member.

    Machines are equal if all their settings are, including secrets and the variables that select them.
    """

    def __init__(self) -> None:
        self._kept: list[_Shared] = []

    def take(self, configuration: Configuration) -> tuple[Member, ...]:
        """The members of a configuration, in its order; return them with give_back."""
        local = (configuration.local,) if configuration.local else ()
        return tuple(map(self._take, (*configuration.machines, *configuration.commands, *local)))

    def _take(self, what: Machine | CommandPlace | LocalPlace) -> Member:
        found = next((shared for shared in self._kept if shared.what == what), None)
        if found is None:
            found = _Shared(what, member_of(what))
            self._kept.append(found)
        found.users += 1
        return found.member

    async def give_back(self, members: Iterable[Member]) -> None:
        """Close the members that no app uses any more."""
        given = [*map(id, members)]
        for shared in self._kept:
            shared.users -= given.count(id(shared.member))
        unused = [shared for shared in self._kept if shared.users <= 0]
        self._kept = [shared for shared in self._kept if shared.users > 0]
        await asyncio.gather(*(shared.member.close() for shared in unused), return_exceptions=True)

    @property
    def members(self) -> list[Member]:
        return [shared.member for shared in self._kept]


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
        current = gates[0].machine if gates else machine
        where = current.host, current.port, current.login.user
        return Description(current.name, "ssh", *where, writable=current.writable_words)

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

        return await local.why_not(place.walls)

    return Member(place.name, describe, opener, why_not)


def disposable_rows() -> DisposableRows:
    from .local.store.disposables import DisposableRows

    return DisposableRows(Database(paths.state_folder() / STATE_FILE))


def disposable_mark() -> Path:
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

        async def jobs() -> Jobs:
            return (await member.open()).jobs

        beyond_walls = bool(member.describe().writable)
        way = MachineWay(member.name, member.open, walled=not beyond_walls)
        env, mark = member.environment.env, paths.installation()
        return EngineProvider(member.name, engine, way, settings.rules, mark, env, jobs, beyond_walls=beyond_walls)

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
        routes: Routes | None = None,
        identity: str = "",
        private: Sequence[str] = (),
    ) -> None:
        """`identity` identifies the configuration; without one, all disposable sandboxes are visible."""
        self.fleet = fleet
        self.identity = identity
        self.problems = problems
        self.patience_s = patience_s
        self.settings = settings or Settings()
        self.transfers = TransferService(fleet, self.settings, routes or routes_between(()), private, identity)
        # Not the method itself: it would make the service, which most processes do not need.
        self.transfers.fetch = lambda order, listener: self.workspaces.fetch(order, listener)
        self.jobs = JobService(fleet, self.settings, config_file, identity)
        self.commands = CommandService(fleet, self.jobs, lambda: self.shells)
        self.files = FileService(fleet)
        self.survey = Survey(fleet)
        self.tasks = Tasks(fleet, self.jobs, lambda: self.sessions)
        # Local changes of workspaces in use are sent before a command asks for it.
        self.sends_in_background = False
        self.history = History(self.settings.keep_calls_days, identity)
        # What the operator's extensions offer, for the front that offers it, and what is wrong with them.
        self.extensions: Any = None
        self.extension_problems: tuple[str, ...] = ()
        # Makes this process the watchdog; None: the hub is asked to be it.
        self.begin_watching: Callable[[Path | None], Awaitable[None]] | None = None
        # Found by a name that the fleet does not know: the service is made only then.
        fleet.find = lambda name: self.disposables.find_member(name)
        # Hosts of ~/.ssh/config that were found by their names, and those that mean something else by now.
        self._found_hosts: dict[str, tuple[Machine, Member]] = {}
        self._outdated: list[Member] = []

    @lazy
    def disposables(self) -> Disposables:
        from .services.disposable.verbs import Disposables

        return Disposables(
            self.fleet,
            self.settings.rules,
            offers_of(self.settings, self.fleet),
            disposable_rows,
            mark=disposable_mark,
            configuration=self.identity,
            best=lambda machines, cards: self.jobs.waiting.best(machines, cards),
        )

    @lazy
    def machine_history(self) -> MachineHistory:
        from .services.machine_history import MachineHistory

        return MachineHistory()

    @lazy
    def apps(self) -> AppService:
        from .services.apps.service import AppService

        local_ports = self.settings.forward_ports
        return AppService(self.fleet, self.jobs, self.disposables, local_ports, self.identity)

    @functools.cached_property
    def suites(self) -> SuiteService:
        from .services.suites.service import SuiteService

        return SuiteService(self.fleet, self.jobs)

    @lazy
    def workspaces(self) -> WorkspaceService:
        from .services.workspaces.service import WorkspaceService

        service = WorkspaceService(self.fleet, self.transfers, paths.state_path(), self.identity)
        service.sends_in_background = self.sends_in_background
        return service

    @functools.cached_property
    def pythons(self) -> PythonService:
        from .services.sessions.python import PythonService

        return PythonService(self.fleet, self.jobs, self.jobs.registry.sessions(PYTHON))

    @functools.cached_property
    def sessions(self) -> Sessions:
        """Sessions that keep their state between calls, of every kind."""
        return Sessions({SHELL: lambda: self.shells, PYTHON: lambda: self.pythons})

    @functools.cached_property
    def shells(self) -> ShellService:
        from .services.sessions.shell import ShellService

        return ShellService(self.fleet, self.jobs.registry)

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
        return App.disposables.made(self) is not None

    def standing_problems(self) -> list[str]:
        """Problems of the configuration, and why state cannot be kept, where that is so now."""
        state = standing_problem(paths.state_path() / STATE_FILE)
        return [*self.problems, *self.extension_problems, *([state] if state else [])]

    async def needs(self) -> list[str]:
        """Explain why this process is needed even without clients, as sentences."""
        needed = [*self.transfers.needs()]
        if App.apps.made(self):
            needed += self.apps.needs()
        if self.has_disposables:
            needed += await self.disposables.needs()
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
        notes: list[str] = []
        for name, member in members.items():
            # Not disposable ones: their own service reports them, and a question would renew them.
            if member.name == name and member.sandbox:
                notes += await _jobs_that_end_with(name, member.sandbox)
        return notes

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
        if App.apps.made(self):
            await self.apps.reconfigure(settings.forward_ports, gone)
        return dropped

    async def ensure_watchdog(self) -> str:
        """Make sure that the watchdog runs; returns why it does not, or nothing."""
        from .services.watchdog.ensure import ensure_running

        return await ensure_running(paths.state_folder(), self.jobs.config_file, begin=self.begin_watching)

    async def revive(self) -> None:
        """After a restart: continue transfers, adopt disposable sandboxes, start the watchdog if a job is watched."""
        await asyncio.sleep(ADOPT_S)
        try:
            await self.transfers.take_up()
            await self.disposables.adopt()
            await asyncio.sleep(REVIVE_S)
            is_watched = await asyncio.to_thread(self.jobs.registry.is_anything_watched)
            if is_watched and (why := await self.ensure_watchdog()):
                log.warning("%s", why)
        except SandboxError as problem:
            log.warning("%s", problem)

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
        if App.apps.made(self):
            await self.apps.close()
        if self.has_disposables:
            await self.disposables.close()
        if App.workspaces.made(self):
            await self.workspaces.close()
        await self.transfers.close()
        await self.jobs.close()
        await self.history.close()
        if machines := App.machine_history.made(self):
            await machines.close()
        await asyncio.gather(*(member.close() for member in self._outdated), return_exceptions=True)
        await self.fleet.close()

    async def whereabouts(self, session: str, watch_id: int = 0) -> str:
        """The sandbox of a task; empty where it is unknown here."""
        return await self.tasks.whereabouts(Which(session=session, watch_id=watch_id))


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
    given = Stock().take(configuration) if members is None else members
    app = App(
        Fleet(given, configuration.default, configuration.refusal, are_lent=are_lent),
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
