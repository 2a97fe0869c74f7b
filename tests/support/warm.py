"""Hubs, commands and lanes whose modules are loaded already: forked from a process that has loaded them.

To load the SDK and asyncssh takes most of a second of processor time, and a test that starts a hub and asks nothing
about how it starts need not wait for that. What is forked is the same program with the same descriptors, variables and
folder; tests of the start itself run the installed command.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import marshal
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
LONGEST_ORDER = 1 << 20
LOADED = b"loaded"
# The word for a lane, and for the process that forks them.
LANES = "lane"
# The word for a hub.
HUB = "hub"
# The exit status of Python where its last words cannot be written.
UNABLE_TO_FLUSH = 120
LOADED_LATE = (
    *("sqlite3", "platformdirs", "platformdirs.unix", "encodings.idna", "importlib.readers"),
    *("anyio._backends._asyncio", "anyio._core._sockets"),
)
# What a process looks at when it starts, before any of our code: a fork has the answers of another start.
LOOKED_AT_BY_PYTHON = ("PYTHON", "LC_", "LANG", "MALLOC_")


class Forked:
    """A process that was forked for us, with the parts of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ending: int, words: Sequence[str]) -> None:
        self.pid = pid
        self.args = words
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def release(self) -> int:
        """Where its exit status will be told, for another who waits for it."""
        ending, self._ending = self._ending, -1
        return ending

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ending], [], [], seconds)[0]:
            self.returncode = int(os.read(self._ending, 16) or b"-9")
            os.close(self._ending)
            self._ending = -1
        return self.returncode

    def __del__(self) -> None:
        if self._ending >= 0:
            os.close(self._ending)


class Heard(Forked):
    """One whose output comes on pipes, and that has nothing to read."""

    def __init__(self, started: Forked, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        super().__init__(started.pid, started.release(), started.args)
        self.stdin = None
        self.stdout, self.stderr = stdout, stderr

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """The rest of its output, once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        said: dict[IO[bytes], bytes] = {self.stdout: b"", self.stderr: b""}
        while reading := [stream for stream in said if not stream.closed]:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select(reading, [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                said[stream] += data
                if not data:
                    stream.close()
        self.wait(timeout)
        return said[self.stdout], said[self.stderr]


class Spoken(Forked):
    """One that is spoken to over pipes."""

    def __init__(self, started: Forked, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        super().__init__(started.pid, started.release(), started.args)
        self.stdin, self.stdout = stdin, stdout


class Nursery:
    """The process that has loaded everything, as tests see it; the first worker that asks starts it for all."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        more: Sequence[int] = (),
        cwd: str = "",
        forks_hubs: bool = False,
    ) -> Forked:
        """Fork the hub, where `words` is ("hub",), or the command with its words; `more` are descriptors for it."""
        reading, writing = os.pipe()
        try:
            fds = (writing, *streams, *more)
            pid = order_fork(self.ready(), words, env, fds, cwd or os.getcwd(), forks_hubs=forks_hubs)
        finally:
            os.close(writing)
        return Forked(pid, reading, words)

    def ready(self) -> socket.socket:
        """The line to it, once it has loaded everything."""
        if self._line is None:
            self._line = self._reach()
            assert self._line.recv(32) == LOADED
        return self._line

    def _reach(self) -> socket.socket:
        # A name without a file, which is free again as soon as the process has ended.
        name = f"\0rsmcp-nursery-{os.environ.get('PYTEST_XDIST_TESTRUNUID') or os.getpid()}"
        while True:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                line.connect(name)
            except ConnectionRefusedError:
                line.close()
            else:
                return line
            # Of several workers that find none, one gets the name and starts it.
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.suppress(OSError):
                listener.bind(name)
                listener.listen(64)
                self._leave_behind("-P", "-m", __name__, str(listener.fileno()), passed=listener.fileno())

    def _leave_behind(self, *words: str, passed: int) -> None:
        """Start a process that other workers may need for longer than this one."""
        plain = {name: value for name, value in os.environ.items() if name.startswith(LOOKED_AT_BY_PYTHON)}
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, *words],
            env=plain | {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            pass_fds=(passed,),
            stdin=subprocess.DEVNULL,
            check=True,
        )

    def close(self) -> None:
        """It ends with the last of its lines; what it has forked goes on."""
        if self._line:
            self._line.close()
            self._line = None


