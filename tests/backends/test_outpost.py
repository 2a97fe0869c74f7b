"""The far program on its own: over a pipe, under every Python, fuzzed, killed, squatted on, cut off."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import stat
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.link.client import (
    LARGEST,
    PONG_S,
    SILENCE_S,
    LineLost,
    NoOutpost,
    OutpostClient,
    Refusal,
    RunInput,
)
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.mending import Pace
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Missing, Running, new_run_id
from remote_sandbox_mcp.core.errors import FileProblem, LostContact, NotStarted
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobRefused, new_job_id
from remote_sandbox_mcp.core.progress import Beat, StreamName
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.far import program
from remote_sandbox_mcp.far.outpost import wire
from tests.backends.contract.basics import ShellPrograms, begin, ended, finish, forgotten, in_background, is_alive, said
from tests.support.line import Line
from tests.support.pace import at_most
from tests.support.pipe import PipeMachine, as_user, pipe_machine, pythons
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.waiting import eventually

PROGRAMS = ShellPrograms()
DAY_S = 24 * 3600
LONG_WRITE = 6 << 20


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine("outpost")


@pytest.fixture
async def machine(user: Sshd) -> AsyncIterator[PipeMachine]:
    async with pipe_machine(user) as machine:
        yield machine
    clean(user)


def clean(user: Sshd) -> None:
    """As it was before: nothing runs, nothing lies about."""
    user.reset()
    run_as_root("find", str(user.home), "-mindepth", "1", "-not", "-path", f"{user.home}/.ssh*", "-delete")


@pytest.fixture
async def sandbox(machine: PipeMachine) -> AsyncIterator[OutpostSandbox]:
    sandbox = machine.sandbox()
    yield sandbox
    await sandbox.close()


def in_shell(machine: PipeMachine, script: str) -> str:
    """What a script prints that the machine's user runs at home."""
    argv = as_user(machine.sshd, ["sh", "-c", f"cd; {script}"])
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def keeper_of(machine: PipeMachine, run_id: str) -> int:
    """The pid of the process that keeps a run, as the run's own record tells it."""
    return int(json.loads((machine.folder(run_id) / "run").read_text().split("\n")[0])["pid"])


# The text of the program


PROGRAM_TEXTS = {
    **{piece: program.read_piece(piece) for piece in (*program.OUTPOST, *program.LANE)},
    "all of the outpost": program.source(program.OUTPOST),
    "all of a lane": program.source(program.LANE),
}


@pytest.mark.parametrize("text", PROGRAM_TEXTS.values(), ids=PROGRAM_TEXTS)
def test_it_is_python_3_6(text: str) -> None:
    ast.parse(text, feature_version=(3, 6))


def test_all_pieces_are_sent_and_none_is_imported() -> None:
    imported = {node.module for node in ast.walk(ast.parse(program.source())) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"typing"}


def test_any_login_shell_passes_the_loader_on() -> None:
    assert not set("'\n\\!") & set(program.loader())
    line = program.start_line("python3", "0123abcd")
    assert line.count("'") == 2
    assert not set("\n\\!") & set(line)


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3] + "/" + path.split("/")[-1])
async def test_it_runs_under_every_python(machine: PipeMachine, python: str) -> None:
    machine.python = python
    sandbox = machine.sandbox()
    done, late, left = await asyncio.gather(
        finish(sandbox, PROGRAMS.prints(b"out\0\xff", b"err", 3)),
        finish(sandbox, PROGRAMS.waits_for("/no/such/file", b"so far"), timeout_s=0.3),
        finish(sandbox, "sleep 60 & echo $!"),
    )
    assert sandbox.hello["python"].startswith(python.rpartition("python")[2])
    assert (done.exit_code, done.stdout.head, done.stderr.head) == (3, b"out\0\xff", b"err")
    assert (late.ending, late.stdout.head) == (Ending.TIMED_OUT, b"so far")
    assert left.left_running == (int(left.stdout.head),)
    written = await sandbox.write("made/file", b"x" * 100_000)
    assert (await sandbox.read("made/file", Span(limit=200_000))).version == written.version
    await sandbox.close()
    assert await machine.pipes[0].end() == (0, "")


# The greeting


