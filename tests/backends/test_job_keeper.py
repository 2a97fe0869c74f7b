"""A job's keeper and its records: what is killed, interrupted, full or restarted leads to the right state."""

from __future__ import annotations

import ast
import asyncio
import errno
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.errors import LostContact
from remote_sandbox_mcp.core.jobs.job import JobQuery, JobRefused, Jobs, JobState, JobWait
from remote_sandbox_mcp.far import program
from remote_sandbox_mcp.far.jobs import place as jobplace
from remote_sandbox_mcp.far.jobs import record as jobrecord
from remote_sandbox_mcp.far.jobs import start as joblife
from remote_sandbox_mcp.far.jobs import start as joblogin
from remote_sandbox_mcp.far.jobs.state import last_lines, read_gpu_memory, read_gpu_use
from tests.backends.contract.basics import in_background
from tests.support.jobs import (
    FOREVER,
    begin,
    clean,
    folder_of,
    has_printed,
    in_thread,
    jobs_on,
    look,
    not_running,
    order,
    record,
    run,
    sessions,
    shell,
)
from tests.support.line import Line
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine("keeper")


@pytest.fixture(params=["tmux", "detached"])
async def both(request: pytest.FixtureRequest, user: Sshd, bare_path: str) -> AsyncIterator[Jobs]:
    """The jobs of a machine with tmux, and of one without."""
    async with jobs_on(user) as (machine, sandbox):
        if request.param == "detached":
            outpost = machine.outpost
            machine.outpost = lambda noise="": outpost(f"PATH={bare_path}; export PATH")  # type: ignore[method-assign]
            sandbox._connect = machine.outpost
        yield sandbox.jobs


@pytest.fixture
async def jobs(user: Sshd) -> AsyncIterator[Jobs]:
    async with jobs_on(user) as (_, sandbox):
        yield sandbox.jobs


@pytest.fixture(scope="module")
def bare_path(fleet: Fleet) -> str:
    """Programs without tmux."""
    fleet.machine("bare", tmux=False).stop()
    return str(fleet.folder / "bin-tmux")


# What is killed


async def test_a_killed_keeper_leaves_a_job_that_is_gone(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs)).job_id
    await in_thread(user, f"kill -9 {record(user, job)['keeper']}")
    seen = await not_running(jobs, job)
    assert (seen.state, seen.reason, seen.rebooted) == (JobState.GONE, "its keeper was killed", False)
    assert b"EXIT_CODE" not in seen.log


async def test_processes_without_a_keeper_are_still_the_job(both: Jobs, user: Sshd) -> None:
    job = (await begin(both, "trap '' HUP; echo begun; while :; do sleep 0.1; done")).job_id
    await has_printed(both, job)
    await in_thread(user, f"kill -9 {record(user, job)['keeper']}")
    seen = await eventually(lambda: look(both, job), lambda seen: bool(seen.reason), "the keeper's death")
    assert (seen.state, seen.reason) == (JobState.RUNNING, "its keeper was killed; its processes live")
    with pytest.raises(JobRefused) as refused:
        await begin(both, instead_of=job)
    assert refused.value.reason == "running"
    stopped = await both.stop(JobQuery(job_id=job), grace_s=1)
    assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
    assert "sleep" not in " ".join(user.processes().values())


@pytest.mark.parametrize("how", ["kill-session -t =train", "kill-server"])
async def test_a_killed_session_interrupts_the_job(jobs: Jobs, user: Sshd, how: str) -> None:
    job = (await begin(jobs)).job_id
    await has_printed(jobs, job)
    await in_thread(user, f"tmux {how}")
    seen = await not_running(jobs, job)
    assert (seen.state, seen.reason) == (JobState.GONE, "its tmux session was killed")
    assert seen.log == b"begun\n"


async def test_a_killed_tmux_server_interrupts_the_job(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs)).job_id
    await in_thread(user, "kill -9 $(tmux display-message -p '#{pid}')")
    seen = await not_running(jobs, job)
    assert (seen.state, seen.reason) == (JobState.GONE, "its tmux session was killed")
    assert (await begin(jobs, instead_of=job)).via == "tmux"


