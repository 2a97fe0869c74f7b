"""The outpost's main loop: reads requests, starts a process for each, passes on their answers, ends with its line."""

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time
import zlib
from typing import Any

from ...core.orders import Failure
from .family import FORK_S, NO_PROCESS
from .files import WORKER_S, WORKERS, answer
from .keeper import Feed, keep
from .observe import observe
from .output import Listener
from .place import PRUNE_S, RUN_NAME, forget_run, place_id, prune_folder, reason_of, take_pruning
from .wire import CANCEL, END, FAIL, FREE, HELLO, INPUT, PING, PONG, REQUEST, frame, json_frame, split_frames, write_all

# Requests that the loop itself dispatches; the others are in WORKERS, to which programs sent later add theirs.
OWN_VERBS = ("run", "look", "forget", "learn")
# Beyond this many bytes to be sent, no answers are read from our processes.
QUEUE_BYTES = 4 << 20
# Forgotten runs are removed after this idle time; a fork that failed is repeated this often.
IDLE_MS = 50
RETRY_MS = 20
# While a large frame arrives, an unasked PONG is sent this often.
SIGN_S = 1.0
MOST_FORGOTTEN = 200
# How many keepers wait for runs.
MOST_IDLE = 8
COLLECT_S = 0.5


def fork_or_close(*pipes: int) -> int:
    """Fork; if that fails, close the child's pipes: left open, they would use up the limit on descriptors."""
    try:
        return os.fork()
    except OSError:
        for end in pipes:
            os.close(end)
        raise


class Child:
    """A process that the outpost started: a worker answers one request; a keeper, which has a feed, does many runs."""

    def __init__(self, pid: int, request: int, feed: int = -1) -> None:
        self.pid = pid
        self.request = request
        self.run_id = ""
        self.feed = feed
        self.buffer = bytearray()
        self.answered = False

    @property
    def keeps_runs(self) -> bool:
        return self.feed >= 0


class Start:
    """A request that needs a process of its own, and until when starting that is retried."""

    def __init__(self, request: int, order: "Any", head: bytes, raw: bytes) -> None:
        self.request = request
        self.order = order
        self.head = head
        self.raw = raw
        # Frames with input that came before it could be started.
        self.input = b""
        self.give_up_at = time.monotonic() + FORK_S

    def is_run(self, run_id: str) -> bool:
        return bool(self.order["verb"] == "run" and self.order["id"] == run_id)


