"""One command on several machines at once, some of which are dead or do not answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.pace import at_most
from tests.support.server import entry, serve
from tests.support.sshd import Fleet, Sshd, closed_port, wait_until


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> list[Sshd]:
    return [fleet.machine(f"many-{number}") for number in range(3)]


def rows_of(done: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["sandbox"]: row for row in done["results"]}


async def test_a_dead_and_a_frozen_machine_delay_no_other_and_are_rows_of_their_own(
    machines: list[Sshd], tmp_path: Path
) -> None:
    frozen, *well = machines
    heard: list[tuple[float, str]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((time.monotonic() - begun, message or ""))

    with closed_port() as port:
        dead = entry(frozen, name="dead", port=port)
        async with serve(tmp_path, *map(entry, machines), dead) as server:
            await server.run("true", sandbox_names=[machine.name for machine in machines])
            await asyncio.to_thread(frozen.freeze)
            try:
                begun = time.monotonic()
                done = rows_of(await server.run("seq 3; exit 4", sandbox_names="all", timeout_s=0.5, progress=hear))
                seconds = time.monotonic() - begun
            finally:
                await asyncio.to_thread(frozen.thaw)
    assert [(done[it.name]["exit_code"], done[it.name]["stdout"]) for it in well] == [(4, "1\n2\n3\n")] * 2
    assert (done["dead"]["code"], "nothing was started" in done["dead"]["error"]) == ("unreachable", True)
    assert done[frozen.name]["code"] == "connection_lost"
    assert done[frozen.name]["tmux_session"] in done[frozen.name]["error"]
    # The others were told long before the one that never answered.
    told = [at for at, message in heard if any(f"{it.name}: exit 4" in message for it in well)]
    assert told
    assert told[0] < at_most(3)
    assert seconds < at_most(12)


async def test_the_rest_of_a_long_output_is_where_its_row_says(machines: list[Sshd], tmp_path: Path) -> None:
    names = [machine.name for machine in machines]
    async with serve(tmp_path, *map(entry, machines)) as server:
        rows = rows_of(await server.run("seq 200000", sandbox_names=names))
        assert list(rows) == names
        for name, row in rows.items():
            assert row["stdout"].endswith("199999\n200000\n")
            whole = await server.call("read_remote_file", remote_path=row["stdout_file"], sandbox_name=name)
            assert whole["content"].startswith("1\n2\n3\n")


async def test_a_cancelled_call_ends_its_command_on_every_machine(machines: list[Sshd], tmp_path: Path) -> None:
    async with serve(tmp_path, *map(entry, machines)) as server:
        call = asyncio.ensure_future(server.run("sleep 4711", sandbox_names="all"))
        await asyncio.to_thread(wait_until, lambda: all(map(sleeps, machines)), what="the commands to begin")
        call.cancel()
        await asyncio.to_thread(wait_until, lambda: not any(map(sleeps, machines)), what="the commands to end")


def sleeps(machine: Sshd) -> bool:
    return any(command == "sleep 4711" for command in machine.processes().values())