@pytest.mark.parametrize(("code", "state"), [(0, JobState.ENDED), (1, JobState.GONE)], ids=["success", "failure"])
async def test_a_command_that_ignores_the_end_of_its_pane_runs_on(
    jobs: Jobs, user: Sshd, code: int, state: JobState
) -> None:
    waits = "while ! [ -e go ]; do sleep 0.05; done"
    job = (await begin(jobs, f"trap '' HUP; echo begun; {waits}; echo more; exit {code}")).job_id
    await has_printed(jobs, job)
    await in_thread(user, "tmux kill-session -t =train; sleep 0.3")
    assert (await look(jobs, job)).is_running
    shell(user, "touch go")
    seen = await not_running(jobs, job)
    assert (seen.state, seen.log) == (state, b"begun\nmore\n" + (b"" if code else b"EXIT_CODE=0\n"))


async def test_a_signal_to_the_keeper_after_the_command_has_ended_changes_nothing(both: Jobs, user: Sshd) -> None:
    # A process that is left behind keeps the keeper for a moment after the end.
    job = (await begin(both, "echo begun; sleep 0.2; sleep 5 & exit 4")).job_id
    keeper = record(user, job)["keeper"]
    await in_thread(user, f"while kill -0 {record(user, job)['pid']} 2>/dev/null; do :; done; kill -HUP {keeper}")
    seen = await not_running(both, job)
    assert (seen.state, seen.exit_code) == (JobState.ENDED, 4)


DEATHS = {
    "killed": ("kill -9 $$", 137, "SIGKILL"),
    "told to end": ("kill $$", 143, "SIGTERM"),
    "segmentation fault": ("kill -SEGV $$", 139, "SIGSEGV"),
    "hung up": ("kill -HUP $$; sleep 9", 129, "SIGHUP"),
    "an exit like a signal": ("exit 137", 137, ""),
}


@pytest.mark.parametrize(("script", "code", "signal"), DEATHS.values(), ids=DEATHS)
async def test_a_command_that_dies_by_itself_has_ended(both: Jobs, script: str, code: int, signal: str) -> None:
    seen = await run(both, script)
    assert (seen.exit_code, seen.signal, seen.ending) == (code, signal, "exited")
    assert seen.log == b"EXIT_CODE=%d\n" % code


SHUT_DOWN = {
    "at once": FOREVER,
    "after saving": "trap 'sleep 0.5; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done",
    "in a child": "echo begun; sleep 600; echo never",
}


@pytest.mark.parametrize("script", SHUT_DOWN.values(), ids=SHUT_DOWN)
async def test_a_shutdown_interrupts_the_job(both: Jobs, user: Sshd, script: str) -> None:
    job = (await begin(both, script)).job_id
    await has_printed(both, job)
    # As a shutdown does it: everybody at once, in no order that one could rely on.
    members = [str(pid) for pid, words in user.processes().items() if "outpost" not in words and "-IS -c" not in words]
    await in_thread(user, f"kill -TERM {' '.join(members)}")
    seen = await not_running(both, job)
    assert seen.state is JobState.GONE
    assert not seen.rebooted
    assert b"EXIT_CODE" not in seen.log


async def test_the_command_may_get_the_signal_of_a_shutdown_before_its_keeper(both: Jobs, user: Sshd) -> None:
    job = (await begin(both)).job_id
    await has_printed(both, job)
    begun = record(user, job)
    await in_thread(user, f"kill {begun['pid']}; sleep 0.2; kill {begun['keeper']}")
    assert (await not_running(both, job)).state is JobState.GONE


