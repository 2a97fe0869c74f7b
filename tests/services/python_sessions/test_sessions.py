"""What a session does for ordinary code, and what it says of itself."""

from __future__ import annotations

import asyncio
import random

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.client import Call, begin_call
from remote_sandbox_mcp.core.commands.interpreter import PythonOrder, PythonRecord
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unsupported
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.support.means import IS_ROOT, bubblewrap_runs
from tests.support.waiting import eventually

from .conftest import Run

PROGRAMS = """
import multiprocessing, os, subprocess, sys
def square(n): return n * n
fork = multiprocessing.get_context("fork")
if {shares}:
    with fork.Pool(2) as pool: squares = pool.map(square, [1, 2, 3])
else:
    near, far = fork.Pipe()
    copy = fork.Process(target=lambda: far.send([square(n) for n in [1, 2, 3]]))
    copy.start()
    squares = near.recv()
    copy.join()
if not os.fork():
    raise ValueError("in a copy of this process")
os.wait()
subprocess.run(["echo", "from a program"])
os.system("echo from a shell >&2")
squares
"""
CODE = {
    "the value of a last expression": ("x = 3\nx", "done", "3"),
    "no value after a semicolon": ("x;", "done", ""),
    "no value of an assignment": ("y = x", "done", ""),
    "the value before": ("_", "done", "3"),
    "awaiting": ("import asyncio\nawait asyncio.sleep(0, 'slept')", "done", "'slept'"),
    "a future statement stays": ("from __future__ import annotations", "done", ""),
    "as its next code shows": ("def f(a: no_such_name): pass\nf.__annotations__", "done", "{'a': 'no_such_name'}"),
    "input is at its end": ("try: input()\nexcept EOFError: print('end')", "done", ""),
    "code that is none": ("a b", "error", ""),
    "nothing but a comment": ("# nothing", "done", ""),
    "classes can be pickled": (
        "class A: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(A()))) is A",
        "done",
        "True",
    ),
}


async def told(run: Run, code: str, **given: object) -> PythonRecord:
    record = (await run(code, **given)).record
    assert record is not None
    return record


async def test_code_is_run_as_at_a_prompt(run: Run) -> None:
    for name, (code, state, value) in CODE.items():
        record = await told(run, code)
        assert record.state == state, (name, record)
        assert record.value == value, (name, record)
    failed = await told(run, "async def g():\n    1 / 0\nawait g()")
    assert failed.traceback.startswith('Traceback (most recent call last):\n  File "<run_python')
    assert "    1 / 0\n" in failed.traceback
    large = await told(run, "list(range(10**6))")
    assert large.value.startswith("list of 1000000 items, which begins with 0, 1, 2,")


async def test_an_interrupt_ends_what_is_awaited_and_programs_that_are_waited_for(run: Run) -> None:
    slept = await told(run, "import asyncio\nawait asyncio.sleep(60)", timeout_s=0.2)
    assert (slept.state, slept.goes_on) == ("timed_out", False)
    shell = await told(run, "import os\nos.system('sleep 60')", timeout_s=0.2)
    assert (shell.state, shell.goes_on) == ("timed_out", False)
    assert (await told(run, "await asyncio.sleep(0, 5)")).value == "5"


async def test_programs_and_copies_of_the_process_work_and_do_not_answer_for_it(run: Run) -> None:
    # A pool needs shared memory by name.
    report = await run(PROGRAMS.format(shares=IS_ROOT or bubblewrap_runs()), session="programs")
    assert report.record is not None
    assert (report.record.state, report.record.value) == ("done", "[1, 4, 9]")
    assert report.stdout.text == "from a program\n"
    assert "ValueError: in a copy of this process" in report.stderr.text
    assert report.stderr.text.endswith("from a shell\n")


THREAD = """
import os, threading, time
def speak():
    while not os.path.exists("go"): time.sleep(0.01)
    print("x" * 100_000 + "the end")
    open("gone", "w").close()
threading.Thread(target=speak, daemon=True).start()
"""


