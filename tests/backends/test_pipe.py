"""A child process as a line."""

from __future__ import annotations

import asyncio
import os

import pytest

from remote_sandbox_mcp.backends.link import pipe
from tests.support.hubs import is_alive
from tests.support.server import until
from tests.support.sshd import wait_until

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


async def test_a_process_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await pipe.start(["/nonexistent"], {})


async def test_a_line_that_ended_reads_as_ended_and_takes_what_is_written() -> None:
    line = await pipe.start(["/bin/sh", "-c", "echo $GREETING; echo oops >&2"], {"GREETING": "hello"})
    said = b""
    while data := await line.read():
        said += data
    assert said == b"hello\noops\n"
    line.write(b"x" * 100_000)
    line.close()
    line.write(b"x")
    line.close()
    assert await line.read() == b""


async def test_closing_a_line_wakes_its_reader_and_ends_the_process() -> None:
    line = await pipe.start(["/bin/sh", "-c", "echo $$; exec sleep 60"], ENVIRONMENT)
    pid = int(await line.read())
    reading = asyncio.create_task(line.read())
    await asyncio.sleep(0)
    line.close()
    assert await asyncio.wait_for(reading, 5) == b""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_closing_a_line_ends_what_its_process_has_started() -> None:
    line = await pipe.start(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], ENVIRONMENT)
    pid = int(await line.read())
    line.close()
    line.close()
    wait_until(lambda: not is_alive(pid), what="the child to end")


async def test_a_process_that_does_not_read_blocks_no_writer() -> None:
    line = await pipe.start(["/bin/sleep", "60"], ENVIRONMENT)
    line.write(b"x" * 10_000_000)
    line.close()
    assert await line.read() == b""


async def test_a_process_is_away_from_our_terminal_and_our_files() -> None:
    line = await pipe.start(["/bin/sh", "-c", "ps -o sid= -p $$; pwd; ls /proc/self/fd | wc -l"], ENVIRONMENT)
    said = b""
    while data := await line.read():
        said += data
    line.close()
    session, folder, count = said.split()
    assert int(session) != os.getsid(0)
    assert (folder, int(count)) == (b"/", 4)


async def test_a_process_that_may_not_be_killed_ends_with_its_input_and_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    line = await pipe.start(["/bin/sh", "-c", "echo $$; exec cat"], ENVIRONMENT)
    pid = int(await line.read())
    monkeypatch.setattr(os, "killpg", refuse)
    line.close()
    await until(lambda: not os.path.exists(f"/proc/{pid}"), "its end")
