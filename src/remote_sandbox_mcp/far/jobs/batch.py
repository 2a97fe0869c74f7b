"""The keeper of a job that a cluster's queue has started on a node: as any other keeper, with a terminal as input."""

import os
import pty
import select
import signal
import sys
import time
from typing import Any

from ..outpost.family import read_status, strike
from ..outpost.place import closing_fd, to_bytes, to_text
from .keeper import JobKeeper, job_arguments, job_environment
from .record import JOB_STOP_MARK, element_log, has_begun, read_json, write_whole

# What the node knows better than the login node did: the number of the job, its GPUs, its tasks.
OF_THE_NODE = (b"SLURM", b"CUDA_", b"GPU_", b"ROCR_", b"HIP_", b"ZE_", b"NVIDIA_", b"PMI")
# What the node says unless the caller has said it.
UNLESS_GIVEN = (b"TMPDIR", b"HOSTNAME", b"XDG_RUNTIME_DIR", b"KRB5CCNAME")
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
ALL_INFORMED_S = 3.0
# By the kind of cgroup, version 2 and version 1: where the kernel counts what it has killed for want of memory.
OOM_EVENTS = {"": "/sys/fs/cgroup%s/memory.events", "memory": "/sys/fs/cgroup/memory%s/memory.oom_control"}


class BatchKeeper(JobKeeper):
    """Keeps a submitted job, or one element of an array. All of a cluster's machines see its folder."""

    # Looks at files of a file server: for a stop, and for what is typed.
    poll_ms = 1000

    def __init__(self, top: bytes) -> None:
        # The folder of the job; an element has one of its own below it, for what is told of it alone.
        self.top = top
        self.element = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        folder = os.path.join(top, b"elements", to_bytes(self.element)) if self.element.isdigit() else top
        os.makedirs(folder, 0o700, exist_ok=True)
        JobKeeper.__init__(self, folder, "slurm")
        self.order = read_json(top, b"order")
        if self.element.isdigit():
            self.order["log"] = element_log(str(self.order["log"]), self.element)
        self.code = 1
        self.terminal = -1
        self.typed_at = 0
        self.to_type = b""
        self.continued_at = -1e9

    def hold(self) -> "tuple[int, bool]":
        """File servers do not always have locks; the queue starts a job once, and the claim says so."""
        return os.open(os.devnull, os.O_RDONLY), False

    def may_begin(self) -> bool:
        if not has_begun(self.folder):
            return bool(self.order)
        if self.restarts and self.order["slurm"]["requeue"]:
            self.forget_last_run()
            return True
        if self.restarts:
            # It has run, and was not submitted to be run again.
            self.note_quietly(b"interrupted", {"by": "requeue", "at": time.time()})
        return False

    def forget_last_run(self) -> None:
        for name in (b"claim", b"begun", b"interrupted", b"fate", b"failed"):
            if os.path.lexists(self.file(name)):
                os.unlink(self.file(name))

    # The start

    def hear(self) -> None:
        JobKeeper.hear(self)
        for number in (*PASSED_ON, signal.SIGCONT):
            signal.signal(number, lambda *_: None)

    def start(self) -> bool:
        self.terminal, self.command_end = pty.openpty()
        os.set_blocking(self.terminal, False)
        begun = JobKeeper.start(self)
        os.close(self.command_end)
        if begun:
            self.poller.register(self.terminal, select.POLLIN)
        return begun

    def take_input(self) -> None:
        """A terminal of its own: what is typed there reaches the command, C-c included."""
        os.setsid()
        name = os.ttyname(self.command_end)
        terminal = os.open(name, os.O_RDWR)
        os.dup2(terminal, 0)

    def arguments(self) -> "list[bytes]":
        return job_arguments(self.top, self.order)

    def environment(self) -> "dict[bytes, bytes]":
        environment = job_environment(self.top, "slurm")
        for name, value in os.environb.items():
            if name.startswith(OF_THE_NODE) or (name in UNLESS_GIVEN and name not in environment):
                environment[name] = value
        return environment

    def describe_start(self) -> "dict[str, Any]":
        here = {"host": os.uname().nodename, "number": os.environ.get("SLURM_JOB_ID", "")}
        return dict(JobKeeper.describe_start(self), restarts=self.restarts, input=True, **here)

    def give_up(self, why: str) -> None:
        """Told in the log, because the one who started the job no longer waits."""
        where = "%s on %s" % (self.order["cwd"], os.uname().nodename)
        self.log.write(to_bytes("unable to start the command in %s: %s\n" % (where, why)))
        self.status, self.ended_at = 127 << 8, time.monotonic()
        self.end()
        os.rename(self.file(b"claim"), self.file(b"begun"))

    def tidy(self) -> None:
        """Remove files that may hold secrets, unless another element or run of the job needs them."""
        if not self.element and not self.order["slurm"]["requeue"]:
            for name in (b"environ", b"environ.sh"):
                os.unlink(self.file(name))

    # The life

    def step(self) -> None:
        JobKeeper.step(self)
        self.type_what_came()

    def attend(self, fd: int) -> None:
        """The echo of what was typed: nobody looks at it, and a terminal that is full would stop the command."""
        try:
            if os.read(self.terminal, 1 << 16):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.poller.unregister(self.terminal)

    def type_what_came(self) -> None:
        """Text is appended to a file, which is opened anew: over a file server only that shows what has been added."""
        try:
            with open(self.file(b"input"), "rb") as file:
                file.seek(self.typed_at)
                new = file.read(1 << 16)
        except OSError:
            new = b""
        self.typed_at += len(new)
        self.to_type += new
        try:
            while self.to_type and self.status is None:
                self.to_type = self.to_type[os.write(self.terminal, self.to_type[:1024]) :]
        except OSError:
            pass

    def handle_signals(self) -> None:
        numbers = os.read(self.wakeup, 512)
        was_over = self.status is not None
        self.reap()
        if signal.SIGCONT in numbers:
            self.continued_at = time.monotonic()
        if signal.SIGTERM in numbers and not self.has_ended_by_itself(was_over):
            self.hear_end(signal.SIGTERM)
        for number in PASSED_ON:
            if number in numbers and self.status is None:
                strike(self.who_handles(number), number)

    def who_handles(self, number: int) -> "list[int]":
        """The processes that have a handler for a signal; a shell that only waits for them has none, and would end."""
        found = [pid for pid in self.family() if catches(pid, number)]
        return found or [self.main]

    def is_asked_to_stop(self) -> bool:
        """Opened, because a file server's other facts may be a minute old."""
        return any(has_stop_mark(folder) for folder in {self.folder, self.top})

    def hear_end(self, number: int) -> None:
        """Noted at once: who told us to end may kill us before the command has ended."""
        # The queue lets all processes of a job continue, then tells all of them to end: a second signal could make the
        # command give up saving its work. A person may tell the keeper alone (scancel --batch).
        if self.received[0] or self.stopping or self.is_asked_to_stop():
            return
        self.received = (signal.Signals(number).name, time.monotonic())
        self.note_quietly(b"interrupted", {"by": self.received[0], "at": time.time()})
        if time.monotonic() > self.continued_at + ALL_INFORMED_S:
            strike(self.family(), number)

    def grace(self) -> float:
        own, of_all = read_json(self.folder, b"stop"), read_json(self.top, b"stop")
        return float((own or of_all).get("grace", 10.0))

    # The end

    def finish(self) -> None:
        self.code = read_status(self.status)[0]
        JobKeeper.finish(self)

    def end(self) -> None:
        """The log first: from another machine nobody sees when the keeper has left."""
        self.code = read_status(self.status)[0]
        self.log.close(self.code)
        self.write_end()

    def ending(self) -> str:
        if self.code and not self.stopping and was_out_of_memory():
            return "out_of_memory"
        return JobKeeper.ending(self)

    def leave_rest(self) -> None:
        """The queue ends whatever a job leaves behind."""


