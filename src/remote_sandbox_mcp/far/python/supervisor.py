"""A session's supervisor: keeps one interpreter, has it run one call after another, and outlives all of them."""

import collections
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import time

from .calls import Caller, CodeCall
from .cards import birth_of
from .client import SOCKET
from .family import collect_children, descendants, hear_signals, strike
from .gpu import GpuMemory
from .interpreter import DONE, HELLO, IMAGE, NO_TOKEN, Broken, Interpreter, describe_end, guard_supervisor
from .wire import ERR, INTERRUPT, ORDER, OUT

MYPY = False
if MYPY:
    from typing import Any, Callable

    from .cards import Leases

# Without use, a session ends after this time.
IDLE_S = 4 * 3600.0
IDLE_VARIABLE = "REMOTE_SANDBOX_PYTHON_IDLE_S"
# Results that are remembered by the id of their call, so that a repeated call runs nothing twice.
REMEMBERED = 16
# After an interrupt: when the interpreter's own children are interrupted as well, and when the caller is answered
# though the code goes on.
INSIST_S, GIVE_UP_S = 0.7, 1.5
# Between TERM and KILL, and for how long KILL is repeated.
GRACE_S, KILL_S = 2.0, 2.0
# How often it is checked that the session can still be reached.
CHECK_S = 5.0
# Of what is printed between calls, the end is kept.
LOG_BYTES = 64 << 10
# As much is waiting for a slow caller before the interpreter is made to wait; as much is taken after the end of a call.
BACKLOG_BYTES, REST_BYTES = 1 << 20, 4 << 20
BROKEN = "its code wrote to the pipe on which the interpreter itself says what came of a call, so it was ended"
CLOSED = "its code closed the pipe on which the interpreter itself says what came of a call, so it was ended"


class Log:
    """Output that was printed while no call was there to take it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > LOG_BYTES:
            self.dropped += len(self.data) - LOG_BYTES
            del self.data[: len(self.data) - LOG_BYTES]

    def take(self) -> "dict[str, Any]":
        """Take the kept output, for the next call's record."""
        if not self.data:
            return {}
        fields = {"earlier": bytes(self.data).decode("utf-8", "replace"), "earlier_dropped": self.dropped}
        self.data.clear()
        self.dropped = 0
        return fields


