"""Start-up files that keep our programs from running: the error names the cause and what to do about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import why_no_answer
from tests.cli.conftest import Cli
from tests.support.server import entry, serve
from tests.support.sshd import Fleet

CASES = {
    "slow": ("sleep 30", "its login shell took longer than connect_timeout_s, 2 s"),
    "fish": ("exec fish", "starts another program in its place, as `exec fish` does"),
    "zsh": ('exec zsh "$@"', "starts another program in its place, as `exec fish` does"),
    "ended": ("exit 0", "a start-up file (~/.bashrc) ends it"),
    "file size": ("ulimit -f 0", "a limit on the size of files (ulimit -f, perhaps in ~/.bashrc) is too low"),
    "processes": ("ulimit -u 2", "a limit on processes (ulimit -u, perhaps in ~/.bashrc) is reached"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_start_up_file_that_is_in_the_way_is_named(fleet: Fleet, tmp_path: Path, case: str) -> None:
    line, says = CASES[case]
    machine = fleet.machine(bashrc=f"{line}\n")
    # Slow machines need their time to log in, but not for a sleep.
    limit = {"connect_timeout_s": 2} if case == "slow" else {}
    async with serve(tmp_path, entry(machine, **limit)) as server:
        problem = await server.fail("exec_bash", command="echo hi")
        assert says in problem["error"]
        assert machine.name in problem["error"]
        checked = Cli()
        checked.machines = [entry(machine, **limit)]
        seen = checked("doctor", machine.name)
        assert seen.code == 1
        assert says in seen.stdout
        assert "interactive shells" in problem["error"] or "ulimit" in problem["error"]
    machine.stop()


async def test_a_shell_is_asked_again_where_sshd_still_counts_the_session_before(fleet: Fleet, tmp_path: Path) -> None:
    """And where it grants none at all, the shell is not blamed for that."""
    machine = fleet.machine(max_sessions=1)
    gate = LoginGate(machine.machine(), tmp_path / "known_hosts")
    connection = await gate.enter()
    try:
        async with connection.create_process("read line") as before:
            assert await why_no_answer(gate, connection) == ""
            asked = asyncio.ensure_future(why_no_answer(gate, connection))
            before.stdin.write_eof()
            assert await asked == ""
    finally:
        connection.abort()
        machine.stop()
