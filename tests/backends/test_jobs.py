"""Background jobs on a real machine: started once, told truly, whatever is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobRefused, Jobs, JobState, JobWait, new_job_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import JobContract, Opener, WholeJobContract
from tests.backends.contract.basics import said
from tests.backends.contract.jobs import REFUSALS, STAYS, Interrupt
from tests.support.jobs import (
    FOREVER,
    begin,
    folder_of,
    has_printed,
    in_thread,
    job_folders,
    jobs_on,
    look,
    not_running,
    order,
    run,
    sessions,
    shell,
)
from tests.support.pipe import PipeMachine, pythons
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine("jobs")


@pytest.fixture
async def machine(user: Sshd) -> AsyncIterator[PipeMachine]:
    async with jobs_on(user) as (machine, sandbox):
        machine.sandbox = lambda: sandbox  # type: ignore[method-assign]
        yield machine


@pytest.fixture
def sandbox(machine: PipeMachine) -> OutpostSandbox:
    return machine.sandbox()


@pytest.fixture
def jobs(sandbox: OutpostSandbox) -> Jobs:
    return sandbox.jobs


class TestInTmux(WholeJobContract):
    """Each job is in a tmux session of its name. The outpost is reached by a pipe alone."""

    has_ports = False

    @pytest.fixture(scope="class")
    @classmethod
    async def opener(cls, user: Sshd) -> AsyncIterator[Opener]:
        async with jobs_on(user) as (_, sandbox):
            yield lambda environment: opened(sandbox)

    @pytest.fixture
    def interrupt(self, user: Sshd) -> Interrupt:
        return lambda started: in_thread(user, f"tmux kill-session -t ={started.session}")


class TestDetached(JobContract):
    """The same program on a machine without tmux, where a job's keeper is a process of its own."""

    @pytest.fixture(scope="class")
    @classmethod
    async def opener(cls, fleet: Fleet) -> AsyncIterator[Opener]:
        bare = fleet.machine("no-tmux", tmux=False)
        async with jobs_on(bare) as (machine, sandbox):
            path = f"PATH={bare.folder.parent / 'bin-tmux'}; export PATH"
            sandbox._connect = lambda: PipeMachine.outpost(machine, path)
            yield lambda environment: opened(sandbox)

    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        """The one thing that jobs cannot have here is told."""
        started = await begin(sandbox.jobs, STAYS, session)
        assert (started.via, (await look(sandbox.jobs, started.job_id)).via) == ("detached", "detached")
        with pytest.raises(Unsupported, match="without tmux"):
            await sandbox.jobs.send(JobQuery(session=session), text="x")
        await sandbox.jobs.stop(JobQuery(session=session))


async def opened(sandbox: OutpostSandbox) -> Sandbox:
    return sandbox


# A job's life


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3] + "/" + path.split("/")[-1])
async def test_it_runs_under_every_python(machine: PipeMachine, user: Sshd, python: str) -> None:
    machine.python = python
    jobs = machine.sandbox().jobs
    seen = await run(jobs, "echo out; echo err >&2; exit 3")
    assert (seen.exit_code, seen.log, seen.via) == (3, b"out\nerr\nEXIT_CODE=3\n", "tmux")
    started = await begin(jobs)
    assert (await look(jobs, started.job_id)).is_running
    stopped = await jobs.stop(JobQuery(job_id=started.job_id))
    assert (stopped.state, stopped.ending, stopped.signal) == (JobState.ENDED, "stopped", "SIGTERM")
    assert sessions(user) == []


async def test_a_job_is_in_a_tmux_session_of_its_name(jobs: Jobs, user: Sshd) -> None:
    started = await begin(jobs, FOREVER)
    assert (started.via, started.recovered, started.notes) == ("tmux", False, ())
    assert started.log_file == f"{user.home}/.codex_logs/train.log"
    assert started.cwd == str(user.home)
    assert sessions(user) == ["train"]
    seen = await has_printed(jobs, started.job_id)
    assert (seen.session, seen.command, seen.cwd, seen.via) == ("train", FOREVER, str(user.home), "tmux")
    await eventually(lambda: in_thread(user, "tmux capture-pane -p -t =train:"), lambda text: "begun" in text, "pane")


