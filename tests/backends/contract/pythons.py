"""What Python sessions keep to on every Sandbox that has a Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Completed, Environment, Running
from remote_sandbox_mcp.core.commands.interpreter import PythonOrder, PythonRecord
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.texts.image import recognise
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.sessions.python import PythonReport
from tests.support.waiting import eventually

from .basics import Basics, Opener, cancel, ended, is_dead

# A stand-in for matplotlib and PIL with the few names that are used of them: neither is installed for the tests.
STUBS = """
import sys, types, zlib, struct

def png(width, height, rows=b""):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\\0" + bytes(width) for _ in range(height)))
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")

class Figure:
    dpi = 100
    def get_size_inches(self): return (0.3, 0.2)
    def savefig(self, file, format, dpi, bbox_inches): file.write(png(int(0.3 * dpi), int(0.2 * dpi)))

class Image:
    mode = "RGB"
    def __init__(self, width, height): self.size = (width, height)
    def copy(self): return Image(*self.size)
    def thumbnail(self, size): self.size = (min(self.size[0], size[0]), min(self.size[1], size[1]))
    def save(self, file, format): file.write(png(*self.size))

def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)
    return sys.modules[name]

figures = {}
def figure(number=None):
    number = number or len(figures) + 1
    return figures.setdefault(number, Figure())

plt = module("matplotlib.pyplot", figure=figure, get_fignums=lambda: list(figures), close=lambda which: figures.clear())
module("matplotlib.figure", Figure=Figure)
module("PIL.Image", Image=Image)
"""

Run = Callable[..., Awaitable[PythonReport]]


async def told(run: Run, code: str, **given: Any) -> PythonRecord:
    record = (await run(code, **given)).record
    assert record is not None
    return record


async def value_of(run: Run, code: str, **given: Any) -> str:
    record = await told(run, code, **given)
    assert record.state == "done", record
    return record.value


class PythonContract(Basics):
    """A backend's class may say which Python its machine has, where there is none on the PATH."""

    PYTHON = ""

    @pytest.fixture(scope="class")
    @classmethod
    async def app(cls, sandbox: Sandbox) -> AsyncIterator[App]:
        async def opener() -> Sandbox:
            await sandbox.open()
            return sandbox

        name = sandbox.description.name
        app = App(Fleet([Member(name, lambda: sandbox.description, opener)], are_lent=True))
        yield app
        for seen in await app.pythons.list(name):
            await app.pythons.close(seen.handle.name, name)
        await app.close()

    @pytest.fixture
    def run(self, app: App) -> Run:
        async def run(code: str, patience_s: float | None = None, **given: Any) -> PythonReport:
            return await app.pythons.run(
                PythonOrder(code=code, **({"python": self.PYTHON} | given)), patience_s=patience_s
            )

        return run

    async def test_a_python_session_keeps_its_variables_until_it_dies(self, run: Run) -> None:
        first = await run(
            "import os, sys\nx = [1]\nprint('out')\nprint('err', file=sys.stderr)\nos.getpid()", session="s1"
        )
        assert first.record is not None
        assert (first.record.state, first.record.is_new, first.stdout.text, first.stderr.text) == (
            *("done", True, "out\n", "err\n"),
        )
        assert isinstance(first.seen, Completed)
        assert not first.seen.left_running
        assert await value_of(run, "x.append(2); x, os.getpid()", session="s1") == f"([1, 2], {first.record.value})"
        failed = await told(run, "def f(n):\n    return 1 / n\n\nf(0)", session="s1")
        assert failed.state == "error"
        assert "    return 1 / n\n" in failed.traceback
        assert failed.traceback.endswith("ZeroDivisionError: division by zero")
        timed_out = await told(
            run, "import time\nfor i in range(600):\n    time.sleep(0.1)", session="s1", timeout_s=0.5
        )
        assert (timed_out.state, timed_out.goes_on) == ("timed_out", False)
        assert timed_out.traceback.endswith("KeyboardInterrupt")
        assert (await told(run, "x", session="s1")).value == "[1, 2]"
        died = await told(run, "sys.exit(3)", session="s1")
        assert (died.state, died.exit_code) == ("died", 3)
        assert "exit code 3); its variables are lost, and the next call begins a new one" in died.death
        again = await told(run, "'x' in globals()", session="s1")
        assert (again.is_new, again.value) == (True, "False")

    async def test_sessions_are_listed_and_closed_with_all_that_they_started(
        self, run: Run, app: App, sandbox: Sandbox
    ) -> None:
        started = await value_of(run, "import subprocess\nsubprocess.Popen(['sleep', '600']).pid", session="s5")
        name = sandbox.description.name
        (seen,) = [it for it in await app.pythons.list(name) if it.handle.name == "s5"]
        assert (seen.status, seen.trouble) == ("idle", "")
        await app.pythons.close("s5", name)
        assert await is_dead(sandbox, int(started))
        assert "s5" not in {it.handle.name for it in await app.pythons.list(name)}
        with pytest.raises(BadArgument, match="there is no Python session s5"):
            await app.pythons.close("s5", name)


