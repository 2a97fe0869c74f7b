"""Plain channels: what the contract does not ask, on machines that have little, over lines that break."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.shell import sandbox as shell_sandbox
from remote_sandbox_mcp.backends.shell import talk
from remote_sandbox_mcp.backends.shell.program import RUNS, start_values
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import PLAIN, describe, open_machine
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Environment, Missing, Running
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, LostContact, NotStarted, Unreachable, Unsupported
from remote_sandbox_mcp.core.sandboxes.files import Search, Span
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from tests.backends.contract import Contract, Opener, finish
from tests.backends.contract.basics import Programs, ShellPrograms, begin, ended, said
from tests.support.line import Line
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd
from tests.support.waiting import eventually

NEVER = "/no/such/file"
WAITS = "while ! [ -e go ]; do sleep 0.05; done"
Known = Callable[[Machine], PlainSandbox]


@pytest.fixture(scope="module")
def known_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "known_hosts"


@pytest.fixture(scope="module")
def busybox(fleet: Fleet) -> Sshd:
    return fleet.machine(shell="busybox")


@pytest.fixture(scope="module")
def shared_bare(fleet: Fleet) -> Sshd:
    return fleet.machine(python=False)


@pytest.fixture
def bare(shared_bare: Sshd) -> Sshd:
    """A machine with bash and without Python, on which nothing runs yet."""
    shared_bare.reset()
    return shared_bare


@pytest.fixture
def known(known_hosts: Path) -> Known:
    return lambda machine: sandbox_of(machine, known_hosts)


def sandbox_of(machine: Machine, known_hosts: Path) -> PlainSandbox:
    return PlainSandbox(describe(machine, PLAIN), machine.environment, LoginGate(machine, known_hosts))


@asynccontextmanager
async def opened(sandbox: PlainSandbox) -> AsyncIterator[PlainSandbox]:
    await sandbox.open()
    try:
        yield sandbox
    finally:
        await sandbox.close()


@asynccontextmanager
async def over_a_line(sshd: Sshd, known_hosts: Path, **fields: Any) -> AsyncIterator[tuple[PlainSandbox, Line]]:
    async with Line(sshd.port) as line:
        machine = sshd.machine(port=line.port, connect_timeout_s=2.0, **fields)
        async with opened(sandbox_of(machine, known_hosts)) as sandbox:
            yield sandbox, line


async def started(sshd: Sshd, name: str = "began") -> None:
    """A file that a command writes has come to be in its home."""

    async def ask() -> bool:
        return (sshd.home / name).exists()

    await eventually(ask, bool, name)


async def all_ended(sshd: Sshd) -> None:
    async def ask() -> dict[int, str]:
        return sshd.processes()

    await eventually(ask, lambda found: not found, "all processes to end")


def home_file(sshd: Sshd, name: str) -> Path:
    path = sshd.home / name
    path.unlink(missing_ok=True)
    return path


def runs_of(sshd: Sshd) -> Path:
    return Path(f"/tmp/remote-sandbox-{sshd.uid}")


def touch(sshd: Sshd, name: str) -> None:
    path = sshd.home / name
    path.touch()
    os.chown(path, sshd.uid, -1)


def processes_named(sshd: Sshd, words: str) -> list[int]:
    return [pid for pid, command in sshd.processes().items() if words in command]


class BusyboxPrograms(ShellPrograms):
    def counts(self, last: int) -> str:
        return f"seq 10000001 {10_000_000 + last} | cut -c 2-"


class TestBusybox(Contract):
    """A machine that has nothing but busybox keeps the whole contract."""

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, busybox: Sshd, known_hosts: Path) -> Opener:
        async def open_it(environment: Environment) -> PlainSandbox:
            sandbox = sandbox_of(busybox.machine(environment=environment), known_hosts)
            await sandbox.open()
            return sandbox

        return open_it

    @pytest.fixture(scope="class")
    @classmethod
    def programs(cls) -> Programs:
        return BusyboxPrograms()


# Login shells


@pytest.mark.parametrize(
    "options",
    [
        {"bashrc": "echo Welcome; echo to the cluster >&2; printf 'no newline'"},
        {"bashrc": "head -c 300000 /dev/zero"},
        {"shell": "/bin/dash"},
        {"shell": "/usr/bin/fish"},
        {"shell": "/bin/tcsh"},
        {"shell": "busybox"},
    ],
    ids=["noisy bash", "very noisy bash", "dash", "fish", "tcsh", "busybox"],
)
async def test_any_login_shell_will_do(fleet: Fleet, known: Known, options: dict[str, Any]) -> None:
    sshd = fleet.machine(python=False, **options)
    async with opened(known(sshd.machine())) as sandbox:
        done = await finish(sandbox, """printf '%s|' "it's" '$HOME' "a!b" 'a\nb'; echo oops >&2; exit 5""")
        assert (done.stdout.head, done.stderr.head, done.exit_code) == (b"it's|$HOME|a!b|a\nb|", b"oops\n", 5)
        await sandbox.write("file", b"\0\xff")
        assert (await sandbox.read("file", Span())).data == b"\0\xff"
        assert len((await sandbox.search(Search("~", glob="fil?"))).matches) == 1


async def test_a_sh_that_is_bash_reads_a_megabyte(fleet: Fleet, known: Known) -> None:
    folder = fleet.folder / "sh-is-bash"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "sh").symlink_to("/bin/bash")
    sshd = fleet.machine(extra_config=[f"SetEnv PATH={folder}:/usr/bin:/bin"])
    async with opened(known(sshd.machine())) as sandbox:
        assert await said(sandbox, f"true '{'x' * 1_000_000}'\necho end") == b"end\n"
        done = await finish(sandbox, "trap '' TERM; echo up; sleep 30", timeout_s=0.5)
        assert (done.ending, done.stdout.head, done.survivors) == (Ending.TIMED_OUT, b"up\n", ())


async def test_a_shell_that_runs_nothing_is_reported(fleet: Fleet, known: Known) -> None:
    sandbox = known(fleet.machine(shell="/usr/sbin/nologin").machine())
    with pytest.raises(Unreachable, match="its shell does not run commands: This account"):
        await sandbox.open()
    await sandbox.close()


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=200), min_size=50, max_size=50
    )
)
@pytest.mark.parametrize("shell", [(), ("sh", "-c")], ids=["bash", "sh"])
def test_any_text_arrives_as_it_is(
    shared_bare: Sshd, known_hosts: Path, shell: tuple[str, ...], texts: list[str]
) -> None:
    """As script and as variable: nothing of it is taken for source."""
    encodable = [text.encode("utf-8", "replace").decode() for text in texts]
    environment = Environment(shell, env={f"T{n}": text for n, text in enumerate(encodable)})

    async def echo_all() -> bytes:
        async with opened(sandbox_of(shared_bare.machine(environment=environment), known_hosts)) as sandbox:
            scripts = (f"printf '%s%s\\0' {quote(text)} \"$T{n}\"" for n, text in enumerate(encodable))
            return (await finish(sandbox, "; ".join(scripts), keep=200_000)).stdout.head

    assert asyncio.run(echo_all()).split(b"\0") == [*((text * 2).encode() for text in encodable), b""]


async def test_a_command_with_a_nul_or_a_bad_run_id_is_refused(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        for command in (Command("echo a\0b"), Command("true", cwd="/a\0b"), Command("true", run_id="../x")):
            with pytest.raises(BadArgument):
                await sandbox.run(command)
        assert isinstance(await sandbox.observe("../../etc"), Missing)


async def test_commands_run_as_over_a_direct_connection(fleet: Fleet, known: Known) -> None:
    """No ignored signals, no strange files, no changed variables."""
    sshd = fleet.machine(python=False, bashrc="export dir=mine id=mine token=mine")
    async with opened(known(sshd.machine())) as sandbox:
        ignored = int((await said(sandbox, "grep SigIgn /proc/self/status")).split()[1], 16)
        # glibc keeps signals 32 and 33 for itself, and starts some programs with them ignored.
        assert not ignored & ~(0b11 << 31)
        assert await said(sandbox, "echo $dir $id $token; env | grep -c '^rs_'; true") == b"mine mine mine\n0\n"
        assert await said(sandbox, "ls /proc/self/fd | wc -l") == b"4\n"


# Sessions and connections


@pytest.mark.parametrize(("sessions", "connections"), [(100, 1), (10, 4), (3, 16), (1, 16)])
async def test_twenty_at_once_share_what_sshd_grants(
    fleet: Fleet, known_hosts: Path, sessions: int, connections: int
) -> None:
    sshd = fleet.machine(python=False, max_sessions=sessions)
    async with over_a_line(sshd, known_hosts) as (sandbox, line):
        done = await asyncio.gather(*(finish(sandbox, f"sleep 0.2; echo {n}") for n in range(20)))
        assert [each.stdout.head for each in done] == [b"%d\n" % n for n in range(20)]
        assert line.total_opened <= connections


async def test_a_run_on_the_only_session_can_be_stopped(fleet: Fleet, known: Known) -> None:
    sshd = fleet.machine(python=False, max_sessions=1)
    async with opened(known(sshd.machine())) as sandbox:
        command = Command("echo $$; sleep 60")
        running = asyncio.ensure_future(sandbox.run(command))
        await eventually(
            lambda: sandbox.observe(command.run_id), lambda seen: isinstance(seen, Running) and seen.stdout.head, "it"
        )
        stopped = await sandbox.stop(command.run_id)
        assert isinstance(stopped, Completed)
        assert await running == stopped
        assert stopped.ending is Ending.STOPPED


async def test_without_a_free_session_the_error_says_that_nothing_was_started(
    fleet: Fleet, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = fleet.machine(python=False, max_sessions=1)
    monkeypatch.setattr("remote_sandbox_mcp.backends.ssh.channels.MOST_CONNECTIONS", 1)
    monkeypatch.setattr(shell_sandbox, "START_S", 0.3)
    async with opened(known(bare.machine())) as sandbox:
        first = asyncio.ensure_future(sandbox.run(Command("touch began; sleep 60")))
        await started(bare)
        with pytest.raises(NotStarted, match="busy"):
            await sandbox.run(Command("true"), patience_s=0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_nothing_is_left_running(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        await asyncio.gather(*(finish(sandbox, "echo") for _ in range(5)))
        await finish(sandbox, "sleep 30", timeout_s=0.2)
        home_file(bare, "go")
        running = await begin(sandbox, "sleep 31")
        await sandbox.stop(running.run_id)
        impatient = [await begin(sandbox, WAITS) for _ in range(3)]
        for each in impatient:
            await sandbox.stop(each.run_id)
    await all_ended(bare)


# Lines that break


async def test_a_cut_line_is_mended_and_the_true_result_returned(bare: Sshd, known_hosts: Path) -> None:
    log = home_file(bare, "log")
    home_file(bare, "go")
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        running = asyncio.ensure_future(finish(sandbox, f"echo ran >> log; {WAITS}; echo done; exit 7"))
        await started(bare, "log")
        for _ in range(3):
            line.cut()
            await asyncio.sleep(0.3)
        line.cut()
        touch(bare, "go")
        done = await running
        assert (done.exit_code, done.stdout.head) == (7, b"done\n")
        assert log.read_text() == "ran\n"


async def test_a_cut_at_any_moment_starts_nothing_twice(bare: Sshd, known_hosts: Path) -> None:
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        for delay_s in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08):
            log = home_file(bare, "log")
            running = [asyncio.ensure_future(finish(sandbox, f"echo {n} >> log; echo {n}")) for n in range(3)]
            await asyncio.sleep(delay_s)
            line.cut()
            assert [(await each).stdout.head for each in running] == [b"0\n", b"1\n", b"2\n"], delay_s
            assert sorted(log.read_text().split()) == ["0", "1", "2"], delay_s
    await all_ended(bare)


async def test_a_frozen_line_is_noticed_and_replaced(bare: Sshd, known_hosts: Path) -> None:
    log = home_file(bare, "log")
    home_file(bare, "go")
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        running = asyncio.ensure_future(finish(sandbox, f"echo ran >> log; {WAITS}; echo done"))
        await started(bare, "log")
        line.freeze()
        touch(bare, "go")
        await eventually(lambda: asyncio.sleep(0, sandbox.is_open), lambda is_open: not is_open, "it to be noticed")
        line.thaw()
        assert (await running).stdout.head == b"done\n"
        assert log.read_text() == "ran\n"
        assert (await sandbox.read("log", Span())).data == b"ran\n"


async def test_a_machine_that_stays_away_leaves_the_outcome_unknown(
    bare: Sshd, known_hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_sandbox, "MEND_S", 1.0)
    home_file(bare, "began")
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        command = Command("touch began; sleep 1.5; echo end")
        running = asyncio.ensure_future(sandbox.run(command))
        await started(bare)
        line.refuse()
        line.cut()
        with pytest.raises(LostContact, match="could not be made again") as lost:
            await running
        assert (lost.value.outcome, lost.value.so_far.run_id) == ("unknown", command.run_id)
        with pytest.raises(ConnectError):
            await sandbox.run(Command("touch never"))
        line.refuse(False)
        assert (await ended(sandbox, command.run_id)).stdout.head == b"end\n"


async def test_a_line_lost_before_the_command_was_sent_is_reported_as_not_started(
    bare: Sshd, known_hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_sandbox, "MEND_S", 0.5)
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        line.refuse()
        line.cut()
        # Nobody has noticed the cut yet.
        assert sandbox.is_open
        with pytest.raises(LostContact, match="it was not started") as lost:
            await sandbox.run(Command("true"))
        assert lost.value.outcome == "not_started"


async def test_a_start_is_not_repeated_where_the_first_cannot_be_found(bare: Sshd, known_hosts: Path) -> None:
    """A container that was made anew has no trace of the run; it may have run all the same."""
    log = home_file(bare, "log")
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        running = asyncio.ensure_future(sandbox.run(Command("echo ran >> log; sleep 60")))
        await started(bare, "log")
        line.refuse()
        line.cut()
        runs_of(bare).rename(f"/tmp/remote-sandbox-{bare.uid}-gone")
        line.refuse(False)
        with pytest.raises(LostContact, match="not known on this machine") as lost:
            await running
        assert lost.value.outcome == "lost"
        assert log.read_text() == "ran\n"


async def test_a_start_that_comes_after_its_stop_starts_nothing(bare: Sshd, known: Known) -> None:
    ran = home_file(bare, "ran")
    async with opened(known(bare.machine())) as sandbox:
        command = Command("touch ran")
        await sandbox._stop_quietly(command.run_id)
        with pytest.raises(NotStarted, match="it was stopped before it started"):
            await sandbox.run(command)
        assert not ran.exists()
        assert isinstance(await sandbox.observe(command.run_id), Missing)


async def test_a_text_that_is_cut_anywhere_starts_nothing(bare: Sshd, known: Known) -> None:
    ran = home_file(bare, "ran")
    async with opened(known(bare.machine())) as sandbox:
        values = {**start_values(Command("touch ran"), Environment()), "script": "touch ran"}
        text, last = talk.script_of(sandbox._shell.request(RUNS, "start", values, 0), "0" * 32)
        whole = text + last
        for length in (*range(len(text) - 5, len(whole) - 7, 5), len(text) // 2, 100):
            async with sandbox._channels.process(talk.START_LINE) as process:
                process.stdin.write(whole[:length])
                process.stdin.write_eof()
                await process.stdout.read()
        assert not ran.exists()


# What outlives the line


async def test_the_timeout_holds_without_a_line(bare: Sshd, known: Known) -> None:
    sandbox = known(bare.machine())
    running = await begin(sandbox, "echo up; sleep 60", timeout_s=1.0)
    await sandbox.close()

    async def ask() -> list[int]:
        return processes_named(bare, "sleep 60")

    await eventually(ask, lambda found: not found, "the timeout")
    async with opened(sandbox):
        done = await ended(sandbox, running.run_id)
        assert (done.ending, done.exit_code, done.stdout.head) == (Ending.TIMED_OUT, 124, b"up\n")


async def test_an_endless_writer_fills_no_disk(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        done = await finish(sandbox, "seq 1000000 9999999; echo end", keep=10_000, timeout_s=50)
        assert (done.exit_code, done.stdout.total) == (0, 72_000_004)
        first = b"".join(b"%d\n" % number for number in range(1_000_000, 1_001_250))
        assert (done.stdout.head, done.stdout.tail[-12:]) == (first, b"9999999\nend\n")
        folder = runs_of(bare) / done.run_id
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        assert 64 << 20 <= sizes["out"] <= (64 << 20) + 65536
        assert sum(sizes.values()) < 80 << 20


async def test_output_after_the_end_is_dropped_and_kills_no_process(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        done = await finish(sandbox, "(while sleep 0.05; do echo more; done) & echo end")
        (left,) = {pid for pid in done.left_running if pid in processes_named(bare, "more")}
        sandbox.forget(done.run_id)
        await eventually(
            lambda: sandbox.observe(done.run_id), lambda seen: isinstance(seen, Missing), "forgetting", 0.3
        )
        assert left in bare.processes()
        os.kill(left, signal.SIGKILL)


async def test_a_run_whose_keeper_was_killed_is_lost_and_can_still_be_stopped(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        running = await begin(sandbox, "echo up; exec sleep 62")
        keeper = (runs_of(bare) / running.run_id / "pid").read_text().split()[2]
        os.kill(int(keeper), signal.SIGKILL)
        seen = await sandbox.observe(running.run_id)
        assert isinstance(seen, Missing)
        assert (seen.reason, seen.stdout.head) == ("the process that kept it was killed", b"up\n")
        assert processes_named(bare, "sleep 62")
        await sandbox.stop(running.run_id)
        assert not processes_named(bare, "sleep 62")


async def test_another_users_folder_is_not_used(fleet: Fleet, known: Known) -> None:
    sshd = fleet.machine(python=False)
    trap = runs_of(sshd)
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    try:
        async with opened(known(sshd.machine())) as sandbox:
            done = await finish(sandbox, "echo x")
            assert done.stdout.file.startswith("/dev/shm/")
            assert not list(trap.iterdir())
    finally:
        trap.rmdir()


async def test_a_folder_that_another_user_makes_later_is_not_used(fleet: Fleet, known: Known) -> None:
    sshd = fleet.machine(python=False)
    trap = runs_of(sshd)
    async with opened(known(sshd.machine())) as sandbox:
        assert (await finish(sandbox, "echo x")).stdout.file.startswith(f"{trap}/")
        run_as_root("rm", "-rf", str(trap))
        trap.mkdir(mode=0o777)
        trap.chmod(0o777)
        try:
            assert (await finish(sandbox, "echo x")).stdout.file.startswith("/dev/shm/")
            assert not list(trap.iterdir())
        finally:
            trap.rmdir()


# Files


async def test_a_machine_without_sftp_has_files_but_no_lanes(fleet: Fleet, known: Known) -> None:
    only_commands = (
        'ForceCommand case "$SSH_ORIGINAL_COMMAND" in *sftp*) exit 1;; *) exec sh -c "$SSH_ORIGINAL_COMMAND";; esac'
    )
    sshd = fleet.machine(python=False, extra_config=[only_commands])
    async with opened(known(sshd.machine())) as sandbox:
        assert await said(sandbox, "echo x > file; cat file") == b"x\n"
        assert (await sandbox.read("file", Span())).data == b"x\n"
        assert (await sandbox.write("other", b"y")).size == 1
        assert len((await sandbox.list("~")).entries) >= 2
        with pytest.raises(Unsupported, match="neither python3 nor SFTP"):
            await sandbox.open_lane()
        assert len((await sandbox.search(Search("~", pattern="^x"))).matches) == 1


async def test_a_write_over_a_cut_line_is_made_once(bare: Sshd, known_hosts: Path) -> None:
    async with over_a_line(bare, known_hosts) as (sandbox, line):
        data = b"x" * 3_000_000
        writing = asyncio.ensure_future(sandbox.write("large", data))
        await asyncio.sleep(0.05)
        line.cut()
        assert (await writing).size == len(data)
        assert (await sandbox.read("large", Span(limit=4_000_000))).data == data


async def test_a_large_file_is_not_searched_and_is_reported(bare: Sshd, known: Known) -> None:
    async with opened(known(bare.machine())) as sandbox:
        await said(sandbox, "mkdir -p big; cd big; echo needle > small; truncate -s 33M large; echo needle >> large")
        found = await sandbox.search(Search("big", pattern="needle"))
        assert [match.path for match in found.matches] == [f"{bare.home}/big/small"]
        assert [(each.path, each.reason) for each in found.problems] == [
            (f"{bare.home}/big/large", "larger than 32 MiB, not searched")
        ]


async def test_a_shell_that_is_killed_while_it_opens_has_not_shown_that_there_is_no_python(
    bare: Sshd, known_hosts: Path
) -> None:
    killed = bare.home / "killed-python"
    killed.write_text("#!/bin/sh\nkill -TERM $$\n")
    killed.chmod(0o755)
    with pytest.raises(Unreachable, match="cut off"):
        await open_machine(bare.machine(python=str(killed)), known_hosts)