@pytest.mark.parametrize(
    "noise",
    [
        "echo Welcome; echo",
        "printf 'no newline'",
        "printf '\\000\\377\\n\\n\\033[31m'",
        "head -c 100000 /dev/zero",
        "echo oops >&2",
        "cd /; umask 0; ulimit -n 64",
    ],
    ids=["text", "no newline", "bytes", "much", "stderr", "settings"],
)
async def test_whatever_a_startup_file_does_the_outpost_starts(machine: PipeMachine, noise: str) -> None:
    client = await machine.outpost(noise)
    _, answer = await client.ask({"verb": "list", "path": "/", "recursive": False, "limit": 1})
    assert len(answer["entries"]) == 1
    _, end = await client.ask({"verb": "run", **order("pwd; echo x > made; ls -l made", cwd="~")})
    assert end["exit"] == 0
    await client.close()


@pytest.mark.parametrize("noise", ["exit 1", "echo no python here; exit 127", "head -c 2000000 /dev/zero; sleep 60"])
async def test_a_shell_that_starts_no_outpost_is_recognized(machine: PipeMachine, noise: str) -> None:
    with pytest.raises(NoOutpost):
        await machine.outpost(noise)
    machine.sshd.reset()


def order(script: str, **fields: Any) -> dict[str, Any]:
    usual = {"id": new_run_id(), "script": script, "shell": [], "env": {}, "cwd": "", "timeout": 60, "keep": 1000}
    return {**usual, **fields}


# Nonsense

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
VERBS = st.sampled_from(["run", "look", "forget", "read", "write", "list", "search", "", "fly"])
NAMES = st.sampled_from(
    ["id", "path", "keep", "limit", "stop", "wait", "offset", "lines", "pattern", "glob", "expected"]
)
HARMLESS = JSON.filter(lambda value: not isinstance(value, str) or not value.startswith(("/", "~", ".")))
REQUESTS = st.builds(
    lambda verb, fields, raw: json.dumps({**fields, "verb": verb}).encode() + raw,
    VERBS | JSON,
    # Any path would be looked at, and written to: these are too odd to be somebody's.
    st.dictionaries(NAMES, HARMLESS, max_size=5),
    st.sampled_from([b"", b"\0", b"\0raw"]),
)
BODIES = st.binary(max_size=200) | REQUESTS | JSON.map(lambda value: json.dumps(value).encode())
FRAMES = st.builds(
    wire.frame,
    st.sampled_from([wire.REQUEST, wire.CANCEL, wire.PING]) | st.integers(0, 255),
    st.integers(1 << 20, 1 << 32 - 1),
    BODIES,
)


@pytest.fixture(scope="module")
async def fuzzed(user: Sshd) -> AsyncIterator[tuple[PipeMachine, OutpostClient]]:
    async with pipe_machine(user) as machine:
        client = await machine.outpost()
        yield machine, client
        await client.close()
    clean(user)


@pytest.mark.anyio
@settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nonsense=st.lists(FRAMES, min_size=1, max_size=24))
async def test_nonsense_harms_no_other_request(
    fuzzed: tuple[PipeMachine, OutpostClient], nonsense: list[bytes]
) -> None:
    machine, client = fuzzed
    # The answers to what follows are to no request of this client, which has patience with few of them.
    client._signs = 0
    before = client.begin({"verb": "run", **order(PROGRAMS.waits_for(f"{machine.sshd.home}/go", b"x", b"y"))})
    machine.pipes[0].write(b"".join(nonsense))
    _, answer = await asyncio.wait_for(
        client.ask({"verb": "run", **order(f"touch {machine.sshd.home}/go")}), at_most(10)
    )
    assert answer["exit"] == 0
    end = await asyncio.wait_for(before.done, at_most(10))
    assert (end["exit"], before.part(wire.OUT)) == (0, b"xy")
    await client.ask({"verb": "run", **order(f"rm {machine.sshd.home}/go")})