async def test_a_script_is_one_for_bash(jobs: Jobs) -> None:
    script = "f() { echo {a,b}; }\nf\nshopt -s extglob\ncase ab in @(ab|c)) echo yes;; esac"
    assert (await run(jobs, script)).log == b"a b\nyes\nEXIT_CODE=0\n"


async def test_a_job_has_the_environment_of_exec(jobs: Jobs, sandbox: OutpostSandbox) -> None:
    names = {b"TMUX", b"TMUX_PANE", b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION", b"COLORTERM"}
    usual = set((await said(sandbox, "umask; env -0", cwd="/tmp")).replace(b"\n", b"\0").split(b"\0"))
    started = await begin(jobs, "umask; env -0", cwd="/tmp", env={"TOKEN": "a b"}, log_file="~/log")
    seen = (await jobs.wait(JobQuery(job_id=started.job_id), JobWait())).seen
    had = set(seen.log.rpartition(b"\nEXIT_CODE")[0].replace(b"\n", b"\0").split(b"\0"))
    extra = {line for line in had if line.partition(b"=")[0] not in names}
    assert extra - usual == {b"TOKEN=a b", b"RSMCP_JOB_ID=" + started.job_id.encode()}
    assert usual - had <= {b"TERM=dumb"}
    assert any(line.startswith(b"TMUX_PANE=") for line in had)


async def test_the_folder_is_closed_to_others_and_keeps_no_variables(jobs: Jobs, user: Sshd) -> None:
    started = await begin(jobs, env={"TOKEN": "hush"})
    folder = folder_of(user, started.job_id)
    for path in (folder, folder.parent, folder.parents[1], folder.parents[2]):
        assert path.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert "hush" not in shell(user, f"cat {folder}/*; ps -eo args")


# Starting


async def test_refusals_leave_nothing(jobs: Jobs, user: Sshd) -> None:
    shell(user, "mkfifo pipe; : > file")
    for fields, _ in REFUSALS.values():
        with pytest.raises(NotStarted):
            await jobs.start(replace(order("touch ran"), **fields))
    assert (job_folders(user), sessions(user)) == ([], [])
    assert set(os.listdir(user.home)) <= {".local", ".ssh", "file", "pipe"}


async def test_a_refused_start_does_not_touch_the_job_that_runs(jobs: Jobs, user: Sshd) -> None:
    started = await begin(jobs)
    before = shell(user, f"cd {folder_of(user, started.job_id)} && sha256sum *")
    for script in ("touch ran", "echo 'a"):
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, script)
        assert refused.value.reason == "in_use"
    assert shell(user, f"cd {folder_of(user, started.job_id)} && sha256sum *") == before
    assert job_folders(user) == [started.job_id]
    assert (await jobs.inspect([JobQuery(session="train")]))[0].job_id == started.job_id
    assert not (user.home / "ran").exists()


async def test_a_tmux_session_that_is_not_ours_keeps_its_name(jobs: Jobs, user: Sshd) -> None:
    shell(user, "tmux new-session -d -s train 'sleep 60'")
    with pytest.raises(JobRefused, match="a tmux session named train") as refused:
        await begin(jobs)
    assert refused.value.reason == "in_use"
    assert job_folders(user) == []


async def test_a_missing_shell_is_an_error(machine: PipeMachine) -> None:
    sandbox = machine.sandbox()
    sandbox.jobs._environment = replace(sandbox.jobs._environment, shell=("no-such-shell", "-c"))
    with pytest.raises(JobRefused, match="unable to start no-such-shell"):
        await begin(sandbox.jobs)


