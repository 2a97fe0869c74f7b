"""SSH connections: jump hosts, ProxyCommand, keys, host keys, deadlines, and a pause after a refused login."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import CODE_NEEDED, ConnectError, HostKeyProblem, LoginRefused, Unreachable
from ...core.sandboxes.login import Challenge
from ...core.sandboxes.machine import Hop, Login, Machine
from ...local.asking import Questions
from ...local.processes.programs import by_path
from ...local.processes.variables import OPERATORS, home_folder, made
from ...local.waiting import Chores, undone_by, within_moving
from .dialogue import STEPS_FILE, Attempt, Codes, Dialogue
from .host_keys import USUAL_FILES, HostKeys, entry_name
from .library import asyncssh
from .pythons import FarPython

LINKER_CACHE = Path("/etc/ld.so.cache")
# GCM first: with hardware AES it is half as fast again as asyncssh's default.
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com"),
    *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
)
# In the order of OpenSSH, so that a new machine shows the key whose fingerprint ssh shows. Of a machine that is known,
# they are accepted after the types of its keys: if it has only another type, the error can say so.
HOST_KEY_ALGORITHMS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
# Ciphers that need no protection for CBC mode; see drop_empty_packets.
WITHOUT_CBC = ("aes128-gcm", "aes256-gcm", "chacha20-poly1305", "aes128-ctr", "aes192-ctr", "aes256-ctr")
# The most bytes that asyncssh reads at once; see limit_reads.
MOST_READ = 64 << 10
KEEPALIVE_S = 15
# Twice as many as a login through a jump host takes, until the outpost has greeted.
READS_OF_LOGIN = 100
# After a refused login no other is tried for this long; it doubles each time.
PAUSE_S, LONGEST_PAUSE_S = 15.0, 300.0
# A machine that asked for a code is not tried again for this long, unless a person is there who can give one.
UNANSWERED_S = 300.0
# The pause after a connection that was cut during its login.
CUT_PAUSE_S = 0.5
AFTER_CODE = "the login was refused after a code was given"
LOCKED = "it is encrypted and key_passphrase is missing or wrong"
HOW_TO_UNLOCK = "Give an encrypted key to your agent with ssh-add, or set key_passphrase"
WRONG_CODE = "the code was wrong or used before, or the key or password is; a new code is needed for another try"


def load() -> None:
    """Import asyncssh. Called in a thread before the first use, because it takes a tenth of a second."""
    with libraries_from_linker_cache():
        import asyncssh  # noqa: F401


@contextmanager
def libraries_from_linker_cache() -> Iterator[None]:
    """Answer ctypes' searches for libraries from the linker's cache."""
    # asyncssh looks for liboqs and nettle. For a missing library ctypes would run ldconfig, and then gcc and ld as PATH
    # has them: more than a dozen processes, of programs that we have not examined. So LD_LIBRARY_PATH does not count.
    import ctypes.util

    replaced = ("find_library", "_findLib_gcc", "_findLib_ld")
    usual = {name: getattr(ctypes.util, name) for name in replaced if hasattr(ctypes.util, name)}

    def find(name: str) -> str | None:
        # Other systems have no such cache, and ctypes starts no process there.
        found = usual["find_library"](name) if not cache or f"lib{name}.so".encode() in cache else None
        return str(found) if found else None

    try:
        cache = LINKER_CACHE.read_bytes()
    except OSError:
        cache = b""
    try:
        for name in usual:
            setattr(ctypes.util, name, find if name == "find_library" else lambda _: None)
        yield
    finally:
        for name, function in usual.items():
            setattr(ctypes.util, name, function)


# Keeps references to these tasks: the event loop itself holds only weak ones.
_ending = Chores("the end of a program that a connection went through")


class ProxyProcess:
    """A ProxyCommand's process and our end of the socket to it. asyncssh would start it with our own environment."""

    def __init__(self, line: socket.socket, process: asyncio.subprocess.Process) -> None:
        self.line = line
        self._process = process

    @classmethod
    async def start(cls, words: Sequence[str], environ: Mapping[str, str]) -> ProxyProcess:
        """Raises OSError."""
        near, far = socket.socketpair()
        near.setblocking(False)
        with far, undone_by(near.close):
            process = await asyncio.create_subprocess_exec(
                *by_path(words, environ), stdin=far.fileno(), stdout=far.fileno(), env=dict(environ),
                start_new_session=True, cwd=home_folder(),
            )  # fmt: skip
        return cls(near, process)

    def end(self) -> None:
        """Kill the program with its group: mostly it is a shell that runs the real one."""
        self.line.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end_with(self, connection: asyncssh.SSHClientConnection) -> None:
        try:
            await connection.wait_closed()
        finally:
            self.end()
        await self._process.wait()