NONSENSE = {
    "a frame of ours": (wire.HELLO, b""),
    "unknown kind": (99, b"{}"),
    "nothing": (wire.REQUEST, b""),
    "no text": (wire.REQUEST, b"\xff"),
    "no object": (wire.REQUEST, b"[]"),
    "no verb": (wire.REQUEST, b"{}"),
    "unknown verb": (wire.REQUEST, b'{"verb": "fly"}'),
    "list as verb": (wire.REQUEST, b'{"verb": []}'),
    "object as verb": (wire.REQUEST, b'{"verb": {}}'),
    "run nothing": (wire.REQUEST, b'{"verb": "run"}'),
    "look at nothing": (wire.REQUEST, b'{"verb": "look"}'),
    "forget nothing": (wire.REQUEST, b'{"verb": "forget"}'),
    "forget NUL": (wire.REQUEST, b'{"verb": "forget", "id": "a\\u0000b"}'),
    "forget a surrogate": (wire.REQUEST, b'{"verb": "forget", "id": "a\\ud800b"}'),
    "look at NUL": (wire.REQUEST, b'{"verb": "look", "id": "a\\u0000b", "keep": 1}'),
    "read nothing": (wire.REQUEST, b'{"verb": "read"}'),
    "read NUL": (wire.REQUEST, b'{"verb": "read", "path": "a\\u0000b", "offset": 0, "limit": 1}'),
    "list too many": (wire.REQUEST, b'{"verb": "list", "path": "/", "limit": "many"}'),
    "deep": (wire.REQUEST, b"[" * 100_000),
    "long": (wire.REQUEST, b'{"verb": "run", "script": "' + b"x" * 1_000_000),
}


@pytest.mark.parametrize(("kind", "body"), NONSENSE.values(), ids=NONSENSE)
async def test_a_malformed_request_is_answered_with_an_error(machine: PipeMachine, kind: int, body: bytes) -> None:
    client = await machine.outpost()
    exchange = client._begin(kind, body)
    await asyncio.wait((exchange.done,), timeout=10)
    assert exchange.done.done()
    assert isinstance(exchange.done.exception(), Refusal) or exchange.done.result() == {}
    await client.ping()
    assert (await client.ask({"verb": "run", **order("exit 3")}))[1]["exit"] == 3
    await client.close()
    assert await machine.pipes[0].end() == (0, "")