async def test_a_restarted_machine_is_distinguished_from_a_killed_session(both: Jobs, user: Sshd) -> None:
    job = (await begin(both)).job_id
    path = folder_of(user, job) / "begun"
    path.write_text(json.dumps({**record(user, job), "boot": "another"}))
    seen = await look(both, job)
    assert (seen.state, seen.rebooted, seen.reason) == (JobState.GONE, True, "the machine was restarted")
    await in_thread(user, f"kill -9 {record(user, job)['keeper']}; tmux kill-server 2>/dev/null")
    resumed = await begin(both, instead_of=job)
    assert (await look(both, resumed.job_id)).is_running


async def test_an_end_is_an_end_after_a_restart(jobs: Jobs, user: Sshd) -> None:
    job = (await run(jobs, "exit 3")).job_id
    path = folder_of(user, job) / "begun"
    path.write_text(json.dumps({**record(user, job), "boot": "another"}))
    assert (await look(jobs, job)).exit_code == 3
    with pytest.raises(JobRefused) as refused:
        await begin(jobs, instead_of=job)
    assert refused.value.reason == "ended"


# Machines that share a home folder


def as_of(user: Sshd, job: str, **fields: object) -> None:
    """Change what is written down of a job, as if it had been started in another way."""
    path = folder_of(user, job) / "order"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


LONG_AGO = 1_000_000_000.0
OTHER_BOOT = {"boot": "another"}
ELSEWHERE: dict[str, dict[str, object]] = {
    "of one short name": {**OTHER_BOOT, "machine": "another", "host": "gpu.b.example.org", "ordered": LONG_AGO},
    "of another name": {"node": "login2", "host": "login2.example.org"},
    # It began while this machine was up, so it was not ended by this machine's restart.
    "a copy of this one": {**OTHER_BOOT, "host": "gpu.b.example.org"},
}


