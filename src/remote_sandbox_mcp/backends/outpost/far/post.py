"""The outpost itself: reads requests, starts a process for each, passes on what they say, ends with its line."""

import errno
import json
import os
import select
import signal
import sys
import time

from .files import Refused, list_entries, read, search, write
from .keeper import Keeper
from .look import look
from .output import Listener
from .place import forget_run, place_id, prune_runs
from .wire import CANCEL, END, FAIL, HELLO, PING, PONG, REQUEST, frame, json_frame, split_frames, write_all

MYPY = False
if MYPY:
    from typing import Any

QUEUE_BYTES = 4 << 20
WORKER_S = 60
WORKERS = {"read": read, "write": write, "list": list_entries, "search": search}


class Child:
    """A process that answers one request through a pipe."""

    def __init__(self, pid: int, request: int, keeps_a_run: bool) -> None:
        self.pid = pid
        self.request = request
        self.keeps_a_run = keeps_a_run
        self.buffer = bytearray()
        self.answered = False


class Post:
    """One line's outpost."""

    def __init__(self) -> None:
        self.children: "dict[int, Child]" = {}
        self.inbox = bytearray()
        self.queue = bytearray()
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        self.listening = True
        self.here = place_id()
        os.set_blocking(1, False)

    def serve(self) -> None:
        while True:
            for fd, _ in self.poller.poll():
                if fd == 0:
                    if not self.receive():
                        return
                elif fd in self.children and self.listening:
                    self.relay(fd)
            self.flush()

    def receive(self) -> bool:
        data = os.read(0, 1 << 18)
        self.inbox += data
        try:
            frames = split_frames(self.inbox)
        except ValueError:
            return False
        for kind, request, body in frames:
            self.heed(kind, request, body)
        return bool(data)

    def heed(self, kind: int, request: int, body: bytes) -> None:
        if kind == PING:
            self.queue += frame(PONG, request)
        elif kind == CANCEL:
            for child in self.children.values():
                if child.request == request:
                    os.kill(child.pid, signal.SIGTERM)
        elif kind == REQUEST:
            self.accept(request, body)
        else:
            self.fail(request, "unknown", "a frame of kind %d is not known here" % kind)

    def accept(self, request: int, body: bytes) -> None:
        head, _, raw = body.partition(b"\0")
        try:
            order = json.loads(head.decode())
            verb = order["verb"]
        except (ValueError, KeyError, TypeError):
            self.fail(request, "unknown", "a request that cannot be read")
            return
        if verb == "forget":
            self.queue += json_frame(END, request, {"gone": forget_run(str(order["id"]))})
        elif verb in WORKERS or verb in ("run", "look"):
            try:
                self.spawn(verb, order, raw, request)
            except OSError as problem:
                self.fail(request, "fork", "the machine cannot start another process: %s" % problem.strerror)
        else:
            self.fail(request, "unknown", "the verb %r is not known here" % verb)

    def fail(self, request: int, reason: str, message: str) -> None:
        self.queue += json_frame(FAIL, request, {"reason": reason, "message": message})

    def spawn(self, verb: str, order: "dict[str, Any]", raw: bytes, request: int) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            self.become(verb, order, raw, request, theirs)
        os.close(theirs)
        self.children[ours] = Child(pid, request, verb == "run")
        if self.listening:
            self.poller.register(ours, select.POLLIN)

    def become(self, verb: str, order: "dict[str, Any]", raw: bytes, request: int, pipe: int) -> None:
        """In the child: let go of the line, answer, and end; nothing may reach the outpost's own loop."""
        try:
            leave_the_line(self.children)
            listener = Listener(pipe)
            if verb == "run":
                os.setsid()
                Keeper(dict(order, here=self.here), request, listener).run()
            elif verb == "look":
                look(order, request, listener)
            else:
                signal.alarm(WORKER_S)
                answer(WORKERS[verb], order, raw, request, listener)
            listener.finish()
        finally:
            os._exit(0)

    def relay(self, fd: int) -> None:
        """Pass on whole frames only, so that the answers of many requests never mix."""
        child = self.children[fd]
        data = os.read(fd, 1 << 16)
        child.buffer += data
        for kind, request, body in split_frames(child.buffer):
            child.answered = child.answered or kind in (END, FAIL)
            self.queue += frame(kind, request, body)
        if not data:
            self.poller.unregister(fd)
            os.close(fd)
            del self.children[fd]
            self.reap(child)

    def reap(self, child: Child) -> None:
        if not child.answered:
            status = os.waitpid(child.pid, 0)[1]
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            reason = "it took longer than %d s" % WORKER_S if late else "its process was killed"
            self.fail(child.request, "killed", "the request was given up on the machine: %s" % reason)
        else:
            # A keeper may go on to drain what its command left behind; it is collected when it ends.
            DONE.append(child.pid)
        DONE[:] = [pid for pid in DONE if not os.waitpid(pid, os.WNOHANG)[0]]

    def flush(self) -> None:
        try:
            while self.queue:
                del self.queue[: os.write(1, self.queue[: 1 << 17])]
        except BlockingIOError:
            pass
        waiting = bool(self.queue)
        if waiting:
            self.poller.register(1, select.POLLOUT)
        else:
            try:
                self.poller.unregister(1)
            except KeyError:
                pass
        self.listen(len(self.queue) < QUEUE_BYTES)

    def listen(self, wanted: bool) -> None:
        """Stop reading answers while the line is slower than they are."""
        if wanted != self.listening:
            self.listening = wanted
            for fd in self.children:
                if wanted:
                    self.poller.register(fd, select.POLLIN)
                else:
                    self.poller.unregister(fd)

    def leave(self) -> None:
        for child in self.children.values():
            if not child.keeps_a_run:
                os.kill(child.pid, signal.SIGKILL)


DONE: "list[int]" = []


def leave_the_line(children: "dict[int, Child]") -> None:
    """sshd ends a channel when nobody holds its ends any more; a run must not hold them."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    for fd in children:
        os.close(fd)


def answer(work: "Any", order: "dict[str, Any]", raw: bytes, request: int, listener: Listener) -> None:
    try:
        work(order, raw, request, listener)
    except Refused as refusal:
        problem = {"reason": refusal.reason, "message": str(refusal)}
        listener.send(json_frame(FAIL, request, problem))
    except (OSError, ValueError) as trouble:
        reason = errno.errorcode.get(getattr(trouble, "errno", 0) or 0, "EINVAL")
        message = getattr(trouble, "strerror", "") or str(trouble)
        listener.send(json_frame(FAIL, request, {"reason": reason, "message": "%s: %s" % (order["path"], message)}))


def describe() -> "dict[str, Any]":
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "system": os.uname().sysname,
        "node": os.uname().nodename,
        "home": os.path.expanduser("~"),
        "time": time.time(),
        "pid": os.getpid(),
    }


def main(token: str) -> None:
    write_all(1, b"\n" + token.encode() + b"\n")
    try:
        post = Post()
    except OSError as problem:
        write_all(1, json_frame(FAIL, 0, {"message": "no private folder for runs: %s" % problem}))
        return
    post.queue += json_frame(HELLO, 0, dict(describe(), place=post.here))
    post.flush()
    pruning = os.fork()
    if not pruning:
        leave_the_line({})
        try:
            prune_runs()
        finally:
            os._exit(0)
    DONE.append(pruning)
    try:
        post.serve()
    except OSError:
        pass
    finally:
        post.leave()


if __name__ == "__main__":
    main(sys.argv[1])
