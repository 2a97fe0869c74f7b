"""The client of one call: begins a session, or passes an order to its supervisor and what comes back to our output."""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

from .wire import ERR, INTERRUPT, ORDER, OUT, RECORD, frame, split_frames

MYPY = False
if MYPY:
    from typing import Any, Callable

    Record = dict[str, Any]

# How long a supervisor may take to begin, to answer a question, and to end everything that it has started.
BEGIN_S, ANSWER_S, END_S = 20.0, 2.0, 6.0
# A result that took longer, or is larger, is not put behind what was printed: the caller asks for it, and whoever reads
# the output of a call that outlasted its time sees plain text.
LARGEST_RECORD = 24000
SOCKET, LOCK = "socket", "lock"
LOST = "the process that keeps the session was killed, and the session with it"
# That of a busy session is known to the near side: it may come too late for a record behind the output.
EXIT_CODES = {"error": 1, "died": 1, "lost": 1, "timed_out": 124, "interrupted": 130, "busy": 75, "failed": 2}


def main(home: str, order: "Record", send: "Callable[[str, Record], None]") -> None:
    """Carry out one order, and print its record."""
    try:
        record = VERBS[order["verb"]](home, order)
    except OSError as problem:
        record = {"state": "failed", "why": str(problem)}
    if record is not None:
        send(order["word"], record)
        sys.exit(EXIT_CODES.get(record["state"], 0))


