"""A run's keeper: the process that starts the command, collects its output, and goes on if the connection is cut."""

import contextlib
import errno
import functools
import json
import os
import select
import signal
import time
from typing import Any

from ...core.orders import RunAnswer, RunBeat
from .family import (
    NO_PROCESS,
    PRCTL,
    become_subreaper,
    collect_children,
    descendants,
    hear_signals,
    insist,
    read_status,
    start_process,
    strike,
)
from .observe import observe
from .output import Listener, OutputStream, widen_pipe
from .place import RunFolder, find_run, machine_marks, make_folder, start_folder, to_bytes, to_text, user_name
from .sudo import RootProcess, SudoRefused, variables_of
from .wire import (
    BEAT,
    CANCEL,
    END,
    ERR,
    ERR_TAIL,
    FAIL,
    FREE,
    INPUT,
    OUT,
    OUT_TAIL,
    REQUEST,
    TAKEN,
    frame,
    json_frame,
    split_frames,
    write_all,
)

# Between SIGTERM and SIGKILL; for how long SIGKILL is repeated; and how long output is read after the command's end
# while a process it left behind holds the pipe.
GRACE_S = 2.0
KILL_S = 2.0
DRAIN_S = 0.2
# Between two beats while something is printed, and between two looks while nothing is.
BEAT_S, REST_S = 0.5, 2.0
# One argument may hold 128 KiB on Linux; a longer script is read from its file.
LONGEST_ARGUMENT = 100000
NO_FOLDER = "unable to make a folder for the run: %s"


class Feed:
    """The pipe from the outpost to its keeper: orders to run a command, and cancellations."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = bytearray()
        self.behind: "list[tuple[int, int, bytes]]" = []

    def take(self) -> "list[tuple[int, int, bytes]] | None":
        """The frames that have come; None when the outpost is gone."""
        data = os.read(self.fd, 1 << 18)
        self.buffer += data
        return split_frames(self.buffer) if data else None

    def next_order(self) -> "tuple[int, dict[str, Any]] | None":
        """The next order; None when the outpost is gone. Frames that came with it, such as a cancel, go to `behind`."""
        while True:
            frames = self.take()
            if frames is None:
                return None
            for at, (kind, request, body) in enumerate(frames):
                if kind == REQUEST:
                    self.behind = frames[at + 1 :]
                    head, _, raw = body.partition(b"\0")
                    return request, dict(json.loads(head.decode()), input=raw)


class RunInput:
    """A command's standard input, which comes in parts while it runs."""

    def __init__(self) -> None:
        self.read_end, self.fd = os.pipe()
        os.set_blocking(self.fd, False)
        self.waiting = bytearray()
        self.taken = 0
        # No more parts will come; and: the pipe is closed, by us or by the command.
        self.is_whole = self.is_closed = False

    def add(self, part: bytes) -> None:
        self.waiting += part
        self.is_whole = self.is_whole or not part

    def write(self) -> bool:
        """Write as much as the command reads now; whether something changed."""
        taken = self.taken
        try:
            while self.waiting:
                count = os.write(self.fd, self.waiting[: 1 << 16])
                del self.waiting[:count]
                self.taken += count
        except BlockingIOError:
            return self.taken != taken
        except OSError:
            # The command has closed its input: the rest is for nobody.
            self.close()
            return True
        if self.is_whole:
            self.close()
        return self.taken != taken or self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            os.close(self.fd)
        self.is_closed = True
        self.waiting.clear()


def clear(wakeup: int) -> None:
    """Drop signals that came between two runs: they were meant for the earlier one."""
    with contextlib.suppress(BlockingIOError):
        os.read(wakeup, 512)