def catches(pid: int, number: int) -> bool:
    try:
        with open("/proc/%d/status" % pid) as file:
            caught = [line.split()[1] for line in file if line.startswith("SigCgt:")]
            return bool(int(caught[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False


def has_stop_mark(folder: bytes) -> bool:
    try:
        fd = os.open(os.path.join(folder, b"lock"), os.O_RDONLY)
    except OSError:
        return False
    with closing_fd(fd):
        return bool(os.fstat(fd).st_mode & JOB_STOP_MARK)


def was_out_of_memory() -> bool:
    """Whether the kernel has killed a process of this cgroup because its memory was used up."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return False
    paths = [OOM_EVENTS[kinds] % path for _, kinds, path in groups if kinds in OOM_EVENTS]
    return any(has_killed(path) for path in paths)


def has_killed(path: str) -> bool:
    try:
        with open(path) as file:
            return any(line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in file)
    except (OSError, ValueError, IndexError):
        return False


def keep_batch_job(folder: str) -> int:
    path = to_bytes(folder)
    try:
        keeper = BatchKeeper(path)
        keeper.run()
        return keeper.code
    except BaseException as problem:  # noqa: BLE001 - its only way out is the folder
        write_whole(os.path.join(path, b"trouble"), to_bytes("%s: %s" % (type(problem).__name__, problem)))
        raise


if __name__ == "__main__" and sys.argv[2] == "slurm":
    sys.exit(keep_batch_job(to_text(os.fsencode(sys.argv[1]))))