async def test_what_threads_print_between_calls_comes_with_the_next_one(run: Run, sandbox: Sandbox) -> None:
    await run(THREAD, session="threads")
    await sandbox.write("go", b"")
    await eventually(lambda: sandbox.list(""), lambda found: "gone" in str(found.entries), "what the thread prints")
    report = await run("print('now')", session="threads")
    assert report.record is not None
    assert (report.stdout.text, report.record.earlier[-8:]) == ("now\n", "the end\n")
    assert (len(report.record.earlier), report.record.earlier_dropped) == (65536, 100_008 - 65536)
    assert not (await told(run, "1", session="threads")).earlier


async def test_a_flood_of_output_is_bounded_and_told(run: Run) -> None:
    report = await run("print('a' * 30_000_000)\n'end'", session="flood")
    assert report.record is not None
    assert (report.record.state, report.record.value, report.record.out) == ("done", "'end'", 30_000_001)
    assert report.seen.stdout.total == 30_000_001
    assert len(report.stdout.text) < 21_000


async def test_a_second_call_waits_for_its_turn(run: Run, sandbox: Sandbox) -> None:
    code = "import os, time\nopen('turn', 'w').close()\nwhile not os.path.exists('over'): time.sleep(0.01)\nx = 1"
    first = asyncio.ensure_future(run(code, session="turns"))
    await eventually(lambda: sandbox.list(""), lambda found: "/turn'" in str(found.entries), "the first call")
    second = asyncio.ensure_future(told(run, "x", session="turns"))
    await sandbox.write("over", b"")
    assert (await second).value == "1"
    await first


async def test_another_folder_and_another_python_than_the_sessions_are_told(run: Run, sandbox: Sandbox) -> None:
    await sandbox.write("venv/bin/python", b'#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    await sandbox.write("venv/pyvenv.cfg", b"")
    await run("import os; os.chmod('venv/bin/python', 0o755); os.mkdir('closed', 0o100)", session="places")
    # A folder that can be entered, and not listed.
    moved = await told(run, "1", session="places", cwd="closed")
    assert (moved.state, moved.folder.endswith("/closed")) == ("done", False)
    with pytest.raises(NotStarted, match=r"session places on local runs .*python.*, not venv; use another session"):
        await run("1", session="places", python="venv")
    where = "import os, shutil; os.getcwd(), shutil.which('python')[-15:], os.environ['VIRTUAL_ENV'][-4:]"
    fresh = await told(run, where, session="venv", python="~/venv", cwd="/tmp")
    assert fresh.value == "('/tmp', 'venv/bin/python', 'venv')"
    assert fresh.python.endswith("venv/bin/python")
    with pytest.raises(Unsupported, match=r"unable to run Python on local: 'python9' is no Python there"):
        await run("1", session="none", python="python9")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"session": "../x"}, "cannot be a session's name"),
        ({"code": "x" * 500_001}, "at most 500000 can be sent; write it to a file"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"code": "", "session": "never"}, "session never on local has no result to show"),
    ],
    ids=["name", "size", "limit", "no result"],
)
async def test_what_makes_no_sense_is_refused(run: Run, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadArgument, match=sentence):
        await run(**{"code": "1"} | given)


async def test_long_code_arrives_whole(run: Run) -> None:
    noise = random.Random(1).randbytes(150_000).hex()
    assert (await told(run, f"len({noise!r})", session="long")).value == "300000"


async def test_the_memory_that_torch_has_taken_is_told(run: Run) -> None:
    # A stand-in with the names that are asked.
    code = """
import sys, types
cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2, memory_reserved=lambda n: n * 1000)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""
    first = await told(run, code, session="gpu")
    assert (first.gpu, first.memory > 1_000_000) == (1000, True)
    assert (await told(run, "cuda.device_count = None", session="gpu")).state == "done"


async def test_a_repeated_call_finds_what_the_first_one_began(
    app: App, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that made the call was killed before its answer, and another one makes it again."""
    monkeypatch.setattr(type(sandbox), "forget", lambda *_: None)
    order = PythonOrder(code="open('counted', 'a').write('x'); len(open('counted').read())", session="again")
    begin_call(Call("a conversation 7"))
    first = await app.pythons.run(order)
    app.pythons.live.discard((app.fleet.member("").name, "again"))
    begin_call(Call("a conversation 7", again=True))
    second = await app.pythons.run(order)
    assert first.record
    assert second.record
    assert (first.record.value, second.record.value) == ("1", "1")