class Keeper:
    """Runs one command from its start to its end. Folder and pipes are made before the order comes, to save time."""

    def __init__(self, folder: RunFolder, feed: Feed, wakeup: int, listener: Listener) -> None:
        self.folder = folder
        self.feed = feed
        self.wakeup = wakeup
        self.listener = listener
        self.status: "int | None" = None
        self.ended_at = 0.0
        self.ending = "exited"
        self.kill_at = 0.0
        self.main = 0
        self.childless = False
        self.input: "RunInput | None" = None
        # The parent of a command that runs as root: only that process may signal it.
        self.root: "RootProcess | None" = None
        # Read before there is an order: once there is one, a caller waits.
        self.marks = machine_marks()
        self.streams: "dict[int, OutputStream]" = {}
        self.out_pipe, self.err_pipe = os.pipe(), os.pipe()
        self.poller = select.poll()
        for fd in (self.out_pipe[0], self.err_pipe[0], feed.fd, wakeup):
            self.poller.register(fd, select.POLLIN)
        os.set_blocking(self.out_pipe[0], False)
        os.set_blocking(self.err_pipe[0], False)

    def run(self, order: "dict[str, Any]", request: int) -> None:
        self.order = order
        self.request = request
        self.begun = time.monotonic()
        self.deadline = self.begun + float(order["timeout"])
        self.beaten = (self.begun, 0)
        start = dict(self.marks, id=order["id"], pid=os.getpid(), started=time.time())
        try:
            is_mine = not self.is_elsewhere() and self.claim(start)
        except OSError as problem:
            self.abandon()
            self.fail("folder", NO_FOLDER % problem.strerror)
            return
        if not is_mine:
            self.abandon()
            wait = float(order["timeout"]) + 3600
            observe({"verb": "look", "id": order["id"], "keep": order["keep"], "wait": wait}, request, self.listener)
            return
        try:
            self.start(int(order["keep"]))
        except SudoRefused as refused:
            self.abandon()
            self.fail(refused.reason, str(refused))
            return
        except OSError as problem:
            self.abandon()
            self.explain(problem)
            return
        self.handle(self.feed.behind)
        while not self.is_over():
            self.step()
        self.finish()

    def claim(self, start: "dict[str, Any]") -> bool:
        """Claim the run's id. If the disk has become full since the folder was made, use another place with room."""
        full: "tuple[bytes, ...]" = ()
        while True:
            try:
                return self.folder.claim(str(self.order["id"]), start)
            except OSError:
                full += (os.path.dirname(self.folder.path),)
                fresh = make_folder(full)
                self.folder.remove()
                self.folder = fresh

    def is_elsewhere(self) -> bool:
        """Whether a start repeated after a cut came to another place than the first: there, it could run twice."""
        from_place = self.order.get("only_in")
        if not from_place or find_run(str(self.order["id"])):
            return False
        return bool(from_place != self.order["here"])

    def start(self, keep: int) -> None:
        given = self.order.pop("sudo", None)
        if given is None or given.get("user") == user_name():
            source = self.open_input()
            try:
                self.main = self.launch(self.script_arguments(), self.out_pipe[1], self.err_pipe[1], source)
            finally:
                if source:
                    os.close(source)
        else:
            self.main = self.launch_as_root(RootProcess(given, str(self.order["id"])))
        os.close(self.out_pipe[1])
        os.close(self.err_pipe[1])
        self.out = OutputStream(self.folder.file(b"out"), keep)
        self.err = OutputStream(self.folder.file(b"err"), keep)
        self.streams = {self.out_pipe[0]: self.out, self.err_pipe[0]: self.err}

    def open_input(self) -> int:
        """The descriptor of the command's input: a pipe, a file that has lost its name, or 0, which is /dev/null."""
        if self.order.get("streamed"):
            self.input = RunInput()
            return self.input.read_end
        if not self.order["input"]:
            return 0
        fd = self.folder.create(b"input")
        write_all(fd, self.order["input"])
        os.close(fd)
        path = self.folder.file(b"input")
        fd = os.open(path, os.O_RDONLY)
        os.unlink(path)
        return fd

    def launch_as_root(self, root: RootProcess) -> int:
        """Start the shell as a child of a process that runs as root, or as another user. Raises SudoRefused."""
        environment, cwd = self.environment(), str(self.order["cwd"])
        order = {
            "shells": self.shells(),
            "script": self.script_arguments(),
            "env": variables_of(environment, self.order.get("env", {})),
            # Another user's commands start in the home of that user.
            "cwd": to_text(start_folder(cwd)) if cwd or not root.user else "",
            "input": len(self.order["input"]),
            "become": root.user if root.is_direct else "",
        }
        root.start(environment, self.out_pipe[1], self.err_pipe[1])
        root.begin(order, self.order["input"], self.err_pipe[0], self.wait_for_room)
        self.root = root
        if root.status is not None:
            self.status, self.ended_at = root.status, time.monotonic()
        return root.pid

    def launch(self, script: "list[str]", out: int, err: int, given: int) -> int:
        """Start the shell in the caller's folder: the configured one, else bash, else sh."""
        environment = self.environment()
        folder = start_folder(str(self.order["cwd"]))
        try:
            os.chdir(folder)
        except OSError as problem:
            problem.filename = "cwd"
            raise
        environment[b"PWD"] = folder
        shells = self.shells()
        try:
            for shell in shells:
                argv = [to_bytes(word) for word in shell + script]
                try:
                    start = functools.partial(start_process, argv, environment, out, err, given)
                    return insist(start, self.wait_for_room)
                except FileNotFoundError:
                    if shell is shells[-1]:
                        raise
        finally:
            # A working folder in a mounted file system would keep it from being unmounted.
            os.chdir("/")
        raise FileNotFoundError

    def shells(self) -> "list[list[str]]":
        return [self.order["shell"]] if self.order["shell"] else [["bash", "-c"], ["sh", "-c"]]

    def environment(self) -> "dict[bytes, bytes]":
        environment = dict(os.environb)
        # With SHLVL below 1, bash takes itself for a shell started by sshd and reads .bashrc before every command. The
        # login shell that started the outpost has read it already, and its exports are in this environment.
        if environment.get(b"SHLVL", b"0") == b"0":
            environment[b"SHLVL"] = b"1"
        for name, value in self.order.get("env", {}).items():
            environment[to_bytes(name)] = to_bytes(value)
        return environment

    def wait_for_room(self, seconds: float) -> None:
        """Wait before another attempt to start the command. Raises OSError if the run is cancelled meanwhile."""
        if not select.select([self.feed.fd], [], [], seconds)[0]:
            return
        frames = self.feed.take()
        if frames is None:
            # The outpost is gone; a run goes on without it.
            time.sleep(seconds)
        elif self.is_cancelled(frames):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        else:
            self.feed.behind += frames

    def script_arguments(self) -> "list[str]":
        script = str(self.order["script"])
        if len(to_bytes(script)) <= LONGEST_ARGUMENT:
            return [script]
        path = self.folder.file(b"command")
        with open(self.folder.create(b"command"), "wb") as file:
            file.write(to_bytes(script))
        return ['. "$0"', to_text(path)]

    def abandon(self) -> None:
        """Clean up after a start that failed."""
        self.folder.remove()
        for fd in self.out_pipe + self.err_pipe:
            os.close(fd)
        if self.input:
            self.input.close()

    def explain(self, problem: OSError) -> None:
        if problem.filename == "cwd":
            self.fail("cwd", "unable to enter %s: %s" % (self.order["cwd"] or "~", problem.strerror))
        elif problem.filename == "user":
            why = "there is no such user there" if problem.errno == errno.ENOENT else problem.strerror
            self.fail("user", "unable to run anything as another user: %s" % why)
        elif problem.errno == errno.EAGAIN:
            self.fail("fork", NO_PROCESS % problem.strerror)
        else:
            shell = " ".join(self.order["shell"]) or "bash"
            self.fail("shell", "unable to start %s: %s" % (shell, problem.strerror))

    def fail(self, reason: str, message: str) -> None:
        self.listener.send(json_frame(FAIL, self.request, {"reason": reason, "message": message}))

    def step(self) -> None:
        for fd, _ in self.poller.poll(self.wait_ms()):
            if fd == self.wakeup:
                self.handle_signals()
            elif fd == self.feed.fd:
                self.handle_outpost()
            elif self.input and fd == self.input.fd:
                self.feed_command(self.input)
            else:
                self.take(fd)
        now = time.monotonic()
        if self.ending == "exited" and self.status is None and now >= self.deadline:
            self.stop("timed_out")
        self.press(now)
        self.beat(now)
        self.listener.flush()

    def wait_ms(self) -> int:
        now = time.monotonic()
        if self.ending != "exited":
            return 20
        if self.status is not None:
            return max(0, int((self.ended_at + DRAIN_S - now) * 1000) + 1)
        is_news = self.out.total + self.err.total != self.beaten[1]
        pause = 0.02 if self.listener.backlog else BEAT_S if is_news else REST_S
        until = min(self.deadline, self.beaten[0] + pause)
        return max(0, int((until - now) * 1000) + 1)

    def take(self, fd: int) -> None:
        stream = self.streams[fd]
        try:
            data = os.read(fd, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self.poller.unregister(fd)
            os.close(fd)
            del self.streams[fd]
            return
        # A full pipe (64 KiB): the command prints faster than we read.
        if len(data) == 1 << 16:
            widen_pipe(fd)
        head = stream.feed(data)
        if head:
            self.listener.send(frame(OUT if stream is self.out else ERR, self.request, head))

    def handle_signals(self) -> None:
        if signal.SIGTERM in os.read(self.wakeup, 512) and self.folder.asked_to_stop():
            self.stop("stopped")
        self.collect()

    def collect(self) -> None:
        self.childless = collect_children(self.note_end)

    def note_end(self, pid: int, status: int) -> None:
        if pid == self.main:
            self.status, self.ended_at = status, time.monotonic()

    def handle_outpost(self) -> None:
        frames = self.feed.take()
        if frames is None:
            self.poller.unregister(self.feed.fd)
            if self.input and not self.input.is_whole and not self.input.is_closed:
                # The rest of the input cannot come any more, and its end would look like a whole one.
                self.stop("stopped")
        else:
            self.handle(frames)

    def handle(self, frames: "list[tuple[int, int, bytes]]") -> None:
        if self.is_cancelled(frames):
            self.stop("stopped")
        parts = [body for kind, request, body in frames if kind == INPUT and request == self.request]
        if self.input and parts and not self.input.is_closed:
            for part in parts:
                self.input.add(part)
            self.poller.register(self.input.fd, select.POLLOUT)
            self.feed_command(self.input)

    def feed_command(self, given: RunInput) -> None:
        """Give the command what it reads of its input, and tell the near side, which then sends more."""
        if given.is_closed:
            return
        fd = given.fd
        if given.write():
            state = {"bytes": given.taken, "closed": given.is_closed}
            self.listener.send(json_frame(TAKEN, self.request, state))
        if given.is_closed or not given.waiting:
            self.unregister(fd)

    def unregister(self, fd: int) -> None:
        """Poll a descriptor no longer, which may have been closed or left out in this round already."""
        with contextlib.suppress(KeyError):
            self.poller.unregister(fd)

    def is_cancelled(self, frames: "list[tuple[int, int, bytes]]") -> bool:
        return any(kind == CANCEL and request == self.request for kind, request, _ in frames)

    def stop(self, ending: str) -> None:
        if self.ending == "exited" and self.status is None:
            self.ending = ending
            self.kill_at = time.monotonic() + GRACE_S
            self.strike(signal.SIGTERM)
            self.strike(signal.SIGCONT)

    def press(self, now: float) -> None:
        """After the grace, kill what is left, again in every step: the tree may still be growing."""
        if self.ending != "exited" and now >= self.kill_at:
            self.strike(signal.SIGKILL)

    def strike(self, number: int) -> None:
        strike(self.family(), number)
        if self.root:
            self.root.strike(number)

    def family(self) -> "list[int]":
        """All descendants of the command. A subreaper without children has none, which saves reading /proc."""
        return [] if self.childless and PRCTL is not None else descendants(os.getpid(), self.main)

    def is_alone(self) -> bool:
        """Whether no process of the command is left, not even an uncollected one: those count against a limit, too."""
        return self.childless if PRCTL is not None else not self.family()

    def beat(self, now: float) -> None:
        total = self.out.total + self.err.total
        if now - self.beaten[0] >= BEAT_S:
            if total != self.beaten[1]:
                line = (self.out.tail[-400:] or self.err.tail[-400:]).decode("utf-8", "replace")
                value: "RunBeat" = {"bytes": total, "line": line}
                self.listener.send(json_frame(BEAT, self.request, value))
            self.beaten = (now, total)

    def is_over(self) -> bool:
        now = time.monotonic()
        if self.ending != "exited":
            return (self.status is not None and self.is_alone()) or now > self.kill_at + KILL_S
        return self.status is not None and (not self.streams or now > self.ended_at + DRAIN_S)

    def finish(self) -> None:
        for fd in list(self.streams):
            # A process that the command left behind may print for ever: read what is there, within a bound.
            for _ in range(64):
                if fd not in self.streams or not select.select([fd], [], [], 0)[0]:
                    break
                self.take(fd)
        end = self.describe_end()
        for stream in (self.out, self.err):
            stream.save_tail()
        # On a full disk a caller that is connected still gets the result; one that asks later gets "lost".
        with contextlib.suppress(OSError):
            self.folder.note(end)
        self.out.close()
        self.err.close()
        if self.input:
            self.input.close()
        if self.root:
            self.root.close()
        # Unlocked before the answer, because the near side may send `forget` as soon as it has that.
        self.folder.release()
        frames = frame(OUT_TAIL, self.request, self.out.rest()) + frame(ERR_TAIL, self.request, self.err.rest())
        self.listener.send(frames + json_frame(END, self.request, end))

    def describe_end(self) -> "RunAnswer":
        left = self.family()
        ended = self.ending != "exited"
        exit_code, name = read_status(self.status)
        return {
            "state": "ended",
            "exit": 124 if self.ending == "timed_out" else exit_code,
            "signal": name,
            "ending": self.ending,
            "seconds": round(time.monotonic() - self.begun, 4),
            "out": self.out.total,
            "err": self.err.total,
            "folder": to_text(self.folder.path),
            "survivors": left[:20] if ended else [],
            "left": [] if ended else left[:20],
        }

    def drain(self) -> None:
        """Read and drop what processes left behind by the command print: a closed pipe would kill them."""
        self.listener.finish()
        while self.streams:
            for fd in select.select([self.wakeup, *self.streams], [], [])[0]:
                if fd == self.wakeup:
                    clear(fd)
                    self.collect()
                elif not os.read(fd, 1 << 16):
                    os.close(fd)
                    del self.streams[fd]


def keep(feed: Feed, listener: Listener, here: str) -> None:
    """Run one order after another, until the outpost is gone or a command leaves processes behind."""
    wakeup = hear_signals(signal.SIGCHLD, signal.SIGTERM)
    become_subreaper()
    while listener.fd >= 0:
        try:
            keeper = Keeper(make_folder(), feed, wakeup, listener)
        except OSError as problem:
            refuse_next(feed, listener, NO_FOLDER % problem.strerror)
            return
        listener.send(frame(FREE, 0))
        order = feed.next_order()
        if order is None:
            keeper.folder.remove()
            return
        clear(wakeup)
        keeper.run(dict(order[1], here=here), order[0])
        if keeper.streams or not keeper.childless:
            keeper.drain()
            return
        listener.deliver()


def refuse_next(feed: Feed, listener: Listener, message: str) -> None:
    order = feed.next_order()
    if order is not None:
        listener.send(json_frame(FAIL, order[0], {"reason": "folder", "message": message}))
