"""A Python on the machine that lies to the near side: each call ends in a value or a sentence, and shows no harm."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import zlib
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.commands.interpreter import MOST_IMAGES
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.texts.image import MOST_BYTES
from remote_sandbox_mcp.fronts.mcp.tools.python import result_of
from remote_sandbox_mcp.services.sessions.python import PythonReport
from remote_sandbox_mcp.views.job_results import session_fields
from tests.support.images import png
from tests.support.tormentor import (
    BRACKETS,
    IN_TIME_S,
    MEGABYTE,
    NESTED,
    ODD_VALUES,
    check_value,
    counted_memory,
    dumped,
    ends_well,
    fields_of,
    torment,
    values,
    with_field,
    zeros,
)

from .conftest import Run

# In the place of a Python: it knows the word of a call, as a hostile machine does, and says what a file tells it to.
LIAR = """#!/usr/bin/env python3
import base64, json, os, sys, zlib
here = os.path.dirname(os.path.abspath(__file__))
order = json.loads(zlib.decompress(base64.b64decode(sys.stdin.buffer.read())))
told = json.load(open(os.path.join(here, "lies.json"))).get(order["verb"])
if told is None:
    told = base64.b64encode(zlib.compress(json.dumps({"state": "begun"}).encode())).decode()
word, told = order["word"].encode(), told.encode()
os.write(1, b"printed\\n")
data = b" ".join((word, told, word)) + b"\\n"
while data:
    data = data[os.write(1, data):]