class LoginGate:
    """Logs in to one machine; each `enter` makes a new connection. It remembers refused logins."""

    def __init__(self, machine: Machine, own_known_hosts: Any, questions: Questions | None = None) -> None:
        """`questions` puts a machine's prompts to callers that can answer; by default none can."""
        self.machine = machine
        self.questions = questions or Questions()
        self._codes = Codes(Path(own_known_hosts).with_name(STEPS_FILE), machine.name)
        self.host_keys = HostKeys(own_known_hosts, machine.known_hosts_files or USUAL_FILES)
        self.python = FarPython(machine)
        # What the machine asked for in the last login besides a password. A code is valid for one connection only.
        self.asks_for_code = ""
        # Whether the last login was asked for a password and had none.
        self.asks_for_password = False
        # The host key that was refused only because it had never been seen.
        self.unseen_key: UnseenKey | None = None
        self._lent: asyncssh.SSHClientConnection | None = None
        self._refused: LoginRefused | None = None
        self._pause = PAUSE_S
        self._closed_until = 0.0

    @property
    def deadline_s(self) -> float:
        return self.machine.connect_timeout_s * (1 + len(self.machine.hops))

    async def enter(self) -> asyncssh.SSHClientConnection:
        """Connect within the machine's deadline. Raises ConnectError."""
        lent, self._lent = self._lent, None
        if lent is not None and not lent.is_closed():
            return lent
        self.check_pause()
        # Keys and secrets are read first, outside the deadline: a keyring may ask its owner.
        keys = [await asyncio.to_thread(credentials, hop.login, self._who()) for hop in self._route()]
        attempt = Attempt()
        try:
            connecting = self._connect_persistently(keys, attempt)
            connection = await within_moving(connecting, lambda: self.deadline_s + attempt.waited_s)
        except LoginRefused as refused:
            self.note_refusal(refused)
            raise
        except (asyncio.TimeoutError, TimeoutError):
            raise Unreachable.of_parts(self._who(), f"no answer within {self.deadline_s:g} s") from None
        finally:
            self.asks_for_code = attempt.asked
            self.asks_for_password = attempt.lacks_password
        self._pause, self._refused = PAUSE_S, None
        self.questions.need_person = attempt.needed_person
        drop_empty_packets(connection)
        limit_reads(connection)
        return connection

    def end_lent(self) -> None:
        if self._lent is not None:
            self._lent.abort()

    def lend(self, connection: asyncssh.SSHClientConnection) -> None:
        """Give a connection that is logged in to the next caller of `enter`."""
        self._lent = connection

    def note_refusal(self, refused: LoginRefused) -> None:
        """Note a refused login: none is tried for a while, because servers lock out repeated attempts."""
        # Secrets are forgotten, so that they are read again: they may have been corrected where they are kept.
        self._refused = refused
        if refused.reason == CODE_NEEDED:
            self._closed_until = time.monotonic() + UNANSWERED_S
            return
        self._closed_until = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        for hop in self._route():
            for secret in (hop.login.password, hop.login.key_passphrase):
                if secret is not None:
                    secret.forget()

    def _route(self) -> tuple[Hop, ...]:
        machine = self.machine
        return (*machine.hops, Hop(machine.host, machine.port, machine.login, machine.host_key_name))

    def check_pause(self) -> None:
        """Raises LoginRefused if the last login was refused a moment ago."""
        left, refused = self._closed_until - time.monotonic(), self._refused
        # A person at a terminal logs in on purpose, and need not wait.
        if refused is None or left <= 0 or self.questions.has_terminal:
            return
        if refused.reason != CODE_NEEDED:
            raise refused.with_more(f"not tried again for another {left:.0f} s, so as not to be locked out")
        if not self.questions.can_be_put(Challenge(self.machine.name, self.machine.host)):
            raise refused

    async def _connect_persistently(self, keys: list[dict[str, Any]], attempt: Attempt) -> asyncssh.SSHClientConnection:
        """Connect; once more if the connection is cut during the login."""
        # An sshd with many logins in progress drops some of them at random (MaxStartups), and so do networks.
        try:
            return await self._connect(keys, attempt)
        except _CutShort:
            # A code may be used up by now, and a person is not asked twice for one call.
            if attempt.asked:
                raise
            await asyncio.sleep(CUT_PAUSE_S)
            return await self._connect(keys, attempt)

    async def _connect(self, keys: list[dict[str, Any]], attempt: Attempt) -> asyncssh.SSHClientConnection:
        tunnel: asyncssh.SSHClientConnection | None = None
        try:
            for hop, options in zip(self._route(), keys, strict=True):
                tunnel = await self._connect_hop(hop, tunnel, options, attempt)
        except BaseException:
            if tunnel is not None:
                tunnel.abort()
            raise
        assert tunnel is not None
        return tunnel

    async def _connect_hop(
        self, hop: Hop, tunnel: asyncssh.SSHClientConnection | None, options: dict[str, Any], attempt: Attempt
    ) -> asyncssh.SSHClientConnection:
        options = dict(options)
        unusable: list[str] = options.pop("unusable")
        judge, dialogue = _Judge(self, hop), self._dialogue(hop, options.pop("password", None), attempt)
        where = f"(jump host {hop.host})" if hop in self.machine.hops else ""
        proxy = await self._proxy() if tunnel is None else None
        try:
            connection = await asyncssh.connect(
                hop.host,
                hop.port,
                tunnel=tunnel or (),
                sock=proxy.line if proxy else None,
                # Empty, because Proxy has started it.
                proxy_command=(),
                client_factory=lambda: make_client(judge, dialogue, self.questions),
                # None: enter() has a deadline that leaves out the time that a person takes.
                login_timeout=0,
                known_hosts=self.host_keys.lookup,
                host_key_alias=hop.host_key_name or None,
                server_host_key_algs=await self._host_key_algorithms(hop, is_direct=not (tunnel or proxy)),
                encryption_algs=CIPHERS,
                compression_algs=None,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=3,
                config=None,
                gss_auth=False,
                gss_kex=False,
                agent_forwarding=self.machine.forward_agent and hop not in self.machine.hops,
                **options,
            )
        except BaseException as problem:
            if proxy:
                proxy.end()
            if isinstance(problem, (OSError, asyncssh.Error)):
                raise self._explained(problem, where, judge, attempt, unusable) from None
            raise
        if proxy:
            _ending.start(proxy.end_with(connection))
        if tunnel is not None:
            # Without this, the connection to the jump host would stay open after this one has ended.
            connection.set_tunnel(tunnel)
        return connection

    def _dialogue(self, hop: Hop, password: str | None, attempt: Attempt) -> Dialogue:
        machine = self.machine
        host = entry_name(hop.host, hop.port)
        passed = f"the jump host {host} before {machine.name}" if hop in machine.hops else f"{machine.name} ({host})"
        return Dialogue(machine.name, passed, hop.login, password, attempt, self._codes)

    async def _host_key_algorithms(self, hop: Hop, *, is_direct: bool) -> str:
        """The order for asyncssh: ours first for a machine that is new, else the types of its keys first."""
        loop, keys, name = asyncio.get_running_loop(), self.host_keys, hop.host_key_name or hop.host
        is_known = any(keys.lookup(name, "", hop.port)[:2])
        if not is_known and is_direct:
            # known_hosts may have it by its address alone. A name that is not found is for the connection to report.
            with contextlib.suppress(OSError):
                found = await loop.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
                is_known = any(any(keys.lookup(name, str(it[4][0]), hop.port)[:2]) for it in found)
        return f"{'+' if is_known else '^'}{','.join(HOST_KEY_ALGORITHMS)}"

    def _explained(
        self, problem: Exception, where: str, judge: _Judge, attempt: Attempt, unusable: Sequence[str] = ()
    ) -> ConnectError:
        if isinstance(problem, asyncssh.PermissionDenied) and attempt.missing:
            return attempt.refusal(self._who(), where, self.machine.name)
        if isinstance(problem, asyncssh.PermissionDenied) and attempt.is_code_sent:
            return LoginRefused.of_parts(self._who(), AFTER_CODE, WRONG_CODE, where=where)
        if isinstance(problem, asyncssh.PermissionDenied) and unusable:
            found = f"the login was refused, and not every key could be used: {'; '.join(unusable)}"
            return LoginRefused.of_parts(self._who(), found, HOW_TO_UNLOCK, where=where)
        return translate(problem, self._who(), where, judge.doubt)

    async def _proxy(self) -> ProxyProcess | None:
        """Start the ProxyCommand, if one is configured; it replaces the first TCP connection. Raises Unreachable."""
        machine = self.machine
        if not machine.proxy_command:
            return None
        try:
            return await ProxyProcess.start(machine.proxy_command, machine.proxy_environ or made(os.environ, OPERATORS))
        except OSError as problem:
            found = f"its ProxyCommand could not be started ({problem.strerror})"
            raise Unreachable.of_parts(self._who(), found) from None

    def _who(self) -> str:
        return f"unable to open {self.machine.name} ({entry_name(self.machine.host, self.machine.port)})"


