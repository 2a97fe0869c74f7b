"""Check a sandbox step by step, from its name to the PATH that commands see there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...backends.command.sandbox import open_place
from ...backends.ssh.connection import LoginGate, translate
from ...backends.ssh.host_keys import entry_name
from ...backends.ssh.machine import OTHER_SHELL, SLOW_SHELL, open_machine, open_through
from ...backends.ssh.openssh import choose_transport, open_over_openssh, unused_socket
from ...core.commands.command import Command, Environment
from ...core.commands.shell import join
from ...core.errors import CODE_NEEDED, ConnectError, SandboxError, Unreachable
from ...core.resources import checkup
from ...core.resources.checkup import Checkup, Findings, Mark, Step
from ...core.resources.usage import Usage
from ...core.sandboxes.machine import CommandPlace, Engine, Hop, LocalPlace, Machine
from ...core.sandboxes.network import Reach
from ...core.sandboxes.sandbox import Sandbox
from ...core.sandboxes.slurm import Cluster
from ...core.sandboxes.slurm import words as option_words
from ...core.sandboxes.transport import TransportChoice
from ...core.texts.text import harmless, last_line
from ...far.program import read_program
from ...local.waiting import within
from .measure import measure

if TYPE_CHECKING:
    import asyncssh

NETWORKS = {
    Reach.NOTHING: "no network",
    Reach.OUTSIDE: "with a network of its own",
    Reach.HOSTS: "with a list of hosts",
    Reach.HOST: "with the network of this computer",
}
LOCAL_STEPS = (checkup.WALLS, "limits", *checkup.INSIDE_STEPS)
COMMAND_STEPS = ("command", *checkup.INSIDE_STEPS)
INSIDE_S = 15.0
# A code may have to wait until the one before it, which another process has used, is over.
TURN_S = 35.0
LONGEST_BANNER_LINES = 50
UNREACHABLE = "Check that the machine is on, and that no firewall or VPN stands in between"
NO_BANNER = "Check that it is SSH that listens there, and that the machine is not overloaded"

WRITABLE = "only {} may be written, held by {}; not held: /dev/shm, signals, and what another machine does for it"

_T = TypeVar("_T")
Opener = Callable[[], Awaitable[Sandbox]]


async def examine(visit: Visit) -> Checkup:
    """All steps of an SSH machine, within its deadline; nothing is raised, and steps after a failure are skipped.

    The caller may follow the visit, and ask its gate afterwards.
    """
    machine, begun = visit.machine, time.monotonic()
    try:
        await within(visit.carry_out(), visit.deadline_s)
    except Unanswered:
        # It can be used by those who have the code.
        pass
    except SandboxError as problem:
        visit.fail(problem)
    except (asyncio.TimeoutError, TimeoutError):
        visit.fail(Unreachable(f"no end within {visit.deadline_s:g} s"))
    finally:
        visit.gate.end_lent()
    where = checkup.address(machine.login.user, machine.host, machine.port)
    names = (
        *checkup.MACHINE_STEPS,
        *([checkup.CODE_STEP] if visit.gate.asks_for_code else ()),
        *checkup.INSIDE_STEPS,
        *checkup.ENGINE_STEPS,
    )
    names += (checkup.WALLS,) * (machine.writable is not None)
    # On a machine that is not configured as a cluster, only Slurm that was found is a step.
    found = {step.name for step in visit.steps}
    names += checkup.CLUSTER_STEPS if machine.slurm else tuple(name for name in checkup.CLUSTER_STEPS if name in found)
    steps = checkup.complete(visit.steps, names)
    return Checkup(machine.name, "ssh", where, steps, time.monotonic() - begun)


async def examine_command(place: CommandPlace) -> Checkup:
    """Examine a sandbox behind a command: whether it gives a shell, then what is inside."""
    begun = time.monotonic()
    steps: list[Step] = []

    async def opener() -> Sandbox:
        sandbox = await open_place(place)
        steps.append(checkup.ok("command", f"gave a shell in {time.monotonic() - begun:.1f} s"))
        return sandbox

    try:
        steps += await within(inspect(opener, place.environment, place.python, ""), place.connect_timeout_s + INSIDE_S)
    except SandboxError as problem:
        steps.append(checkup.failed("shell" if steps else "command", problem))
    except (asyncio.TimeoutError, TimeoutError):
        steps.append(checkup.failed("shell", Unreachable("it answers no more")))
    return Checkup(place.name, "command", place.shown, checkup.complete(steps, COMMAND_STEPS), time.monotonic() - begun)


async def examine_local(place: LocalPlace, state_folder: Path) -> Checkup:
    """Examine the embedded sandbox; that it cannot be offered here is a warning, not a failure."""
    from ...backends.bubblewrap import local

    begun = time.monotonic()
    steps = [await _walls_step(place)]

    async def opener() -> Sandbox:
        sandbox = await local.open_local(place, state_folder)
        steps.append(checkup.ok("limits", "; ".join(sandbox.limits.told)))
        return sandbox

    if steps[0].mark is Mark.OK:
        try:
            steps += await inspect(opener, place.environment, "python3", "")
        except SandboxError as problem:
            steps.append(checkup.failed("shell", problem))
    return Checkup(place.name, "local", "", checkup.complete(steps, LOCAL_STEPS), time.monotonic() - begun)


async def _walls_step(place: LocalPlace) -> Step:
    from ...backends.bubblewrap import bwrap, landlock

    footing = await landlock.find_footing(place.walls)
    if isinstance(footing, str):
        return checkup.warning(checkup.WALLS, f"not offered: {footing}")
    network = NETWORKS[place.network.reach]
    if not footing.landlock:
        return checkup.ok(checkup.WALLS, f"bubblewrap; {network}")
    why = await bwrap.find_footing() if place.walls != landlock.LANDLOCK else ""
    instead = f"; for namespaces: {why}" if isinstance(why, str) and why else ""
    return checkup.ok(checkup.WALLS, f"Landlock {footing.landlock}; {network}{instead}")


class Unanswered(Exception):
    """The machine asks for a code that nothing here gives, which is no fault of it."""


class Visit:
    """The way into one machine, one step after the other; `steps` holds what was found so far."""

    def __init__(self, machine: Machine, own_known_hosts: Path) -> None:
        self.machine = machine
        self.gate = LoginGate(machine, own_known_hosts)
        self.steps: list[Step] = []
        # The step that it has reached.
        self.at = "name"
        self._otherwise = UNREACHABLE
        self._also = ""
        self._who = f"unable to open {machine.name} ({entry_name(machine.host, machine.port)})"

    @property
    def deadline_s(self) -> float:
        # Name, port, two logins, two shells, and the shell path after the outpost; and codes that take turns.
        logins = (self.machine.login, *(hop.login for hop in self.machine.hops))
        turns_s = sum(TURN_S for login in logins if login.otp or login.otp_seed)
        return 2 * self.machine.connect_timeout_s + 5 * self.gate.deadline_s + INSIDE_S + turns_s

    def fail(self, problem: SandboxError) -> None:
        self.steps.append(checkup.failed(self.at, problem, otherwise=self._otherwise, also=self._also))

    async def carry_out(self) -> None:
        """Raises SandboxError in the step that failed."""
        self._enter_step("transport")
        choice = await choose_transport(self.machine)
        self.steps.append(checkup.transport_step(choice, unused_socket(self.machine)))
        if choice.is_openssh:
            await self._go_over_openssh(choice)
            return
        self._enter_step("name")
        address = await self._reach()
        async with self._logged_in(address) as connection:
            noise = await self._try_shell(connection)
        machine, own = self.machine, self.gate.host_keys.own
        # A further login would need a further code.
        opener = partial(open_through, self.gate) if self.gate.asks_for_code else partial(open_machine, machine, own)
        self.steps += await inspect(opener, machine.environment, machine.python, noise, machine)

    async def _go_over_openssh(self, choice: TransportChoice) -> None:
        """OpenSSH's client looks names up, connects and checks host keys by itself, and says what is wrong."""
        machine = self.machine
        skipped = [Step(name, Mark.SKIPPED, "OpenSSH's client makes the connection") for name in ("name", "port")]
        destination = machine.openssh.destination if machine.openssh else machine.host
        self._enter_step("login", also=f"by hand: {join(['ssh', destination])}")
        try:
            sandbox = await open_over_openssh(self.gate, choice)
        except ConnectError as problem:
            if problem.code == "host_key":
                self._enter_step("host key", also=self._also)
            raise
        finally:
            self.steps += skipped
        said = "checked by OpenSSH's client" + (", when your connection was opened" if choice.master else "")
        self.steps += [checkup.ok("host key", said), checkup.ok("login", f"as {machine.login.user}")]

        async def opened() -> Sandbox:
            return sandbox

        self.steps += await inspect(opened, machine.environment, machine.python, "", machine)

    def _enter_step(self, name: str, otherwise: str = UNREACHABLE, also: str = "") -> None:
        self.at, self._otherwise, self._also = name, otherwise, also

    async def _reach(self) -> str:
        """Check name and port of the first host that we connect to; returns its address."""
        machine = self.machine
        if machine.proxy_command:
            self.steps += [
                Step(name, Mark.SKIPPED, "a proxy command makes the connection") for name in ("name", "port")
            ]
            # The address is needed to look up host keys; a proxy command hides it.
            return ""
        first = machine.hops[0] if machine.hops else Hop(machine.host, machine.port)
        loop = asyncio.get_running_loop()
        found = await self._in_time(
            loop.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM), "no answer from the name service"
        )
        addresses = [str(entry[4][0]) for entry in found]
        self.steps.append(checkup.name_step(first.host, addresses, bool(machine.hops)))
        self._enter_step("port")
        self.steps.append(await self._knock(first))
        # Behind a jump host only that host's address is known here.
        return "" if machine.hops else addresses[0]

    async def _knock(self, first: Hop) -> Step:
        reader, writer = await self._in_time(asyncio.open_connection(first.host, first.port), "no answer")
        self._enter_step("port", NO_BANNER)
        try:
            banner = await self._in_time(_read_banner(reader), "it is open, but says nothing")
        finally:
            # Aborted, not closed: a server that says nothing would not answer the close, either.
            writer.transport.abort()
        if not banner:
            raise Unreachable("what listens there does not speak SSH")
        return checkup.port_step(first.port, banner)

    async def _in_time(self, work: Awaitable[_T], what: str) -> _T:
        limit = self.machine.connect_timeout_s
        try:
            return await within(work, limit)
        except (asyncio.TimeoutError, TimeoutError):
            raise Unreachable(f"{what} within {limit:g} s") from None
        except (OSError, ValueError) as problem:
            raise translate(problem, self._who) from None

    @contextlib.asynccontextmanager
    async def _logged_in(self, address: str) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Check host key and login; the error shows which of the two failed."""
        self._enter_step("host key")
        keys = self._knows(address)
        try:
            connection = await self.gate.enter()
        except ConnectError as problem:
            # The host key was accepted, so it is the login that failed.
            if problem.code != "host_key":
                self.steps.append(self._host_key_step(keys, self._knows(address)))
                self._enter_step("login", also=checkup.by_hand(self.machine))
            if problem.reason == CODE_NEEDED:
                self.steps.append(checkup.unanswered_code_step(self.machine.name, self.gate.asks_for_code))
                raise Unanswered from None
            raise
        try:
            key = connection.get_server_host_key()
            self.steps.append(self._host_key_step(keys, True, key.get_fingerprint() if key else ""))
            self.steps.append(checkup.ok("login", f"as {connection.get_extra_info('username')}"))
            if self.gate.asks_for_code:
                self.steps.append(checkup.answered_code_step(self.machine, self.gate.asks_for_code))
            yield connection
        except BaseException:
            connection.abort()
            raise
        self.gate.lend(connection) if self.gate.asks_for_code else connection.abort()

    def _knows(self, address: str) -> bool:
        machine = self.machine
        return bool(self.gate.host_keys.trusted(machine.host_key_name or machine.host, address, machine.port))

    def _host_key_step(self, before: bool, now: bool, fingerprint: str = "") -> Step:
        machine = self.machine
        files = self.gate.host_keys.elsewhere(machine.host_key_name or machine.host, machine.port)
        return checkup.host_key_step(before, now, files, fingerprint)

    async def _try_shell(self, connection: asyncssh.SSHClientConnection) -> str:
        """Return the output of start-up files in the login shell before a command; raises where none can be run."""
        import asyncssh

        self._enter_step(
            "shell", "Check the login shell and its start-up files", f"{checkup.by_hand(self.machine)} true"
        )
        # A random word, so that output of start-up files cannot be taken for the answer.
        token = secrets.token_hex(8)
        try:
            done = await within(
                connection.run(f"echo {token}", encoding=None, stdin=asyncssh.DEVNULL), self.gate.deadline_s
            )
        except (asyncio.TimeoutError, TimeoutError):
            raise Unreachable.of_parts(self._who, SLOW_SHELL.format(self.gate.deadline_s)) from None
        except (OSError, asyncssh.Error) as problem:
            raise translate(problem, self._who) from None
        said, errors = _as_bytes(done.stdout), _as_bytes(done.stderr)
        if token.encode() not in said:
            heard = last_line(said + errors)
            raise ConnectError(OTHER_SHELL + (f"; it said: {heard}" if heard else ""))
        return harmless(said).partition(token)[0].strip()


def _as_bytes(said: object) -> bytes:
    return said if isinstance(said, bytes) else b""


async def _read_banner(reader: asyncio.StreamReader) -> bytes:
    """A server may send other lines before its banner; a line that is too long raises ValueError."""
    for _ in range(LONGEST_BANNER_LINES):
        line = await reader.readline()
        if line.startswith(b"SSH-") or not line:
            return line
    return b""


async def inspect(
    opener: Opener, environment: Environment, python: str, login_noise: str, machine: Machine | None = None
) -> list[Step]:
    """Open the sandbox as a tool call would, and check what is inside. Raises SandboxError."""
    engine, slurm = (machine.engine, machine.slurm) if machine else (None, None)
    sandbox = await opener()
    try:
        before = time.time()
        # All at once: the clock's error is bounded by the time that the answer takes.
        findings, usage, cluster = await asyncio.gather(
            _survey(sandbox, python, engine), measure(sandbox, cluster=slurm), _inspect_cluster(sandbox, slurm)
        )
        clock = checkup.clock_step(usage.clock, before, time.time())
    finally:
        await sandbox.close()
    what = sandbox.description
    return [
        checkup.shell_step(findings, environment.shell, login_noise),
        checkup.python_step(what.python, python, findings.python, kills_trees=what.capabilities.kills_trees),
        checkup.tool_step("tmux", findings.tmux, "people who want to watch a command there like it"),
        checkup.gpu_step(usage),
        clock,
        checkup.path_step(findings.path),
        *([checkup.ok(checkup.WALLS, WRITABLE.format(what.writable, what.walls))] if what.walls else []),
        *(
            [checkup.engine_step(findings, machine), *_slurm_steps(findings, cluster, usage, machine)]
            if machine
            else []
        ),
    ]


def _slurm_steps(
    findings: Findings, cluster: checkup.ClusterFindings | None, usage: Usage, machine: Machine
) -> list[Step]:
    if cluster:
        return checkup.cluster_steps(findings.slurm, cluster, usage.cluster, machine)
    found = checkup.installed_slurm_step(findings.slurm, machine.name)
    return [found] if found else []


async def _survey(sandbox: Sandbox, python: str, engine: Engine | None) -> Findings:
    words = [python, *((engine.tool, *engine.command) if engine else ())]
    return await _ask(sandbox, "doctor.sh", words, checkup.parse_findings)


async def _inspect_cluster(sandbox: Sandbox, slurm: Cluster | None) -> checkup.ClusterFindings | None:
    if slurm is None:
        return None
    words = option_words(slurm.options({}))
    return await _ask(sandbox, "doctor_cluster.sh", words, checkup.parse_cluster_findings)


async def _ask(sandbox: Sandbox, script: str, words: Sequence[str], read: Callable[[str], _T]) -> _T:
    """Run a script of ours with these arguments, and read what it says."""
    argv = ["sh", "-c", read_program(f"probe/{script}"), "doctor", *words]
    outcome = await sandbox.run(Command(f"exec {join(argv)}", timeout_s=INSIDE_S))
    sandbox.forget(outcome.run_id)
    try:
        return read(outcome.stdout.head.decode("utf-8", "replace"))
    except ValueError:
        said = last_line(outcome.stderr.head) or "nothing"
        raise SandboxError.of_parts(
            f"unable to look around in {sandbox.description.name}",
            f"commands do not run as they should: {said}",
            "check shell, init and env",
        ) from None
