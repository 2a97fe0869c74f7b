"""A job's keeper: a process of its own, one per job, that starts the command, writes its log, and records its end."""

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any

from ..outpost.family import become_subreaper, collect_children, descendants, hear_signals, insist, read_status, strike
from ..outpost.place import birth_of, to_bytes, to_text
from .cards import Leases, NoCards, lease_record
from .record import has_begun, is_asked_to_stop, read_json, take_lock, withdraw, write_end, write_json, write_whole

# How often the log's path is checked for having been removed or rotated.
FOLLOW_S = 1.0
# One argument may hold 128 KiB on Linux; a longer script is read from its file.
SHORT_SCRIPT = 100000
# Variables that describe the terminal: a command in tmux gets those of its pane.
FROM_PANE = (b"TMUX", b"TMUX_PANE", b"TERM", b"COLORTERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION")
# How long the keeper waits for its own signal after the command was ended by one.
LINGER_S = 0.5
# A command that ends this long after a signal from outside, having saved its work, still counts as interrupted by it.
INTERRUPTED_S = 120.0
# How long output is read after the command's end, while another process still holds the pipe.
LAST_WORDS_S = 0.2
# After SIGKILL, a process may be in a system call that does not return: the keeper gives up after this time.
KILLING_S = 5.0
# How often the stop mark is looked for.
POLL_MS = 2000


class JobLog:
    """The log of a job. On a full disk, or if it cannot be opened, the job goes on and lost bytes are counted."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.total = self.lost = 0
        self.fd = -1
        self.followed = time.monotonic()
        self.at_line_start = self.open() and self.ends_in_newline()

    def open(self) -> bool:
        try:
            if self.fd < 0:
                # Without O_NONBLOCK, opening a named pipe would wait for its reader.
                flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
                self.fd = os.open(self.path, flags, 0o666)
                os.set_blocking(self.fd, True)
            return True
        except OSError:
            return False

    def ends_in_newline(self) -> bool:
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - 1))
                return file.read(1) in (b"", b"\n")
        except OSError:
            return True

    def follow(self) -> None:
        """Make the log anew if it was removed, or renamed by a log rotation."""
        if self.fd < 0 or time.monotonic() < self.followed + FOLLOW_S:
            return
        self.followed = time.monotonic()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                return
        os.close(self.fd)
        self.fd = -1
        self.at_line_start = self.open() and self.ends_in_newline()

    def write(self, data: bytes) -> None:
        self.total += len(data)
        self.follow()
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and self.open():
                view = view[os.write(self.fd, view) :]
        self.lost += len(view)
        if len(view) < len(data):
            self.at_line_start = data[len(data) - len(view) - 1 :][:1] == b"\n"

    def close(self, code: int) -> None:
        """Write the exit code as the last line, for people and tools that read the log, and close it."""
        line = b"" if self.at_line_start else b"\n"
        self.write(line + b"EXIT_CODE=%d\n" % code)
        if self.fd >= 0:
            os.close(self.fd)


class Pane:
    """The job's tmux pane, at which a person may look; written without waiting, so that a stopped tmux stops no job."""

    def __init__(self, wanted: bool) -> None:
        self.fd = -1
        if wanted:
            with contextlib.suppress(OSError):
                # Opened anew: O_NONBLOCK on the inherited descriptor would reach the command's input as well.
                self.fd = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)

    def show(self, data: bytes) -> None:
        if self.fd >= 0:
            try:
                # No more than fits on a screen or two: the log has everything.
                os.write(self.fd, data[-65536:])
            except BlockingIOError:
                pass
            except OSError:
                self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def job_arguments(folder: bytes, order: "dict[str, Any]") -> "list[bytes]":
    path = os.path.join(folder, b"command")
    with open(path, "rb") as file:
        script = file.read()
    return [to_bytes(word) for word in order["shell"]] + (
        [script] if len(script) <= SHORT_SCRIPT else [b'. "$0"', path]
    )