@pytest.mark.parametrize("fields", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_a_job_of_another_machine_with_this_home_is_neither_lost_nor_restarted(
    jobs: Jobs, user: Sshd, fields: dict[str, object]
) -> None:
    started = await begin(jobs)
    as_of(user, started.job_id, **fields)
    by_id, by_session = await jobs.inspect(
        [JobQuery(job_id=started.job_id), JobQuery(session="train", log_file=started.log_file)]
    )
    await in_thread(user, "tmux kill-server 2>/dev/null")
    without_tmux = (await jobs.inspect([JobQuery(session="train", log_file=started.log_file)]))[0]
    for seen in (by_id, without_tmux):
        assert (seen.state, seen.rebooted) == (JobState.MISSING, False)
        assert "on another machine that has the same home folder" in seen.reason
        assert str(fields["host"]) in seen.reason
    assert not by_session.rebooted
    assert await jobs.list() == []
    with pytest.raises(JobRefused, match="another machine") as refused:
        await begin(jobs, instead_of=started.job_id)
    assert refused.value.reason == "missing"
    # A job of that name may run here, too.
    mine = await begin(jobs)
    assert (await look(jobs, mine.job_id)).is_running
    assert [seen.job_id for seen in await jobs.list()] == [mine.job_id]


async def test_a_job_of_another_machine_is_not_stopped_or_started_here(jobs: Jobs, user: Sshd) -> None:
    """Its keeper's number may be that of anything here."""
    started = await begin(jobs)
    as_of(user, started.job_id, boot="another", machine="another")
    keeper = record(user, started.job_id)["keeper"]
    assert (await jobs.stop(JobQuery(job_id=started.job_id), 0.1)).state is JobState.MISSING
    assert keeper in user.processes()
    with pytest.raises(LostContact):
        await begin(jobs, job_id=started.job_id)


async def test_the_end_of_a_job_of_another_machine_is_known_here(jobs: Jobs, user: Sshd) -> None:
    job = (await run(jobs, "exit 3")).job_id
    as_of(user, job, boot="another", machine="another")
    assert (await look(jobs, job)).exit_code == 3


async def test_a_job_from_before_machines_had_folders_of_their_own_is_found(jobs: Jobs, user: Sshd) -> None:
    started = await begin(jobs)
    begun, old = record(user, started.job_id), folder_of(user, "x").parent
    before = old.with_name(old.name.rpartition("-")[0])
    # The keeper goes on in its folder, under whatever name.
    await in_thread(user, f"mv {old} {before}")
    record_file = before / started.job_id / "order"
    order = json.loads(record_file.read_text())
    record_file.write_text(json.dumps({name: order[name] for name in order if name not in ("machine", "host")}))
    assert (await look(jobs, started.job_id)).is_running
    assert [seen.job_id for seen in await jobs.list()] == [started.job_id]
    assert (await jobs.inspect([JobQuery(session="train")]))[0].job_id == started.job_id
    record_file.write_text(json.dumps({**json.loads(record_file.read_text()), "boot": "another", "ordered": LONG_AGO}))
    (before / started.job_id / "begun").write_text(json.dumps({**begun, "boot": "another"}))
    assert (await look(jobs, started.job_id)).rebooted
    await in_thread(user, f"kill -9 {begun['keeper']} {begun['pid']}; tmux kill-server 2>/dev/null")


# What is stopped

TREES = {
    "plain": "sleep 611 & wait",
    "setsid": "setsid sleep 611 & wait",
    "nohup": "nohup sleep 611 >/dev/null 2>&1 & wait",
    "double fork": "(setsid sh -c 'sleep 611 & sleep 611' &) ; sleep 611",
    "pipeline": "sleep 611 | sleep 611 | cat",
    "stubborn": "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 611; done\"",
    "stopped": "sleep 611 & sleep 0.2; kill -STOP $!; wait",
    "without its name": "env -i sleep 611 & env -i setsid sleep 611 & wait",
}


@pytest.mark.parametrize("script", TREES.values(), ids=TREES)
async def test_a_stop_ends_the_whole_tree(both: Jobs, user: Sshd, script: str) -> None:
    job = (await begin(both, f"echo begun; {script}")).job_id
    await asyncio.to_thread(wait_until, lambda: "sleep 611" in user.processes().values(), what="the tree")
    stopped = await both.stop(JobQuery(job_id=job), grace_s=0.5)
    assert (stopped.state, stopped.ending, stopped.survivors) == (JobState.ENDED, "stopped", ())
    assert stopped.log.startswith(b"begun\n")
    assert f"EXIT_CODE={stopped.exit_code}\n".encode() in stopped.log
    assert "sleep 611" not in user.processes().values()
    assert sessions(user) == []
    assert (await both.stop(JobQuery(job_id=job))).ending == "stopped"


async def test_a_reused_pid_is_not_signalled(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs)).job_id
    path = folder_of(user, job) / "begun"
    bystander = int(await in_thread(user, "setsid sleep 612 >/dev/null 2>&1 & echo $!"))
    true = record(user, job)
    path.write_text(json.dumps({**true, "keeper": bystander, "keeper_birth": 1}))
    async with in_background(jobs.stop(JobQuery(job_id=job), grace_s=0.2)):
        await eventually(
            lambda: in_thread(user, f"stat -c %a {path.parent}/lock"), lambda mode: mode == "700\n", "mark"
        )
        assert bystander in user.processes()
        path.write_text(json.dumps(true))
        # The keeper finds the mark by itself.
        assert (await not_running(jobs, job)).ending == "stopped"


# What is full, stopped or left behind


async def test_a_log_that_cannot_be_written_does_not_hurt_the_job(both: Jobs, user: Sshd) -> None:
    seen = await run(both, "seq 1 100000 && touch done; exit 4", log_file="/dev/full")
    assert (seen.exit_code, seen.log) == (4, b"")
    assert (user.home / "done").exists()
    end = record(user, seen.job_id, "end")
    assert end["lost"] == end["bytes"] == len("".join(f"{number}\n" for number in range(1, 100_001)))