class LaneNursery(Nursery):
    """One that has the program of lanes and nothing else, in an interpreter that was started as theirs are."""

    def _reach(self) -> socket.socket:
        from remote_sandbox_mcp.far import program

        line, theirs = line_for_orders()
        with theirs:
            self._leave_behind("-IS", __file__, str(theirs.fileno()), LANES, passed=theirs.fileno())
        line.send(program.compiled(program.LANE))
        return line

    def fork_lanes(self, patch: pytest.MonkeyPatch) -> Callable[..., object]:
        """From now on the lanes of this machine come from here, and all else that has a line from what is given."""
        from remote_sandbox_mcp.backends.link import pipe
        from remote_sandbox_mcp.far import program

        load = program.loader(program.LANE, is_compiled=True)
        usual, words = pipe._spawn, [sys.executable, "-IS", "-c", load]

        def spawn(arguments: Sequence[str], *how: Any) -> Any:
            if [*arguments[:-1]] != words:
                return usual(arguments, *how)
            environment, _, folder, far, _ = how
            return self.start((LANES, arguments[-1]), environment, (far, far, far), cwd=folder)

        patch.setattr(pipe, "_spawn", spawn)
        return usual


NURSERY, LANE_NURSERY = Nursery(), LaneNursery()


def start_hub(env: Mapping[str, str]) -> None:
    """Start the hub that a front with these variables would start; where that starts none, it says so itself."""
    from remote_sandbox_mcp.services.hub_contact import place as places
    from remote_sandbox_mcp.services.hub_contact.starting import LOGIN

    given = {name: value for name, value in env.items() if name in places.LIVED_BY | LOGIN}

    def fork(place: places.HubPlace, lock: int, listener: int) -> None:
        with open(place.log, "ab") as log, open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            NURSERY.start((HUB,), given, streams, more=(lock, listener), cwd="/")

    # Before the lock is taken: a front that finds it taken waits a few seconds for its hub, and no more.
    NURSERY.ready()
    if not env.get("REMOTE_SANDBOX_NO_HUB"):
        with contextlib.suppress(places.NoHub):
            places.reach(places.HubPlace(env), fork)[0].close()