class WholePythonContract(PythonContract):
    """What depends on how a backend runs commands and less on which one it is."""

    async def test_a_cancelled_call_ends_the_code_and_not_the_session(self, run: Run) -> None:
        await run("import threading, time\nbegun = threading.Event()\nx = 7", session="s2")
        task = asyncio.ensure_future(run("begun.set()\nwhile True: time.sleep(0.01)", session="s2"))
        await eventually_busy(run, "s2")
        await cancel(task)
        assert await value_of(run, "begun.is_set(), x", session="s2") == "(True, 7)"

    async def test_code_that_outlasts_its_call_is_found_again_with_its_result(
        self, run: Run, sandbox: Sandbox, folder: str
    ) -> None:
        code = f"import os, time\nprint('begun')\nwhile not os.path.exists({folder!r}): time.sleep(0.02)\n1 / 0"
        seen = await run(code, session="s3", patience_s=1.0)
        assert seen.record is None
        assert isinstance(seen.seen, Running)
        await sandbox.write(folder, b"")
        done = await ended(sandbox, seen.seen.run_id)
        # What a reader of its output sees is what a person at a prompt would see.
        assert (done.exit_code, done.stdout.head) == (1, b"begun\n")
        assert done.stderr.head.endswith(b"ZeroDivisionError: division by zero\n")
        last = await told(run, "", session="s3")
        assert (last.state, last.traceback.split("\n")[-1]) == ("error", "ZeroDivisionError: division by zero")

    async def test_figures_and_pictures_come_as_images(self, run: Run) -> None:
        await run(STUBS, session="s4")
        figure = await run("figure(); figure(); 'two'", session="s4")
        assert figure.record is not None
        assert [image and (image.width, image.height) for image in (recognise(it.data) for it in figure.images)] == [
            *((30, 20), (30, 20)),
        ]
        assert figure.record.value == "'two'"
        picture = await run("display(Image(5, 4))\nImage(2000, 3)", session="s4")
        sizes = [image and (image.width, image.height) for image in (recognise(it.data) for it in picture.images)]
        assert sizes == [(5, 4), (1600, 3)]
        many = await told(run, "for _ in range(7): display(Image(1, 1))", session="s4")
        assert (len(many.images), many.unseen) == (4, 3)

    async def test_a_session_survives_the_line_where_runs_do(self, run: Run, opener: Opener, sandbox: Sandbox) -> None:
        await run("x = 5", session="s6")
        if not sandbox.description.capabilities.survives_disconnect:
            return
        other = await opener(Environment())
        try:
            await sandbox.close()
            assert await value_of(run, "x", session="s6") == "5"
        finally:
            await other.close()


async def eventually_busy(run: Run, session: str) -> None:
    """Wait until code runs in a session: a call that may wait for a moment only says so."""

    async def is_busy() -> bool:
        try:
            await run("pass", session=session, timeout_s=0.1)
        except NotStarted as problem:
            return "was still busy" in str(problem)
        return False

    await eventually(is_busy, bool, "the code")