async def test_a_rotated_log_is_made_anew(both: Jobs, user: Sshd) -> None:
    job = (await begin(both, "echo begun; sleep 1.2; while ! [ -e go ]; do sleep 0.05; done; printf more")).job_id
    seen = await has_printed(both, job)
    await in_thread(user, f"mv {seen.log_file} old; sleep 1.2; touch go")
    assert (await not_running(both, job)).log == b"more\nEXIT_CODE=0\n"
    assert (user.home / "old").read_text() == "begun\n"


@pytest.fixture
def small_disk(user: Sshd) -> Iterator[Path]:
    """The home's state folder on a disk of its own that is soon full."""
    folder = user.home / ".local"
    run_as_root("mkdir", "-p", str(folder))
    run_as_root("mount", "-t", "tmpfs", "-o", f"size=256k,uid={user.uid},mode=700", "tmpfs", str(folder))
    yield folder
    user.reset()
    run_as_root("umount", str(folder))


async def test_a_full_disk_loses_no_exit_status(both: Jobs, user: Sshd, small_disk: Path) -> None:
    job = (await begin(both, "echo begun; while ! [ -e go ]; do sleep 0.05; done; exit 5")).job_id
    await has_printed(both, job)
    shell(user, "dd if=/dev/zero of=.local/full bs=4k count=10000; cat /dev/zero > .local/full2; touch go")
    assert shell(user, "df --output=avail .local | tail -1").strip() == "0"
    seen = await not_running(both, job)
    assert (seen.state, seen.exit_code) == (JobState.ENDED, 5)
    # With room nowhere else, the next job is written down beside the runs, and that is told.
    other = await begin(both, FOREVER, "other")
    assert "is lost when the machine restarts" in other.notes[0]
    shell(user, "rm .local/full .local/full2")
    assert (await both.stop(JobQuery(job_id=other.job_id))).ending == "stopped"


async def test_a_job_is_stopped_on_a_full_disk(both: Jobs, user: Sshd, small_disk: Path) -> None:
    job = (await begin(both)).job_id
    shell(user, "dd if=/dev/zero of=.local/full bs=4k count=10000; cat /dev/zero > .local/full2")
    assert (await both.stop(JobQuery(job_id=job))).ending == "stopped"


async def test_a_stopped_tmux_does_not_stop_the_job(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs, "while ! [ -e go ]; do sleep 0.05; done; seq 1 300000; exit 6")).job_id
    server = (await in_thread(user, "tmux display-message -p '#{pid}'")).strip()
    await in_thread(user, f"kill -STOP {server}; touch go")
    seen = await not_running(jobs, job)
    await in_thread(user, f"kill -CONT {server}")
    assert (seen.exit_code, seen.log_size) == (6, len("".join(f"{n}\n" for n in range(1, 300_001))) + 12)


async def test_processes_left_behind_live_on_and_do_not_delay_the_end(both: Jobs, user: Sshd) -> None:
    seen = await run(both, "(trap '' HUP; while :; do echo noise; sleep 0.02; done) & echo $! > pid; exit 2")
    assert seen.exit_code == 2
    assert seen.log.endswith(b"EXIT_CODE=2\n")
    pid = int((user.home / "pid").read_text())
    await in_thread(user, "sleep 0.3")
    assert pid in user.processes()
    assert (await look(both, seen.job_id)).log_size == seen.log_size
    assert sessions(user) == []


async def test_a_pane_that_would_stay_does_not_keep_the_name(jobs: Jobs, user: Sshd) -> None:
    shell(user, "echo 'set -g remain-on-exit on' > .tmux.conf; tmux new-session -d -s mine 'sleep 60'")
    job = (await begin(jobs, "while ! [ -e go ]; do sleep 0.05; done")).job_id
    shell(user, "touch go")
    await not_running(jobs, job)
    await asyncio.to_thread(wait_until, lambda: sessions(user) == ["mine"], what="the session to go")


async def test_a_shell_that_cannot_be_started_leaves_nothing(both: Jobs, user: Sshd) -> None:
    with pytest.raises(JobRefused, match="Argument list too long"):
        await begin(both, "true", env={"LARGE": "x" * 200_000})
    assert not (user.home / ".codex_logs").exists()
    assert (await run(both, "exit 1")).exit_code == 1


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


