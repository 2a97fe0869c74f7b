"""What is behind a command: how failures are told, what survives a cut, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.command import sandbox as command_sandbox
from remote_sandbox_mcp.backends.link import sandbox as outpost_sandbox
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.errors import ConnectError, LostContact, Unreachable, Unsupported
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import finish
from tests.support.commands import client_of, open_door, shell_of
from tests.support.hubs import is_alive
from tests.support.root import as_root
from tests.support.sshd import Sshd, wait_until
from tests.support.waiting import eventually

MEGABYTE = 1 << 20
BY_HAND = "; run it in a terminal to see more"


@contextlib.asynccontextmanager
async def opened(argv: list[str], **options: Any) -> AsyncIterator[Sandbox]:
    sandbox = await open_door(argv, **options)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def command_of(sandbox: Sandbox) -> int:
    """The process that is the line to the outpost."""
    assert isinstance(sandbox, OutpostSandbox)
    client: Any = sandbox._client
    return int(client.line._line._line._process.pid)


# A command that gives no shell


FAILURES = {
    "not found": (
        ["no-such-program"],
        "its command no-such-program cannot be found; install it, or name it by its whole path in config.toml",
    ),
    "may not be run": (["/etc/passwd"], "its command passwd cannot be started: Permission denied"),
    "ends with words": (
        ["sh", "-c", r"printf 'one\ntwo\nError: \033[31mno such container: web\033[0m\n\n' >&2; exit 4"],
        "its command sh ended with status 4 without giving a shell, and said: one / two / Error: no such container: "
        f"web{BY_HAND}",
    ),
    "ends silently": (["true"], f"its command true ended with status 0 without giving a shell{BY_HAND}"),
    "is killed": (["sh", "-c", "kill -9 $$"], f"its command sh ended with status -9 without giving a shell{BY_HAND}"),
    "complains on its output": (
        ["sh", "-c", "echo 'please log in first'; exit 1"],
        f"its command sh ended with status 1 without giving a shell, and said: please log in first{BY_HAND}",
    ),
    "waits for ever": (
        ["sh", "-c", "echo 'touch your key' >&2; exec sleep 60"],
        f"its command sh went on for 0.5 s without giving a shell, and said: touch your key{BY_HAND}",
    ),
    "gives a terminal": (
        ["script", "-qec"],
        "its command script changes what is sent over it, as a terminal does; take out the option that asks for one, "
        "as -t does",
    ),
    "has no sh": (["env", "PATH=/nonexistent", "/bin/sh", "-c"], "/bin/sh: 1: exec: sh: not found"),
}


@pytest.mark.parametrize(("argv", "told"), FAILURES.values(), ids=FAILURES)
async def test_a_command_that_gives_no_shell_is_reported_in_one_sentence(argv: list[str], told: str) -> None:
    with pytest.raises(ConnectError) as problem:
        await open_door(argv, timeout_s=0.5 if "sleep" in argv[-1] else 10)
    assert str(problem.value).endswith(told)
    assert str(problem.value).startswith(("unable to open door: ", "door: "))


async def test_a_command_that_only_repeats_its_argument_is_not_taken_for_a_shell() -> None:
    with pytest.raises(Unreachable, match=r"its command yes went on printing without giving a shell, and said: \.\.\."):
        await open_door(["yes"])


@pytest.mark.parametrize("cut", ["kill -9 $$", "exit 255", "exit 137"])
async def test_a_cut_before_python_has_started_does_not_show_that_there_is_none(cut: str) -> None:
    only_the_shell = f'eval "${{0%%;*}}"; echo lost >&2; {cut}'
    told = "unable to open door: its command sh was cut off while python3 started, and said: lost"
    with pytest.raises(Unreachable, match=told):
        await open_door(["sh", "-c", only_the_shell])


async def test_a_hundred_megabytes_of_complaints_become_one_short_harmless_sentence() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last = r"printf '\033]0;title\007\033[2J\342\200\256%04000d\n' 7 >&2"
    script = f"head -c {100 * MEGABYTE} /dev/zero | tr '\\0' 'x' >&2; {last}; exit 1"
    with pytest.raises(Unreachable) as problem:
        await open_door(["sh", "-c", script], timeout_s=60)
    told = str(problem.value)
    assert len(told) < 500
    assert told.isprintable()
    # In kilobytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


# A command that gives one


async def test_what_is_printed_before_the_shell_starts_means_nothing() -> None:
    banner = "echo 'Welcome to \033[1mgpu1'; printf 'no end of line'; echo 'mind the gap' >&2; exec sh -c \"$0\""
    async with opened(["sh", "-c", banner]) as sandbox:
        assert isinstance(sandbox, OutpostSandbox)
        assert (await finish(sandbox, "echo out; echo err >&2")).stdout.head == b"out\n"


async def test_standard_error_of_a_command_is_no_part_of_an_answer() -> None:
    noisy = "while sleep 0.02; do printf 'client_loop: \\000\\000\\000\\007' >&2; done & sh -c \"$0\"; kill $!"
    async with opened(["sh", "-c", noisy]) as sandbox:
        for _ in range(5):
            assert (await finish(sandbox, "sleep 0.05; echo out")).stdout.head == b"out\n"


async def test_a_command_starts_at_home_without_a_terminal_and_with_the_given_variables_alone(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "GIVEN": "yes"}
    script = f"exec >{tmp_path}/said; pwd; (: </dev/tty) 2>/dev/null && echo terminal; env; exit 1"
    with pytest.raises(Unreachable):
        await open_door(["/bin/sh", "-c", script], environ=environ)
    first, *others = (tmp_path / "said").read_text().splitlines()
    assert first == environ["HOME"]
    # What the shell itself adds is not counted.
    added = ("_=", "PWD=", "OLDPWD=", "SHLVL=")
    assert sorted(line for line in others if not line.startswith(added)) == sorted(
        f"{name}={value}" for name, value in environ.items()
    )


async def test_a_closed_sandbox_leaves_no_process_of_its_command() -> None:
    async with opened(["sh", "-c", 'sleep 1000 & sh -c "$0"']) as sandbox:
        lanes = [await sandbox.open_lane() for _ in range(2)]
        pid = command_of(sandbox)
        assert is_alive(pid)
        for lane in lanes:
            await lane.close()
    wait_until(lambda: not _group(pid), what="its group to end")


def _group(leader: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(entry)) == leader:
                found.append(int(entry))
    return found


async def test_the_number_of_lanes_is_limited_and_one_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sandbox, "MOST_BESIDE", 2)
    async with opened(["sh", "-c"]) as sandbox:
        first, second = await sandbox.open_lane(), await sandbox.open_lane()
        with pytest.raises(Unsupported, match="door: its command sh runs 2 times already; try again later"):
            await sandbox.open_lane()
        await first.close()
        await first.close()
        third = await sandbox.open_lane()
        for lane in (second, third):
            await lane.close()


async def test_a_command_that_leads_elsewhere_each_time_moves_no_files_and_reaches_no_port() -> None:
    """As `docker run` does, and a name that several machines share."""
    elsewhere = 'exec unshare --uts sh -c \'echo "node-$$" >/proc/sys/kernel/hostname; exec sh -c "$1"\' sh "$0"'
    told = "door: its command .* leads to another place each time that it is started, so files cannot be synced"
    async with opened([*as_root("sh"), "-c", elsewhere]) as sandbox:
        with pytest.raises(Unsupported, match=told):
            await sandbox.open_lane()
        with pytest.raises(Unsupported, match=told):
            await sandbox.connect(80)
        assert (await finish(sandbox, "hostname")).stdout.head.startswith(b"node-")


# A command that is cut off


DOORS: dict[str, Callable[[Sshd], list[str]]] = {"a shell": shell_of, "OpenSSH": client_of}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
async def test_a_command_that_dies_while_something_runs_is_started_again_and_the_run_goes_on_once(
    shared_sshd: Sshd, door: Callable[[Sshd], list[str]]
) -> None:
    async with opened(door(shared_sshd)) as sandbox:
        script = "echo begun >>~/count; while ! [ -e ~/go ]; do sleep 0.05; done; rm ~/go; cat ~/count; exit 7"
        running = asyncio.ensure_future(sandbox.run(Command(script)))
        home = shared_sshd.home
        await eventually(lambda: _exists(home / "count"), bool, "its start")
        os.killpg(command_of(sandbox), signal.SIGKILL)
        await sandbox.write("~/go", b"")
        done = await running
        assert isinstance(done, Completed)
        assert (done.exit_code, done.stdout.head) == (7, b"begun\n")
        await finish(sandbox, "rm ~/count")
    shared_sshd.reset()


async def _exists(path: os.PathLike[str]) -> bool:
    return os.path.exists(path)


async def test_a_command_that_no_longer_starts_is_quoted_and_the_run_can_be_asked_for_later(
    shared_sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outpost_sandbox, "MEND_S", 0.5)
    barred = tmp_path / "barred"
    inner = " ".join(f"'{word}'" for word in shell_of(shared_sshd))
    argv = ["sh", "-c", f'[ ! -e {barred} ] || {{ echo "the tunnel is down" >&2; exit 3; }}; exec {inner} "$0"']
    async with opened(argv) as sandbox:
        command = Command("while ! [ -e ~/go ]; do sleep 0.05; done; rm ~/go; exit 7")
        assert isinstance(await sandbox.run(command, patience_s=0.3), Running)
        again = asyncio.ensure_future(sandbox.run(Command("touch ~/begun; exec sleep 60")))
        await eventually(lambda: _exists(shared_sshd.home / "begun"), bool, "its start")
        barred.touch()
        os.killpg(command_of(sandbox), signal.SIGKILL)
        with pytest.raises(LostContact, match=r"its command sh ended with status 3 .* said: the tunnel is down"):
            await again
        barred.unlink()
        await sandbox.write("~/go", b"")
        seen = await eventually(
            lambda: sandbox.observe(command.run_id), lambda seen: isinstance(seen, Completed), "its end"
        )
        assert isinstance(seen, Completed)
        assert seen.exit_code == 7
    shared_sshd.reset()


async def test_files_come_and_go_through_openssh(shared_sshd: Sshd) -> None:
    async with opened(client_of(shared_sshd)) as sandbox:
        await sandbox.write("~/a file", b"\0\r\n\xff" * 100_000)
        assert (await sandbox.read("~/a file", Span(limit=1 << 20))).data == b"\0\r\n\xff" * 100_000
    shared_sshd.reset()
