"""A job's keeper: its own program that starts the command, writes its log, and records its end."""

import os
import select
import signal
import sys
import time

from .family import become_subreaper, descendants, insist, read_status, strike
from .jobrecord import birth_of, has_begun, is_told_to_stop, read_json, take_lock, write_end, write_json, write_whole
from .place import to_bytes, to_text

FOLLOW_S = 1.0
# One argument may hold 128 KiB on Linux; a longer script is read from its file.
SHORT_SCRIPT = 100000
FROM_PANE = (b"TMUX", b"TMUX_PANE", b"TERM", b"COLORTERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION")
LINGER_S = 0.5
# A command may take its time to save its work after it was told to end from outside.
INTERRUPTED_S = 120.0
LAST_WORDS_S = 0.2
KILLING_S = 5.0
LOOK_MS = 2000


class JobLog:
    """A log that may be on a full disk or gone: the job goes on, and what was lost is counted."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.total = self.lost = 0
        self.fd = -1
        self.followed = time.monotonic()
        self.at_line_start = self.open() and self.ends_in_newline()

    def open(self) -> bool:
        try:
            if self.fd < 0:
                # Nothing may wait here for a pipe's reader.
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
        """A log that was removed, or put aside by who rotates logs, is made anew."""
        if self.fd < 0 or time.monotonic() < self.followed + FOLLOW_S:
            return
        self.followed = time.monotonic()
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                return
        except OSError:
            pass
        os.close(self.fd)
        self.fd = -1
        self.at_line_start = self.open() and self.ends_in_newline()

    def write(self, data: bytes) -> None:
        self.total += len(data)
        self.follow()
        view = memoryview(data)
        try:
            while view and self.open():
                view = view[os.write(self.fd, view) :]
        except OSError:
            pass
        self.lost += len(view)
        if len(view) < len(data):
            self.at_line_start = data[len(data) - len(view) - 1 :][:1] == b"\n"

    def close(self, code: int) -> None:
        """The last line, for people and for tools that read it there."""
        line = b"" if self.at_line_start else b"\n"
        self.write(line + b"EXIT_CODE=%d\n" % code)
        if self.fd >= 0:
            os.close(self.fd)


class Pane:
    """The terminal that a person may look at. A descriptor of its own, so that a stopped tmux stops nobody."""

    def __init__(self, wanted: bool) -> None:
        self.fd = -1
        if wanted:
            try:
                self.fd = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                pass

    def show(self, data: bytes) -> None:
        if self.fd >= 0:
            try:
                # No more than fits on a screen or two: who wants all of it has the log.
                os.write(self.fd, data[-65536:])
            except BlockingIOError:
                pass
            except OSError:
                self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


MYPY = False
if MYPY:
    from typing import Any


def become_command(folder: bytes, order: "dict[str, Any]", via: str, gate: int, out: int, trouble: int) -> None:
    """Wait to be let go, then be the shell. Its input is the pane, or nothing."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        if os.read(gate, 2) != b"go":
            os._exit(127)
        if via != "tmux":
            os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(to_bytes(str(order["cwd"])))
        argv = job_arguments(folder, order)
        os.execvpe(argv[0], argv, job_environment(folder, via))
    except OSError as problem:
        os.write(trouble, b"%d" % (problem.errno or 22))
    finally:
        os._exit(127)


def job_arguments(folder: bytes, order: "dict[str, Any]") -> "list[bytes]":
    path = os.path.join(folder, b"command")
    with open(path, "rb") as file:
        script = file.read()
    return [to_bytes(word) for word in order["shell"]] + (
        [script] if len(script) <= SHORT_SCRIPT else [b'. "$0"', path]
    )


def job_environment(folder: bytes, via: str) -> "dict[bytes, bytes]":
    """As the outpost had it, because that of tmux is another; but the pane is the pane's own."""
    with open(os.path.join(folder, b"environ"), "rb") as file:
        pairs = [line.partition(b"=") for line in file.read().split(b"\0") if line]
    environment = {name: value for name, _, value in pairs}
    if via == "tmux":
        environment.update((name, os.environb[name]) for name in FROM_PANE if name in os.environb)
    return environment


if MYPY:
    from typing import Any