async def test_of_many_starts_at_once_one_starts(machine: PipeMachine, user: Sshd) -> None:
    others = [PipeMachine(user) for _ in range(3)]
    sandboxes = [PipeMachine.sandbox(other) for other in others] + [machine.sandbox()]
    wanted = order("echo >> count; sleep 60")
    started = await asyncio.gather(*(sandbox.jobs.start(wanted) for sandbox in sandboxes for _ in range(5)))
    assert sorted(each.recovered for each in started) == [False] + [True] * 19
    await eventually(lambda: in_thread(user, "cat count | wc -l"), lambda text: text.strip() == "1", "its start")
    assert sessions(user) == ["train"]
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes[:3]))
    for other in others:
        await other.end()


async def test_a_start_whose_keeper_never_came_is_repeated(jobs: Jobs, user: Sshd) -> None:
    """As after a kill between the making of the folder and the start of its keeper."""
    wanted = order("echo >> count; sleep 60")
    await jobs.start(wanted)
    await jobs.stop(JobQuery(job_id=wanted.job_id))
    folder = folder_of(user, wanted.job_id)
    shell(user, f"cd {folder} && rm -f begun end stop && chmod 600 lock && printf 'A=b\\0' > environ && rm ~/count")
    again = await jobs.start(wanted)
    assert not again.recovered
    await eventually(lambda: in_thread(user, "cat count | wc -l"), lambda text: text.strip() == "1", "its start")


async def test_a_claimed_job_is_never_begun_again(jobs: Jobs, user: Sshd) -> None:
    wanted = order("echo >> count; echo begun; sleep 60")
    await jobs.start(wanted)
    await has_printed(jobs, wanted.job_id)
    await jobs.stop(JobQuery(job_id=wanted.job_id))
    shell(user, f"cd {folder_of(user, wanted.job_id)} && rm -f end && mv begun claim")
    (seen,) = await jobs.inspect([JobQuery(job_id=wanted.job_id)])
    assert seen.state is JobState.GONE
    assert shell(user, "wc -l < count").strip() == "1"


async def test_a_home_that_cannot_be_written_is_reported(jobs: Jobs, user: Sshd) -> None:
    shell(user, "mkdir .local && chmod 500 .local")
    started = await begin(jobs, "echo a; sleep 60", log_file="~/log")
    assert "is lost when the machine restarts" in started.notes[0]
    assert (await has_printed(jobs, started.job_id, b"a\n")).is_running
    assert [seen.job_id for seen in await jobs.list()] == [started.job_id]


# Looking


async def test_many_jobs_are_seen_with_one_request(jobs: Jobs, sandbox: OutpostSandbox) -> None:
    running, ended = await begin(jobs, session="a"), await run(jobs, "true", "b")
    client = await sandbox._reach()
    before = next(client._numbers)
    seen = await jobs.inspect(
        [JobQuery(job_id=running.job_id), JobQuery(job_id=ended.job_id), JobQuery(session="none")]
    )
    assert next(client._numbers) == before + 2
    assert [each.state.value for each in seen] == ["running", "ended", "missing"]


async def test_a_checkpoint_command_that_hangs_is_ended_with_its_tree(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs)).job_id
    (seen,) = await jobs.inspect([JobQuery(job_id=job, checkpoint_command="sleep 611 & setsid sleep 611; wait")])
    assert seen.checkpoint is not None
    assert "longer than 10 s" in seen.checkpoint.problem
    # A killed process is there until the kernel has taken it down.
    wait_until(lambda: "sleep 611" not in " ".join(user.processes().values()), what="the end of its tree")