def begin(home: str, order: "Record") -> "Record":
    """Start a session's supervisor, unless there is one."""
    folder = os.path.join(home, "s-" + order["session"])
    os.makedirs(folder, 0o700, exist_ok=True)
    lock = os.open(os.path.join(folder, LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return {"state": "there"}
    ready, ready_end = os.pipe()
    if not os.fork():
        try:
            os.close(ready)
            detach(ready_end, lock)
            from .supervisor import keep

            keep(folder, order["session"], lock, ready_end)
        finally:
            os._exit(1)
    os.close(ready_end)
    reply = os.read(ready, 1000) if select.select([ready], [], [], BEGIN_S)[0] else b""
    return {"state": "begun"} if reply == b"ready" else {"state": "failed", "why": reply.decode() or "it did not begin"}


def detach(*kept: int) -> None:
    """Leave the run that started us: its session, its pipes, and its family of processes."""
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    # Descriptors of whoever started this run are not ours to keep open.
    first = 3
    for fd in sorted(kept) + [256]:
        os.closerange(first, fd)
        first = fd + 1
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def connect(folder: str, seconds: "float | None" = ANSWER_S) -> socket.socket:
    """A connection to a session's supervisor. Raises OSError. Relative, because a socket's path has to be short."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(seconds)
    # A folder that can be entered need not be one that can be listed.
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        os.chdir(folder)
        line.connect(SOCKET)
    except OSError:
        line.close()
        raise
    finally:
        os.fchdir(here)
        os.close(here)
    return line


def call(home: str, order: "Record") -> "Record | None":
    """Have the session run code, and pass on what it prints; None if the record was told as plain text."""
    folder = os.path.join(home, "s-" + order["session"])
    try:
        line = connect(folder)
    except OSError:
        return {"state": "no_session"}
    begun = time.monotonic()
    passed = ("verb", "id", "code", "timeout", "limit", "python_given", "cwd_given", "cards", "card_mb")
    sent = {name: order[name] for name in passed}
    sent.update(python=os.path.abspath(sys.argv[1]), cwd=os.getcwd(), env=dict(os.environ))
    line.settimeout(None)
    line.sendall(frame(ORDER, json.dumps(sent).encode()))
    interrupt = frame(INTERRUPT)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: interrupted(line, interrupt))
    record, packed = follow(line)
    record = record or {"state": "lost", "why": LOST}
    if order["inline"] and len(packed) <= LARGEST_RECORD and time.monotonic() - begun <= order["inline"]:
        return record
    print_plainly(record)
    sys.exit(EXIT_CODES.get(record["state"], 0))


def interrupted(line: socket.socket, what: bytes) -> None:
    with contextlib.suppress(OSError):
        line.sendall(what)


def follow(line: socket.socket) -> "tuple[Record | None, bytes]":
    """Pass on output until the record comes; without one, the supervisor is gone."""
    buffer = bytearray()
    while True:
        try:
            data = line.recv(1 << 18)
        except socket.timeout:
            return {"state": "failed", "why": "it does not answer"}, b""
        except OSError:
            data = b""
        if not data:
            return None, b""
        buffer += data
        for kind, body in split_frames(buffer):
            if kind == RECORD:
                record = json.loads(body.decode())
                return record, body
            pass_on(1 if kind == OUT else 2 if kind == ERR else -1, body)


def pass_on(fd: int, body: bytes) -> None:
    while body and fd > 0:
        body = body[os.write(fd, body) :]


def print_plainly(record: "Record") -> None:
    """Print a record as a person at a prompt would see it, for readers of a call that outlasted its time."""
    if record["state"] == "busy":
        pass_on(2, b"nothing was run: the session was busy with an earlier call\n")
    for fd, name in ((1, "value"), (2, "traceback"), (2, "why")):
        text = record.get(name, "")
        pass_on(fd, (text + "\n").encode("utf-8", "surrogateescape") if text else b"")
    if record.get("images"):
        pass_on(1, b"[%d images: call run_python with empty code to see them]\n" % len(record["images"]))


def ask(home: str, order: "Record") -> "Record":
    """Ask a session for something that it knows: the result of an earlier call."""
    try:
        line = connect(os.path.join(home, "s-" + order["session"]))
    except OSError:
        return {"state": "no_session"}
    line.sendall(frame(ORDER, json.dumps({"verb": order["verb"], "id": order.get("id", "")}).encode()))
    return follow(line)[0] or {"state": "lost", "why": LOST}


def sessions(home: str, order: "Record") -> "Record":
    """All sessions of this user on this machine."""
    names = [name[2:] for name in sorted(os.listdir(home)) if name.startswith("s-")]
    found: "list[Record]" = []
    for name in names:
        reply = ask(home, {"session": name, "verb": "status"})
        if reply["state"] == "status":
            found.append(reply)
        elif is_kept(os.path.join(home, "s-" + name)):
            found.append({"state": "status", "session": name, "stuck": True})
    return {"state": "sessions", "sessions": found}


def stop(home: str, order: "Record") -> "Record":
    """End a session and all that it has started; one whose supervisor does not answer is killed."""
    folder = os.path.join(home, "s-" + order["session"])
    with contextlib.suppress(OSError):
        line = connect(folder)
        line.settimeout(END_S)
        line.sendall(frame(ORDER, b'{"verb": "stop"}'))
        reply = follow(line)[0]
        if reply and reply["state"] == "stopped":
            return reply
    if not is_kept(folder):
        return {"state": "no_session"}
    kill_keeper(folder)
    return {"state": "stopped", "killed": True}


def is_kept(folder: str) -> bool:
    """Whether a supervisor lives: it holds the lock until it ends, however it ends."""
    from .cards import is_locked

    return is_locked(os.fsencode(folder), os.fsencode(LOCK))


def kill_keeper(folder: str) -> None:
    """Kill a supervisor that does not answer; its interpreter is told by the kernel, and ends, too."""
    from .cards import birth_of

    with open(os.path.join(folder, LOCK)) as file:
        pid, _, birth = file.read().strip().partition(" ")
    if pid.isdigit() and birth == str(birth_of(pid)):
        os.kill(int(pid), signal.SIGKILL)
    for _ in range(100):
        if not is_kept(folder):
            break
        time.sleep(0.02)
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


VERBS = {"begin": begin, "call": call, "result": ask, "list": sessions, "stop": stop}