class Post:
    """The outpost of one line."""

    def __init__(self) -> None:
        self.children: "dict[int, Child]" = {}
        self.inbox = bytearray()
        self.queue = bytearray()
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        self.listening = True
        self.here = place_id()
        self.idle: "list[Child]" = []
        self.forgotten: "list[str]" = []
        # Requests whose fork failed for want of room, and when that is retried; others need not wait for them.
        self.delayed: "list[Start]" = []
        self.retry_at = 0.0
        self.prune_at = 0.0
        self.signed = 0.0
        os.set_blocking(1, False)

    def serve(self) -> None:
        # Tried again for the first run, whose caller is told where it fails.
        with contextlib.suppress(OSError):
            self.hire()
        while True:
            events = self.poller.poll(self.wait_ms())
            if not events or len(self.forgotten) > MOST_FORGOTTEN:
                self.tidy()
            for fd, _ in events:
                if fd == 0:
                    if not self.receive():
                        return
                elif fd in self.children and self.listening:
                    self.relay(fd)
            self.retry(time.monotonic())
            self.flush()

    def wait_ms(self) -> "int | None":
        if self.delayed:
            return RETRY_MS
        return IDLE_MS if self.forgotten else None

    def receive(self) -> bool:
        data = os.read(0, 1 << 18)
        self.inbox += data
        try:
            frames = split_frames(self.inbox)
        except ValueError:
            return False
        for kind, request, body in frames:
            self.handle(kind, request, body)
        self.sign(time.monotonic())
        return bool(data)

    def sign(self, now: float) -> None:
        """Send a PONG unasked while a large frame arrives: a PING behind it could be on its way for minutes."""
        if not self.inbox:
            self.signed = 0.0
        elif not self.signed:
            self.signed = now
        elif now - self.signed > SIGN_S:
            self.signed = now
            self.queue += frame(PONG, 0)

    def handle(self, kind: int, request: int, body: bytes) -> None:
        if kind == PING:
            self.queue += frame(PONG, request)
        elif kind == CANCEL:
            self.cancel(request)
        elif kind == REQUEST:
            self.accept(request, body)
        elif kind == INPUT:
            self.pass_input(request, body)
        else:
            self.fail(request, "unknown", "a frame of kind %d is not known here" % kind)

    def cancel(self, request: int) -> None:
        for start in [start for start in self.delayed if start.request == request]:
            self.delayed.remove(start)
            self.fail(request, "fork", NO_PROCESS % os.strerror(errno.EAGAIN))
        for child in self.children.values():
            if child.request == request and not child.answered:
                # If it has ended, that is noticed when its pipe is read.
                with contextlib.suppress(OSError):
                    if child.keeps_runs:
                        write_all(child.feed, frame(CANCEL, request))
                    else:
                        os.kill(child.pid, signal.SIGTERM)

    def pass_input(self, request: int, body: bytes) -> None:
        """Pass on a part of a run's input. The near side keeps to a window, so a keeper is never far behind."""
        for start in self.delayed:
            if start.request == request:
                start.input += frame(INPUT, request, body)
        for child in self.children.values():
            if child.request == request and child.keeps_runs and not child.answered:
                # If it has ended, that is noticed when its pipe is read.
                with contextlib.suppress(OSError):
                    write_all(child.feed, frame(INPUT, request, body))

    def accept(self, request: int, body: bytes) -> None:
        head, _, raw = body.partition(b"\0")
        try:
            order = json.loads(head.decode())
            verb, run_id = str(order["verb"]), str(order.get("id"))
        except (ValueError, KeyError, TypeError, RecursionError):
            self.fail(request, "unknown", "a request that cannot be read")
            return
        if verb not in OWN_VERBS and verb not in WORKERS:
            self.fail(request, "unknown", "the verb %r is not known here" % verb)
        elif verb in ("run", "look") and not RUN_NAME.match(run_id):
            self.fail(request, "id", "%r is not the name of a run" % run_id)
        elif verb == "forget":
            self.forgotten += filter(RUN_NAME.match, str(order.get("ids")).split())
            self.queue += json_frame(END, request, {})
        elif verb == "learn":
            self.learn(request, raw)
        else:
            start = Start(request, order, head, raw)
            if not self.begin(start):
                self.delayed.append(start)

    def begin(self, start: Start) -> bool:
        """Start the process of a request, or answer why that failed; False if it should be retried."""
        order = start.order
        try:
            if order["verb"] == "run":
                self.hand_over(start, str(order["id"]))
            else:
                self.spawn(str(order["verb"]), order, start.raw, start.request)
        except OSError as problem:
            if problem.errno == errno.EAGAIN and time.monotonic() < start.give_up_at:
                return False
            self.fail(start.request, "fork", NO_PROCESS % problem.strerror)
        return True

    def retry(self, now: float) -> None:
        """Start delayed requests in order, as far as there is room for processes now."""
        if now < self.retry_at:
            return
        while self.delayed and self.begin(self.delayed[0]):
            del self.delayed[0]
        self.retry_at = now + RETRY_MS / 1000.0

    def learn(self, request: int, raw: bytes) -> None:
        """Load a program with further verbs; sent when first needed, so that opening a line does not wait for it."""
        try:
            exec(compile(zlib.decompress(raw), "outpost", "exec"), globals())
        except (zlib.error, SyntaxError, ValueError, ImportError) as problem:
            self.fail(request, "learn", "the further verbs cannot be used here: %s" % problem)
        else:
            self.queue += json_frame(END, request, {})

    def fail(self, request: int, reason: str, message: str) -> None:
        failure: "Failure" = {"reason": reason, "message": message}
        self.queue += json_frame(FAIL, request, failure)

    def spawn(self, verb: str, order: "Any", raw: bytes, request: int) -> None:
        """Start the worker that answers one request."""
        ours, theirs = os.pipe()
        pid = fork_or_close(ours, theirs)
        if not pid:
            try:
                self.leave_the_line()
                listener = Listener(theirs, waits=True)
                if verb == "look":
                    observe(order, request, listener, self.has_begun(str(order["id"])))
                else:
                    answer(WORKERS[verb], order, raw, request, listener)
                listener.finish()
            finally:
                # No exception of the child may continue in the outpost's loop.
                os._exit(0)
        os.close(theirs)
        self.adopt(ours, Child(pid, request))

    def adopt(self, fd: int, child: Child) -> Child:
        self.children[fd] = child
        if self.listening:
            self.poller.register(fd, select.POLLIN)
        return child

    def hire(self) -> Child:
        """Fork a keeper. It serves many runs, because a fork takes as long as the rest of a run's start."""
        orders, feed = os.pipe()
        ours, theirs = os.pipe()
        pid = fork_or_close(orders, feed, ours, theirs)
        if not pid:
            try:
                self.leave_the_line()
                os.close(feed)
                os.close(ours)
                os.setsid()
                keep(Feed(orders), Listener(theirs), self.here)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(theirs)
        return self.adopt(ours, Child(pid, 0, feed))

    def hand_over(self, start: Start, run_id: str) -> None:
        """Give a run to a keeper that waits, or to a new one."""
        self.prune()
        keeper = self.idle.pop() if self.idle else self.hire()
        try:
            self.give(keeper, start, run_id)
        except BrokenPipeError:
            # It was killed while it waited, and has not read the order.
            keeper.request = 0
            self.give(self.hire(), start, run_id)

    def give(self, keeper: Child, start: Start, run_id: str) -> None:
        keeper.request, keeper.run_id, keeper.answered = start.request, run_id, False
        body = start.head + b"\0" + start.raw if start.raw else start.head
        write_all(keeper.feed, frame(REQUEST, start.request, body) + start.input)

    def has_begun(self, run_id: str) -> bool:
        """Whether a keeper of ours has this run, or is about to begin it."""
        kept = any(child.request and child.run_id == run_id and not child.answered for child in self.children.values())
        return kept or any(start.is_run(run_id) for start in self.delayed)

    def dismiss(self, keeper: Child) -> None:
        """Close a keeper's feed; it ends as soon as it has no run."""
        os.close(keeper.feed)
        keeper.feed = -1

    def leave_the_line(self) -> None:
        """Close the line and other children's pipes in a child. sshd keeps a channel open while a process holds it."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        for fd, child in self.children.items():
            os.close(fd)
            if child.keeps_runs:
                os.close(child.feed)

    def relay(self, fd: int) -> None:
        """Pass on the answers of a child, in complete frames only, so that those of many requests never mix."""
        child = self.children[fd]
        data = os.read(fd, 1 << 16)
        child.buffer += data
        for kind, request, body in split_frames(child.buffer):
            if kind == FREE:
                self.rest(child)
            else:
                child.answered = child.answered or kind in (END, FAIL)
                self.queue += frame(kind, request, body)
        if not data:
            self.poller.unregister(fd)
            os.close(fd)
            del self.children[fd]
            self.reap(child)

    def rest(self, keeper: Child) -> None:
        """Note that a keeper is free, unless it has been given another order meanwhile."""
        if keeper.request and not keeper.answered:
            return
        keeper.request = 0
        if len(self.idle) < MOST_IDLE:
            self.idle.append(keeper)
        else:
            self.dismiss(keeper)

    def reap(self, child: Child) -> None:
        if child in self.idle:
            self.idle.remove(child)
        if child.keeps_runs:
            self.dismiss(child)
        if child.request and not child.answered:
            status = os.waitpid(child.pid, 0)[1]
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            reason = "it took longer than %d s" % WORKER_S if late else "its process was killed"
            self.fail(child.request, "killed", "the request was given up on the machine: %s" % reason)
        else:
            # A keeper may still read what processes left behind print; it is collected when it ends.
            DONE.append(child.pid)
        DONE[:] = [pid for pid in DONE if not os.waitpid(pid, os.WNOHANG)[0]]

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.queue:
                del self.queue[: os.write(1, self.queue[: 1 << 17])]
        if self.queue:
            self.poller.register(1, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                self.poller.unregister(1)
        self.listen(len(self.queue) < QUEUE_BYTES)

    def listen(self, wanted: bool) -> None:
        """Stop or resume reading answers of children: a slow line must not fill the memory."""
        if wanted != self.listening:
            self.listening = wanted
            for fd in self.children:
                if wanted:
                    self.poller.register(fd, select.POLLIN)
                else:
                    self.poller.unregister(fd)

    def prune(self) -> None:
        """Remove old runs in a process of its own, from time to time."""
        if time.monotonic() < self.prune_at:
            return
        self.prune_at = time.monotonic() + PRUNE_S
        bases = take_pruning()
        if not bases:
            return
        try:
            pid = os.fork()
        except OSError:
            return
        if not pid:
            try:
                self.leave_the_line()
                for base in bases:
                    prune_folder(base, time.time())
            finally:
                os._exit(0)
        DONE.append(pid)

    def tidy(self) -> None:
        """Remove the folders of runs whose results were fetched, while the line is idle."""
        for run_id in self.forgotten:
            forget_run(run_id)
        self.forgotten.clear()

    def leave(self) -> None:
        self.tidy()
        ending = [child for child in self.children.values() if not child.keeps_runs]
        for child in ending:
            os.kill(child.pid, signal.SIGTERM)
        for keeper in self.idle:
            self.dismiss(keeper)
        collect([child.pid for child in ending + self.idle] + DONE)


def collect(pids: "list[int]") -> None:
    """Wait a moment for these to end: in a container, the first process often does not collect orphans."""
    until = time.monotonic() + COLLECT_S
    while pids and time.monotonic() < until:
        pids = [pid for pid in pids if not is_collected(pid)]
        if pids:
            time.sleep(0.01)


def is_collected(pid: int) -> bool:
    try:
        return bool(os.waitpid(pid, os.WNOHANG)[0])
    except OSError:
        return True


DONE: "list[int]" = []


def describe() -> "dict[str, Any]":
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        # By it the near side knows whether it may send compiled programs.
        "magic": getattr(sys.modules.get("_frozen_importlib_external"), "MAGIC_NUMBER", b"").hex(),
        "system": os.uname().sysname,
        "node": os.uname().nodename,
        "home": os.path.expanduser("~"),
        "time": time.time(),
        "pid": os.getpid(),
        "walls": os.environ.get("REMOTE_SANDBOX_WALLS", ""),
    }


def main(token: str) -> None:
    write_all(1, b"\n" + token.encode() + b"\n")
    try:
        post = Post()
    except OSError as problem:
        write_all(1, json_frame(FAIL, 0, {"message": "no private folder for runs: %s" % reason_of(problem)}))
        return
    post.queue += json_frame(HELLO, 0, dict(describe(), place=post.here))
    post.flush()
    post.prune()
    try:
        post.serve()
    except OSError:
        pass
    finally:
        post.leave()


if __name__ == "__main__":
    main(sys.argv[1])