"""
pytestmark = pytest.mark.anyio
# Each is a command or several in a real sandbox.
few = settings(torment, max_examples=max(12, torment.max_examples // 5))
_sessions = itertools.count()
RECORD: dict[str, Any] = {
    "state": "done",
    "value": "42",
    "traceback": "t",
    "why": "w",
    "exit": 0,
    "signal": "",
    "images": [{"path": "/nowhere.png", "size": 1}],
    "unseen": "1",
    "new": True,
    "goes_on": False,
    "python": "/usr/bin/python3",
    "version": "3.11",
    "folder": "/",
    "memory": 1,
    "gpu": 1,
    "earlier": "e",
    "earlier_dropped": 1,
    "seconds": 0.1,
    "busy_s": 0.1,
    "busy_with": "x",
    "out": 8,
    "err": 0,
}
SESSIONS: dict[str, Any] = {
    "state": "sessions",
    "sessions": [{**RECORD, "state": "status", "session": "main", "unused_s": 1.0}],
}
ODD = [*ODD_VALUES.values(), 1 << 62, -(1 << 62), "\x1b]0;x\x07\u202e\x9b", "../" * 50, "/dev/zero", "x" * 200_000, ...]


def changed(field: tuple[tuple[Any, ...], Any]) -> Any:
    return with_field(SESSIONS, *field)


def packed(value: Any) -> str:
    data = value if isinstance(value, bytes) else dumped(value)
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.fixture
async def liar(sandbox: Sandbox) -> str:
    await sandbox.write("~/liar/python3", LIAR.encode())
    await sandbox.run(Command("chmod +x ~/liar/python3"))
    return "~/liar/python3"


async def lie(sandbox: Sandbox, **told: str) -> None:
    await sandbox.write("~/liar/lies.json", json.dumps(told).encode())


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def check_fields(fields: Any) -> None:
    """What a model is shown of it."""
    check_value(fields)
    json.dumps(fields, allow_nan=False)
    shown = "".join(texts(fields)).replace("\n", "").replace("\t", "")
    assert not {"\x1b", "\x07", "\x9b", "\0", "\u202e"} & set(shown)


async def report_or_sentence(call: Awaitable[PythonReport]) -> PythonReport | SandboxError:
    try:
        return await asyncio.wait_for(call, IN_TIME_S)
    except SandboxError as problem:
        return problem


async def called(run: Run, liar: str) -> Any:
    """One call in a session of its own, as a client sees it; or the sentence."""
    report = await report_or_sentence(run("1", session=f"lied{next(_sessions)}", python=liar, timeout_s=5))
    if isinstance(report, SandboxError):
        assert 0 < len(str(report)) < 5000
        return report
    answer = result_of(report, 20_000)
    check_fields(answer.structured_content)
    assert all(part.type != "text" or "\x1b" not in part.text for part in answer.content)
    return answer


async def test_an_honest_record_is_believed(run: Run, sandbox: Sandbox, liar: str) -> None:
    await lie(sandbox, call=packed({**RECORD, "images": []}))
    answer = await called(run, liar)
    assert (answer.structured_content["value"], answer.structured_content["stdout"]) == ("42", "printed\n")


@few
@given(way=st.sampled_from(list(fields_of(RECORD))), odd=st.sampled_from(ODD))
@example(way=("images", 0, "path"), odd="")
@example(way=("images", 0, "path"), odd="/dev/zero")
@example(way=("value",), odd="\x1b[2J\x9b")
async def test_any_value_in_any_field_of_a_record_is_read_or_refused(
    run: Run, sandbox: Sandbox, liar: str, way: tuple[Any, ...], odd: Any
) -> None:
    await lie(sandbox, call=packed(with_field(RECORD, way, odd)))
    seen = await called(run, liar)
    # Nobody who calls has named a path of an image.
    assert "bad_argument" not in getattr(seen, "code", "")
    assert "an image's path must" not in str(seen) or "cannot be understood" in str(seen)


@few
@given(told=st.one_of(values, st.tuples(st.sampled_from(list(fields_of(SESSIONS))), st.sampled_from(ODD)).map(changed)))
@example(told=changed((("sessions", 0, "python"), "\x1b[2J")))
@example(told=changed((("sessions", 0, "busy_with"), "\x1b[2J")))
@example(told=changed((("sessions", 0, "unused_s"), 1 << 62)))
async def test_whatever_a_machine_lists_as_its_sessions_is_a_list_or_a_sentence(
    app: App, run: Run, sandbox: Sandbox, liar: str, told: Any
) -> None:
    # The Python that a record names is the one that is asked for the list.
    await lie(sandbox, call=packed({"state": "done", "python": liar}), list=packed(told), stop=packed(told))
    await called(run, liar)
    for seen in await ends_well(app.pythons.list("local")):
        check_fields(session_fields(seen))
    closed = await ends_well(app.pythons.close("main", "local"))
    assert isinstance(closed, SandboxError) or told["state"] == "stopped"


BODIES = {
    "a bomb": base64.b64encode(zeros(64)).decode(),
    "nested": packed(NESTED),
    "brackets": packed(BRACKETS),
    "no base64": "\u20ac\x1b[2J" * 100,
    "no zlib": base64.b64encode(b"x" * 100).decode(),
    "half": packed(RECORD)[:-8],
    "no object": packed([]),
    "nothing": "",
    "of another call": packed({**RECORD, "id": "run-0123456789abcdef"}),
    "a list in place of a call": packed(SESSIONS),
    "a state that is none": packed({**RECORD, "state": "succeeded"}),
    "no state": packed({"value": "42"}),
    "that it was begun": packed({"state": "begun", "value": "42"}),
    "that it was stopped": packed({"state": "stopped", "value": "42"}),
    "a value of a hundred megabytes": packed(b'{"state": "done", "value": "' + b"x" * 100 * MEGABYTE + b'"}'),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_record_that_is_none_is_a_sentence_and_no_success(
    run: Run, sandbox: Sandbox, liar: str, body: str
) -> None:
    await lie(sandbox, call=body, result=body)
    with counted_memory() as check:
        assert isinstance(await called(run, liar), SandboxError)
        check(64 * MEGABYTE)


IMAGES = {
    "no image": b"no image at all",
    "svg with a script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>\0",
    "html": b"<html>\0<script>alert(1)</script>",
    "more pixels than there are": png(3, 2).replace((3).to_bytes(4, "big"), b"\xff\xff\xff\xff", 1),
    "no pixels": png(3, 2).replace((3).to_bytes(4, "big"), bytes(4), 1),
    "half an image": png(3, 2)[:-12],
    "too large": png(3, 2) + bytes(2 * MOST_BYTES) + png(3, 2)[-12:],
    "the beginning of an image": b"\x89PNG\r\n\x1a\n\0",
}


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES)
async def test_an_image_that_is_none_is_not_shown(run: Run, sandbox: Sandbox, liar: str, data: bytes) -> None:
    await sandbox.write("forged.png", data)
    (path,) = [entry.path for entry in (await sandbox.list("")).entries if entry.path.endswith("/forged.png")]
    images = [{"path": path, "size": -1}] * 1000
    await lie(sandbox, call=packed({**RECORD, "images": images}))
    answer = await called(run, liar)
    assert [part.type for part in answer.content] == ["text"]
    rows = answer.structured_content["images"]
    assert len(rows) <= MOST_IMAGES
    assert all(row["problem"] for row in rows)


async def test_a_session_that_is_claimed_to_be_there_has_run_nothing(run: Run, sandbox: Sandbox, liar: str) -> None:
    await lie(sandbox, begin=packed({"state": "done", "value": "42"}), call=packed(RECORD))
    seen = await called(run, liar)
    assert "unable to begin Python session" in str(seen)