@dataclass(frozen=True)
class HostKeyDoubt:
    """Reason to refuse a host key, and what to do if it is right after all."""

    found: str
    remedy: str = ""


@dataclass(frozen=True)
class UnseenKey:
    """A host key that was refused because it is new: a person may compare its fingerprint, and accept it."""

    host: str
    port: int
    key: asyncssh.SSHKey

    @property
    def fingerprint(self) -> str:
        return self.key.get_fingerprint()

    @property
    def kind(self) -> str:
        return self.key.get_algorithm()


class _Judge:
    """Decides on a host key that is not in known_hosts; `doubt` is why it was refused."""

    def __init__(self, gate: LoginGate, hop: Hop) -> None:
        self._gate = gate
        self._hop = hop
        self.doubt: HostKeyDoubt | None = None

    def accepts(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Whether to accept a key that was not known when the connection began; a new one is remembered."""
        keys, name = self._gate.host_keys, self._hop.host_key_name or self._hop.host
        try:
            with keys.deciding():
                # Looked up again under the lock: another connection may have remembered a key meanwhile.
                trusted = keys.trusted(name, addr, port)
                # Where a certificate authority is known for it, a machine has to show a certificate.
                is_certified = not trusted and bool(keys.lookup(name, addr, port)[1])
                self.doubt = None if key in trusted else self._judge(key, trusted, port, is_certified)
                if not trusted and not self.doubt:
                    keys.remember(name, port, key)
        except OSError as problem:
            self.doubt = HostKeyDoubt(f"the host key cannot be remembered in {keys.own}: {problem.strerror or problem}")
        return not self.doubt

    def _judge(
        self, key: asyncssh.SSHKey, trusted: list[asyncssh.SSHKey], port: int, is_certified: bool
    ) -> HostKeyDoubt | None:
        """Explain why a key is refused; None if it may be accepted."""
        machine, shown, kind = self._gate.machine, key.get_fingerprint(), key.get_algorithm()
        types = sorted({other.get_algorithm() for other in trusted})
        forget = f"If that is expected, run: remote-sandbox-mcp hosts forget {machine.name}"
        scan = f"ssh-keyscan -p {port} {self._hop.host} >> ~/.ssh/known_hosts"
        if kind in types:
            return HostKeyDoubt(f"the host key has changed since it was first seen (now {shown})", forget)
        if trusted:
            return HostKeyDoubt(
                f"the machine is known by its {' and '.join(types)} key, but shows only an {kind} key, which "
                f"is not known ({shown})",
                forget,
            )
        if is_certified:
            return HostKeyDoubt(
                f"the machine is known by a certificate authority, but shows a plain key ({shown})",
                f"If that is expected, add the key: {scan}",
            )
        if machine.strict_host_keys:
            self._gate.unseen_key = UnseenKey(self._hop.host_key_name or self._hop.host, port, key)
            return HostKeyDoubt(
                f"the host key {shown} is not known and strict_host_keys is on", f"If it is right, add it: {scan}"
            )
        return None


def make_client(judge: _Judge, dialogue: Dialogue, questions: Questions) -> asyncssh.SSHClient:
    """The object that asyncssh calls during one login."""

    # Defined here, because asyncssh is imported only when the first machine is opened.
    class LoginClient(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            acknowledge_at_once(conn)

        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            return judge.accepts(host, addr, port, key)

        def password_auth_requested(self) -> str | None:
            return dialogue.password()

        def kbdint_auth_requested(self) -> str | None:
            return dialogue.begin()

        async def kbdint_challenge_received(
            self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
        ) -> list[str] | None:
            return await dialogue.answers((name, instructions), prompts, questions)

    return LoginClient()


def drop_empty_packets(connection: asyncssh.SSHClientConnection) -> None:
    """Drop the empty packet that asyncssh sends before each data packet: only CBC ciphers need it, and it is slow."""
    from asyncssh.constants import MSG_IGNORE

    send = connection.send_packet

    def send_packet(kind: int, *parts: bytes, **options: Any) -> None:
        if kind != MSG_IGNORE:
            send(kind, *parts, **options)

    if str(connection.get_extra_info("send_cipher")).startswith(WITHOUT_CBC):
        connection.send_packet = send_packet  # type: ignore[assignment, method-assign]


def acknowledge_at_once(connection: asyncssh.SSHClientConnection) -> None:
    """Keep the kernel from delaying acknowledgements during a login: until it starts a program, sshd awaits each."""
    # The kernel is told again with each packet, because it forgets it, and for so many reads as logins need.
    reads = itertools.count()
    sock, receive = connection.get_extra_info("socket"), connection.data_received
    if not hasattr(socket, "TCP_QUICKACK") or getattr(sock, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return

    def data_received(data: bytes, datatype: int | None = None) -> None:
        if next(reads) == READS_OF_LOGIN:
            del connection.data_received
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        receive(data, datatype)

    connection.data_received = data_received  # type: ignore[method-assign]


def limit_reads(connection: asyncssh.SSHClientConnection) -> None:
    """Limit how much asyncssh reads at once: for each packet it copies all bytes that it has not parsed yet."""
    transport: Any = getattr(connection, "_transport", None)
    if hasattr(transport, "max_size"):
        transport.max_size = MOST_READ


def credentials(login: Login, who: str) -> dict[str, Any]:
    """A login as asyncssh's options, with why keys are `unusable`. Reads keys and secrets: called in a thread."""
    load()
    keys, problems = _read_keys(login)
    if problems and not (keys or login.password or login.agent):
        is_locked = any(it.endswith(LOCKED) for it in problems)
        remedy = HOW_TO_UNLOCK if is_locked else "Check key_file"
        raise LoginRefused.of_parts(who, f"no usable key: {'; '.join(problems)}", remedy)
    # For asyncssh, None means no keys and no agent either, and an empty list the default keys of ~/.ssh. An empty
    # iterator counts as given: no key of a file, and those of the agent.
    client_keys = keys or (iter(()) if login.agent else None)
    options: dict[str, Any] = {"client_keys": client_keys, "agent_path": login.agent or None, "unusable": problems}
    if login.user:
        options["username"] = login.user
    if login.agent_identities:
        options["agent_identities"] = list(login.agent_identities)
    if login.password is not None:
        options["password"] = login.password.reveal()
    return options


def _read_keys(login: Login) -> tuple[list[Any], list[str]]:
    """The keys that can be read, with their certificates, and why the others cannot."""
    keys, problems = [], []
    for path in login.key_files:
        try:
            passphrase = login.key_passphrase.reveal() if login.key_passphrase else None
            keys.append(asyncssh.read_private_key(path, passphrase))
        except (OSError, asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as problem:
            problems.append(f"{path}: {_key_trouble(problem)}")
    if login.certificate_files and keys:
        return list(asyncssh.load_keypairs(keys, certlist=list(login.certificate_files))), problems
    return list(keys), problems


def locked_key(login: Login) -> str:
    """The first key file without the passphrase that it needs; empty for none. Reads keys, so call it in a thread."""
    load()
    _, problems = _read_keys(login)
    return next((it.removesuffix(f": {LOCKED}") for it in problems if it.endswith(LOCKED)), "")


async def give_to_agent(agent: str, key_file: str, passphrase: str) -> bool:
    """Decrypt a key and give it to the user's agent, as ssh-add does; False for a wrong passphrase. Raises OSError."""
    import asyncssh

    try:
        key = await asyncio.to_thread(asyncssh.read_private_key, key_file, passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return False
    try:
        async with await asyncssh.connect_agent(agent) as client:
            await client.add_keys([key])
    except (asyncssh.Error, ValueError) as problem:
        raise OSError(str(problem)) from None
    return True


def _key_trouble(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or "unreadable"
    if isinstance(problem, asyncssh.KeyEncryptionError) or "passphrase" in str(problem).lower():
        return LOCKED
    return "it is not a private key that can be read"


class _CutShort(Unreachable):
    """The connection was cut before the login was over."""


def translate(problem: Exception, who: str, where: str = "", doubt: HostKeyDoubt | None = None) -> ConnectError:
    """Turn an exception of asyncssh or the system into ours; this is the only place for that.

    `where` names the jump host, if it was one; `doubt` is why its host key was refused.
    """
    kind, found, remedy = _meaning(problem, doubt)
    return kind.of_parts(who, found, remedy, where=where)


def _meaning(problem: Exception, doubt: HostKeyDoubt | None) -> tuple[type[ConnectError], str, str]:
    """The class of our error, what was found, and what to do."""
    if isinstance(problem, asyncssh.HostKeyNotVerifiable):
        doubt = doubt or HostKeyDoubt(problem.reason)
        return HostKeyProblem, doubt.found, doubt.remedy
    if isinstance(problem, asyncssh.KeyExchangeFailed):
        return HostKeyProblem, f"no common algorithm or host key type: {problem.reason}", ""
    if isinstance(problem, asyncssh.PermissionDenied):
        return LoginRefused, "the login was refused", f"check user, key and password ({problem.reason})"
    if isinstance(problem, socket.gaierror):
        return Unreachable, "the host name cannot be found", "check host or your DNS"
    if isinstance(problem, ConnectionRefusedError):
        return Unreachable, "nothing listens on that port", "check port, or whether sshd runs"
    is_cut = isinstance(problem, (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError))
    kind = _CutShort if is_cut else Unreachable
    if isinstance(problem, asyncssh.Error):
        return kind, problem.reason or "the connection was closed", ""
    return kind, getattr(problem, "strerror", None) or str(problem), ""
