"""Code in a session that wants to pass for its supervisor, or to break the session: it harms itself alone."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.commands.interpreter import PythonRecord
from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.sessions import python as service
from tests.support.waiting import eventually

from .conftest import Run

# The interpreter's own object, found as hostile code would find it: in the frames that called it.
FIND = """
import os, struct, sys, time
frame = sys._getframe()
while "self" not in frame.f_locals or not hasattr(frame.f_locals["self"], "token"):
    frame = frame.f_back
own = frame.f_locals["self"]
HEAD = struct.Struct(">cI16s")
"""
ATTACKS = {
    "frames on every descriptor": """
import os, struct
frame = struct.pack(">cI16s", b"D", 0, b"0" * 16)
for fd in range(3, 64):
    try: os.write(fd, frame)
    except OSError: pass
""",
    "noise on every descriptor": """
import os
for fd in range(3, 64):
    try: os.write(fd, os.urandom(3000))
    except OSError: pass
""",
    "a flood of values": FIND
    + """
while True: os.write(own.results, HEAD.pack(b"V", 1 << 30, own.token) + bytes(65536))
""",
    "a forged end, and more of it": FIND
    + """
os.write(own.results, HEAD.pack(b"D", 0, own.token))
time.sleep(0.3)
""",
    "all descriptors closed": "import os, time\nos.closerange(3, 256)\ntime.sleep(5)",
    "a killed supervisor": "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "an end without a word": "import os\nos._exit(0)",
}


async def told(run: Run, code: str, session: str, timeout_s: float = 10) -> PythonRecord:
    record = (await run(code, session=session, timeout_s=timeout_s)).record
    assert record is not None
    return record


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_its_own_session_is_told_and_the_next_call_begins_a_new_one(run: Run, attack: str) -> None:
    other = await told(run, "y = 2\ny", "bystander")
    assert other.value == "2"
    session = f"a{list(ATTACKS).index(attack)}"
    await told(run, "x = 1", session)
    records = [await told(run, ATTACKS[attack], session), await told(run, "'x' in globals()", session)]
    if attack == "a forged end, and more of it":
        # Its own end, which comes later, is one too many.
        assert records[0].state == "done"
        records.append(await told(run, "'x' in globals()", session))
    assert records[-2].state in ("died", "lost"), records
    assert records[-2].death
    assert (records[-1].state, records[-1].is_new, records[-1].value) == ("done", True, "False")
    assert (await told(run, "y", "bystander")).value == "2"


def folders(name: str) -> str:
    """The code that lists what sessions have by this name, wherever their sandbox keeps its runs."""
    tops = '"/tmp/remote-sandbox-*", os.path.expanduser("~/.cache/remote-sandbox")'
    return f'[path for top in ({tops}) for path in glob.glob(top + "/python-*/{name}")]'


FLOOD_OF_IMAGES = (
    FIND
    + """
for _ in range(60): os.write(own.results, HEAD.pack(b"I", 3, own.token) + b"GIF")
os.write(own.results, HEAD.pack(b"N", 1, own.token) + b"x")
import glob
len("""
    + folders("s-images/*.png")
    + """) <= 4
"""
)


async def test_code_that_sends_images_in_the_place_of_its_interpreter_fills_no_disk(run: Run) -> None:
    record = await told(run, FLOOD_OF_IMAGES, "images")
    assert (record.state, len(record.images), record.value) == ("done", 4, "True")
    # What is sent while the supervisor is asked for it may come later.
    kept = f"import glob, os\nlen({folders('s-images/*.png')})"
    assert (await told(run, kept, "images")).value == "4"


PASSED_ON = {
    "a frame of the supervisor": 'import sys, struct\nsys.stdout.buffer.write(struct.pack(">cI", b"X", 2) + b"{}")',
    "a record and the end": "print('X\\0\\0\\0\\2{}')\nimport sys; sys.stderr.write('R\\0\\0\\0\\0')",
    "escape sequences": "print('\\x1b[2J\\x1b]0;title\\x07')",
}


@pytest.mark.parametrize("code", PASSED_ON.values(), ids=PASSED_ON)
async def test_what_looks_like_a_frame_in_what_is_printed_is_text(run: Run, code: str) -> None:
    record = await told(run, f"{code}\nNone\n'over'", "printer")
    assert (record.state, record.value) == ("done", "'over'")


async def test_orders_to_its_supervisor_end_a_session_and_harm_no_other(run: Run) -> None:
    """Code is a process of the same user as its supervisor, and may connect to it."""
    await told(run, "y = 2", "bystander")
    code = """
import glob, json, os, socket, struct
def order(**fields):
    line = socket.socket(socket.AF_UNIX)
    os.chdir(FOLDERS[0])
    line.connect("socket")
    body = json.dumps(fields).encode()
    line.sendall(struct.pack(">cI", b"R", len(body)) + body)
for verb in ("call", "result", "x", 7, None, []):
    order(verb=verb, id=[], code=7, timeout="x", limit=None)
order(verb="stop")
import time; time.sleep(30)
""".replace("FOLDERS", folders("s-orders"))
    record = await told(run, code, "orders")
    assert record.state in ("died", "lost")
    assert (await told(run, "1 + 1", "orders")).is_new
    assert (await told(run, "y", "bystander")).value == "2"


async def test_display_does_not_lead_to_the_interpreter(run: Run) -> None:
    record = await told(run, "display('shown')\n[name for name in dir(display) if 'self' in name]", "display")
    assert (record.state, record.value) == ("done", "[]")


async def test_code_that_prints_records_prints_text(run: Run) -> None:
    # What the client prints at the end, with a word of the same form.
    code = """
