"""Background jobs on a real machine: started once, told truly, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.backends.outpost.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unsupported
from remote_sandbox_mcp.core.job import JobLook, JobOrder, JobRefused, Jobs, JobState, JobWait, new_job_id
from tests.backends.contract.basics import eventually, said
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
from tests.support.pace import at_most
from tests.support.pipe import PipeMachine, pythons
from tests.support.sshd import Fleet, Sshd, wait_until


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


# A job's life


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3] + "/" + path.split("/")[-1])
async def test_it_runs_under_every_python(machine: PipeMachine, user: Sshd, python: str) -> None:
    machine.python = python
    jobs = machine.sandbox().jobs
    seen = await run(jobs, "echo out; echo err >&2; exit 3")
    assert (seen.exit_code, seen.log, seen.via) == (3, b"out\nerr\nEXIT_CODE=3\n", "tmux")
    started = await begin(jobs)
    assert (await look(jobs, started.job_id)).is_running
    stopped = await jobs.stop(JobLook(job_id=started.job_id))
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


SCRIPTS = {
    "its own exit": ("(exit 4)\nexit 5", 5, b""),
    "no set -e": ("false\necho on", 0, b"on\n"),
    "no set -u": ('echo "[$NOT_SET]"', 0, b"[]\n"),
    "no pipefail": ("false | true", 0, b""),
    "heredoc": ("cat <<'END'\n$x `y` }\nEND\n", 0, b"$x `y` }\n"),
    "braces": ("f() { echo {a,b}; }\nf", 0, b"a b\n"),
    "an open end": ("echo a; # no newline '", 0, b"a\n"),
    "quotes and dollars": ('echo \'"$HOME"\' "it\'s"', 0, b'"$HOME" it\'s\n'),
    "extended patterns": ("shopt -s extglob\ncase ab in @(ab|c)) echo yes;; esac", 0, b"yes\n"),
    "begins with a dash": ("-x; exit 7", 7, b""),
    "unicode": ("echo 日本語", 0, "日本語\n".encode()),
    "a megabyte": ("#" * 1_000_000 + "\necho long; exit 6", 6, b"long\n"),
}


@pytest.mark.parametrize(("script", "code", "printed"), SCRIPTS.values(), ids=SCRIPTS)
async def test_a_script_runs_as_it_is(jobs: Jobs, script: str, code: int, printed: bytes) -> None:
    seen = await run(jobs, script)
    assert seen.exit_code == code
    assert printed in seen.log
    assert seen.log.endswith(b"EXIT_CODE=%d\n" % code)


async def test_a_job_has_the_environment_of_exec(jobs: Jobs, sandbox: OutpostSandbox) -> None:
    names = {b"TMUX", b"TMUX_PANE", b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION", b"COLORTERM"}
    usual = set((await said(sandbox, "umask; env -0", cwd="/tmp")).replace(b"\n", b"\0").split(b"\0"))
    started = await begin(jobs, "umask; env -0", cwd="/tmp", env={"TOKEN": "a b"}, log_file="~/log")
    seen = (await jobs.wait(JobLook(job_id=started.job_id), JobWait())).seen
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


async def test_the_log_is_appended_to_and_ends_in_a_line_of_its_own(jobs: Jobs, user: Sshd) -> None:
    await run(jobs, "printf first", log_file="logs/a/log")
    seen = await run(jobs, "printf second", log_file="~/logs/a/log")
    assert seen.log_file == f"{user.home}/logs/a/log"
    assert (user.home / "logs/a/log").read_text() == "first\nEXIT_CODE=0\nsecond\nEXIT_CODE=0\n"


async def test_the_log_starts_at_the_jobs_own_folder(jobs: Jobs, user: Sshd) -> None:
    shell(user, "mkdir -p work")
    assert (await begin(jobs, "true", cwd="work")).log_file == f"{user.home}/work/.codex_logs/train.log"
    assert (await begin(jobs, "true", "other", cwd="work", log_file="x.log")).log_file == f"{user.home}/work/x.log"


@pytest.mark.parametrize("session", ["日本語-é", "a=b,c+d@e%f", "9", "_x", "n" * 60])
async def test_session_names(jobs: Jobs, user: Sshd, session: str) -> None:
    started = await begin(jobs, FOREVER, session)
    assert sessions(user) == [session]
    assert (await jobs.look([JobLook(session=session)]))[0].job_id == started.job_id
    with pytest.raises(JobRefused, match="runs already"):
        await begin(jobs, FOREVER, session)
    stopped = await jobs.stop(JobLook(session=session))
    assert (stopped.state, sessions(user)) == (JobState.ENDED, [])


async def test_a_name_is_not_the_beginning_of_another(jobs: Jobs) -> None:
    ten = await begin(jobs, FOREVER, "job-10")
    (one,) = await jobs.look([JobLook(session="job-1")])
    assert one.state is JobState.MISSING
    first = await begin(jobs, FOREVER, "job-1")
    await jobs.stop(JobLook(session="job-1"))
    assert not (await look(jobs, first.job_id)).is_running
    assert (await look(jobs, ten.job_id)).is_running
    assert (await jobs.look([JobLook(session="job-1")]))[0].job_id == first.job_id


# Starting


REFUSALS = {
    "no such folder": ({"cwd": "/none"}, "unable to enter /none"),
    "a log in a folder that is closed": ({"log_file": "/proc/x/log"}, "unable to write the log /proc/x/log"),
    "a log that is a folder": ({"log_file": "/tmp"}, "unable to write the log /tmp"),
    "a log that is a pipe": ({"log_file": "~/pipe"}, "unable to write the log"),
    "a syntax error": ({"script": "echo a\nif true; then\n"}, "syntax error"),
    "quotes that do not close": ({"script": "echo 'a"}, "syntax error"),
    "nothing to be replaced": ({"instead_of": "job-0000000000000000"}, "nothing is known of it"),
    "an id that is a path": ({"job_id": "../../../x"}, "not the name of a job"),
    "a variable that is two": ({"env": {"A\0B": "c"}}, "cannot be the name of a variable"),
    "a NUL": ({"script": "echo \0"}, "with a NUL"),
    "a session that is a path": ({"session": "../x"}, "cannot be the name of a session"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_comes_at_once_and_leaves_nothing(
    jobs: Jobs, user: Sshd, fields: dict[str, Any], message: str
) -> None:
    shell(user, "mkfifo pipe")
    begun = time.monotonic()
    with pytest.raises(NotStarted, match=message):
        await jobs.start(replace(order("touch ran"), **fields))
    assert time.monotonic() - begun < at_most(5)
    assert (job_folders(user), sessions(user)) == ([], [])
    assert set(os.listdir(user.home)) <= {".local", ".ssh", "pipe"}


async def test_a_refused_start_does_not_touch_the_job_that_runs(jobs: Jobs, user: Sshd) -> None:
    started = await begin(jobs)
    before = shell(user, f"cd {folder_of(user, started.job_id)} && sha256sum *")
    for script in ("touch ran", "echo 'a"):
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, script)
        assert refused.value.reason == "in_use"
    assert shell(user, f"cd {folder_of(user, started.job_id)} && sha256sum *") == before
    assert job_folders(user) == [started.job_id]
    assert (await jobs.look([JobLook(session="train")]))[0].job_id == started.job_id
    assert not (user.home / "ran").exists()


async def test_after_a_refusal_a_session_name_still_means_the_job_before(jobs: Jobs) -> None:
    first = await run(jobs, "exit 3")
    for fields in ({"env": {"LARGE": "x" * 200_000}}, {"log_file": "/proc/none"}):
        with pytest.raises(JobRefused):
            await begin(jobs, "true", **fields)
        (seen,) = await jobs.look([JobLook(session="train")])
        assert (seen.job_id, seen.exit_code) == (first.job_id, 3)


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


async def test_a_repeated_start_starts_nothing(jobs: Jobs, user: Sshd) -> None:
    wanted = order("echo >> count; sleep 60")
    first = await jobs.start(wanted)
    again = await jobs.start(wanted)
    assert (first.recovered, again.recovered) == (False, True)
    assert replace(again, recovered=False) == first
    await jobs.stop(JobLook(job_id=wanted.job_id))
    assert (await jobs.start(wanted)).recovered
    assert shell(user, "wc -l < count").strip() == "1"


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


async def test_of_many_jobs_of_one_name_one_starts(jobs: Jobs, user: Sshd) -> None:
    results = await asyncio.gather(*(begin(jobs) for _ in range(10)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, JobRefused)]
    assert len(refused) == 9
    assert {refusal.reason for refusal in refused} == {"in_use"}
    assert len(job_folders(user)) == 1


async def test_a_start_whose_keeper_never_came_is_repeated(jobs: Jobs, user: Sshd) -> None:
    """As after a kill between the making of the folder and the start of its keeper."""
    wanted = order("echo >> count; sleep 60")
    await jobs.start(wanted)
    await jobs.stop(JobLook(job_id=wanted.job_id))
    folder = folder_of(user, wanted.job_id)
    shell(user, f"cd {folder} && rm -f begun end stop && chmod 600 lock && printf 'A=b\\0' > environ && rm ~/count")
    again = await jobs.start(wanted)
    assert not again.recovered
    await eventually(lambda: in_thread(user, "cat count | wc -l"), lambda text: text.strip() == "1", "its start")


async def test_a_claimed_job_is_never_begun_again(jobs: Jobs, user: Sshd) -> None:
    wanted = order("echo >> count; sleep 60")
    await jobs.start(wanted)
    await jobs.stop(JobLook(job_id=wanted.job_id))
    shell(user, f"cd {folder_of(user, wanted.job_id)} && rm -f end && mv begun claim")
    (seen,) = await jobs.look([JobLook(job_id=wanted.job_id)])
    assert seen.state is JobState.GONE
    assert shell(user, "wc -l < count").strip() == "1"


async def test_a_job_replaces_one_that_is_gone_and_no_other(jobs: Jobs, user: Sshd) -> None:
    ended = await begin(jobs, "true", "ended")
    running = await begin(jobs, FOREVER, "running")
    await not_running(jobs, ended.job_id)
    for before, reason in ((ended, "ended"), (running, "running")):
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, FOREVER, before.session, instead_of=before.job_id)
        assert refused.value.reason == reason
    gone = await begin(jobs, FOREVER, "gone")
    await in_thread(user, "tmux kill-session -t =gone")
    assert (await not_running(jobs, gone.job_id)).state is JobState.GONE
    resumed = await begin(jobs, FOREVER, "gone", instead_of=gone.job_id)
    assert (await jobs.look([JobLook(session="gone")]))[0].job_id == resumed.job_id


async def test_a_name_can_be_used_again_at_once(jobs: Jobs) -> None:
    for number in range(5):
        assert (await run(jobs, f"exit {number}")).exit_code == number


async def test_without_tmux_a_job_is_detached(fleet: Fleet) -> None:
    user = fleet.machine("no-tmux", tmux=False)
    path = user.folder.parent / "bin-tmux"
    async with jobs_on(user) as (machine, _):
        client = machine.outpost
        machine.outpost = lambda noise="": client(f"PATH={path}; export PATH")  # type: ignore[method-assign]
        jobs = PipeMachine.sandbox(machine).jobs
        started = await begin(jobs)
        assert started.via == "detached"
        assert (await has_printed(jobs, started.job_id)).via == "detached"
        with pytest.raises(JobRefused, match="runs already"):
            await begin(jobs)
        with pytest.raises(Unsupported, match="without tmux"):
            await jobs.send(JobLook(job_id=started.job_id), text="x")
        stopped = await jobs.stop(JobLook(job_id=started.job_id))
        assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
        assert (await run(jobs, "echo a; exit 3")).exit_code == 3


async def test_a_home_that_cannot_be_written_is_reported(jobs: Jobs, user: Sshd) -> None:
    shell(user, "mkdir .local && chmod 500 .local")
    started = await begin(jobs, "echo a; sleep 60", log_file="~/log")
    assert "is lost when the machine restarts" in started.notes[0]
    assert (await has_printed(jobs, started.job_id, b"a\n")).is_running
    assert [seen.job_id for seen in await jobs.list()] == [started.job_id]


# Looking


async def test_many_jobs_are_seen_with_one_request(jobs: Jobs, sandbox: OutpostSandbox) -> None:
    running = await begin(jobs, "echo a; sleep 60", "a")
    ended = await begin(jobs, "echo b; exit 3", "b")
    await not_running(jobs, ended.job_id)
    await has_printed(jobs, running.job_id, b"a\n")
    client = await sandbox._reach()
    before = next(client._numbers)
    ids = (running.job_id, "job-0000000000000000", ended.job_id)
    seen = await jobs.look([*(JobLook(job_id=each) for each in ids), JobLook(session="none")])
    assert next(client._numbers) == before + 2
    states = [each.state for each in seen]
    assert states == [JobState.RUNNING, JobState.MISSING, JobState.ENDED, JobState.MISSING]
    assert [each.log for each in seen] == [b"a\n", b"", b"b\nEXIT_CODE=3\n", b""]
    assert seen[2].exit_code == 3
    assert seen[0].seconds > 0
    assert abs(seen[0].started - time.time()) < 30


async def test_the_log_by_lines_and_from_a_cursor(jobs: Jobs, user: Sshd) -> None:
    seen = await run(jobs, "seq 1 200000", log_file="log")
    size = (user.home / "log").stat().st_size
    assert (seen.log_size, seen.cursor) == (size, size)
    job = seen.job_id
    assert (await look(jobs, job, lines=3)).log == b"199999\n200000\nEXIT_CODE=0\n"
    assert (await look(jobs, job, lines=0)).log == b""
    bounded = await look(jobs, job, lines=100_000, most_bytes=1000)
    assert len(bounded.log) <= 1000
    assert bounded.log.endswith(b"EXIT_CODE=0\n")
    part = await look(jobs, job, cursor=2, most_bytes=4)
    assert (part.log, part.cursor) == (b"2\n3\n", 6)
    assert (await look(jobs, job, cursor=size)).log == b""
    assert (await look(jobs, job, cursor=size + 1, most_bytes=4)).log == b"1\n2\n"
    shell(user, "printf 'new\\n' > log")
    assert (await look(jobs, job, cursor=size)).log == b"new\n"


async def test_checkpoints(jobs: Jobs, user: Sshd) -> None:
    shell(user, "mkdir work; echo step 5 > work/state")
    job = (await begin(jobs, FOREVER, cwd="work")).job_id
    by_path = (await look(jobs, job, checkpoint_path="state")).checkpoint
    assert by_path is not None
    assert (by_path.text, by_path.problem) == (b"step 5\n", "")
    assert abs(by_path.mtime - time.time()) < 30
    by_command = (await look(jobs, job, checkpoint_command="pwd; seq 1 100000")).checkpoint
    assert by_command is not None
    assert len(by_command.text) == 65536
    assert by_command.text.endswith(b"\n100000\n")
    problems = {
        "No such file": {"checkpoint_path": "none"},
        "is a folder": {"checkpoint_path": "~"},
        "ended with 3: oh": {"checkpoint_command": "echo oh; exit 3"},
    }
    for message, fields in problems.items():
        seen = await look(jobs, job, **fields)
        assert seen.checkpoint is not None
        assert message in seen.checkpoint.problem
        assert seen.is_running


async def test_a_checkpoint_command_that_hangs_is_ended_with_its_tree(jobs: Jobs, user: Sshd) -> None:
    job = (await begin(jobs)).job_id
    (seen,) = await jobs.look([JobLook(job_id=job, checkpoint_command="sleep 611 & setsid sleep 611; wait")])
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
    await sandbox.jobs.stop(JobLook(job_id=job))
    assert (await look(sandbox.jobs, job, usage=True)).usage is None
    await sandbox.close()


async def test_sessions_that_are_not_ours(jobs: Jobs, user: Sshd) -> None:
    shell(user, "tmux new-session -d -s theirs 'echo hi > log; sleep 60'; tmux new-session -d -s theirs-2 'sleep 60'")
    mine = JobLook(session="theirs", log_file="log")

    async def seen(look: JobLook) -> JobState:
        (found,) = await jobs.look([look])
        assert found.foreign is (found.state is not JobState.MISSING)
        return found.state

    assert await seen(mine) is JobState.RUNNING
    assert await seen(JobLook(session="their")) is JobState.MISSING
    shell(user, "tmux kill-session -t =theirs; echo half > log")
    assert await seen(mine) is JobState.GONE
    shell(user, "printf 'EXIT_CODE=7\\n' >> log")
    assert await seen(mine) is JobState.ENDED
    assert (await jobs.look([mine]))[0].exit_code == 7
    stopped = await jobs.stop(JobLook(session="theirs-2"))
    assert (stopped.state, stopped.ending, sessions(user)) == (JobState.ENDED, "stopped", [])


async def test_a_session_that_is_not_ours_counts_its_own_processes_and_is_stopped_whole(jobs: Jobs, user: Sshd) -> None:
    # One of its processes does not hear that its session is hung up.
    shell(user, "printf 'nohup sleep 61 >/dev/null & exec sleep 62' > two; tmux new-session -d -s theirs 'sh two'")
    mine = JobLook(session="theirs", usage=True)

    async def processes() -> int:
        (found,) = await jobs.look([mine])
        assert found.usage is not None
        assert found.seconds < 60
        return found.usage.processes

    await eventually(processes, lambda count: count == 2, "its two processes")
    stopped = await jobs.stop(mine, grace_s=0.2)
    assert (stopped.state, stopped.ending, stopped.survivors) == (JobState.ENDED, "stopped", ())
    assert not shell(user, "pgrep -u $(id -u) -f 'sleep 6[12]'")


async def test_the_list_has_all_jobs_newest_first(jobs: Jobs) -> None:
    names = [f"job{number}" for number in range(5)]
    for name in names:
        await begin(jobs, "true" if name == "job2" else FOREVER, name)
    listed = await jobs.list()
    assert [seen.session for seen in listed] == names[::-1]
    assert [seen.session for seen in await jobs.list(limit=2)] == names[:2:-1]
    assert all(seen.log == b"" and seen.command for seen in listed)


# Waiting


async def test_a_wait_ends_with_the_job(jobs: Jobs) -> None:
    job = (await begin(jobs, "sleep 0.5; exit 9")).job_id
    begun = time.monotonic()
    waited = await jobs.wait(JobLook(job_id=job), JobWait(seconds=30))
    assert (waited.why, waited.seen.exit_code) == ("ended", 9)
    assert time.monotonic() - begun < at_most(10)


async def test_a_wait_finds_a_pattern_in_what_was_and_is_printed(jobs: Jobs, user: Sshd) -> None:
    later = "while ! [ -e go ]; do sleep 0.05; done; printf lo; sleep 0.3; echo ss=2; sleep 60"
    job = (await begin(jobs, f"echo old loss=1; {later}")).job_id
    await has_printed(jobs, job, b"old")
    first = await jobs.wait(JobLook(job_id=job), JobWait(seconds=10, pattern=r"loss=\d"))
    assert (first.why, first.line) == ("pattern", "old loss=1")
    nothing = await jobs.wait(JobLook(job_id=job, cursor=first.seen.cursor), JobWait(seconds=0.3, pattern=r"loss=\d"))
    assert nothing.why == "timeout"
    shell(user, "touch go")
    second = await jobs.wait(JobLook(job_id=job, cursor=first.seen.cursor), JobWait(seconds=10, pattern=r"^loss=\d$"))
    assert (second.why, second.line) == ("pattern", "loss=2")


async def test_a_prompt_without_a_newline_is_found(jobs: Jobs) -> None:
    job = (await begin(jobs, "printf 'Password: '; sleep 60")).job_id
    assert (await jobs.wait(JobLook(job_id=job), JobWait(seconds=10, pattern="word: $"))).why == "pattern"


async def test_an_earlier_jobs_log_is_not_searched(jobs: Jobs) -> None:
    await run(jobs, "echo done")
    job = (await begin(jobs, FOREVER)).job_id
    assert (await jobs.wait(JobLook(job_id=job), JobWait(seconds=0.5, pattern="done"))).why == "timeout"


async def test_a_wait_ends_with_silence(jobs: Jobs) -> None:
    job = (await begin(jobs, "for n in 1 2 3 4 5; do echo $n; sleep 0.3; done; sleep 60")).job_id
    waited = await jobs.wait(JobLook(job_id=job), JobWait(seconds=20, silence_s=0.8))
    assert (waited.why, waited.seen.log) == ("silence", b"1\n2\n3\n4\n5\n")
    assert waited.seen.silent_s >= 0.8


async def test_a_pattern_that_is_none_is_an_error(jobs: Jobs) -> None:
    job = (await begin(jobs)).job_id
    with pytest.raises(BadArgument, match="not a regular expression"):
        await jobs.wait(JobLook(job_id=job), JobWait(pattern="("))


# Typing


async def test_text_and_keys_reach_the_job(jobs: Jobs, user: Sshd) -> None:
    script = 'trap \'echo caught\' INT; echo begun; read -r a; echo "<$a>"; read -r b; echo "<$b>"; sleep 60'
    job = (await begin(jobs, script)).job_id
    await has_printed(jobs, job)
    await jobs.send(JobLook(job_id=job), text="it's $x; `y` -l é \\;", keys=["Enter"])
    await has_printed(jobs, job, "<it's $x; `y` -l é \\;>\n".encode())
    await jobs.send(JobLook(session="train"), keys=["a", ";", "Enter"])
    await has_printed(jobs, job, b"<a;>\n")
    await jobs.send(JobLook(job_id=job), keys=["C-c"])
    await has_printed(jobs, job, b"caught\n")
    assert (await not_running(jobs, job)).state is JobState.ENDED
    with pytest.raises(NotStarted, match="does not run"):
        await jobs.send(JobLook(job_id=job), text="x")


@pytest.mark.parametrize("key", ["kill-server", "Enter; x", "-t", "", "C-", "F99", "\n"])
async def test_what_is_not_a_key_is_refused(jobs: Jobs, key: str) -> None:
    job = (await begin(jobs)).job_id
    with pytest.raises(BadArgument, match="not a key"):
        await jobs.send(JobLook(job_id=job), keys=[key])


async def test_a_long_text_arrives_whole(jobs: Jobs, user: Sshd) -> None:
    lines = "".join(f"{number:05} some; text é;\n" for number in range(1000))
    reads = 'while read -r line; do [ "$line" = end ] && break; echo "$line"; done > got'
    job = (await begin(jobs, f"echo begun; {reads}")).job_id
    await has_printed(jobs, job)
    await jobs.send(JobLook(job_id=job), text=f"{lines}end\n")
    assert (await not_running(jobs, job)).exit_code == 0
    assert (user.home / "got").read_text() == lines


# Pruning


async def test_old_jobs_are_pruned_and_running_ones_never(jobs: Jobs, user: Sshd) -> None:
    started = [await begin(jobs, script, name) for script, name in ((FOREVER, "a"), ("true", "b"), (FOREVER, "c"))]
    await in_thread(user, "tmux kill-session -t =c")
    await not_running(jobs, started[1].job_id)
    await not_running(jobs, started[2].job_id)
    for each in started:
        path = folder_of(user, each.job_id) / "order"
        path.write_text(path.read_text().replace('"ordered": ', '"ordered": 1000.0, "was": '))
    fresh = await begin(jobs, "true", "d")
    left = sorted([started[0].job_id, fresh.job_id])
    await eventually(lambda: asyncio.to_thread(job_folders, user), lambda found: found == left, "the pruning")
    assert (await look(jobs, started[0].job_id)).is_running
    assert (await jobs.look([JobLook(session="b")]))[0].state is JobState.MISSING


def test_ids_do_not_repeat() -> None:
    assert len({new_job_id() for _ in range(100)}) == 100
    assert JobOrder(session="a", script="b").job_id != JobOrder(session="a", script="b").job_id