async def test_what_a_job_uses(jobs: Jobs, user: Sshd, machine: PipeMachine) -> None:
    shell(user, "mkdir bin; cat > bin/nvidia-smi; chmod +x bin/nvidia-smi")
    (user.home / "bin/nvidia-smi").write_text(
        '#!/bin/sh\ncase "$1" in\n--query-gpu*) echo "0, GPU-a"; echo "1, GPU-b";;\n'
        '*) echo "$(cat ~/pid), GPU-b, 1234"; echo "1, GPU-a, 77"; echo "junk";;\nesac\n'
    )
    outpost = machine.outpost
    machine.outpost = lambda noise="": outpost("PATH=$HOME/bin:$PATH; export PATH")  # type: ignore[method-assign]
    sandbox = PipeMachine.sandbox(machine)
    job = (await begin(sandbox.jobs, "echo $$ > pid; echo begun; sleep 60 & while :; do :; done")).job_id
    await has_printed(sandbox.jobs, job)

    seen = await eventually(
        lambda: look(sandbox.jobs, job, usage=True), lambda seen: bool(seen.usage and seen.usage.cpu_s > 0.1), "use"
    )
    assert seen.usage is not None
    assert seen.usage.processes == 2
    assert 0.5 < seen.usage.memory_mb < 100
    assert seen.usage.gpus == {1: 1234.0}
    await sandbox.jobs.stop(JobQuery(job_id=job))
    assert (await look(sandbox.jobs, job, usage=True)).usage is None
    await sandbox.close()


async def test_sessions_that_are_not_ours(jobs: Jobs, user: Sshd) -> None:
    shell(user, "tmux new-session -d -s theirs 'echo hi > log; sleep 60'; tmux new-session -d -s theirs-2 'sleep 60'")
    mine = JobQuery(session="theirs", log_file="log")

    async def seen(look: JobQuery) -> JobState:
        (found,) = await jobs.inspect([look])
        assert found.foreign is (found.state is not JobState.MISSING)
        return found.state

    assert await seen(mine) is JobState.RUNNING
    assert await seen(JobQuery(session="their")) is JobState.MISSING
    shell(user, "tmux kill-session -t =theirs; echo half > log")
    assert await seen(mine) is JobState.GONE
    shell(user, "printf 'EXIT_CODE=7\\n' >> log")
    assert await seen(mine) is JobState.ENDED
    assert (await jobs.inspect([mine]))[0].exit_code == 7
    stopped = await jobs.stop(JobQuery(session="theirs-2"))
    assert (stopped.state, stopped.ending, sessions(user)) == (JobState.ENDED, "stopped", [])


async def test_a_session_that_is_not_ours_counts_its_own_processes_and_is_stopped_whole(jobs: Jobs, user: Sshd) -> None:
    # One of its processes does not hear that its session is hung up.
    shell(user, "printf 'nohup sleep 61 >/dev/null & exec sleep 62' > two; tmux new-session -d -s theirs 'sh two'")
    mine = JobQuery(session="theirs", usage=True)

    async def processes() -> int:
        (found,) = await jobs.inspect([mine])
        assert found.usage is not None
        assert found.seconds < 60
        return found.usage.processes

    await eventually(processes, lambda count: count == 2, "its two processes")
    stopped = await jobs.stop(mine, grace_s=0.2)
    assert (stopped.state, stopped.ending, stopped.survivors) == (JobState.ENDED, "stopped", ())
    assert not shell(user, "pgrep -u $(id -u) -f 'sleep 6[12]'")


# Typing


async def test_text_and_keys_reach_the_job(jobs: Jobs, user: Sshd) -> None:
    script = 'trap \'echo caught\' INT; echo begun; read -r a; echo "<$a>"; read -r b; echo "<$b>"; sleep 60'
    job = (await begin(jobs, script)).job_id
    await has_printed(jobs, job)
    await jobs.send(JobQuery(job_id=job), text="it's $x; `y` -l é \\;", keys=["Enter"])
    await has_printed(jobs, job, "<it's $x; `y` -l é \\;>\n".encode())
    await jobs.send(JobQuery(session="train"), keys=["a", ";", "Enter"])
    await has_printed(jobs, job, b"<a;>\n")
    await jobs.send(JobQuery(job_id=job), keys=["C-c"])
    await has_printed(jobs, job, b"caught\n")
    assert (await not_running(jobs, job)).state is JobState.ENDED
    with pytest.raises(NotStarted, match="does not run"):
        await jobs.send(JobQuery(job_id=job), text="x")


