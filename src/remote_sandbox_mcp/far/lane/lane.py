"""A lane: the program that answers requests to move files, one after another, or passes them to another machine."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Callable, Mapping

from ...core.orders import BridgeOrder, Nothing
from ..outpost.place import to_path
from ..outpost.wire import (
    BEAT,
    CANCEL,
    DONE,
    END,
    FAIL,
    FORWARD,
    FORWARDED,
    HELLO,
    OUT,
    REQUEST,
    SQUEEZED,
    Inbox,
    frame,
    json_frame,
    write_all,
)
from .follow import AwaitedRun, Following, follow
from .source import Source, Speaker, zstd
from .target import Receiving, Target, expand
from .tree import FAILURES, Refusal, Root, explained, inspect_path, scan

# After this silence all files are closed: a near side that vanished must not hold locks on partial files.
PATIENCE_S = 600.0
# Longer answers are split into frames of this size, far below the largest that a frame may have.
MOST_AT_ONCE = 1 << 20
FROM_SOURCE = ("send", "part", "check", "mark", "index", "digests", "texts", "blocks")
LARGE = ("begin", "join", "commit", "leave", "index_old", "partial_blocks")
TO_TARGET = ("clear", "delete", "finish", "touch", "tidy") + LARGE
# All that a lane does: the table of orders in docs/protocol.md is compared with it.
VERBS = ("look", "scan", "follow", "rest", "bridge", "receive") + FROM_SOURCE + TO_TARGET


class Bridge:
    """A direct connection to a lane on another machine: an ssh process, with this machine's own configuration."""

    def __init__(self, argv: "list[str]", program: bytes) -> None:
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=null, bufsize=0)
        assert self.process.stdin
        assert self.process.stdout
        self.into, self.out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.send(program)

    def send(self, data: bytes) -> None:
        # That it ended is noticed when its output is read.
        with contextlib.suppress(BrokenPipeError):
            write_all(self.into, data)

    def pass_back(self) -> bool:
        """Pass on bytes from there; False at the end of the stream, which an empty frame reports."""
        data = os.read(self.out, 1 << 16)
        write_all(1, frame(FORWARDED, 0, data))
        return bool(data)

    def close(self) -> None:
        # The end of the block closes its pipes, and waits for it.
        with self.process:
            self.process.kill()


