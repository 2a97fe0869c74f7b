"""The supervisor's side of an interpreter: its process, the pipes to it, and what comes over them, checked."""

import os
import signal
import struct
import subprocess

from .family import PRCTL, read_status

MYPY = False
if MYPY:
    from typing import Any

HEAD = struct.Struct(">cI16s")
ORDER = struct.Struct(">I16sII")
NO_TOKEN = b"\0" * 16
HELLO, VALUE, TRACE, IMAGE, UNSEEN, GPU, DONE = b"H", b"V", b"T", b"I", b"N", b"G", b"D"
# How large the body of each kind of frame may be.
LARGEST = {HELLO: 4096, VALUE: 4 << 20, TRACE: 4 << 20, IMAGE: 1500000, UNSEEN: 16, GPU: 1000, DONE: 0}
# Loads child.py from its compiled form where there is one, with builtins of its own: code may replace the others.
BEGIN = """
import builtins, importlib.machinery, sys
loader = importlib.machinery.SourceFileLoader("remote_sandbox_child", sys.argv[1])
space = {"__builtins__": dict(vars(builtins)), "__name__": "remote_sandbox_child"}
exec(loader.get_code("remote_sandbox_child"), space)
space["serve"](int(sys.argv[2]), int(sys.argv[3]))
"""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


class Broken(Exception):
    """Code has written to the pipe on which its interpreter says what came of it."""


def guard_supervisor() -> None:
    """Find descendants that daemonize, and let no process of this user look into this one's memory."""
    if PRCTL is not None:
        PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        PRCTL(PR_SET_DUMPABLE, 0, 0, 0, 0)


def before_exec() -> None:
    """Let the new process end with its supervisor, even where that is killed."""
    if PRCTL is not None:
        PRCTL(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def with_its_programs(python: str, environment: "dict[str, str]") -> "dict[str, str]":
    """The variables with the programs of the interpreter's own environment (pip, ninja) before all others."""
    programs = os.path.dirname(python)
    top = os.path.dirname(programs)
    for name, sign in (("VIRTUAL_ENV", "pyvenv.cfg"), ("CONDA_PREFIX", "conda-meta")):
        if os.path.exists(os.path.join(top, sign)):
            path = [programs] + [part for part in environment.get("PATH", "").split(":") if part and part != programs]
            return dict(environment, **{name: top, "PATH": ":".join(path)})
    return environment


class Interpreter:
    """A process in which code runs. Raises OSError where it cannot be started."""

    def __init__(self, python: str, folder: str, environment: "dict[str, str]") -> None:
        self.python = python
        self.version = ""
        self.inbox = bytearray()
        self.outbox = bytearray()
        child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
        orders, self.orders = os.pipe()
        self.results, results = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        try:
            # Nobody sees a window there: figures are drawn into images, unless the machine's variables say otherwise.
            process = subprocess.Popen(
                [python, "-c", BEGIN, child, str(orders), str(results)],
                cwd=folder,
                env=dict({"MPLBACKEND": "Agg"}, **with_its_programs(python, environment)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(orders, results),
                preexec_fn=before_exec,
                start_new_session=True,
            )
        except OSError:
            self.close()
            raise
        finally:
            for fd in (orders, results, out, err):
                os.close(fd)
        self.pid = process.pid
        # The supervisor collects all of its children itself.
        process.returncode = 0
        for fd in (self.orders, self.results, self.out, self.err):
            os.set_blocking(fd, False)

    @property
    def outputs(self) -> "tuple[int, int]":
        return self.out, self.err

    def close(self) -> None:
        for fd in (self.orders, self.results, self.out, self.err):
            os.close(fd)

    def order(self, code: str, token: bytes, number: int, limit: int) -> None:
        data = code.encode("utf-8", "surrogateescape")
        self.outbox += ORDER.pack(len(data), token, number, limit) + data
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.orders, self.outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            # It has ended, which its status will tell.
            self.outbox.clear()

    def frames(self) -> "list[tuple[bytes, bytes, bytes]]":
        """Read the interpreter's messages: kind, token, body. Raises Broken; EOFError when it has closed the pipe."""
        data = os.read(self.results, 1 << 18)
        if not data:
            raise EOFError
        self.inbox += data
        found = []
        while len(self.inbox) >= HEAD.size:
            kind, length, token = HEAD.unpack(bytes(self.inbox[: HEAD.size]))
            if length > LARGEST.get(kind, -1):
                raise Broken
            if len(self.inbox) < HEAD.size + length:
                break
            found.append((kind, token, bytes(self.inbox[HEAD.size : HEAD.size + length])))
            del self.inbox[: HEAD.size + length]
        return found

    def greet(self, body: bytes) -> None:
        self.version = body.decode("utf-8", "replace").split("\n")[0]

    def is_another(self, python: str) -> bool:
        """Whether another interpreter than this is meant by a path: environments differ by their folders."""
        same_folder = os.path.dirname(python) == os.path.dirname(self.python)
        return not same_folder or os.path.realpath(python) != os.path.realpath(self.python)

    def memory(self) -> int:
        """Bytes that are in memory; 0 where that is not known."""
        try:
            with open("/proc/%d/statm" % self.pid, "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def folder(self) -> str:
        try:
            return os.readlink("/proc/%d/cwd" % self.pid)
        except OSError:
            return ""

    def uses_gpu(self) -> bool:
        """Whether NVIDIA's driver is loaded in it."""
        try:
            with open("/proc/%d/maps" % self.pid, "rb") as file:
                return b"libcuda.so" in file.read()
        except OSError:
            return False


def describe_end(status: int) -> "dict[str, Any]":
    """A wait status as exit code or signal."""
    code, number = read_status(status)
    return {"signal": number} if number else {"exit": code}
