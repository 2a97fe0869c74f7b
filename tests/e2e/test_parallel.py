"""Many calls at once: they overlap, and each gets its own answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.pace import at_most
from tests.support.server import Server, entry, serve
from tests.support.sshd import Fleet

# Far more than they take: how fast they are is for the bench to say.
SANE_S = 10.0


async def test_a_hundred_calls_at_once_overlap_on_a_stock_sshd(server: Server) -> None:
    await server.run("true")
    begun = time.monotonic()
    outputs = await asyncio.gather(*(server.output(f"sleep 0.5; echo {number}") for number in range(100)))
    assert time.monotonic() - begun < at_most(SANE_S)
    assert outputs == [f"{number}\n" for number in range(100)]


async def test_a_hundred_first_calls_share_one_connection(fleet: Fleet, tmp_path: Path) -> None:
    machine = fleet.machine("crowd")
    async with serve(tmp_path, entry(machine)) as server:
        outputs = await asyncio.gather(*(server.output(f"echo {number}") for number in range(100)))
        assert outputs == [f"{number}\n" for number in range(100)]
        assert machine.log.count("Accepted publickey") == 1


async def test_calls_overlap_without_python_too(fleet: Fleet, tmp_path: Path) -> None:
    machine = fleet.machine(python=False)
    async with serve(tmp_path, entry(machine)) as server:
        await server.run("true")
        begun = time.monotonic()
        outputs = await asyncio.gather(*(server.output(f"sleep 1; echo {number}") for number in range(25)))
        assert outputs == [f"{number}\n" for number in range(25)]
        assert time.monotonic() - begun < at_most(SANE_S)


async def test_a_slow_call_delays_no_other(server: Server) -> None:
    slow = asyncio.ensure_future(server.run("sleep 4"))
    begun = time.monotonic()
    for number in range(10):
        assert await server.output(f"echo {number}") == f"{number}\n"
        await server.call("list_remote_files")
    assert time.monotonic() - begun < at_most(3.5)
    assert not slow.done()
    assert await slow == {"exit_code": 0}


async def test_large_outputs_at_once_do_not_mix(server: Server) -> None:
    letters = "abcdefgh"
    command = "head -c 2000000 /dev/zero | tr '\\0' {}; echo {} >&2"
    answers = await asyncio.gather(*(server.run(command.replace("{}", letter)) for letter in letters))
    for letter, answer in zip(letters, answers, strict=True):
        head, _, rest = answer["stdout"].partition("\n[... ")
        assert set(head) == {letter}
        assert set(rest.partition(" ...]\n")[2]) == {letter}
        assert answer["stdout_bytes"] == 2_000_000
        assert answer["stderr"] == f"{letter}\n"