class JobKeeper:
    """Runs one job from its start to its end, once."""

    def __init__(self, folder: bytes, via: str) -> None:
        self.folder = folder
        self.via = via
        self.order = read_json(folder, b"order")
        self.lock, self.locked = take_lock(folder)
        self.status: "int | None" = None
        self.ended_at = 0.0
        self.main = 0
        self.told: "tuple[str, float]" = ("", 0.0)
        self.stopping = False
        self.kill_at = 0.0
        self.childless = False

    def run(self) -> None:
        if self.lock < 0 or not self.order or has_begun(self.folder):
            return
        self.hear()
        become_subreaper()
        # A keeper must not hold a folder that somebody wants to unmount.
        os.chdir("/")
        os.umask(int(self.order["umask"]))
        self.pane = Pane(self.via == "tmux")
        self.log = JobLog(to_bytes(str(self.order["log"])))
        if self.start():
            while not self.is_over():
                self.step()
            self.finish()

    # The start

    def hear(self) -> None:
        """Handlers that do nothing, unlike ignoring, are not inherited by the command."""
        # Otherwise a write to a pane that somebody else has in front would be tried for ever.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self.wakeup, wake_end = os.pipe()
        for fd in (self.wakeup, wake_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_end)
        heard = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
        for number in heard:
            signal.signal(number, lambda *_: None)

    def start(self) -> bool:
        """Claim the job, then let the command go: whatever happens in between, it starts at most once."""
        self.out, out = os.pipe()
        gate, gate_end = os.pipe()
        trouble, trouble_end = os.pipe()
        self.main = insist(os.fork)
        if not self.main:
            os.close(gate_end)
            become_command(self.folder, self.order, self.via, gate, out, trouble_end)
        for fd in (gate, out, trouble_end):
            os.close(fd)
        if not self.claim():
            return False
        os.write(gate_end, b"go")
        os.close(gate_end)
        problem = os.read(trouble, 64)
        os.close(trouble)
        if problem:
            write_end(self.folder, {"message": os.strerror(int(problem))}, b"failed")
            return False
        os.rename(self.file(b"claim"), self.file(b"begun"))
        for name in (b"environ", b"keeper.py"):
            os.unlink(self.file(name))
        os.set_blocking(self.out, False)
        self.poller = select.poll()
        for fd in (self.out, self.wakeup):
            self.poller.register(fd, select.POLLIN)
        return True

    def file(self, name: bytes) -> bytes:
        return os.path.join(self.folder, name)

    def claim(self) -> bool:
        """Whoever makes this file has the job. Its record is whole before the command can run."""
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
            # Whoever finds a claim without it takes the job for one that has begun.
            write_end(self.folder, {"message": problem.strerror}, b"failed")
            return False
        return True

    def describe_start(self) -> "dict[str, Any]":
        return {
            "pid": self.main,
            "birth": birth_of(self.main),
            "group": os.getpgrp() if self.via == "tmux" else self.main,
            "keeper": os.getpid(),
            "keeper_birth": birth_of(os.getpid()),
            "locked": self.locked,
            "boot": self.order["boot"],
            "node": self.order["node"],
            "session": self.order["session"],
            "log": self.order["log"],
            "cwd": self.order["cwd"],
            "started": time.time(),
            "via": self.via,
            "pane": os.environ.get("TMUX_PANE", ""),
        }

    # The life

    def step(self) -> None:
        for fd, _ in self.poller.poll(self.wait_ms()):
            if fd == self.wakeup:
                self.heed_signals()
            else:
                self.take()
        # Who has marked the job may be in another pid namespace, from where no signal comes.
        if not self.stopping and self.status is None and is_told_to_stop(self.folder):
            self.stop()
        if self.stopping and time.monotonic() >= self.kill_at:
            strike(self.family(), signal.SIGKILL)

    def wait_ms(self) -> int:
        return 20 if self.stopping or self.status is not None else LOOK_MS

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

    def heed_signals(self) -> None:
        numbers = os.read(self.wakeup, 512)
        was_over = self.status is not None
        self.reap()
        for number in (signal.SIGHUP, signal.SIGTERM):
            if number in numbers and not self.has_ended_by_itself(was_over):
                self.hear_end(number)

    def reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.main:
                    self.status, self.ended_at = status, time.monotonic()
        except ChildProcessError:
            self.childless = True

    def has_ended_by_itself(self, was_over: bool) -> bool:
        """Whether it was over before we were told to end. Where both came at once, only a success is sure to be one."""
        if self.status is None:
            return False
        code = read_status(self.status)[0]
        return code == 0 or (was_over and code <= 128)

    def hear_end(self, number: int) -> None:
        """Our own stop has a mark; without one it comes from outside, and the job is interrupted."""
        if self.stopping or is_told_to_stop(self.folder):
            return
        self.told = (signal.Signals(number).name, time.monotonic())
        strike(self.family(), number)
        strike(self.family(), signal.SIGCONT)

    def stop(self) -> None:
        grace = float(read_json(self.folder, b"stop").get("grace", 10.0))
        self.stopping, self.kill_at = True, time.monotonic() + grace
        strike(self.family(), signal.SIGTERM)
        strike(self.family(), signal.SIGCONT)

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
        # At a shutdown the command may be told to end a moment before we are.
        linger = LINGER_S if read_status(self.status)[0] > 128 and not self.told[0] else 0.0
        last_words = LAST_WORDS_S if self.out >= 0 else 0.0
        return now >= self.ended_at + max(linger, last_words)

    def finish(self) -> None:
        # A process left behind may write for ever; the end does not wait for it.
        for _ in range(64):
            if self.out < 0 or not self.take():
                break
        if self.was_interrupted():
            self.note_quietly(b"interrupted", {"by": self.told[0], "at": time.time()})
        else:
            self.write_end()
        self.leave_rest()

    def was_interrupted(self) -> bool:
        """A command may save its work when the machine shuts down; one that succeeds without its pane has ended."""
        by, at = self.told
        if not by or self.stopping or self.ended_at - at >= INTERRUPTED_S:
            return False
        return by != "SIGHUP" or read_status(self.status)[0] != 0

    def note_quietly(self, name: bytes, value: "dict[str, Any]") -> None:
        try:
            write_json(self.folder, name, value)
        except OSError:
            # Without it the job is gone all the same; only the reason is not known.
            pass

    def write_end(self) -> None:
        code, name = read_status(self.status)
        end = {
            "exit": code,
            "signal": name,
            "ending": "stopped" if self.stopping else "exited",
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
                # Some file systems need room even to overwrite: as long as we wait for it, the job counts as running.
                time.sleep(1.0)
        self.log.close(code)

    def leave_rest(self) -> None:
        """What the command left behind must not die of a closed pipe: somebody reads, and drops, what it prints."""
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
    except BaseException as problem:  # noqa: BLE001 - a keeper has nobody to tell but the folder
        write_whole(os.path.join(path, b"trouble"), to_bytes("%s: %s" % (type(problem).__name__, problem)))
        raise


if __name__ == "__main__":
    keep_job(to_text(os.fsencode(sys.argv[1])), sys.argv[2])