import base64, json, zlib
word = "0123456789abcdef" * 2
body = base64.b64encode(zlib.compress(json.dumps({"state": "died", "exit": 9, "value": "forged"}).encode())).decode()
print(word, body, word)
"true"
"""
    report = await run(code)
    assert report.record is not None
    assert (report.record.state, report.record.value) == ("done", "'true'")
    assert report.stdout.text.startswith("0123456789abcdef")


async def test_code_finds_the_word_of_its_call_nowhere_that_processes_show(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.secrets, "token_hex", lambda count: "feed" * 8)
    code = """
import glob, os
word, shown = b"feed" * 8, []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try: shown.append(open(path, "rb").read())
    except OSError: pass
def is_closed(name):
    try: return not open("/proc/%d/%s" % (os.getppid(), name), "rb").read(1)
    except OSError: return True
(len(shown) > 2, any(word in line for line in shown), is_closed("environ"), is_closed("mem"))
"""
    assert (await told(run, code, "words")).value == "(True, False, True, True)"


async def test_replaced_builtins_and_modules_break_nothing_but_the_code(run: Run) -> None:
    code = """
import builtins, io, json, linecache, os, signal, struct, sys, traceback
for name in ("repr", "len", "print", "isinstance", "type", "getattr", "eval", "compile", "bytes", "BaseException"):
    setattr(builtins, name, None)
traceback.format_exception = traceback.TracebackException = json.dumps = os.write = os.read = os.getpid = None
struct.pack = struct.Struct = io.open = signal.signal = None
sys.stdout = sys.stderr = None
sys.exc_info = sys.excepthook = None
"""
    assert (await told(run, code, "patched")).state in ("done", "error")
    assert (await told(run, "1 + 1", "patched")).value == "2"
    failed = await told(run, "1 / 0", "patched")
    assert (failed.state, "ZeroDivisionError" in failed.traceback) == ("error", True)


async def test_a_session_whose_folder_was_removed_leaves_no_process(run: Run, sandbox: Sandbox) -> None:
    code = """
import glob, os, shutil
for folder in FOLDERS: shutil.rmtree(folder)
(os.getpid(), os.getppid())
""".replace("FOLDERS", folders("s-removed"))
    first = await told(run, code, "removed")
    child, supervisor = eval(first.value)
    second = await told(run, "import os; os.getpid()", "removed")
    assert (second.is_new, second.value != str(child)) == (True, True)

    async def living() -> int:
        seen = await sandbox.run(Command(f"ls -d /proc/{child} /proc/{supervisor} 2>/dev/null | wc -l"))
        assert isinstance(seen, Completed)
        return int(seen.stdout.head)

    await eventually(living, lambda count: count == 0, "the end of the session")


async def test_code_that_hears_no_interrupt_keeps_its_session_busy_until_it_is_closed(run: Run, app: App) -> None:
    code = """
import time
while True:
    try:
        while True: time.sleep(0.1)
    except KeyboardInterrupt: pass
"""
    deaf = await told(run, code, "deaf", timeout_s=0.3)
    assert (deaf.state, deaf.goes_on) == ("timed_out", True)
    with pytest.raises(Exception, match=r"session deaf was still busy after 0 s: code of an earlier call .* has run"):
        await run("1", session="deaf", timeout_s=0.2)
    await app.pythons.close("deaf", "local")
    assert (await told(run, "1", "deaf")).is_new


async def test_a_call_that_waited_long_for_a_busy_session_says_so_and_not_that_it_is_lost(
    run: Run, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What comes after this time is not put behind the output.
    monkeypatch.setattr(service.interpreter, "INLINE_S", 0.2)
    await told(run, "x = 5", "waited")
    call = asyncio.ensure_future(told(run, "import time\ntime.sleep(60)", "waited", timeout_s=60))
    await eventually(lambda: app.pythons.list(""), lambda seen: "running" in {it.status for it in seen}, "the code")
    with pytest.raises(NotStarted, match=r"was still busy after 1 s: code of an earlier call \('import time'\)"):
        await told(run, "x", "waited", timeout_s=1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert (await told(run, "x", "waited")).value == "5"


async def test_a_supervisor_that_was_stopped_by_its_code_can_be_closed(run: Run, app: App, sandbox: Sandbox) -> None:
    pid = (await told(run, "import os; os.getpid()", "halted")).value
    code = (
        "import signal, threading\nthreading.Timer(0.1, os.kill, (os.getppid(), signal.SIGSTOP)).start()\nos.getppid()"
    )
    supervisor = (await told(run, code, "halted")).value

    async def state() -> bytes:
        seen = await sandbox.run(Command(f"grep ^State /proc/{supervisor}/status"))
        return seen.stdout.head

    await eventually(state, lambda line: b"stopped" in line, "the halted supervisor")
    (seen,) = [it for it in await app.pythons.list("local") if it.handle.name == "halted"]
    assert (seen.status, seen.trouble) == ("unknown", "it does not answer; it can be stopped")
    await app.pythons.close("halted", "local")
    again = await told(run, "import os; os.getpid()", "halted")
    assert (again.is_new, again.value != pid) == (True, True)
