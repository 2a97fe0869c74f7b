"""Logs of jobs whose sandbox goes away while they are followed, and that are replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.jobs.job import JobSeen, JobState, JobWait
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder
from remote_sandbox_mcp.fronts.page import logs
from remote_sandbox_mcp.fronts.page.logs import LogStream
from remote_sandbox_mcp.fronts.page.streams import HEARTBEAT
from remote_sandbox_mcp.local.waiting import within
from remote_sandbox_mcp.services.jobs.values import Wanted, Which
from tests.support.server import environment, write_config

SOON_S = 20.0


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    for name, value in environment(tmp_path, ()).items():
        monkeypatch.setenv(name, value)
    made = compose(load(write_config(tmp_path, local=True, config='[disposable]\nprovider = "embedded"\n')))
    yield made
    await made.close()


def read(part: bytes) -> tuple[str, Any]:
    name, data = part.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_log_of_a_job_ends_with_its_sandbox(app: App) -> None:
    made = await app.disposables.create(SandboxOrder())
    begun = await app.jobs.start(Wanted(command="echo hello; sleep 60", sandbox=made.id))
    stream = LogStream(app, made.id, begun.started.session)
    await stream.find()
    told = []
    async for part in stream.events():
        name, data = read(part)
        told.append(name)
        if name == "text" and "hello" in data["text"]:
            await app.disposables.service.delete(made.id)
        if name == "end":
            assert "deleted" in data["trouble"]
    assert told[-1] == "end"


def piece(seen: JobSeen, log: bytes, to: int, size: int) -> JobSeen:
    return replace(seen, log=log, cursor=to, log_size=size)


class Pieces:
    """A log that grows faster than it is read."""

    kind = "job"

    def __init__(self, *glances: JobSeen) -> None:
        self._glances = list(glances)

    async def read(self, cursor: int, most: int, *, closely: bool = False) -> JobSeen:
        return self._glances.pop(0)


async def test_a_reader_that_is_too_slow_is_told_what_it_missed(app: App) -> None:
    running, ended = (JobSeen(state=state, session="x") for state in (JobState.RUNNING, JobState.ENDED))
    size = 100 << 20
    stream = LogStream(app, "local", "x")
    stream._source = Pieces(
        piece(running, b"caf\xc3", 4, size),
        piece(running, "é\n".encode()[1:] + b"end", size - logs.FIRST_BYTES + 5, size),
        piece(ended, b"!", size, size),
    )
    told = [read(part) async for part in stream.events()]
    texts = [data for name, data in told if name == "text"]
    assert [text["text"] for text in texts] == ["caf", "", "\ufffd\nend", "!"]
    assert texts[1]["skipped"] == size - logs.FIRST_BYTES - 4
    assert told[-1][0] == "end"


async def test_a_log_that_was_replaced_is_read_from_its_beginning(app: App) -> None:
    running, ended = (JobSeen(state=state, session="x") for state in (JobState.RUNNING, JobState.ENDED))
    stream = LogStream(app, "local", "x")
    stream._source = Pieces(piece(running, b"one\xc3", 4, 4), piece(ended, b"new", 3, 3))
    texts = [data for name, data in [read(part) async for part in stream.events()] if name == "text"]
    assert [(text["text"], text["from"], text["to"]) for text in texts] == [("one", 0, 4), ("new", 0, 3)]


class Silent:
    """A log whose machine answers late."""

    kind = "job"

    def __init__(self, glance: JobSeen) -> None:
        self.answers = asyncio.Event()
        self.was_cancelled = False
        self._glance = glance

    async def read(self, cursor: int, most: int, *, closely: bool = False) -> JobSeen:
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return self._glance


async def test_something_is_sent_while_a_machine_does_not_answer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "HEARTBEAT_S", 0.02)
    stream = LogStream(app, "local", "x")
    stream._source = silent = Silent(piece(JobSeen(state=JobState.ENDED, session="x"), b"late", 4, 4))
    events = stream.events()
    for _ in range(2):
        assert await within(anext(events), SOON_S) == HEARTBEAT
    silent.answers.set()
    told = [read(part) async for part in events if part != HEARTBEAT]
    assert [name for name, _ in told] == ["text", "state", "end"]
    assert told[0][1]["text"] == "late"


async def test_a_browser_that_goes_ends_the_look_at_a_silent_machine(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "HEARTBEAT_S", 0.02)
    stream = LogStream(app, "local", "x")
    stream._source = silent = Silent(JobSeen(state=JobState.ENDED, session="x"))
    events = stream.events()
    assert await within(anext(events), SOON_S) == HEARTBEAT
    await events.aclose()
    assert silent.was_cancelled


async def ended(app: App, command: str) -> LogStream:
    """The log of a job that is over."""
    begun = await app.jobs.start(Wanted(command=command, sandbox="local"))
    await app.tasks.wait(Which(session=begun.started.session), JobWait(seconds=SOON_S))
    stream = LogStream(app, "local", begun.started.session)
    await stream.find()
    return stream


LONG = "seq -f 'line %.0f of a long log' 30000; printf '\\033[31mRed\\033[0m needle\\rthe needle\\n'; exit 3"


async def test_a_log_begins_with_a_line_and_what_is_above_can_be_read(app: App) -> None:
    stream = await ended(app, LONG)
    whole = b"".join([part async for part in stream.whole()]).decode()
    assert whole.startswith("line 1 of a long log\nline 2 ")
    assert whole.endswith("\rthe needle\n")
    (text,) = [data for name, data in [read(part) async for part in stream.events()] if name == "text"]
    assert text["text"].startswith("line ")
    assert 0 < len(whole) - len(text["text"]) == text["from"]
    above = await stream.part(text["from"] - 1000, text["from"])
    assert above["text"].startswith("line ")
    assert above["to"] == text["from"]
    assert whole[above["from"] :].startswith(above["text"] + text["text"])
    first = await stream.part(0, 30)
    assert (first["text"], first["from"], first["to"]) == ("line 1 of a long log\n", 0, 21)
    # A part that begins with a line has all of it.
    second = await stream.part(first["to"], first["to"] + 30)
    assert (second["text"], second["from"]) == ("line 2 of a long log\n", 21)


async def test_a_search_covers_the_whole_log_as_a_terminal_shows_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEARCHED_BYTES", 100_000)
    stream = await ended(app, LONG)

    async def found(words: str) -> list[int]:
        at, places = 0, []
        while at is not None:
            answer = await stream.search(words, at)
            places += answer["found"]
            at = answer["next"]
        return places

    (place,) = await found("line 29999")
    assert (await stream.part(place, place + 200))["text"].startswith("line 29999 of a long log\n")
    assert len(await found("of a long log")) == 30000
    assert await found("LONG") == []
    assert len(await found("the needle")) == 1
    # Written over, and never in one piece on a screen.
    assert await found("red needle") == []
    assert await found("exit_code") == []
    # A part with more matches than one answer holds is gone through in several.
    monkeypatch.setattr(logs, "MOST_MATCHES", 700)
    everywhere = await found("of a long log")
    assert (len(everywhere), len(set(everywhere))) == (30000, 30000)