def run(
    words: Sequence[str], env: Mapping[str, str], *, timeout: float, cwd: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """The command with these words, as `subprocess.run` runs it with nothing to read. Raises TimeoutExpired."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained, open(os.devnull, "rb") as nothing:
        streams = (nothing.fileno(), said.fileno(), complained.fileno())
        process = NURSERY.start(words, env, streams, cwd=cwd, forks_hubs=True)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, code, *(_whole(stream) for stream in (said, complained)))


def start(words: Sequence[str], env: Mapping[str, str]) -> Heard:
    """The command with these words, as `subprocess.Popen` starts it with nothing to read and its output on pipes."""
    said, saying = os.pipe()
    complaints, complaining = os.pipe()
    try:
        with open(os.devnull, "rb") as nothing:
            started = NURSERY.start(words, env, (nothing.fileno(), saying, complaining), forks_hubs=True)
    finally:
        os.close(saying)
        os.close(complaining)
    # Without a buffer, so that what was not read yet is found where it is waited for.
    return Heard(started, open(said, "rb", buffering=0), open(complaints, "rb", buffering=0))


def speak(
    words: Sequence[str], env: Mapping[str, str], errors: int, *, cwd: str = "", forks_hubs: bool = True
) -> Spoken:
    """The command with these words, as `subprocess.Popen` starts it with pipes for input and output.

    Hubs that it starts are forked, too, unless a test looks at what a hub was started with.
    """
    hearing, to = os.pipe()
    said, saying = os.pipe()
    try:
        started = NURSERY.start(words, env, (hearing, saying, errors), cwd=cwd, forks_hubs=forks_hubs)
    finally:
        os.close(hearing)
        os.close(saying)
    return Spoken(started, open(to, "wb"), open(said, "rb"))


def at_a_terminal(words: Sequence[str], env: Mapping[str, str], terminal: int) -> Forked:
    """The command with these words and nothing but a terminal."""
    return NURSERY.start(words, env, (terminal, terminal, terminal), forks_hubs=True)


def may_fork(given: Iterable[str]) -> bool:
    """Whether variables of these names say nothing to Python itself, which would not look at them again."""
    return not any(name.startswith(LOOKED_AT_BY_PYTHON) for name in given)


def _whole(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


class Loaded:
    """The process itself: it waits for orders, of the tests and of the commands that it has forked, and forks."""

    def __init__(self, line: socket.socket) -> None:
        # A line to the tests of one worker, or what listens for them.
        self._door = line
        self._tests: set[socket.socket] = set()
        self._lines: dict[int, socket.socket] = {}
        # The descriptor of each child's end, with its pid and where to tell its exit status.
        self._children: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        if line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._poll.register(line, select.POLLIN)
        else:
            self._welcome(line)

    def wait_for_work(self) -> Callable[[], int] | None:
        """What a child is to do, in that child; None in this process, once no test can order any more."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._tell_end(fd)
                elif fd not in self._lines:
                    self._let_in(self._door.accept()[0])
                elif (work := self._take_order(self._lines[fd])) is not None or not self._tests:
                    return work

    def _let_in(self, line: socket.socket) -> None:
        """Any user of this computer can find the name and connect; what is forked has the rights of this one."""
        from remote_sandbox_mcp.services.hub_contact.place import NoHub, check_peer

        try:
            check_peer(line)
        except NoHub:
            line.close()
        else:
            self._welcome(line)

    def _welcome(self, line: socket.socket) -> None:
        # One that has gone already is found to have ended at the next read.
        with contextlib.suppress(OSError):
            line.send(LOADED)
        self._tests.add(line)
        self._listen_to(line)

    def _listen_to(self, line: socket.socket) -> None:
        self._lines[line.fileno()] = line
        self._poll.register(line, select.POLLIN)

    def _take_order(self, line: socket.socket) -> Callable[[], int] | None:
        try:
            data, fds, _, _ = socket.recv_fds(line, LONGEST_ORDER, 8)
        except ConnectionResetError:
            # A command that was killed before it had read which hub was forked for it.
            data, fds = b"", []
        if not data:
            self._poll.unregister(line)
            self._tests.discard(self._lines.pop(line.fileno()))
            line.close()
            return None
        status, *given = fds
        order = json.loads(data)
        mine, theirs = line_for_orders() if order["forks_hubs"] else (None, None)
        pid = os.fork()
        if pid:
            for fd in given:
                os.close(fd)
            if mine and theirs:
                theirs.close()
                self._listen_to(mine)
            ending = os.pidfd_open(pid)
            self._children[ending] = (pid, status)
            self._poll.register(ending, select.POLLIN)
            return None
        os.close(status)
        if order["words"][0] in (LANES, HUB):
            os.setsid()
        # Only now: a test that kills the process with its group at once would find no such group before.
        with contextlib.suppress(OSError):
            line.send(str(os.getpid()).encode())
        for other in (self._door, *self._lines.values(), *([mine] if mine else [])):
            other.close()
        for ending, (_, told) in self._children.items():
            os.close(ending)
            os.close(told)
        if theirs:
            fork_hubs(theirs)
        return prepared(order, given)

    def _tell_end(self, ending: int) -> None:
        pid, status = self._children.pop(ending)
        self._poll.unregister(ending)
        os.close(ending)
        _, code = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.write(status, str(os.waitstatus_to_exitcode(code)).encode())
        os.close(status)


def line_for_orders() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def order_fork(
    line: socket.socket,
    words: Sequence[str],
    env: Mapping[str, str],
    fds: Sequence[int],
    cwd: str,
    *,
    forks_hubs: bool = False,
) -> int:
    """The pid of what is forked; the first descriptor is told how it ends, the next three are its standard streams."""
    order = {"words": list(words), "env": dict(env), "cwd": cwd, "forks_hubs": forks_hubs}
    socket.send_fds(line, [json.dumps(order).encode()], fds)
    return int(line.recv(32))


def fork_hubs(line: socket.socket) -> None:
    """From now on this process has hubs forked where it would start them."""
    from remote_sandbox_mcp.hub import http_front
    from remote_sandbox_mcp.services.hub_contact import asking, starting
    from remote_sandbox_mcp.services.hub_contact.place import LIVED_BY, HubPlace

    def start(place: HubPlace, lock: int, listener: int) -> None:
        given = {name: value for name, value in os.environ.items() if name in LIVED_BY | starting.LOGIN}
        with open(starting._open_log(place), "ab") as log, open(os.devnull, "r+b", 0) as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            order_fork(line, (HUB,), given, (nothing.fileno(), *streams, lock, listener), "/")

    for module in (starting, asking, http_front):
        vars(module)["start"] = start


def prepared(order: dict[str, Any], given: list[int]) -> Callable[[], int]:
    """Become the process that was ordered; what is returned runs its program."""
    for target, fd in enumerate(given[:3]):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    sys.stdin, sys.stdout, sys.stderr = (open(fd, "rw"[fd > 0], **how(fd)) for fd in (0, 1, 2))
    words = order["words"]
    if words[0] == LANES:
        return functools.partial(be_a_lane, words[1])
    from remote_sandbox_mcp.local.processes import programs

    # What this process would have found at its own start.
    programs._here = programs.Programs(os.environ.get("PATH", os.defpath))
    if words[0] == HUB:
        from remote_sandbox_mcp.hub.serve import serve

        return lambda: serve(*given[3:])
    sys.argv = list(words)
    from remote_sandbox_mcp.cli.main import main

    return main


def how(fd: int) -> dict[str, Any]:
    """As Python opens its standard streams."""
    return {
        "encoding": sys.__stdout__.encoding if sys.__stdout__ else "utf-8",
        "errors": "backslashreplace" if fd == 2 else "strict",
        "buffering": 1 if fd == 2 or os.isatty(fd) else -1,
        "closefd": False,
    }


def load_everything() -> None:
    """All that the program may load when it is used."""
    import remote_sandbox_mcp

    for found in pkgutil.walk_packages(remote_sandbox_mcp.__path__, "remote_sandbox_mcp."):
        if not any(part in found.name for part in ("__main__", ".far", ".frameworks")):
            importlib.import_module(found.name)
    load_what_is_loaded_late()


def load_what_is_loaded_late() -> None:
    """Libraries that the program imports when it first needs them, and what it makes once and keeps."""
    from remote_sandbox_mcp.backends.ssh import connection
    from remote_sandbox_mcp.far import program
    from tests.support import signatures

    connection.load()
    signatures.read_all_for_forks()
    for name in LOADED_LATE:
        importlib.import_module(name)
    for pieces in (program.OUTPOST, program.LANE, program.JOBS, program.JOB_KEEPER, program.ROOT):
        program.packed(pieces)


class LaneProgram:
    """The text of the program of lanes, as it is sent to each, and what was made of it once."""

    packed = b""
    code: CodeType | None = None

    @classmethod
    def load(cls, packed: bytes) -> None:
        cls.packed, cls.code = packed, marshal.loads(zlib.decompress(packed))
        # All that it imports is loaded then.
        exec(cls.code, {"__name__": "loaded"})


def be_a_lane(token: str) -> int:
    with open(0, "rb", buffering=0, closefd=False) as line:
        sent = b""
        while len(sent) < len(LaneProgram.packed):
            sent += line.read(len(LaneProgram.packed) - len(sent)) or b""
    assert sent == LaneProgram.packed
    assert LaneProgram.code
    sys.argv = ["-c", token]
    exec(LaneProgram.code, {"__name__": "__main__"})
    return 0


def main() -> int:
    line = socket.socket(fileno=int(sys.argv[1]))
    if LANES in sys.argv:
        LaneProgram.load(line.recv(LONGEST_ORDER))
    else:
        load_everything()
    # Left alone by the garbage collector, memory stays shared with what is forked.
    gc.collect()
    gc.freeze()
    work = Loaded(line).wait_for_work()
    return leave(work) if work else 0


def leave(work: Callable[[], int]) -> int:
    """Do the work and exit as Python does, but for taking apart all modules, which takes longer than most work."""
    code: object = 1
    try:
        code = work()
    except SystemExit as ending:
        code = ending.code
    except BaseException:  # noqa: BLE001 as Python does at the end of a program
        sys.excepthook(*sys.exc_info())
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = UNABLE_TO_FLUSH
    os._exit(code or 0)


if __name__ == "__main__":
    raise SystemExit(main())