class Supervisor:
    """The loop of one session. Everything that it waits for is a descriptor or a time."""

    def __init__(self, folder: str, name: str, listener: socket.socket) -> None:
        self.folder = folder
        self.name = name
        self.listener = listener
        self.inode = os.stat(SOCKET).st_ino
        self.selector = selectors.DefaultSelector()
        self.interpreter: "Interpreter | None" = None
        self.current: "CodeCall | None" = None
        self.queue: "list[CodeCall]" = []
        self.results: "collections.OrderedDict[str, dict[str, Any]]" = collections.OrderedDict()
        self.last_token = NO_TOKEN
        self.log = Log()
        self.gpu = GpuMemory()
        # Held until this process ends: an interpreter that begins after another one has the same cards.
        self.leases: "Leases | None" = None
        self.number = 0
        self.callers: "set[Caller]" = set()
        self.begun = time.time()
        self.used = self.checked_at = time.monotonic()
        self.is_over = self.is_held = False
        self.idle_s = idle_seconds()
        self.watch(listener.fileno(), self.accept)
        self.watch(hear_signals(signal.SIGCHLD), self.collect)

    def watch(self, fd: int, take: "Callable[[int], Any]") -> None:
        self.selector.register(fd, selectors.EVENT_READ, take)

    def wait_for_room(self, fd: int, is_needed: bool) -> None:
        """Wake up when more can be written, where something waits for that."""
        key = self.selector.get_key(fd)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_needed else 0)
        if key.events != events:
            self.selector.modify(fd, events, key.data)

    def serve(self) -> None:
        while not self.is_over:
            for key, _ in self.selector.select(self.wait_s()):
                # An earlier event of the same round may have closed it.
                if key.fd in self.selector.get_map():
                    key.data(key.fd)
            self.tick(time.monotonic())

    def wait_s(self) -> float:
        """Until something has to be done without being asked for."""
        # An interrupt is looked after in short steps.
        if self.current and self.current.interrupted:
            return 0.05
        times = [call.wait_until for call in self.queue]
        if self.current and not self.current.answered:
            times.append(self.current.deadline)
        return min([CHECK_S] + [max(0.0, one - time.monotonic()) for one in times])

    def tick(self, now: float) -> None:
        self.press(now)
        for call in [call for call in self.queue if now >= call.wait_until]:
            self.queue.remove(call)
            call.answer(dict(self.describe_busy(), state="busy"))
        for caller in tuple(self.callers):
            caller.flush()
            if caller.is_gone:
                self.drop(caller)
            else:
                self.wait_for_room(caller.line.fileno(), bool(caller.outbox))
        if self.interpreter:
            self.hold_output(self.interpreter)
            self.gpu.tick(now, self.interpreter, is_running=self.current is not None)
        if self.leases:
            self.leases.keep()
        self.begin_next()
        if now >= self.checked_at + CHECK_S:
            self.checked_at = now
            self.end_if_unused(now)

    def end_if_unused(self, now: float) -> None:
        """End after a long time without use, or when the folder is gone and nobody can reach the session any more."""
        try:
            is_reachable = os.stat(os.path.join(self.folder, SOCKET)).st_ino == self.inode
        except OSError:
            is_reachable = False
        if not is_reachable or (not self.current and not self.queue and now >= self.used + self.idle_s):
            self.end()

    # Callers

    def accept(self, fd: int) -> None:
        try:
            line, _ = self.listener.accept()
        except OSError:
            return
        if not is_ours(line):
            line.close()
            return
        caller = Caller(line)
        self.callers.add(caller)
        self.watch(line.fileno(), lambda _: self.hear(caller))

    def hear(self, caller: Caller) -> None:
        for kind, body in caller.take():
            if kind == ORDER:
                self.handle(caller, body)
            elif kind == INTERRUPT:
                if self.current and self.current.caller is caller:
                    self.current.interrupt("interrupted")
                for call in [call for call in self.queue if call.caller is caller]:
                    self.queue.remove(call)
                    call.answer({"state": "interrupted", "why": "it had not begun"})
        if caller.is_gone:
            self.drop(caller)

    def handle(self, caller: Caller, body: bytes) -> None:
        try:
            order = json.loads(body.decode())
            verb = order["verb"]
            if verb == "call":
                self.take_call(CodeCall(order, caller))
            elif verb == "result":
                caller.report(self.results.get(order["id"]) or self.last_result(order["id"]))
            elif verb == "status":
                caller.report(dict(self.status(), state="status"))
            elif verb == "stop":
                self.end(caller)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not one of ours: this user's own processes may connect, too.
            caller.is_gone = True

    def drop(self, caller: Caller) -> None:
        """Forget a caller that has gone; its code is interrupted, because nobody waits for it."""
        self.selector.unregister(caller.line.fileno())
        caller.close()
        self.callers.discard(caller)
        self.queue = [call for call in self.queue if call.caller is not caller]
        if self.current and self.current.caller is caller:
            self.current.caller = None
            self.current.interrupt("interrupted")

    # Calls

    def take_call(self, call: CodeCall) -> None:
        """A new call waits for its turn; one that is known already gets the result that it has, or will have."""
        result = self.results.get(call.id)
        if result:
            call.answer(result)
            return
        for same in self.queue + ([self.current] if self.current else []):
            if same.id == call.id:
                same.caller, call.caller = call.caller, None
                return
        if self.interpreter and call.python_given and self.interpreter.is_another(call.python):
            call.answer({"state": "other_python", "python": self.interpreter.python})
            return
        if self.interpreter and call.cards > len(self.cards):
            call.answer({"state": "fewer_cards", "cards": self.cards})
            return
        self.queue.append(call)
        self.begin_next()

    def begin_next(self) -> None:
        if self.current or not self.queue:
            return
        call = self.queue.pop(0)
        if not self.interpreter and not self.start_interpreter(call):
            return
        assert self.interpreter
        self.number += 1
        self.current = call
        call.begin(self.interpreter.folder(), self.log.take())
        self.interpreter.order(call.code, call.token, self.number, call.limit)

    def start_interpreter(self, call: CodeCall) -> bool:
        """Start an interpreter in the folder and with the variables of the call that needs it."""
        try:
            if not self.has_cards(call):
                return False
            variables = self.leases.variables if self.leases else {}
            environment = dict(call.environment, **{name.decode(): text.decode() for name, text in variables.items()})
            self.interpreter = Interpreter(call.python, call.folder, environment)
        except (OSError, ValueError) as problem:
            call.answer({"state": "failed", "why": "%s cannot be started: %s" % (call.python, problem)})
            return False
        call.is_new = True
        for fd in self.interpreter.outputs:
            self.watch(fd, self.take_output)
        self.watch(self.interpreter.results, self.take_results)
        return True

    @property
    def cards(self) -> "list[str]":
        return [card.uuid for card in self.leases.cards] if self.leases else []

    def has_cards(self, call: CodeCall) -> bool:
        """Lease the cards that the first call of an interpreter asks for; without them nothing is begun."""
        if call.cards <= len(self.cards):
            return True
        # Most sessions want no card.
        from .cards import Leases, NoCards, lease_record

        # Those of an interpreter that has ended are not enough.
        if self.leases:
            self.leases.drop()
        self.leases = Leases()
        try:
            self.leases.take(call.cards, call.card_mb, lease_record("python-" + self.name, 0.0))
        except NoCards as refusal:
            call.answer({"state": "no_cards", "why": str(refusal)})
        return bool(self.leases.cards)

    def press(self, now: float) -> None:
        """Interrupt what has run too long; answer the caller even where the code does not end."""
        call = self.current
        if call is None or self.interpreter is None:
            return
        if now >= call.deadline and not call.answered:
            call.interrupt("timed_out")
        if not call.interrupted or call.answered:
            return
        if call.strikes == 0:
            call.strikes = 1
            strike([self.interpreter.pid], signal.SIGINT)
        elif call.strikes == 1 and now >= call.interrupted_at + INSIST_S:
            # Code that waits for a program (os.system) does not hear of an interrupt before that ends.
            call.strikes = 2
            strike([self.interpreter.pid] + descendants(self.interpreter.pid), signal.SIGINT)
        elif now >= call.interrupted_at + GIVE_UP_S:
            self.report(call, {"state": call.interrupted, "goes_on": True})

    def take_output(self, fd: int) -> int:
        """Pass on what was printed; returns how much that was."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        elif self.current and not self.current.answered:
            self.current.print(OUT if self.interpreter and fd == self.interpreter.out else ERR, data)
        else:
            self.log.add(data)
        return len(data)

    def hold_output(self, interpreter: Interpreter) -> None:
        """Let the interpreter wait while its caller does not read; send it what is left of an order."""
        watched = self.selector.get_map()
        is_slow = bool(self.current and self.current.backlog > BACKLOG_BYTES)
        for fd in interpreter.outputs if is_slow != self.is_held else ():
            if is_slow and fd in watched:
                self.selector.unregister(fd)
            elif not is_slow and fd not in watched:
                self.watch(fd, self.take_output)
        self.is_held = is_slow
        interpreter.flush()
        if interpreter.outbox and interpreter.orders not in watched:
            self.selector.register(interpreter.orders, selectors.EVENT_WRITE, lambda _: None)
        elif not interpreter.outbox and interpreter.orders in watched:
            self.selector.unregister(interpreter.orders)

    def take_results(self, fd: int) -> None:
        assert self.interpreter
        try:
            for kind, token, body in self.interpreter.frames():
                self.take_result(kind, token, body)
        except BlockingIOError:
            pass
        except Broken:
            self.lose(BROKEN)
        except (EOFError, OSError):
            # It has ended, or its code has closed the pipe: then it can never answer again.
            self.lose(CLOSED)

    def take_result(self, kind: bytes, token: bytes, body: bytes) -> None:
        """Raises Broken for what the interpreter itself would not say."""
        call = self.current
        if kind == HELLO and token == NO_TOKEN and self.interpreter and not self.interpreter.version:
            self.interpreter.greet(body)
        elif call is None or token != call.token:
            # A thread may show an image after the end of its call.
            if token != self.last_token or kind != IMAGE:
                raise Broken
        elif kind == DONE:
            self.take_rest()
            self.report(call, {"state": call.state})
            self.end_call()
        else:
            call.note(kind, body, self.folder)

    def take_rest(self) -> None:
        """Take the output that was printed before the end of a call: it is in the pipes by now."""
        assert self.interpreter
        for fd in self.interpreter.outputs:
            taken, count = 0, 1
            while count and taken < REST_BYTES and (fd in self.selector.get_map() or self.is_held):
                count = self.take_output(fd)
                taken += count

    def end_call(self) -> None:
        assert self.current
        self.last_token, self.current = self.current.token, None
        self.used = time.monotonic()

    def report(self, call: CodeCall, fields: "dict[str, Any]") -> None:
        """Answer a call, and remember the answer."""
        interpreter = self.interpreter
        if interpreter:
            fields = dict(fields, python=interpreter.python, version=interpreter.version, memory=interpreter.memory())
            fields.update(self.gpu.usage(call, interpreter), cards=self.cards)
        record = call.record(fields)
        if call.id:
            self.results[call.id] = record
            self.results.move_to_end(call.id)
        while len(self.results) > REMEMBERED:
            self.forget(self.results.popitem(last=False)[1])
        call.answer(record)

    def forget(self, record: "dict[str, Any]") -> None:
        for image in record.get("images", ()):
            with contextlib.suppress(OSError):
                os.unlink(image["path"])

    def last_result(self, call_id: str) -> "dict[str, Any]":
        """Without an id: the result of the newest call."""
        if call_id or self.current:
            return dict(self.describe_busy(), state="busy") if self.current else {"state": "unknown"}
        return next(reversed(self.results.values()), {"state": "unknown"}) if self.results else {"state": "unknown"}

    # The interpreter's end

    def collect(self, fd: int) -> None:
        """Collect children that have ended; one of them may be the interpreter."""
        with contextlib.suppress(BlockingIOError):
            os.read(fd, 512)
        collect_children(self.note_end)

    def note_end(self, pid: int, status: int) -> None:
        self.gpu.ended(pid)
        if self.interpreter and pid == self.interpreter.pid:
            self.mourn(describe_end(status))

    def lose(self, why: str) -> None:
        """End an interpreter that cannot say any more what comes of its code."""
        assert self.interpreter
        pid = self.interpreter.pid
        # If it is about to end anyway, its own status is the truth.
        status = wait_for(pid, 0.3)
        if status is None:
            strike([pid], signal.SIGKILL)
            wait_for(pid, KILL_S)
        self.mourn(describe_end(status) if status is not None else {"why": why})

    def mourn(self, end: "dict[str, Any]") -> None:
        """The interpreter has ended: the call that it worked on is told, and the next call begins another one."""
        interpreter, call = self.interpreter, self.current
        assert interpreter
        self.take_rest()
        if call:
            self.report(call, dict(end, state="died"))
            self.end_call()
        else:
            self.log.add(("[the interpreter has ended between two calls: %s]\n" % json.dumps(end)).encode())
        for fd in (interpreter.out, interpreter.err, interpreter.results, interpreter.orders):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        interpreter.close()
        self.interpreter = None

    def end(self, asked: "Caller | None" = None) -> None:
        """End the session with all that it has started, and tell those who wait."""
        for call in self.queue + ([self.current] if self.current else []):
            call.answer(call.record({"state": "died", "why": "the session was stopped"}))
        left = end_all(GRACE_S, KILL_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        if asked:
            asked.report({"state": "stopped", "left": left[:20]})
        for caller in self.callers:
            caller.deliver(1.0)
        # Nothing is left to do.
        self.queue, self.current, self.is_over = [], None, True

    # What others are told

    def describe_busy(self) -> "dict[str, Any]":
        call = self.current
        return {"busy_s": round(time.monotonic() - call.begun, 1), "busy_with": call.first_line} if call else {}

    def status(self) -> "dict[str, Any]":
        fields = {"session": self.name, "begun": self.begun, "unused_s": round(time.monotonic() - self.used, 1)}
        fields.update(self.describe_busy())
        if self.interpreter:
            fields.update(python=self.interpreter.python, version=self.interpreter.version)
            fields.update(memory=self.interpreter.memory(), folder=self.interpreter.folder())
        return fields


def wait_for(pid: int, seconds: float) -> "int | None":
    """The status of a child that ends within that time."""
    until = time.monotonic() + seconds
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.01)


def end_all(grace_s: float, kill_s: float) -> "list[int]":
    """TERM, then KILL, for all that descends from this process; returns what is still alive."""
    begun = time.monotonic()
    number = signal.SIGTERM
    while time.monotonic() < begun + grace_s + kill_s:
        left = descendants(os.getpid())
        if not left:
            break
        if number == signal.SIGTERM:
            strike(left, signal.SIGTERM)
            number = signal.SIGKILL
        elif time.monotonic() >= begun + grace_s:
            strike(left, signal.SIGKILL)
        time.sleep(0.02)
        collect_children(lambda pid, status: None)
    return descendants(os.getpid())


def idle_seconds() -> float:
    """Return the idle time from the machine's variables, or the usual one."""
    try:
        return max(1.0, float(os.environ[IDLE_VARIABLE]))
    except (KeyError, ValueError):
        return IDLE_S


def is_ours(line: socket.socket) -> bool:
    """Whether the other end is a process of this user, or root's. The folder is closed to others as well."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return uid in (0, os.getuid())


def keep(folder: str, name: str, lock: int, ready: int) -> None:
    """The supervisor's process, from its beginning to its end. `lock` is held until then."""
    try:
        os.ftruncate(lock, 0)
        os.write(lock, ("%d %d" % (os.getpid(), birth_of("self"))).encode())
        os.chdir(folder)
        os.umask(0o077)
        if os.path.lexists(SOCKET):
            os.unlink(SOCKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(SOCKET)
        listener.listen(16)
        listener.setblocking(False)
        # After the socket is bound: where a supervisor makes such calls, it could not read a process that is closed.
        guard_supervisor()
        supervisor = Supervisor(folder, name, listener)
    except OSError as problem:
        os.write(ready, str(problem).encode()[:900])
        return
    os.write(ready, b"ready")
    os.close(ready)
    try:
        supervisor.serve()
    finally:
        end_all(0.0, KILL_S)
    os._exit(0)