async def test_a_job_outlives_the_line_and_is_found_by_another(
    user: Sshd, remote: OutpostSandbox, tmp_path: Path
) -> None:
    job = (await begin(remote.jobs)).job_id
    await remote.close()
    await asyncio.to_thread(user.stop)
    await asyncio.to_thread(user.start)
    other = await open_machine(user.machine(), tmp_path / "other")
    assert [seen.job_id for seen in await other.jobs.list()] == [job]
    assert (await other.jobs.stop(JobQuery(session="train"))).ending == "stopped"
    await other.close()


async def test_a_start_that_is_lost_on_its_way_is_made_once(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    line.freeze()
    async with in_background(remote.jobs.start(order("echo >> count; sleep 60"))) as starting:
        await asyncio.wait((starting,), timeout=0.1)
        line.cut()
        line.thaw()
        started = await starting
    assert not started.recovered
    await eventually(lambda: in_thread(user, "cat count | wc -l"), lambda text: text.strip() == "1", "its start")


async def test_a_start_whose_answer_is_lost_is_recovered(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    wanted = order("echo >> count; sleep 60")
    client = await remote._reach()
    heard = client._dispatch

    def lose_it(kind: int, number: int, body: bytes) -> None:
        line.cut() if b"codex_logs" in body else heard(kind, number, body)

    client._dispatch = lose_it  # type: ignore[method-assign]
    started = await remote.jobs.start(wanted)
    assert started.recovered
    assert line.total_opened == 2
    assert shell(user, "wc -l < count").strip() == "1"


async def test_a_line_that_stays_away_leaves_the_start_open(
    line: Line, remote: OutpostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.link.jobs.MEND_S", 0.5)
    line.freeze()
    wanted = order("true")
    async with in_background(remote.jobs.start(wanted)) as starting:
        await asyncio.wait((starting,), timeout=0.1)
        line.refuse()
        line.cut()
        line.thaw()
        with pytest.raises(LostContact, match="train") as lost:
            await starting
    assert (lost.value.outcome, lost.value.so_far.run_id) == ("unknown", wanted.session)


async def test_a_start_is_not_repeated_on_another_machine(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    """As behind a name that leads to one of several machines, each with its own jobs."""
    line.freeze()
    async with in_background(remote.jobs.start(order("echo >> count"))) as starting:
        await asyncio.wait((starting,), timeout=0.1)
        run_as_root("sh", "-c", f"printf another > /tmp/remote-sandbox-{user.uid}/mark")
        line.cut()
        line.thaw()
        with pytest.raises(LostContact, match="another machine"):
            await starting
    assert await remote.jobs.list() == []


async def test_a_wait_goes_on_over_a_cut(user: Sshd, line: Line, remote: OutpostSandbox) -> None:
    job = (await begin(remote.jobs, "while ! [ -e go ]; do sleep 0.05; done; exit 8")).job_id
    async with in_background(remote.jobs.wait(JobQuery(job_id=job), JobWait(seconds=20))) as waiting:
        await asyncio.wait((waiting,), timeout=0.2)
        line.cut()
        await eventually(lambda: asyncio.sleep(0, line.total_opened), lambda opened: opened == 2, "a new line")
        shell(user, "touch go")
        waited = await waiting
    assert (waited.why, waited.seen.exit_code) == ("ended", 8)


async def test_a_start_and_a_look_take_one_round_trip(user: Sshd, tmp_path: Path) -> None:
    async with Line(user.port) as line:
        machine = user.machine(port=line.port, known_hosts_files=(str(tmp_path / "k"),))
        sandbox = await open_machine(machine, tmp_path / "k")
        # So long that one more of them is told from a machine that is busy.
        line.rtt_s = 1.0
        begun = time.monotonic()
        job = (await begin(sandbox.jobs)).job_id
        started = time.monotonic()
        await look(sandbox.jobs, job)
        seen = time.monotonic()
        await sandbox.close()
    clean(user)
    assert started - begun < 2.9
    assert seen - started < 1.9


async def test_a_wait_of_many_requests_finds_a_line_that_comes_in_pieces(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.link.jobs.WAIT_S", 0.2)
    job = (await begin(jobs, "seq 1 1000; printf lo; sleep 1; echo ss=2; sleep 60")).job_id
    waited = await jobs.wait(JobQuery(job_id=job, lines=1), JobWait(seconds=10, pattern=r"^loss=\d$"))
    assert (waited.why, waited.line, waited.seen.log) == ("pattern", "loss=2", b"loss=2\n")


# The text of the programs


TEXTS = {piece: program.read_piece(piece) for piece in (*program.CLUSTER_JOBS, *program.BATCH_KEEPER)}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_it_is_python_3_6(text: str) -> None:
    ast.parse(text, feature_version=(3, 6))


@pytest.mark.parametrize(
    "pieces", [(*program.OUTPOST, *program.CLUSTER_JOBS), program.BATCH_KEEPER], ids=["outpost", "keeper"]
)
def test_no_name_is_given_twice(pieces: tuple[str, ...]) -> None:
    names: Counter[str] = Counter()
    for node in ast.parse(program.source(pieces)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] += 1
        for target in node.targets if isinstance(node, ast.Assign) else ():
            names.update(name.id for name in ast.walk(target) if isinstance(name, ast.Name) and name.id != "MYPY")
    # The outpost's list of what is to be collected has the name of a lane's frame.
    assert {name for name, times in names.items() if times > 1} <= {"DONE"}


# Machines that end a user's processes


SETTINGS = {
    "nothing set": ("", False),
    "no": ("[Login]\nKillUserProcesses=no\n", False),
    "yes": ("[Login]\nKillUserProcesses=yes\n", True),
    "true, with spaces": (" KillUserProcesses = true\n", True),
    "a comment": ("#KillUserProcesses=yes\n", False),
    "the last one wins": ("KillUserProcesses=yes\nKillUserProcesses=no\n", False),
    "excluded": ("KillUserProcesses=yes\nKillExcludeUsers=root ann bob\n", False),
    "another is excluded": ("KillUserProcesses=yes\nKillExcludeUsers=root annette\n", True),
}


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_logind_settings_say_whose_processes_end_at_logout(settings: str, expected: bool) -> None:
    assert joblogin.ends_at_logout(settings, "ann") is expected


def test_root_is_excluded_from_the_end_at_logout_by_default() -> None:
    assert not joblogin.ends_at_logout("KillUserProcesses=yes", "root")
    assert joblogin.ends_at_logout("KillUserProcesses=yes\nKillExcludeUsers=\n", "root")


def machine_with(root: Path, **files: str) -> str:
    paths = {"main": "etc/systemd/logind.conf", "drop": "etc/systemd/logind.conf.d/50-x.conf"}
    paths |= {"vendor": "usr/lib/systemd/logind.conf.d/90-y.conf", "linger": "var/lib/systemd/linger/ann"}
    (root / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        path = root / paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n"
MACHINES = {
    "as delivered": ({}, False, False),
    "ended": ({"main": YES}, False, True),
    "ended by a drop-in": ({"main": NO, "drop": YES}, False, True),
    "kept by a later drop-in": ({"main": YES, "drop": YES, "vendor": NO}, False, False),
    "lingering": ({"main": YES, "linger": ""}, True, False),
    "lingering for nothing": ({"main": NO, "linger": ""}, False, False),
}


@pytest.mark.parametrize(("files", "scope", "note"), MACHINES.values(), ids=MACHINES)
def test_how_a_job_outlives_a_login(tmp_path: Path, files: dict[str, str], scope: bool, note: bool) -> None:
    words, notes = joblogin.scope_for("job-0123456789abcdef", "ann", machine_with(tmp_path, **files))
    assert bool(words) is scope
    assert [("will not outlive" in text, "enable-linger" in text) for text in notes] == [(True, True)] * note
    if scope:
        assert words[:3] == ["systemd-run", "--user", "--scope"]
        assert words[-1] == "--unit=rsmcp-job-0123456789abcdef"


CGROUPS = {
    "a login's": ("0::/user.slice/user-1000.slice/session-3.scope\n", True),
    "an older system's": ("1:name=systemd:/user.slice/user-1000.slice/session-c1.scope\n", True),
    "the user's own": ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/rsmcp-x.scope\n", False),
    "none": ("0::/\n", False),
}


@pytest.mark.parametrize(("text", "expected"), CGROUPS.values(), ids=CGROUPS)
def test_a_process_in_a_logins_scope_ends_with_the_login(text: str, expected: bool) -> None:
    assert joblogin.belongs_to_login(text) is expected


def test_a_tmux_server_that_ends_with_a_login_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblife, "tmux_server", os.getpid)
    monkeypatch.setattr(joblife, "ends_with_login", lambda pid: pid == os.getpid())
    why = joblife.start_in_tmux([b"true"], {"session": "s", "cwd": "/"}, ["systemd-run"])
    assert why == "the tmux server that runs was started by a login, and ends with it"


def test_without_systemd_no_program_is_asked(tmp_path: Path) -> None:
    assert joblogin.scope_for("job-0123456789abcdef", "ann", str(tmp_path)) == ([], [])


# Records


def test_without_locks_the_keeper_is_recognized_by_its_birth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = os.fsencode(tmp_path)
    fd, locked = jobrecord.take_lock(folder)
    os.close(fd)
    assert not locked
    me = {"keeper": os.getpid(), "keeper_birth": jobrecord.birth_of(os.getpid()), "locked": False}
    here = {**me, "boot": jobrecord.boot_id()}
    assert jobrecord.keeper_lives(folder, here)
    assert not jobrecord.keeper_lives(folder, {**here, "keeper_birth": 1})
    assert not jobrecord.keeper_lives(folder, {**here, "boot": "another"})


def test_a_lock_is_held_by_one_process_and_seen_by_all(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    assert not jobrecord.is_locked(folder, b"lock", False)
    fd, locked = jobrecord.take_lock(folder)
    assert locked
    assert jobrecord.is_locked(folder, b"lock", False)
    assert jobrecord.take_lock(folder) == (-1, False)
    os.close(fd)
    assert not jobrecord.is_locked(folder, b"lock", False)


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "remote-sandbox" / "jobs" / "node"
    root.parent.mkdir(parents=True)
    root.parent.chmod(0o755)
    jobplace.make_root(os.fsencode(root))
    assert [path.stat().st_mode & 0o777 for path in (root, root.parent, root.parents[1])] == [0o700] * 3
    root.rmdir()
    root.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="not a folder of ours"):
        jobplace.make_root(os.fsencode(root))


def test_gpu_tables_are_read_line_by_line() -> None:
    cards = "0, GPU-a, 37\n1, GPU-b, [N/A]\nnonsense\n"
    apps = "10, GPU-a, 100\n10, GPU-b, 50\n11, GPU-b, [N/A]\n12, GPU-c, 5\nNo running processes found\n"
    assert read_gpu_memory(cards, apps) == {10: [("0", 100.0), ("1", 50.0)]}
    assert read_gpu_use(cards) == {"GPU-a": ("0", 37.0)}


@pytest.mark.parametrize("lines", [1, 2, 5, 40, 100_000])
@pytest.mark.parametrize("end", ["\n", ""], ids=["whole", "cut"])
def test_the_last_lines_are_those_of_the_whole_log(tmp_path: Path, lines: int, end: str) -> None:
    text = "\n".join(str(number) * (number % 70) for number in range(30_000)) + end
    (tmp_path / "log").write_text(text)
    with open(tmp_path / "log", "rb") as file:
        got = last_lines(file, len(text), lines, 1 << 30)
    assert got.decode() == "".join(text.splitlines(keepends=True)[-lines:])