@pytest.mark.parametrize("key", ["kill-server", "Enter; x", "-t", "", "C-", "F99", "\n"])
async def test_what_is_not_a_key_is_refused(jobs: Jobs, key: str) -> None:
    job = (await begin(jobs)).job_id
    with pytest.raises(BadArgument, match="not a key"):
        await jobs.send(JobQuery(job_id=job), keys=[key])


async def test_a_long_text_arrives_whole(jobs: Jobs, user: Sshd) -> None:
    lines = "".join(f"{number:05} some; text é;\n" for number in range(1000))
    reads = 'while read -r line; do [ "$line" = end ] && break; echo "$line"; done > got'
    job = (await begin(jobs, f"echo begun; {reads}")).job_id
    await has_printed(jobs, job)
    await jobs.send(JobQuery(job_id=job), text=f"{lines}end\n")
    assert (await not_running(jobs, job)).exit_code == 0
    assert (user.home / "got").read_text() == lines


# Pruning


def let_prune(user: Sshd) -> None:
    """Take away the mark that says that old jobs were removed a moment ago."""
    run_as_root("rm", f"/tmp/remote-sandbox-{user.uid}/jobs.pruned")


async def test_old_jobs_are_looked_for_once_a_minute(jobs: Jobs, user: Sshd) -> None:
    old = await run(jobs, "true", "a")
    path = folder_of(user, old.job_id) / "order"
    path.write_text(path.read_text().replace('"ordered": ', '"ordered": 1000.0, "was": '))
    await run(jobs, "true", "b")
    await run(jobs, "true", "c")
    assert old.job_id in job_folders(user)


async def test_a_look_by_name_reads_no_other_job(jobs: Jobs, user: Sshd) -> None:
    """Neither where a job has the name, nor where it was removed, nor where none had it."""
    others = [(await run(jobs, "true", f"other-{number}")).job_id for number in range(5)]
    mine = await run(jobs, "true", "mine")
    records = [folder_of(user, job_id) / "order" for job_id in others]
    for path in records:
        os.utime(path, (1, 1))
    seen = await jobs.inspect([JobQuery(session=name) for name in ("mine", "gone", "never")])
    assert [each.state for each in seen] == [JobState.ENDED, JobState.MISSING, JobState.MISSING]
    assert seen[0].job_id == mine.job_id
    await run(jobs, "true", "fresh")
    assert [path.stat().st_atime for path in records] == [1.0] * 5


async def test_a_name_that_leads_nowhere_leads_to_the_newest_job_that_has_it(jobs: Jobs, user: Sshd) -> None:
    """A start that is killed between its two steps has the name, and no folder."""
    job_id = (await run(jobs, "exit 3", "a")).job_id
    (folder_of(user, job_id).parent / "by-session/a").write_text(new_job_id())
    (seen,) = await jobs.inspect([JobQuery(session="a")])
    assert (seen.job_id, seen.exit_code) == (job_id, 3)


async def test_old_jobs_are_pruned_and_running_ones_never(jobs: Jobs, user: Sshd) -> None:
    started = [await begin(jobs, script, name) for script, name in ((FOREVER, "a"), ("true", "b"), (FOREVER, "c"))]
    await in_thread(user, "tmux kill-session -t =c")
    await not_running(jobs, started[1].job_id)
    await not_running(jobs, started[2].job_id)
    for each in started:
        path = folder_of(user, each.job_id) / "order"
        path.write_text(path.read_text().replace('"ordered": ', '"ordered": 1000.0, "was": '))
    let_prune(user)
    fresh = await begin(jobs, "true", "d")
    left = sorted([started[0].job_id, fresh.job_id])
    await eventually(lambda: asyncio.to_thread(job_folders, user), lambda found: found == left, "the pruning")
    assert (await look(jobs, started[0].job_id)).is_running
    assert (await jobs.inspect([JobQuery(session="b")]))[0].state is JobState.MISSING


def test_ids_do_not_repeat() -> None:
    assert len({new_job_id() for _ in range(100)}) == 100
    assert JobOrder(session="a", script="b").job_id != JobOrder(session="a", script="b").job_id
