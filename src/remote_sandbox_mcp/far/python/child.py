"""The interpreter of a session: runs one piece of code after another in one namespace, and says what came of each.

It is loaded with builtins of its own, and uses as little else as it can: the code that it runs may replace anything.
"""

import _thread
import ast
import builtins
import faulthandler
import io
import linecache
import os
import signal
import struct
import sys
import traceback
import types

MYPY = False
if MYPY:
    from typing import Any

# A frame on the way to the supervisor: a letter, four bytes of length, the token of the call, and the body.
HEAD = struct.Struct(">cI16s")
NO_TOKEN = b"\0" * 16
HELLO, VALUE, TRACE, IMAGE, UNSEEN, GPU, DONE = b"H", b"V", b"T", b"I", b"N", b"G", b"D"
# An order: how long the code is, its token, its number, and how many bytes of text are worth sending.
ORDER = struct.Struct(">I16sII")
MOST_ITEMS, MOST_IMAGES, LARGEST_IMAGE = 1000, 4, 1500000
# What a model looks at is not larger; more would only be sent.
LONGEST_SIDE = 1600
# An async function's code; in code objects, so that no module has to be asked.
IS_COROUTINE = 0x80
TOP_LEVEL_AWAIT = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
PLAIN = (list, tuple, set, frozenset, dict)

# Taken now: code may replace them in their modules.
write, read, getpid, leave = os.write, os.read, os.getpid, os._exit
# The function itself, and not that of the module signal, which asks the builtins that code may have replaced.
set_handler = __import__("_signal").signal
show_exception = traceback.format_exception
modules = sys.modules
SIGINT, ONLY_PARSE, Expr, Expression = signal.SIGINT, ast.PyCF_ONLY_AST, ast.Expr, ast.Expression


def future_flags() -> "list[tuple[str, int]]":
    import __future__

    return [(name, getattr(__future__, name).compiler_flag) for name in __future__.all_feature_names]


class Interrupts:
    """Raises KeyboardInterrupt while code runs, not after its end, and not within a frame: half of it would be sent."""

    def __init__(self) -> None:
        self.armed = self.held = self.pending = False
        self.lock = _thread.allocate_lock()
        self.main = _thread.get_ident()

    def __call__(self, *_: object) -> None:
        if self.held:
            self.pending = True
        elif self.armed:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        """Hold interrupts back, in the main thread, which alone gets them."""
        if _thread.get_ident() == self.main:
            self.held = True
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if _thread.get_ident() == self.main:
            self.held = False
            if self.pending and self.armed:
                self.pending = False
                raise KeyboardInterrupt