class Lane:
    """Answers the requests of the near side in their order."""

    def __init__(self, may_bridge: bool = False) -> None:
        self.may_bridge = may_bridge
        self.bridge: "Bridge | None" = None
        self.sources: "dict[str, Source]" = {}
        self.targets: "dict[str, Target]" = {}
        self.receiving: "dict[int, Receiving]" = {}
        self.followed: "dict[str, Following]" = {}
        self.awaited: "list[AwaitedRun]" = []
        self.heard = time.monotonic()
        # Files are made with the exact mode that they should have. A top folder, whose mode no entry gives, is made
        # with the user's umask.
        self.umask = os.umask(0)

    def serve(self) -> None:
        inbox = Inbox(0)
        while self.wait() and inbox.fill():
            for kind, request, body in inbox.frames():
                self.handle(kind, request, body)

    def wait(self) -> bool:
        """Wait for bytes from the near side; meanwhile do what needs none."""
        while True:
            ready = self.poll()
            if self.bridge and self.bridge.out in ready and not self.bridge.pass_back():
                self.bridge.close()
                self.bridge = None
            self.answer_awaited(ready)
            if 0 in ready:
                self.heard = time.monotonic()
                return True
            if not ready:
                self.use_idle_moment(time.monotonic())

    def poll(self) -> "list[int]":
        """The descriptors that can be read, of the near side, of a bridge, and of what watches runs; [] in time."""
        poller = select.poll()
        poller.register(0, select.POLLIN)
        if self.bridge:
            poller.register(self.bridge.out, select.POLLIN)
        for awaited in self.awaited:
            if awaited.fd >= 0:
                poller.register(awaited.fd, select.POLLIN)
        now = time.monotonic()
        pauses = [awaited.pause_s for awaited in self.awaited]
        pauses += [following.due_s(now) for following in self.followed.values()]
        return [fd for fd, _ in poller.poll(1000.0 * min(pauses + [PATIENCE_S]))]

    def use_idle_moment(self, now: float) -> None:
        if now - self.heard > PATIENCE_S:
            self.heard = now
            self.let_go()
        for following in self.followed.values():
            if following.due_s(now) <= 0:
                following.read_a_slice()

    def answer_awaited(self, ready: "list[int]") -> None:
        """Answer the requests that wait for the end of a run."""
        for awaited in list(self.awaited):
            if awaited.fd in ready or not ready:
                if awaited.is_over():
                    self.answer_now(awaited)
                elif awaited.is_beat_due():
                    write_all(1, frame(BEAT, awaited.request))

    def answer_now(self, awaited: AwaitedRun) -> None:
        self.awaited.remove(awaited)
        self.attempt(
            awaited.request, lambda: dict(self.follow(awaited.request, awaited.order), ended=not awaited.is_unknown)
        )
        # After the answer: the kernel may take ten milliseconds to close what watches the run.
        awaited.close()

    def let_go(self) -> "Nothing":
        """Close all trees, so that the next transfer opens them anew and sees what is there then."""
        for source in self.sources.values():
            source.close()
        for target in self.targets.values():
            target.close()
        self.sources.clear()
        self.targets.clear()
        for following in self.followed.values():
            following.rest()
        for receiving in self.receiving.values():
            # Its descriptors are closed, and their numbers may be reused for other folders.
            receiving.failure = Refusal("let_go", "the other side was silent for too long")
        return {}

    def handle(self, kind: int, request: int, body: memoryview) -> None:
        self.attempt(request, lambda: self.dispatch(kind, request, body))

    def dispatch(self, kind: int, request: int, body: memoryview) -> "Mapping[str, object] | None":
        if kind == REQUEST:
            return self.answer(request, body.tobytes())
        if kind == DONE and request in self.receiving:
            return self.receiving.pop(request).result()
        if kind == FORWARD:
            if self.bridge:
                self.bridge.send(body.tobytes())
        elif kind == CANCEL:
            # The near side knows that the run has ended.
            for awaited in [awaited for awaited in self.awaited if awaited.request == request]:
                self.answer_now(awaited)
        else:
            self.take(kind, request, body)
        return None

    def attempt(self, request: int, work: "Callable[[], Mapping[str, object] | None]") -> None:
        """Do something for a request, and say its END, if it is over, or why it failed."""
        try:
            end = work()
        except FAILURES as problem:
            self.fail(request, *explained(problem, "a request that cannot be understood (%r)" % problem))
        else:
            if end is not None:
                write_all(1, json_frame(END, request, end))

    def fail(self, request: int, reason: str, message: str) -> None:
        self.receiving.pop(request, None)
        write_all(1, json_frame(FAIL, request, {"reason": reason, "message": message}))

    def take(self, kind: int, request: int, body: memoryview) -> None:
        """Take a frame of a request that receives; frames of one that has failed are dropped."""
        receiving = self.receiving.get(request)
        if receiving is None:
            return
        if kind == SQUEEZED:
            receiving.take(*expand(body))
        else:
            receiving.take(kind, body)

    def answer(self, request: int, body: bytes) -> "Mapping[str, object] | None":
        """Do a request; returns the END of its answer, None if that comes later. Raises ValueError for another verb."""
        head, _, raw = body.partition(b"\0")
        order = json.loads(head.decode())
        verb = str(order["verb"])
        if verb not in VERBS:
            raise ValueError("the verb %r is not known here" % verb)
        if verb in FROM_SOURCE:
            return self.ask_source(verb, order, raw, request)
        if verb in TO_TARGET:
            return self.ask_target(verb, order, raw, request)
        return self.do_itself(verb, order, raw, request)

    def do_itself(self, verb: str, order: "Any", raw: bytes, request: int) -> "Mapping[str, object] | None":
        if verb == "look":
            return inspect_path(order)
        if verb == "rest":
            return self.let_go()
        if verb == "bridge":
            return self.build_bridge(order, raw)
        if verb == "scan":
            return scan(order, lambda data: write_all(1, frame(OUT, request, data)))
        if verb == "follow":
            return self.follow_when_due(request, order)
        if verb == "receive":
            self.receiving[request] = Receiving(self.target(order), order, raw)
        return None

    def follow_when_due(self, request: int, order: "Any") -> "Mapping[str, object] | None":
        """Look at a tree at once, or after the end of the run that the order names."""
        if not order.get("after"):
            return self.follow(request, order)
        awaited = AwaitedRun(request, order)
        self.awaited.append(awaited)
        if awaited.is_over():
            self.answer_now(awaited)
        return None

    def follow(self, request: int, order: "Any") -> "Mapping[str, object]":
        return follow(self.followed, order, lambda data: write_all(1, frame(OUT, request, data)))

    def build_bridge(self, order: "BridgeOrder", raw: bytes) -> "Nothing":
        if not self.may_bridge or self.bridge:
            raise ValueError("there can be no bridge from here")
        self.bridge = Bridge([str(word) for word in order["argv"]], raw)
        return {}

    def ask_source(self, verb: str, order: "Any", raw: bytes, request: int) -> "Mapping[str, object]":
        source = self.source(order)
        squeeze = str(order.get("squeeze") or "")
        if order.get("bridged"):
            if not self.bridge:
                raise Refusal("bridge", "the direct line to the other machine was cut")
            speaker = Speaker(request, squeeze, self.bridge.send, self.bridge.into)
        else:
            speaker = Speaker(request, squeeze, send, 1)
        if verb == "send":
            return source.send_whole(raw, speaker)
        if verb == "part":
            return source.send_part(order, raw, speaker)
        if verb == "check":
            return source.check_large(raw)
        if verb == "index":
            return source.index(raw, request, send)
        send(frame(OUT, request, source.blocks(order, raw) if verb == "blocks" else getattr(source, verb)(raw)))
        return {}

    def ask_target(self, verb: str, order: "Any", raw: bytes, request: int) -> "Mapping[str, object]":
        target = self.target(order)
        if verb in ("index_old", "partial_blocks"):
            answer: bytes = getattr(target.large, verb)(order, raw)
            for at in range(0, len(answer), MOST_AT_ONCE):
                send(frame(OUT, request, answer[at : at + MOST_AT_ONCE]))
            return {}
        end: "Mapping[str, object]" = getattr(target.large if verb in LARGE else target, verb)(order, raw)
        return end

    def source(self, order: "Any") -> Source:
        root = str(order["root"])
        if root not in self.sources:
            self.sources[root] = Source(open_root(order["root"]))
        return self.sources[root]

    def target(self, order: "Any") -> Target:
        """The tree to write to; its top folder is made if it is missing."""
        root = str(order["root"])
        if root not in self.targets:
            os.umask(self.umask)
            try:
                self.targets[root] = Target(open_root(order["root"], make=True))
            finally:
                os.umask(0)
        return self.targets[root]


def open_root(named: "Any", make: bool = False) -> Root:
    """Open a tree by a path; or by a path without links and the ids of its folders, which must be the same still."""
    if isinstance(named, list):
        path, ids = named
        return Root(to_path(str(path)), ids, make)
    path = to_path(str(named))
    if make:
        os.makedirs(path, exist_ok=True)
    return Root(path)


def send(data: bytes) -> None:
    write_all(1, data)


def main(token: str, may_bridge: bool) -> None:
    squeezers = ["zstd", "zlib"] if zstd() else ["zlib"]
    write_all(1, b"\n" + token.encode() + b"\n")
    hello = {"python": "%d.%d" % sys.version_info[:2], "node": os.uname().nodename, "squeezers": squeezers}
    write_all(1, json_frame(HELLO, 0, hello))
    # It ends where the connection is cut, or sends bytes that are no frames.
    with contextlib.suppress(OSError, ValueError):
        Lane(may_bridge).serve()


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