def job_environment(folder: bytes, via: str) -> "dict[bytes, bytes]":
    """The outpost's environment: tmux would pass on its server's. The terminal's variables are those of the pane."""
    with open(os.path.join(folder, b"environ"), "rb") as file:
        pairs = [line.partition(b"=") for line in file.read().split(b"\0") if line]
    environment = {name: value for name, _, value in pairs}
    if via == "tmux":
        environment.update((name, os.environb[name]) for name in FROM_PANE if name in os.environb)
    return environment


class JobKeeper:
    """Runs one job once, from its start to its end."""

    poll_ms = POLL_MS

    def __init__(self, folder: bytes, via: str) -> None:
        self.folder = folder
        self.via = via
        self.order = read_json(folder, b"order")
        self.lock, self.locked = self.hold()
        self.status: "int | None" = None
        self.ended_at = 0.0
        self.main = 0
        self.received: "tuple[str, float]" = ("", 0.0)
        self.stopping = False
        self.kill_at = 0.0
        self.leases = Leases()

    def hold(self) -> "tuple[int, bool]":
        return take_lock(self.folder)

    def may_begin(self) -> bool:
        """A repeated start may have started a second keeper: only the first one runs the job."""
        return self.lock >= 0 and bool(self.order) and not has_begun(self.folder)

    def run(self) -> None:
        if not self.may_begin() or not self.lease_cards():
            return
        self.hear()
        become_subreaper()
        # A working folder in a mounted file system would keep it from being unmounted.
        os.chdir("/")
        os.umask(int(self.order["umask"]))
        self.pane = Pane(self.via == "tmux")
        self.log = JobLog(to_bytes(str(self.order["log"])))
        if self.start():
            while not self.is_over():
                self.step()
            self.finish()

    # The start

    def lease_cards(self) -> bool:
        """Lease the cards that the job wants; if they cannot be had, nobody begins it, and its start hears why."""
        wanted = self.order.get("cards")
        if not wanted:
            return True
        os.environb[b"PATH"] = self.environment().get(b"PATH", b"")
        record = lease_record(str(self.order["session"]), float(self.order.get("run_for", 0.0)))
        try:
            self.leases.take(int(wanted["count"]), int(wanted["memory_mb"]), record)
            return True
        except NoCards as refusal:
            if withdraw(self.folder):
                write_end(self.folder, {"reason": "cards", "message": str(refusal)}, b"failed")
            return False

    def hear(self) -> None:
        """Have signals wake the loop."""
        # Otherwise a write to a pane where another process group is in the foreground would be retried for ever.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        heard = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
        self.wakeup = hear_signals(*heard)

    def start(self) -> bool:
        """Fork, claim the job, then let the child become the command: wherever a kill hits, it starts at most once."""
        self.out, out = os.pipe()
        gate, gate_end = os.pipe()
        trouble, trouble_end = os.pipe()
        self.main = insist(os.fork)
        if not self.main:
            os.close(gate_end)
            self.become_command(gate, out, trouble_end)
        for fd in (gate, out, trouble_end):
            os.close(fd)
        if not self.claim():
            return False
        os.write(gate_end, b"go")
        os.close(gate_end)
        problem = os.read(trouble, 64)
        os.close(trouble)
        # The pipe closes at exec: an empty answer means that the shell runs.
        if problem:
            self.give_up(os.strerror(int(problem)))
            return False
        os.rename(self.file(b"claim"), self.file(b"begun"))
        self.tidy()
        os.set_blocking(self.out, False)
        self.poller = select.poll()
        for fd in (self.out, self.wakeup):
            self.poller.register(fd, select.POLLIN)
        return True

    def become_command(self, gate: int, out: int, trouble: int) -> None:
        """Wait in the child until the job is claimed, then become the shell."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU):
                signal.signal(number, signal.SIG_DFL)
            if os.read(gate, 2) != b"go":
                # The keeper closed the pipe without a word: another keeper has the job.
                os._exit(127)
            self.take_input()
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(to_bytes(str(self.order["cwd"])))
            argv = self.arguments()
            os.execvpe(argv[0], argv, self.environment())
        except OSError as problem:
            os.write(trouble, b"%d" % (problem.errno or 22))
        finally:
            os._exit(127)

    def take_input(self) -> None:
        """The command's input is the pane, or /dev/null."""
        if self.via != "tmux":
            os.setsid()

    def arguments(self) -> "list[bytes]":
        return job_arguments(self.folder, self.order)

    def environment(self) -> "dict[bytes, bytes]":
        environment = job_environment(self.folder, self.via)
        environment.update(self.leases.variables)
        return environment

    def give_up(self, why: str) -> None:
        """Note that the command could not be started; the start of the job waits for that."""
        write_end(self.folder, {"message": why}, b"failed")

    def tidy(self) -> None:
        for name in (b"environ", b"keeper.py"):
            os.unlink(self.file(name))

    def file(self, name: bytes) -> bytes:
        return os.path.join(self.folder, name)

    def claim(self) -> bool:
        """Create the claim, which only one process can. Its record is complete before the command can run."""
        record = self.describe_start()
        try:
            os.close(os.open(self.file(b"claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            return False
        if os.path.lexists(self.file(b"begun")):
            os.unlink(self.file(b"claim"))
            return False
        try:
            write_json(self.folder, b"claim", record)
        except OSError as problem:
            # A claim alone counts as a start, so the failure has to be recorded.
            write_end(self.folder, {"message": problem.strerror}, b"failed")
            return False
        return True

    def describe_start(self) -> "dict[str, Any]":
        return {
            **{name: self.order[name] for name in ("boot", "node", "session", "log", "cwd")},
            "pid": self.main,
            "birth": birth_of(self.main),
            "group": os.getpgrp() if self.via == "tmux" else self.main,
            "keeper": os.getpid(),
            "keeper_birth": birth_of(os.getpid()),
            "locked": self.locked,
            "started": time.time(),
            "via": self.via,
            "pane": os.environ.get("TMUX_PANE", ""),
            "cards": [card.uuid for card in self.leases.cards],
        }

    # The life

    def step(self) -> None:
        for fd, _ in self.poller.poll(self.wait_ms()):
            if fd == self.wakeup:
                self.handle_signals()
            elif fd == self.out:
                self.take()
            else:
                self.attend(fd)
        self.leases.keep()
        # The process that set the stop mark may be in another pid namespace, from where it cannot signal us.
        if not self.stopping and self.status is None and self.is_asked_to_stop():
            self.stop()
        if self.stopping and time.monotonic() >= self.kill_at:
            strike(self.family(), signal.SIGKILL)

    def wait_ms(self) -> int:
        return 20 if self.stopping or self.status is not None else self.poll_ms

    def attend(self, fd: int) -> None:
        """Read a descriptor that is neither a signal nor the command's output."""

    def is_asked_to_stop(self) -> bool:
        return is_asked_to_stop(self.folder)

    def take(self) -> bool:
        try:
            data = os.read(self.out, 1 << 18)
        except BlockingIOError:
            return False
        if not data:
            self.poller.unregister(self.out)
            os.close(self.out)
            self.out = -1
            return False
        self.log.write(data)
        self.pane.show(data)
        return True

    def handle_signals(self) -> None:
        numbers = os.read(self.wakeup, 512)
        was_over = self.status is not None
        self.reap()
        for number in (signal.SIGHUP, signal.SIGTERM):
            if number in numbers and not self.has_ended_by_itself(was_over):
                self.hear_end(number)

    def reap(self) -> None:
        collect_children(self.note_end)

    def note_end(self, pid: int, status: int) -> None:
        if pid == self.main:
            self.status, self.ended_at = status, time.monotonic()

    def has_ended_by_itself(self, was_over: bool) -> bool:
        """Whether the command ended before the signal came. If both came at once, only exit code 0 proves it."""
        if self.status is None:
            return False
        code = read_status(self.status)[0]
        return code == 0 or (was_over and code <= 128)

    def hear_end(self, number: int) -> None:
        """A signal to end: without the stop mark it comes from outside, as at a shutdown, and is passed on."""
        if self.stopping or self.is_asked_to_stop():
            return
        self.received = (signal.Signals(number).name, time.monotonic())
        strike(self.family(), number)
        # A stopped process acts on a signal only when it continues.
        strike(self.family(), signal.SIGCONT)

    def stop(self) -> None:
        self.stopping, self.kill_at = True, time.monotonic() + self.grace()
        strike(self.family(), signal.SIGTERM)
        strike(self.family(), signal.SIGCONT)

    def grace(self) -> float:
        return float(read_json(self.folder, b"stop").get("grace", 10.0))

    def family(self) -> "list[int]":
        return descendants(os.getpid(), self.main)

    # The end

    def is_over(self) -> bool:
        now = time.monotonic()
        if self.stopping:
            gone = self.status is not None and not self.family()
            return gone or now > self.kill_at + KILLING_S
        if self.status is None:
            return False
        # At a shutdown the command may get its signal a moment before the keeper does.
        linger = LINGER_S if read_status(self.status)[0] > 128 and not self.received[0] else 0.0
        last_words = LAST_WORDS_S if self.out >= 0 else 0.0
        return now >= self.ended_at + max(linger, last_words)

    def finish(self) -> None:
        # A process that the command left behind may print for ever: read what is there, within a bound.
        for _ in range(64):
            if self.out < 0 or not self.take():
                break
        # Before the end is known: whoever sees it can have the cards.
        self.leases.drop()
        if self.was_interrupted():
            self.note_quietly(b"interrupted", {"by": self.received[0], "at": time.time()})
        else:
            self.end()
        self.leave_rest()

    def was_interrupted(self) -> bool:
        """Whether a signal from outside ended the job. A command that succeeds although its pane closed has ended."""
        by, at = self.received
        if not by or self.stopping or self.ended_at - at >= INTERRUPTED_S:
            return False
        return by != "SIGHUP" or read_status(self.status)[0] != 0

    def note_quietly(self, name: bytes, value: "dict[str, Any]") -> None:
        # Without this record the job still counts as gone; only the reason is lost.
        with contextlib.suppress(OSError):
            write_json(self.folder, name, value)

    def end(self) -> None:
        self.write_end()
        self.log.close(read_status(self.status)[0])

    def write_end(self) -> None:
        code, name = read_status(self.status)
        end = {
            "exit": code,
            "signal": name,
            "ending": self.ending(),
            "ended": time.time(),
            "bytes": self.log.total,
            "lost": self.log.lost,
            "survivors": self.family()[:20] if self.stopping else [],
        }
        while True:
            try:
                write_end(self.folder, end)
                break
            except OSError:
                # Some file systems need room even to overwrite. While the keeper waits, the job counts as running.
                time.sleep(1.0)

    def ending(self) -> str:
        return "stopped" if self.stopping else "exited"

    def leave_rest(self) -> None:
        """Read and drop what processes left behind by the command print: a closed pipe would kill them."""
        if self.out < 0 or os.fork():
            return
        os.close(self.lock)
        os.setsid()
        os.set_blocking(self.out, True)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        self.pane.close()
        while os.read(self.out, 1 << 16):
            pass


def keep_job(folder: str, via: str) -> None:
    path = to_bytes(folder)
    try:
        JobKeeper(path, via).run()
    except BaseException as problem:  # noqa: BLE001 - the folder is the only place where a keeper can report a failure
        write_whole(os.path.join(path, b"trouble"), to_bytes("%s: %s" % (type(problem).__name__, problem)))
        raise


if __name__ == "__main__" and sys.argv[2] != "slurm":
    keep_job(to_text(os.fsencode(sys.argv[1])), sys.argv[2])