class ChildInterpreter:
    """One namespace, and the pipes to the supervisor."""

    def __init__(self, orders: int, results: int) -> None:
        self.orders = orders
        self.results = results
        self.out, self.err = open_stream(1), open_stream(2)
        self.pid = getpid()
        self.main = types.ModuleType("__main__")
        self.space = self.main.__dict__
        self.space["__builtins__"] = builtins
        modules["__main__"] = self.main
        self.interrupts = Interrupts()
        self.futures = future_flags()
        self.flags = 0
        self.loop: "Any" = None
        self.token = NO_TOKEN
        self.limit = 0
        self.images = self.unseen = 0
        self.shown: "list[int]" = []
        builtins.display = self.make_display()  # type: ignore[attr-defined]

    # The pipes

    def send(self, kind: bytes, body: bytes = b"") -> None:
        # A copy of this process, as code or multiprocessing makes it, has nothing to say here.
        if getpid() != self.pid:
            return
        with self.interrupts:
            data = HEAD.pack(kind, len(body), self.token) + body
            while data:
                data = data[write(self.results, data) :]

    def send_text(self, kind: bytes, text: str) -> None:
        """A text, or both ends of a long one."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > self.limit:
            left = b"\n[... %d of %d bytes left out ...]\n" % (len(data) - self.limit, len(data))
            data = data[: self.limit // 2] + left + data[len(data) - self.limit // 2 :]
        self.send(kind, data)

    def take(self, size: int) -> bytes:
        """Read so many bytes of orders; end where there is no supervisor any more."""
        data = b""
        while len(data) < size:
            part = read(self.orders, size - len(data))
            if not part:
                leave(0)
            data += part
        return data

    def serve(self) -> None:
        """Run what is ordered, until code ends the interpreter by SystemExit."""
        self.hear_interrupts()
        self.send(HELLO, "\n".join((sys.version.split()[0], sys.executable, sys.prefix)).encode())
        while True:
            size, self.token, number, self.limit = ORDER.unpack(self.take(ORDER.size))
            code = self.take(size).decode("utf-8", "surrogateescape")
            self.images = self.unseen = 0
            self.shown = []
            self.interrupts.pending = False
            self.run(code, number)
            self.send(DONE)

    def hear_interrupts(self) -> None:
        """Code may have put a handler of its own in the place of ours."""
        set_handler(SIGINT, self.interrupts)

    # One piece of code

    def run(self, code: str, number: int) -> None:
        """Run code and send what came of it. Raises SystemExit."""
        try:
            self.interrupts.armed = True
            try:
                self.evaluate(code, "<run_python %d>" % number)
            finally:
                self.interrupts.armed = False
        except SystemExit:
            self.flush()
            raise
        except BaseException as problem:  # noqa: BLE001 - whatever the code raises is what came of it
            self.interrupts.armed = False
            self.send_exception(problem, "<run_python %d>" % number)
        self.flush()
        # A copy of this process that the code has made ends here: the session goes on in the first one.
        if getpid() != self.pid:
            leave(0)
        self.finish()

    def evaluate(self, code: str, name: str) -> None:
        """Run code and, if it ends with an expression, send the value."""
        # Lines of code for tracebacks: an entry without a time is never looked for on the disk.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = compile(code, name, "exec", ONLY_PARSE | self.flags, True)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, Expr) and not code.rstrip().endswith(";"):
            tree.body.pop()
            self.execute(tree, name, "exec")
            value = self.execute(Expression(last.value), name, "eval")
            if value is not None:
                self.space["_"] = value
                self.send_value(value)
        else:
            self.execute(tree, name, "exec")

    def execute(self, tree: "ast.AST", name: str, mode: str) -> "Any":
        compiled = compile(tree, name, mode, self.flags | TOP_LEVEL_AWAIT, True)  # type: ignore[call-overload]
        for _, flag in self.futures:
            self.flags |= compiled.co_flags & flag
        value = eval(compiled, self.space)
        return self.wait_for(value) if compiled.co_flags & IS_COROUTINE else value

    def wait_for(self, coroutine: "Any") -> "Any":
        """Run an awaiting piece of code in the session's own loop, where tasks of earlier calls go on meanwhile."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except (KeyboardInterrupt, SystemExit):
            if not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task], timeout=1))
            raise

    def send_value(self, value: "Any") -> None:
        if not self.show_image(value):
            self.send_text(VALUE, bounded_repr(value))

    def send_exception(self, problem: BaseException, name: str) -> None:
        """A traceback that begins with the code's own lines."""
        trace = problem.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        try:
            own = '  File "%s"' % serve.__code__.co_filename
            lines = [line for line in show_exception(type(problem), problem, trace) if not line.startswith(own)]
        except BaseException:  # noqa: BLE001 - its class, or the module that shows it, may be the code's own
            lines = ["%s: %s" % (type(problem).__name__, "its traceback cannot be shown")]
        if getpid() != self.pid:
            print("".join(lines), file=self.err)
        self.send_text(TRACE, "".join(lines).rstrip("\n"))

    def flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, self.out, self.err):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001 - code may have put anything in the place of sys.stdout
                pass

    def finish(self) -> None:
        """Show the figures that are open, and what the code uses. A second interrupt may end that early."""
        self.hear_interrupts()
        try:
            self.interrupts.armed = True
            self.show_figures()
            gpu = gpu_memory()
            self.interrupts.armed = False
            if gpu:
                self.send(GPU, gpu.encode())
        except BaseException:  # noqa: BLE001 - libraries of the code's choice draw, and an interrupt may come
            self.interrupts.armed = False
        self.flush()
        if self.unseen:
            self.send(UNSEEN, b"%d" % self.unseen)

    # Images

    def make_display(self) -> "Any":
        """Make the function that code calls as `display`: a method would have this object as an attribute."""

        def display(*values: "Any") -> None:
            """Show images among the values, and print the others."""
            for value in values:
                if not self.show_image(value):
                    print(bounded_repr(value))

        return display

    def show_image(self, value: "Any") -> bool:
        """Whether a value is an image; then it is sent, unless there are too many."""
        draw = drawing_of(value)
        if draw is None:
            return False
        self.shown.append(id(value))
        if self.images >= MOST_IMAGES:
            self.unseen += 1
            return True
        data = b""
        for part in (1.0, 0.5, 0.25):
            data = draw(value, part)
            if len(data) <= LARGEST_IMAGE:
                break
        if len(data) > LARGEST_IMAGE:
            self.unseen += 1
        elif data:
            self.images += 1
            self.send(IMAGE, data)
        return bool(data)

    def show_figures(self) -> None:
        """Figures of pyplot that are open at the end of a call are shown and closed."""
        plot = modules.get("matplotlib.pyplot")
        numbers = plot.get_fignums() if plot else []
        for number in numbers:
            figure = plot.figure(number)  # type: ignore[union-attr]
            if id(figure) in self.shown:
                continue
            try:
                self.show_image(figure)
            except Exception as problem:  # noqa: BLE001 - one figure that cannot be drawn must not hide the others
                print("figure %s cannot be shown: %s" % (number, problem), file=self.err)
        if numbers:
            plot.close("all")  # type: ignore[union-attr]