@pytest.mark.parametrize(
    "ending",
    [
        b"",
        b"\0",
        wire.HEADER.pack(100, wire.REQUEST, 1) + b"{",
        wire.HEADER.pack(wire.MAX_BODY + 1, wire.REQUEST, 1),
        struct.pack(">IBI", 0xFFFFFFFF, 255, 0xFFFFFFFF) * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["nothing", "half a header", "half a frame", "too long", "longest", "http"],
)
async def test_it_ends_cleanly_with_its_line(machine: PipeMachine, ending: bytes) -> None:
    client = await machine.outpost()
    run_id = new_run_id()
    running = client.begin({"verb": "run", **order(PROGRAMS.waits_for("/no/such/file", b"x"), id=run_id)})
    await eventually(
        lambda: client.ask({"verb": "look", "id": run_id, "keep": 1}), lambda seen: seen[1].get("out") == 1, "the run"
    )
    machine.pipes[0].write(ending)
    assert await machine.pipes[0].end() == (0, "")
    with pytest.raises(LineLost):
        await running.done
    await client.close()
    sandbox = machine.sandbox()
    assert isinstance(await sandbox.stop(run_id), Completed)
    await sandbox.close()


# Death


async def test_a_killed_outpost_loses_no_run(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    go = f"{machine.sshd.home}/go"
    command = Command(f"echo >> started; {PROGRAMS.waits_for(go, b'first ', b'then')}; exit 5")
    async with in_background(sandbox.run(command)) as running:
        await eventually(lambda: sandbox.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        machine.kill(int(sandbox.hello["pid"]))
        other = machine.sandbox()
        assert isinstance(await other.observe(command.run_id), Running)
        await other.write(go, b"")
        for seen in (await running, await ended(other, command.run_id)):
            assert isinstance(seen, Completed)
            assert (seen.exit_code, seen.stdout.head, seen.ending) == (5, b"first then", Ending.EXITED)
        assert (await other.read("started", Span())).size == 1
        await other.close()


async def test_an_outpost_killed_at_any_moment_starts_nothing_twice(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    await sandbox.write("log", b"")
    for n in range(25):
        # One that dies as soon as it is made is not made again at once, many times in a row.
        sandbox._pace = Pace("pipe")
        async with in_background(sandbox.run(Command(f"echo {n} >> log; exit {n}"))) as running:
            await asyncio.wait((running,), timeout=n * 0.0007)
            if sandbox.is_open:
                machine.kill(int(sandbox.hello["pid"]))
            done = await running
            assert isinstance(done, Completed)
            assert done.exit_code == n
    assert (await sandbox.read("log", Span())).data == b"".join(b"%d\n" % n for n in range(25))


async def test_a_killed_keeper_is_a_lost_run_with_its_output(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    running = await begin(sandbox, PROGRAMS.waits_for("/no/such/file", b"so far"))
    machine.kill(keeper_of(machine, running.run_id))
    seen = await eventually(
        lambda: sandbox.observe(running.run_id), lambda seen: not isinstance(seen, Running), "the run to be lost"
    )
    assert isinstance(seen, Missing)
    assert "killed" in seen.reason
    assert seen.stdout.head == b"so far"


async def test_a_caller_that_waits_for_a_killed_keeper_learns_that_the_run_is_lost(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    command = Command(PROGRAMS.waits_for("/no/such/file", b"so far"))
    async with in_background(sandbox.run(command)) as running:
        await eventually(lambda: sandbox.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        machine.kill(keeper_of(machine, command.run_id))
        with pytest.raises(LostContact) as lost:
            await running
    assert lost.value.outcome == "lost"
    assert lost.value.so_far.stdout.head == b"so far"


async def test_a_keeper_killed_between_runs_is_not_missed(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    done = await finish(sandbox, "echo one")
    machine.kill(keeper_of(machine, done.run_id))
    assert await said(sandbox, "echo two") == b"two\n"


async def test_cancelling_the_run_of_a_killed_keeper_harms_no_other_request(machine: PipeMachine) -> None:
    client = await machine.outpost()
    run_id = new_run_id()
    running = client.begin({"verb": "run", **order(PROGRAMS.waits_for("/no/such/file", b"x"), id=run_id)})
    await eventually(
        lambda: client.ask({"verb": "look", "id": run_id, "keep": 1}), lambda seen: seen[1].get("out") == 1, "the run"
    )
    # Stopped for a moment, so that it reads of the cancelling before it reads of the death.
    outpost = int(client.hello["pid"])
    in_shell(machine, f"kill -STOP {outpost}")
    machine.kill(keeper_of(machine, run_id))
    client.cancel(running)
    in_shell(machine, f"kill -CONT {outpost}")
    assert (await client.ask({"verb": "run", **order("exit 3")}))[1]["exit"] == 3
    await client.close()
    assert await machine.pipes[0].end() == (0, "")


async def test_one_id_started_from_two_outposts_starts_once(machine: PipeMachine) -> None:
    both = (machine.sandbox(), machine.sandbox())
    await asyncio.gather(*(sandbox.open() for sandbox in both))
    await both[0].write("log", b"")
    for n in range(40):
        command = Command(f"echo {n} >> log; exit {n}")
        done = await asyncio.gather(*(sandbox.run(command) for sandbox in both))
        assert [each.exit_code for each in done if isinstance(each, Completed)] == [n, n]
    assert (await both[0].read("log", Span())).data == b"".join(b"%d\n" % n for n in range(40))
    await asyncio.gather(*(sandbox.close() for sandbox in both))


# The folder


async def test_runs_are_closed_to_others(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    done = await finish(sandbox, "umask 0; echo secret")
    folder = machine.folder(done.run_id)
    assert done.stdout.file == f"{folder}/out"
    for path in (machine.base, folder):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (machine.sshd.uid, 0o700)
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in folder.iterdir())


@pytest.fixture
def vacant(machine: PipeMachine) -> Iterator[Path]:
    """The usual place for runs, with nothing there."""
    run_as_root("rm", "-rf", str(machine.base))
    yield machine.base
    run_as_root("rm", "-rf", str(machine.base))


SQUATS = {
    "symlink": "ln -s {home}/elsewhere {base}",
    "dangling symlink": "ln -s /nowhere {base}",
    "another's folder": "mkdir -m 777 {base}",
    "file": "touch {base}",
    "our folder, open": "mkdir -m 755 {base}; chown {uid} {base}",
}


@pytest.mark.parametrize("squat", SQUATS.values(), ids=SQUATS)
async def test_a_squatted_folder_is_not_used(
    machine: PipeMachine, sandbox: OutpostSandbox, vacant: Path, squat: str
) -> None:
    home = machine.sshd.home
    in_shell(machine, "mkdir -p -m 700 elsewhere")
    run_as_root("sh", "-c", squat.format(home=home, base=vacant, uid=machine.sshd.uid))
    done = await finish(sandbox, "echo x")
    assert done.stdout.file == f"{home}/.cache/remote-sandbox/{done.run_id}/out"
    assert await sandbox.observe(done.run_id) == done
    # Nothing was put there, and nothing followed the link.
    assert in_shell(machine, f"find elsewhere {vacant}/ -mindepth 1 2>/dev/null || true") == ""


async def test_a_forgotten_run_leaves_nothing(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    done = await finish(sandbox, "echo x")
    assert machine.folder(done.run_id).is_dir()
    sandbox.forget(done.run_id)
    await forgotten(sandbox, done.run_id)
    assert not machine.folder(done.run_id).exists()


async def test_runs_forgotten_last_are_removed_when_the_line_ends(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    done = await finish(sandbox, "echo x")
    sandbox.forget(done.run_id)
    await sandbox.close()
    wait_until(lambda: not machine.folder(done.run_id).exists(), what="the folder to go")


def let_prune(machine: PipeMachine, run_id: str) -> None:
    """Take away the mark that says that old runs were removed a moment ago."""
    (machine.folder(run_id).parent / ".pruned").unlink()


async def test_old_runs_are_looked_for_once_a_minute(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    old = await finish(sandbox, "echo old")
    run_as_root("touch", "-d", f"@{time.time() - 2 * DAY_S:.0f}", str(machine.folder(old.run_id)))
    for _ in range(2):
        other = machine.sandbox()
        await other.open()
        await finish(other, "echo new")
        await other.close()
    assert machine.folder(old.run_id).exists()


async def test_old_runs_are_pruned_and_running_ones_kept(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    old, new = await finish(sandbox, "echo old"), await finish(sandbox, "echo new")
    running = await begin(sandbox, PROGRAMS.waits_for("/no/such/file"))
    aged = time.time() - 2 * DAY_S
    let_prune(machine, old.run_id)
    for run_id in (old.run_id, running.run_id):
        run_as_root("touch", "-d", f"@{aged:.0f}", str(machine.folder(run_id)))
    other = machine.sandbox()
    await other.open()
    wait_until(lambda: not machine.folder(old.run_id).exists(), what="the old run to go")
    assert isinstance(await other.observe(new.run_id), Completed)
    assert isinstance(await other.stop(running.run_id), Completed)
    await other.close()


async def test_a_run_of_another_machine_with_this_home_is_not_restarted_stopped_or_pruned(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    running = await begin(sandbox, PROGRAMS.waits_for("/no/such/file"))
    path = machine.folder(running.run_id) / "run"
    mine = path.read_text()
    path.write_text(
        json.dumps({**json.loads(mine), "boot": "another", "machine": "another", "host": "b.example.org"}) + "\n"
    )
    run_as_root("touch", "-d", f"@{time.time() - 2 * DAY_S:.0f}", str(machine.folder(running.run_id)))
    let_prune(machine, running.run_id)
    other = machine.sandbox()
    await other.open()
    for seen in (await other.observe(running.run_id), await other.stop(running.run_id)):
        assert isinstance(seen, Missing)
        assert "another machine that has the same home folder (b.example.org)" in seen.reason
    path.write_text(mine)
    assert isinstance(await other.observe(running.run_id), Running)
    assert isinstance(await other.stop(running.run_id), Completed)
    await other.close()


async def test_the_oldest_runs_are_pruned_when_there_is_too_much(machine: PipeMachine, sandbox: OutpostSandbox) -> None:
    large, small = await finish(sandbox, "echo large"), await finish(sandbox, "echo small")
    run_as_root("touch", "-d", f"@{time.time() - 60:.0f}", str(machine.folder(large.run_id)))
    os.truncate(machine.folder(large.run_id) / "out", 2 << 30)
    let_prune(machine, large.run_id)
    other = machine.sandbox()
    await other.open()
    wait_until(lambda: not machine.folder(large.run_id).exists(), what="the large run to go")
    assert isinstance(await other.observe(small.run_id), Completed)
    await other.close()


# Output


async def test_of_two_writers_that_read_the_same_version_one_is_refused(sandbox: OutpostSandbox) -> None:
    for _ in range(40):
        before = await sandbox.write("shared.txt", b"before")
        both = (sandbox.write("shared.txt", text, expected=before.version) for text in (b"one", b"two"))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["FileProblem", "Written"]


async def test_a_write_that_no_frame_holds_is_refused_before_anything_is_sent(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    with pytest.raises(FileProblem) as problem:
        await sandbox.write("large", bytes(LARGEST + 1))
    assert problem.value.reason == "too_large"
    assert str(problem.value) == (
        f"pipe: large: {LARGEST + 1} bytes are more than the {LARGEST} that one write takes; "
        "use upload_files with local_path, or sync_local_to_remote"
    )
    assert machine.pipes == []


async def test_a_command_that_no_frame_holds_is_refused_before_anything_is_sent(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    with pytest.raises(NotStarted, match="pipe: a command of 70000000 characters is more than can be sent"):
        await sandbox.run(Command("#" * 70_000_000))
    with pytest.raises(JobRefused, match="pipe: a command of 70000000 characters is more than can be sent"):
        await sandbox.jobs.start(JobOrder(job_id=new_job_id(), session="long", script="#" * 70_000_000))
    assert machine.pipes == []


async def test_the_largest_write_arrives_and_more_than_a_frame_is_read(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    written = await sandbox.write("x" * 255, bytes(LARGEST))
    assert written.size == LARGEST
    in_shell(machine, f"truncate -s {wire.MAX_BODY + 2} large")
    found = await sandbox.read("large", Span(limit=wire.MAX_BODY + 1))
    assert (len(found.data), found.more) == (wire.MAX_BODY + 1, True)


async def test_a_write_over_a_slow_line_is_not_taken_for_a_frozen_line(
    machine: PipeMachine, sandbox: OutpostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than a line may be silent, and the question for a sign of life waits behind it."""
    await sandbox.open()
    (pipe,) = machine.pipes
    write, part, sending = pipe.write, 1 << 16, []

    async def send(data: bytes) -> None:
        for at in range(0, len(data), part):
            write(data[at : at + part])
            await asyncio.sleep(part * (SILENCE_S + PONG_S + 1) / LONG_WRITE)

    def slowly(data: bytes) -> None:
        before = sending[-1:]
        sending.append(asyncio.ensure_future(after(before, send(data))))

    monkeypatch.setattr(pipe, "write", slowly)
    assert (await sandbox.write("file", bytes(LONG_WRITE))).size == LONG_WRITE
    assert len(machine.pipes) == 1
    await asyncio.gather(*sending)


async def after(before: list[asyncio.Future[None]], then: Awaitable[None]) -> None:
    await asyncio.gather(*before)
    await then


async def test_an_endless_writer_fills_no_disk_and_keeps_both_ends(
    machine: PipeMachine, sandbox: OutpostSandbox
) -> None:
    done = await finish(sandbox, "seq 1000000 9999999", keep=1000)
    assert (done.exit_code, done.stdout.total) == (0, 72_000_000)
    assert (machine.folder(done.run_id) / "out").stat().st_size == 64 << 20
    for seen in (done, await sandbox.observe(done.run_id, keep=1000)):
        assert seen.stdout.head[-8:] == b"1000124\n"
        assert seen.stdout.tail == b"".join(b"%07d\n" % n for n in range(9_999_875, 10_000_000))


async def test_a_run_does_not_wait_for_a_client_that_does_not_read(machine: PipeMachine) -> None:
    sandbox, deaf = machine.sandbox(), await machine.outpost()
    run_id = new_run_id()
    stopped = deaf.hello["pid"]
    in_shell(machine, f"kill -STOP {stopped}")
    deaf.begin({"verb": "run", **order("seq 1 1000000; echo > done", id=run_id, keep=1 << 22)})
    in_shell(machine, f"kill -CONT {stopped}; sleep 0.1; kill -STOP {stopped}")
    seen = await ended(sandbox, run_id)
    assert seen.exit_code == 0
    in_shell(machine, f"kill -CONT {stopped}")
    await asyncio.gather(deaf.close(), sandbox.close())


# The line


@pytest.fixture
async def line(user: Sshd) -> AsyncIterator[Line]:
    async with Line(user.port) as line:
        yield line
    clean(user)


@pytest.fixture
async def remote(user: Sshd, line: Line, tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    known_hosts = tmp_path / "known_hosts"
    sandbox = await open_machine(user.machine(port=line.port, known_hosts_files=(str(known_hosts),)), known_hosts)
    assert isinstance(sandbox, OutpostSandbox)
    yield sandbox
    await sandbox.close()


async def is_lost(sandbox: OutpostSandbox) -> bool:
    return not sandbox.is_open


async def test_a_frozen_line_is_noticed_and_the_result_is_true(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    command = Command(f"echo >> started; {PROGRAMS.waits_for(f'{user.home}/go', b'so far')}; exit 5")
    async with in_background(remote.run(command)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        line.freeze()
        frozen = time.monotonic()
        await eventually(lambda: is_lost(remote), bool, "the line to be given up")
        assert time.monotonic() - frozen < at_most(7)
        line.thaw()
        await remote.write("go", b"")
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (5, b"so far")
    assert await said(remote, "wc -l < started") == b"1\n"


class Ears:
    """Hears the output of a run as it comes."""

    def __init__(self) -> None:
        self.stdout = b""

    def __call__(self, beat: Beat, /) -> None:
        pass

    def heard(self, stream: StreamName, data: bytes) -> None:
        assert stream == "stdout"
        self.stdout += data


async def test_output_is_passed_on_as_it_comes_and_once_whatever_is_cut(
    user: Sshd, line: Line, remote: OutpostSandbox
) -> None:
    ears = Ears()
    command = Command(f"{PROGRAMS.waits_for(f'{user.home}/go', b'first ', b'then')}; exit 5")
    async with in_background(remote.run(command, progress=ears)) as running:
        for _ in range(2):
            await eventually(
                lambda: remote.observe(command.run_id), lambda _: ears.stdout == b"first ", "its beginning"
            )
            line.cut()
            await eventually(lambda: is_lost(remote), bool, "the cut to be seen")
            await remote.open()
        await remote.write("go", b"")
        done = await running
    assert isinstance(done, Completed)
    assert done.stdout.head + done.stdout.tail == b"first then"
    assert b"first then".startswith(ears.stdout)


async def test_a_cut_line_gives_the_true_result_of_one_start(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    command = Command(f"echo >> started; {PROGRAMS.waits_for(f'{user.home}/go', b'first ', b'then')}; exit 5")
    async with in_background(remote.run(command)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        for _ in range(3):
            line.cut()
            await eventually(lambda: is_lost(remote), bool, "the cut to be seen")
            await remote.open()
        await remote.write("go", b"")
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (5, b"first then")
    assert await said(remote, "wc -l < started") == b"1\n"


async def test_a_run_that_ended_while_the_line_was_away_is_reported(
    user: Sshd, line: Line, remote: OutpostSandbox
) -> None:
    command = Command(f"{PROGRAMS.waits_for(f'{user.home}/go', b'first ', b'then')}; touch ended; exit 5")
    async with in_background(remote.run(command)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        line.refuse()
        line.cut()
        (user.home / "go").touch()
        await asyncio.to_thread(wait_until, (user.home / "ended").exists, what="the command's end")
        line.refuse(False)
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (5, b"first then")


class Tap:
    """Input that goes on when a test says so."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    def give(self, part: bytes | None) -> None:
        self._parts.put_nowait(part)

    def __aiter__(self) -> Tap:
        return self

    async def __anext__(self) -> bytes:
        if (part := await self._parts.get()) is None:
            raise StopAsyncIteration
        return part


async def test_input_is_passed_on_as_it_comes(remote: OutpostSandbox) -> None:
    tap, ears = Tap(), Ears()
    async with in_background(remote.run(Command("cat", input=tap), progress=ears)) as running:
        for part in (b"one\n", b"two\n"):
            tap.give(part)
            await eventually(lambda: remote.open(), lambda _, part=part: ears.stdout.endswith(part), "its echo")
        tap.give(None)
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (0, b"one\ntwo\n")


async def test_input_is_read_no_faster_than_the_command_takes_it(remote: OutpostSandbox) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 16
            yield b"x" * (1 << 16)
            await asyncio.sleep(0)

    async with in_background(remote.run(Command("sleep 600", input=endless()))):
        await eventually(lambda: remote.open(), lambda _: read >= 1 << 18, "the window to be full")
        for _ in range(20):
            await remote.open()
        # The window, the pipe that the command does not read, and the part that waits.
        assert read <= (1 << 18) + (1 << 16) + (1 << 17)


async def test_a_cut_before_the_end_of_the_input_stops_the_command(
    user: Sshd, line: Line, remote: OutpostSandbox
) -> None:
    tap = Tap()
    tap.give(b"half of ")
    command = Command("cat > copy; touch whole", input=tap)
    async with in_background(remote.run(command)) as running:
        await eventually(
            lambda: said(remote, "cat copy 2>/dev/null || true"), lambda seen: seen == b"half of ", "a part"
        )
        line.cut()
        with pytest.raises(LostContact, match="before all of the command's standard input") as lost:
            await running
    assert lost.value.outcome == "lost"
    seen = await eventually(
        lambda: remote.observe(command.run_id), lambda seen: not isinstance(seen, Running), "the run's end"
    )
    assert isinstance(seen, Completed)
    assert seen.ending is Ending.STOPPED
    assert not (user.home / "whole").exists()


async def test_a_cut_after_the_whole_input_loses_nothing(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    script = f"cat; {PROGRAMS.waits_for(f'{user.home}/go', b' first', b' then')}; exit 5"
    command = Command(script, input=b"given")
    async with in_background(remote.run(command)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 11, "the run")
        line.cut()
        await eventually(lambda: is_lost(remote), bool, "the cut to be seen")
        await remote.write("go", b"")
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (5, b"given first then")


async def test_a_start_that_was_lost_on_its_way_is_made_once(line: Line, remote: OutpostSandbox) -> None:
    line.freeze()
    async with in_background(remote.run(Command("echo >> started; exit 5"))) as running:
        # The order is written into the frozen line, and goes with it.
        await asyncio.wait((running,), timeout=0.1)
        line.cut()
        line.thaw()
        done = await running
    assert isinstance(done, Completed)
    assert done.exit_code == 5
    assert await said(remote, "wc -l < started") == b"1\n"


async def test_a_start_is_not_repeated_on_a_machine_that_may_have_lost_it(
    user: Sshd, line: Line, remote: OutpostSandbox
) -> None:
    line.freeze()
    async with in_background(remote.run(Command("echo >> started"))) as running:
        await asyncio.wait((running,), timeout=0.1)
        run_as_root("sh", "-c", f"printf another > /tmp/remote-sandbox-{user.uid}/mark")
        line.cut()
        line.thaw()
        with pytest.raises(LostContact) as lost:
            await running
    assert lost.value.outcome == "lost"
    assert await said(remote, "ls") == b""


async def test_a_line_that_stays_away_leaves_the_outcome_open(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    command = Command(PROGRAMS.waits_for("/no/such/file", b"so far"))
    async with in_background(remote.run(command, patience_s=3)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        line.refuse()
        line.cut()
        with pytest.raises(LostContact, match=command.run_id) as lost:
            await running
    assert (lost.value.outcome, lost.value.so_far.stdout.head) == ("unknown", b"so far")
    line.refuse(False)
    seen = await remote.observe(command.run_id)
    assert isinstance(seen, Running)
    await remote.stop(command.run_id)


async def test_a_run_cancelled_while_the_line_is_away_is_stopped(
    user: Sshd, line: Line, remote: OutpostSandbox
) -> None:
    done = await finish(remote, "sleep 60 >/dev/null 2>&1 & echo $!")
    pid = int(done.stdout.head)
    assert await is_alive(remote, pid)
    command = Command(PROGRAMS.waits_for("/no/such/file", b"so far"))
    async with in_background(remote.run(command)) as running:
        await eventually(lambda: remote.observe(command.run_id), lambda seen: seen.stdout.total == 6, "the run")
        line.cut()
        await eventually(lambda: is_lost(remote), bool, "the cut to be seen")
        running.cancel()
        seen = await ended(remote, command.run_id)
    assert seen.ending is Ending.STOPPED
    assert await is_alive(remote, pid)


@pytest.mark.parametrize(
    ("taken", "is_closed"),
    [(-1, False), (0, False), (6, False), (6, True)],
    ids=["less", "nothing", "more", "more at the end"],
)
async def test_a_far_side_that_lies_about_its_input_is_not_believed(taken: int, is_closed: bool) -> None:
    sent: list[bytes] = []
    given, tap = RunInput(sent.append), Tap()
    tap.give(b"hello")
    tap.give(None)
    await given.pump(tap)
    assert sent == [b"hello", b""]
    with pytest.raises(ValueError, match="of input taken"):
        given.note(taken, is_closed)
    assert not given.is_over
    given.note(5, False)
    assert given.is_over