def bounded_repr(value: "Any") -> str:
    """repr, but of a large plain container only the beginning: all of it would take time and memory."""
    kind = type(value)
    if kind in (str, bytes) and len(value) > 1 << 20:
        return "%r... (%d in all)" % (value[: 1 << 20], len(value))
    if kind not in PLAIN or len(value) <= MOST_ITEMS:
        return repr(value)
    first = []
    for item in value.items() if kind is dict else value:
        first.append("%r: %r" % item if kind is dict else repr(item))
        if len(first) == MOST_ITEMS:
            break
    return "%s of %d items, which begins with %s" % (kind.__name__, len(value), ", ".join(first))


def is_a(value: "Any", module: str, name: str) -> bool:
    """Whether a value is of a class of a module that the code has loaded."""
    kind = getattr(modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def drawing_of(value: "Any") -> "Any":
    """The function that makes a PNG of a value; None if the value is no image."""
    if is_a(value, "matplotlib.figure", "Figure"):
        return draw_figure
    if is_a(value, "PIL.Image", "Image"):
        return draw_picture
    return draw_other if callable(getattr(type(value), "_repr_png_", None)) else None


def draw_figure(figure: "Any", part: float) -> bytes:
    longest = max(figure.get_size_inches())
    dpi = min(float(figure.dpi), LONGEST_SIDE / max(0.1, float(longest)))
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=max(10.0, dpi * part), bbox_inches="tight")
    return data.getvalue()


def draw_picture(picture: "Any", part: float) -> bytes:
    if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        picture = picture.convert("RGB")
    longest = int(LONGEST_SIDE * part)
    if max(picture.size) > longest:
        picture = picture.copy()
        picture.thumbnail((longest, longest))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def draw_other(value: "Any", part: float) -> bytes:
    """Draw a value that shows itself to notebooks; some answer with nothing, or with data about the image beside it."""
    data = value._repr_png_()
    data = data[0] if isinstance(data, tuple) else data
    return data if isinstance(data, bytes) else b""


def gpu_memory() -> str:
    """Report the memory that PyTorch has taken of each GPU, in bytes: `0:1048576`. No driver is asked."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ""
    taken = [(number, int(cuda.memory_reserved(number))) for number in range(cuda.device_count())]
    return " ".join("%d:%d" % one for one in taken if one[1])


def open_stream(fd: int) -> "Any":
    """An output whose lines are written as they are complete, in UTF-8 whatever the locale says."""
    raw = io.open(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", None, True)


def serve(orders: int, results: int) -> None:
    """Called by the supervisor's command line."""
    interpreter = ChildInterpreter(orders, results)
    sys.stdout = sys.__stdout__ = interpreter.out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = interpreter.err  # type: ignore[misc]
    sys.argv = [""]
    # After a crash, standard error says where in the code that was.
    faulthandler.enable(interpreter.err)
    interpreter.serve()
