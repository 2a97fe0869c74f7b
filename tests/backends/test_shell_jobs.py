"""Background jobs without Python, in the plainest shells: what no platform or sshd shows at will."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from opensandbox.exceptions import SandboxConnectionException

from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.outpost.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.shell.jobs import read_jobs
from remote_sandbox_mcp.backends.shell.program import Answer
from remote_sandbox_mcp.backends.shell.search_lines import LONGEST_PARTIAL, search_lines
from remote_sandbox_mcp.backends.shell.transport import Gone, Paused, Place
from remote_sandbox_mcp.core.command import Environment
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, LostContact, NotStarted, Unreachable, Unsupported
from remote_sandbox_mcp.core.job import JobLook, JobRefused, Jobs, JobState, JobWait, next_attempt
from tests.backends.contract.basics import eventually
from tests.backends.test_shell import HereLink, busybox, dash, link, opened, processes_with
from tests.jobs.test_on_a_machine import Scene
from tests.support.jobs import FOREVER, begin, has_printed, look, not_running, order, run
from tests.support.pace import at_most
from tests.support.sshd import wait_until

__all__ = ["busybox", "dash", "link"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where its jobs are kept."""
    return tmp_path / "runs"


@pytest.fixture
async def sandbox(link: HereLink, tmp_path: Path) -> AsyncIterator[PlainContainer]:
    sandbox = opened(link, tmp_path)
    yield sandbox
    await sandbox.close()
    # To stop each job would take most of a second.
    wait_until(lambda: is_quiet(link.environment["HOME"]), what="what it ran to be gone")


def is_quiet(home: str) -> bool:
    """Nothing in two looks: a process that is just being started shows no environment for an instant."""
    if killed(home):
        return False
    time.sleep(0.03)
    return not killed(home)


def killed(home: str) -> list[int]:
    """The processes that were there with that home folder, which all of a link's requests have."""
    mark, found = f"HOME={home}\0".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in file.read_bytes():
                found.append(int(file.parent.name))
                os.kill(found[-1], signal.SIGKILL)
    return found


@pytest.fixture
def jobs(sandbox: PlainContainer) -> Jobs:
    return sandbox.jobs


@pytest.fixture
def home(link: HereLink) -> Path:
    return Path(link.environment["HOME"])


def job_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("sessions", "mark"))


def keeper_of(folder: Path, job_id: str) -> int:
    return int((folder / job_id / "pid").read_text().split()[2])


def kill(folder: Path, job_id: str) -> None:
    """All of a job, as when there is no memory left."""
    keeper = keeper_of(folder, job_id)
    group = int((folder / job_id / "pid").read_text().split()[0])
    os.kill(keeper, signal.SIGKILL)
    os.killpg(group, signal.SIGKILL)


# A job's life


async def test_a_job_takes_one_request_and_outlives_it(link: HereLink, jobs: Jobs, home: Path) -> None:
    started = await begin(jobs)
    assert (started.via, started.recovered, started.notes) == ("detached", False, ())
    assert (started.log_file, started.cwd) == (f"{home}/.codex_logs/train.log", str(home))
    assert link.asked == ["job_start"]
    seen = await has_printed(jobs, started.job_id)
    assert (seen.session, seen.command, seen.cwd, seen.via) == ("train", FOREVER, str(home), "detached")
    assert abs(seen.started - time.time()) < 30
    stopped = await jobs.stop(JobLook(job_id=started.job_id))
    assert (stopped.state, stopped.ending, stopped.signal, stopped.survivors) == (
        JobState.ENDED,
        "stopped",
        "SIGTERM",
        (),
    )
    assert stopped.log == b"begun\nEXIT_CODE=143\n"


SCRIPTS = {
    "its own exit": ("(exit 4)\nexit 5", 5, b""),
    "no set -e": ("false\necho on", 0, b"on\n"),
    "heredoc": ("cat <<'END'\n$x `y` }\nEND\n", 0, b"$x `y` }\n"),
    "an open end": ("echo a; # no newline '", 0, b"a\n"),
    "begins with a dash": ("-x; exit 7", 7, b""),
    "unicode": ("echo 日本語", 0, "日本語\n".encode()),
    "a megabyte": ("#" * 1_000_000 + "\necho long; exit 6", 6, b"long\n"),
    "no terminal": ('read -r line; echo "<$line>"', 0, b"<>\n"),
}


@pytest.mark.parametrize(("script", "code", "printed"), SCRIPTS.values(), ids=SCRIPTS)
async def test_a_script_runs_as_it_is(jobs: Jobs, folder: Path, script: str, code: int, printed: bytes) -> None:
    seen = await run(jobs, script)
    assert seen.exit_code == code
    assert printed in seen.log
    assert seen.log.endswith(b"EXIT_CODE=%d\n" % code)
    assert job_folders(folder) == [seen.job_id]


async def test_nothing_of_ours_is_in_a_jobs_environment(link: HereLink, jobs: Jobs) -> None:
    shown = 'env | grep -E "^(RSM|rs_)" | sort; echo "$TOKEN"; pwd'
    seen = await run(jobs, shown, cwd="/tmp", env={"TOKEN": "a b"}, log_file="~/log")
    assert seen.log == f"RSMCP_JOB_ID={seen.job_id}\na b\n/tmp\nEXIT_CODE=0\n".encode()


async def test_neither_the_keepers_arguments_nor_the_folder_show_secrets(jobs: Jobs, folder: Path) -> None:
    started = await begin(jobs, "echo begun; sleep 60; echo secret-word", env={"TOKEN": "hush"})
    words = Path(f"/proc/{keeper_of(folder, started.job_id)}/cmdline").read_bytes()
    assert b"secret-word" not in words
    mine = folder / started.job_id
    assert mine.stat().st_mode & 0o077 == 0
    assert not any(b"hush" in path.read_bytes() for path in mine.iterdir() if path.is_file())


async def test_the_log_is_appended_to_and_ends_in_a_line_of_its_own(jobs: Jobs, home: Path) -> None:
    await run(jobs, "printf first", log_file="logs/../logs/a/log")
    seen = await run(jobs, "printf second", log_file="~/logs/a/log")
    assert seen.log_file == f"{home}/logs/a/log"
    assert (home / "logs/a/log").read_text() == "first\nEXIT_CODE=0\nsecond\nEXIT_CODE=0\n"


@pytest.mark.parametrize("session", ["日本語-é", "a=b,c+d@e%f", "9", "_x", "n" * 60])
async def test_session_names(jobs: Jobs, session: str) -> None:
    started = await begin(jobs, FOREVER, session)
    assert (await jobs.look([JobLook(session=session)]))[0].job_id == started.job_id
    with pytest.raises(JobRefused, match="runs already"):
        await begin(jobs, FOREVER, session)
    assert (await jobs.look([JobLook(session=session[:-1])]))[0].state is JobState.MISSING


# Starting


REFUSALS = {
    "no such folder": ({"cwd": "/none"}, "unable to enter /none"),
    "a log in a folder that is closed": ({"log_file": "/proc/x/log"}, "unable to write the log /proc/x/log"),
    "a log that is a folder": ({"log_file": "/tmp"}, "unable to write the log /tmp"),
    "a log that is a pipe": ({"log_file": "~/pipe"}, "unable to write the log .*it is not a regular file"),
    "a log below a file": ({"log_file": "~/file/a/log"}, "unable to write the log .*Not a directory"),
    "a syntax error": ({"script": "echo a\nif true; then\n", "log_file": "new/log"}, "has a syntax error: command: "),
    "quotes that do not close": ({"script": "echo 'a"}, "has a syntax error: command: "),
    "nothing to be replaced": ({"instead_of": "job-0000000000000000"}, "nothing is known of it"),
    "an id that is a path": ({"job_id": "../../../x"}, "not the name of a job"),
    "a variable that is two": ({"env": {"A\0B": "c"}}, "cannot be the name of a variable"),
    "variables too long": ({"env": {"A": "x" * 200_000}}, "the variables are longer than"),
    "a NUL": ({"script": "echo \0"}, "with a NUL"),
    "a session that is a path": ({"session": "../x"}, "cannot be the name of a session"),
    "a long script": ({"script": "#" * 200_000, "cwd": "/none"}, "unable to enter /none"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_leaves_nothing(
    jobs: Jobs, home: Path, folder: Path, fields: dict[str, Any], message: str
) -> None:
    os.mkfifo(home / "pipe")
    (home / "file").touch()
    with pytest.raises(NotStarted, match=message):
        await jobs.start(replace(order("touch ran"), **fields))
    assert (job_folders(folder), sorted(os.listdir(home))) == ([], ["file", "pipe"])
    assert (await jobs.look([JobLook(session="train")]))[0].state is JobState.MISSING


async def test_a_missing_shell_is_an_error(link: HereLink, tmp_path: Path) -> None:
    sandbox = opened(link, tmp_path, Environment(shell=("no-such-shell", "-c")))
    with pytest.raises(JobRefused, match="unable to start no-such-shell: No such file or directory"):
        await begin(sandbox.jobs)
    await sandbox.close()


async def test_of_many_starts_at_once_one_starts(jobs: Jobs, home: Path, folder: Path) -> None:
    wanted = order("echo >> count; sleep 60")
    started = await asyncio.gather(*(jobs.start(wanted) for _ in range(8)))
    assert sorted(each.recovered for each in started) == [False] + [True] * 7
    assert {replace(each, recovered=False) for each in started} == {replace(started[0], recovered=False)}
    await eventually(lambda: asyncio.to_thread((home / "count").exists), bool, "the job")
    assert (home / "count").read_text() == "\n"


async def test_of_many_jobs_of_one_name_one_starts(jobs: Jobs, folder: Path) -> None:
    await run(jobs, "true")
    results = await asyncio.gather(*(begin(jobs) for _ in range(8)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, JobRefused)]
    assert [refusal.reason for refusal in refused] == ["in_use"] * 7
    assert len(job_folders(folder)) == 2


async def test_a_cut_start_is_asked_for_again_and_starts_once(link: HereLink, jobs: Jobs, home: Path) -> None:
    cuts: list[float] = []

    async def cut(verb: str, process: asyncio.subprocess.Process) -> None:
        if verb == "job_start" and len(cuts) < 12:
            cuts.append(len(cuts) / 120)
            await asyncio.sleep(cuts[-1])
            raise SandboxConnectionException("cut")

    link.watch = cut
    started = await begin(jobs, "echo >> count; sleep 60")
    assert len(cuts) == 12
    await eventually(lambda: asyncio.to_thread((home / "count").exists), bool, "the job")
    assert (home / "count").read_text() == "\n"
    assert (await look(jobs, started.job_id)).is_running


async def test_a_start_without_an_answer_may_have_happened(
    link: HereLink, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.jobs.MEND_S", 0.3)

    async def cut(verb: str, process: asyncio.subprocess.Process) -> None:
        raise SandboxConnectionException("cut")

    link.watch = cut
    with pytest.raises(LostContact, match=r"while train was being started .*it may run or not") as lost:
        await begin(jobs)
    assert lost.value.outcome == "unknown"


@pytest.mark.parametrize(("fate", "raised"), [(Paused("it is paused"), LostContact), (Gone("it is gone"), Gone)])
async def test_a_failed_start_says_whether_the_container_is_paused_or_gone(
    link: HereLink, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, fate: ConnectError, raised: type[Exception]
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.program.LOOK_S", 0.1)

    async def freeze(verb: str, process: asyncio.subprocess.Process) -> None:
        link.fate = fate
        await asyncio.Event().wait()

    link.watch = freeze
    with pytest.raises(raised, match=str(fate)):
        await begin(jobs)
    assert link.asked == ["job_start"]


async def test_a_job_replaces_one_that_is_gone_and_no_other(jobs: Jobs, folder: Path) -> None:
    ended, running = await run(jobs, "true", "ended"), await begin(jobs, FOREVER, "running")
    for job_id, session, reason in ((ended.job_id, "ended", "ended"), (running.job_id, "running", "running")):
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, FOREVER, session, instead_of=job_id)
        assert refused.value.reason == reason
    gone = await begin(jobs, FOREVER, "gone")
    kill(folder, gone.job_id)
    seen = await not_running(jobs, gone.job_id)
    assert (seen.state, seen.exit_code, seen.reason) == (JobState.GONE, None, "its keeper was killed")
    again = next_attempt(gone.job_id, 1)
    resumed = await begin(jobs, FOREVER, "gone", job_id=again, instead_of=gone.job_id)
    assert (await jobs.look([JobLook(session="gone")]))[0].job_id == resumed.job_id == again


async def test_a_container_that_was_restarted_has_none_of_its_jobs(jobs: Jobs, folder: Path) -> None:
    started = await begin(jobs)
    record = folder / started.job_id / "pid"
    words = record.read_text().split()
    record.write_text(" ".join([*words[:5], "another-boot/1"]) + "\n")
    seen = await look(jobs, started.job_id)
    assert (seen.state, seen.rebooted, seen.reason) == (JobState.GONE, True, "the container was restarted")
    record.write_text(" ".join(words) + "\n")


# Looking


async def test_many_jobs_are_seen_with_one_request(link: HereLink, jobs: Jobs) -> None:
    running, ended = await begin(jobs, "echo a; sleep 60", "a"), await run(jobs, "echo b; exit 3", "b")
    await has_printed(jobs, running.job_id, b"a\n")
    link.asked.clear()
    ids = (running.job_id, "job-0000000000000000", ended.job_id, "../x")
    seen = await jobs.look([*(JobLook(job_id=each) for each in ids), JobLook(session="none")])
    assert link.asked == ["job_look"]
    assert [each.state.value for each in seen] == ["running", "missing", "ended", "missing", "missing"]
    assert [each.log for each in seen] == [b"a\n", b"", b"b\nEXIT_CODE=3\n", b"", b""]
    assert (seen[2].exit_code, seen[1].reason) == (3, "nothing is known of it in this container")
    assert await jobs.look([]) == []


async def test_the_log_by_lines_and_from_a_cursor(jobs: Jobs, home: Path) -> None:
    seen = await run(jobs, "seq 1 200000", log_file="log")
    size, job = (home / "log").stat().st_size, seen.job_id
    assert (seen.log_size, seen.cursor) == (size, size)
    assert (await look(jobs, job, lines=3)).log == b"199999\n200000\nEXIT_CODE=0\n"
    assert (await look(jobs, job, lines=0)).log == b""
    bounded = await look(jobs, job, lines=100_000, most_bytes=1000)
    assert 900 < len(bounded.log) <= 1000
    assert bounded.log.endswith(b"EXIT_CODE=0\n")
    part = await look(jobs, job, cursor=2, most_bytes=4)
    assert (part.log, part.cursor) == (b"2\n3\n", 6)
    assert (await look(jobs, job, cursor=size)).log == b""
    assert (await look(jobs, job, cursor=size + 1, most_bytes=4)).log == b"1\n2\n"
    (home / "log").write_text("new\n")
    assert (await look(jobs, job, cursor=size)).log == b"new\n"


async def test_checkpoints(jobs: Jobs, home: Path) -> None:
    (home / "work").mkdir()
    (home / "work/state").write_text("step 5\n")
    job = (await begin(jobs, FOREVER, cwd="work")).job_id
    for fields in ({"checkpoint_path": "state"}, {"checkpoint_path": "~/work/state"}, {"checkpoint_command": "cat s*"}):
        found = (await look(jobs, job, **fields)).checkpoint
        assert found is not None
        assert (found.text, found.problem) == (b"step 5\n", "")
        assert abs(found.mtime - time.time()) < 30
    long = (await look(jobs, job, checkpoint_command='pwd; env | grep "^RSM_"; seq 1 100000')).checkpoint
    assert long is not None
    assert (len(long.text), long.text[-8:]) == (65536, b"\n100000\n")
    problems: dict[str, dict[str, Any]] = {
        "No such file": {"checkpoint_path": "none"},
        "is a folder": {"checkpoint_path": "~"},
        "ended with 3: oh": {"checkpoint_command": "echo oh; exit 3"},
    }
    for message, asked in problems.items():
        seen = await look(jobs, job, **asked)
        assert seen.checkpoint is not None
        assert message in seen.checkpoint.problem
        assert seen.is_running


async def test_what_a_job_uses(jobs: Jobs) -> None:
    job = (await begin(jobs, "echo begun; sleep 60 & while :; do :; done")).job_id
    seen = await eventually(
        lambda: look(jobs, job, usage=True, checkpoint_command="true"),
        lambda seen: bool(seen.usage and seen.usage.cpu_s > 0.1),
        "use",
    )
    assert seen.usage is not None
    assert seen.usage.processes == 2
    assert 0.3 < seen.usage.memory_mb < 100
    await jobs.stop(JobLook(job_id=job))
    assert (await look(jobs, job, usage=True)).usage is None


async def test_jobs_that_are_not_ours_are_known_by_their_logs(jobs: Jobs, home: Path) -> None:
    mine = JobLook(session="theirs", log_file="log")
    expected = ((None, JobState.MISSING, None), ("half\n", JobState.GONE, None), ("EXIT_CODE=7\n", JobState.ENDED, 7))
    for text, state, code in expected:
        if text:
            (home / "log").write_text(text)
        (seen,) = await jobs.look([mine])
        assert (seen.state, seen.exit_code, seen.foreign) == (state, code, bool(text))
    started = await begin(jobs, FOREVER, "theirs", log_file="other")
    assert (await jobs.look([replace(mine, log_file="~/other")]))[0].job_id == started.job_id
    assert (await jobs.look([mine]))[0].foreign


async def test_the_list_has_all_jobs_newest_first(link: HereLink, jobs: Jobs) -> None:
    names = [f"job{number}" for number in range(4)]
    for name in names:
        await begin(jobs, "true" if name == "job2" else FOREVER, name)
    link.asked.clear()
    listed = await jobs.list()
    assert [seen.session for seen in listed] == names[::-1]
    assert [seen.session for seen in await jobs.list(limit=2)] == names[:1:-1]
    assert link.asked == ["job_list"] * 2
    assert all(seen.log == b"" and seen.command for seen in listed)


async def test_the_oldest_jobs_are_forgotten_and_running_ones_never(jobs: Jobs, folder: Path) -> None:
    running = await begin(jobs, FOREVER, "running")
    order_file = folder / running.job_id / "order"
    order_file.write_text("ordered 0 0\n" + order_file.read_text().partition("\n")[2])
    for number in range(305):
        (folder / f"job-{number:08}").mkdir(mode=0o700)
        (folder / f"job-{number:08}" / "order").write_text(f"ordered {1000 + number} 1\n")
        (folder / f"job-{number:08}" / "end").write_text("exited 0 1.0\n")
    fresh = await begin(jobs, "true", "fresh")
    left = job_folders(folder)
    assert {running.job_id, fresh.job_id} < set(left)
    assert (len(left), left[0]) == (301, "job-00000006")


# Waiting


async def test_a_wait_for_the_end_is_one_request(link: HereLink, jobs: Jobs) -> None:
    job = (await begin(jobs, "sleep 0.7; exit 9")).job_id
    link.asked.clear()
    waited = await jobs.wait(JobLook(job_id=job), JobWait(seconds=30))
    assert (waited.why, waited.seen.exit_code, link.asked) == ("ended", 9, ["job_wait"])


async def test_a_wait_finds_a_pattern_in_what_was_and_is_printed(link: HereLink, jobs: Jobs, home: Path) -> None:
    later = "while ! [ -e go ]; do sleep 0.05; done; printf lo; sleep 0.3; echo ss=2; sleep 60"
    await run(jobs, "echo loss=0")
    job = (await begin(jobs, f"echo old loss=1; {later}")).job_id
    await has_printed(jobs, job, b"old")
    first = await jobs.wait(JobLook(job_id=job), JobWait(seconds=10, pattern=r"loss=\d"))
    assert (first.why, first.line) == ("pattern", "old loss=1")
    rest = JobLook(job_id=job, cursor=first.seen.cursor)
    assert (await jobs.wait(rest, JobWait(seconds=0.3, pattern=r"loss=\d"))).why == "timeout"
    link.asked.clear()
    (home / "go").touch()
    second = await jobs.wait(rest, JobWait(seconds=10, pattern=r"^loss=\d$"))
    assert (second.why, second.line) == ("pattern", "loss=2")
    assert len(link.asked) < 6


async def test_a_pattern_is_found_deep_in_a_log_of_a_job_that_has_ended(jobs: Jobs) -> None:
    job = (await run(jobs, "seq 1 400000; echo 'the end'; seq 1 9")).job_id
    waited = await jobs.wait(JobLook(job_id=job), JobWait(seconds=0, pattern="the e.d"))
    assert (waited.why, waited.line, waited.seen.exit_code) == ("pattern", "the end", 0)
    assert (await jobs.wait(JobLook(job_id=job), JobWait(seconds=0, pattern="none"))).why == "ended"


async def test_a_wait_ends_with_silence(jobs: Jobs) -> None:
    job = (await begin(jobs, "for n in 1 2 3; do echo $n; sleep 0.3; done; sleep 60")).job_id
    waited = await jobs.wait(JobLook(job_id=job), JobWait(seconds=20, silence_s=0.8))
    assert (waited.why, waited.seen.log) == ("silence", b"1\n2\n3\n")
    assert waited.seen.silent_s >= 0.8


async def test_a_pattern_that_is_none_or_takes_for_ever_is_an_error(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.patterns.SEARCH_S", 0.5)
    job = (await run(jobs, f"echo {'a' * 60}")).job_id
    for pattern, message in (("(", "not a regular expression"), ("(a+)+$b", "make it simpler")):
        with pytest.raises(BadArgument, match=message):
            await jobs.wait(JobLook(job_id=job), JobWait(pattern=pattern))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"a\nb\n", (4, None)),
        (b"a\nxy\nx\n", (5, b"xy")),
        (b"a\nb", (2, None)),
        (b"a\nx: ", (5, b"x: ")),
        (b"", (0, None)),
        (b"b" * (LONGEST_PARTIAL + 7), (7, None)),
    ],
)
def test_lines_are_searched_once_but_for_one_that_may_grow(block: bytes, expected: tuple[int, bytes | None]) -> None:
    assert search_lines(b"x", block) == expected


@pytest.mark.parametrize(
    "printed",
    [
        {},
        {"clock": "1"},
        {"0.state": "odd"},
        {"0.end": "exited"},
        {"0.end": "exited x 1"},
        {"0.usage": "1"},
        {"0.size": "inf"},
        {"0.data": "a"},
        {"0.begun": "nobody"},
    ],
    ids=str,
)
def test_a_malformed_answer_is_an_error(printed: dict[str, str]) -> None:
    place = Place("bare", "container", jobs_at_home=False)
    with pytest.raises(Unreachable, match="bare's answer"):
        read_jobs(Answer({"clock": "1 1", **printed} if printed else {}, place), [JobLook()], place)


async def test_nothing_can_be_typed(jobs: Jobs) -> None:
    with pytest.raises(Unsupported, match="bare: nothing can be typed into its jobs, because that needs tmux"):
        await jobs.send(JobLook(job_id="x"), text="x")


# Stopping


async def test_a_stop_ends_what_ignores_it_and_what_has_left_the_group(jobs: Jobs) -> None:
    script = "trap '' TERM; set -m; sleep 604.72 & set +m; echo begun; while :; do sleep 0.05; done"
    job = (await begin(jobs, script)).job_id
    await has_printed(jobs, job)
    begun = time.monotonic()
    stopped = await jobs.stop(JobLook(session="train"), grace_s=0.5)
    assert (stopped.state, stopped.ending, stopped.exit_code, stopped.signal) == (
        JobState.ENDED,
        "stopped",
        137,
        "SIGKILL",
    )
    assert 0.5 <= time.monotonic() - begun < at_most(8)
    assert await asyncio.to_thread(processes_with, b"604.72") == []


async def test_a_job_has_its_grace_to_end_in(jobs: Jobs) -> None:
    job = (await begin(jobs, f"trap 'sleep 0.5; echo saved; exit 4' TERM; {FOREVER}")).job_id
    await has_printed(jobs, job)
    stopped, other = await asyncio.gather(*(jobs.stop(JobLook(job_id=job)) for _ in range(2)))
    assert (stopped.exit_code, stopped.ending, stopped.signal) == (4, "stopped", "")
    assert stopped.log == other.log
    # A shell may say that what it waited for was ended, too.
    assert stopped.log.endswith(b"\nsaved\nEXIT_CODE=4\n")
    assert stopped.log.count(b"saved") == 1
    assert (await jobs.stop(JobLook(job_id=job))).exit_code == 4


async def test_a_stop_goes_on_when_its_line_is_cut(link: HereLink, jobs: Jobs, folder: Path) -> None:
    job = (await begin(jobs, f"trap '' TERM; {FOREVER}")).job_id
    await has_printed(jobs, job)

    async def cut(verb: str, process: asyncio.subprocess.Process) -> None:
        marked = folder / job / "stop"
        if verb == "job_stop":
            await eventually(
                lambda: asyncio.to_thread(marked.stat), lambda found: bool(found.st_mode & 0o4000), "the mark"
            )
            raise SandboxConnectionException("cut")

    link.watch = cut
    with pytest.raises(Unreachable):
        await jobs.stop(JobLook(job_id=job), grace_s=0.3)
    link.watch = None
    seen = await not_running(jobs, job)
    assert (seen.ending, seen.exit_code) == ("stopped", 137)


async def test_a_keeper_does_not_outlive_its_folder(jobs: Jobs, folder: Path) -> None:
    job = (await begin(jobs)).job_id
    keeper, group = keeper_of(folder, job), int((folder / job / "pid").read_text().split()[0])
    shutil.rmtree(folder / job)
    os.killpg(group, signal.SIGKILL)
    await eventually(lambda: asyncio.to_thread(Path(f"/proc/{keeper}").exists), lambda lives: not lives, "its end")


async def test_a_job_whose_keeper_was_killed_runs_and_can_be_ended(jobs: Jobs, folder: Path) -> None:
    job = (await begin(jobs)).job_id
    os.kill(keeper_of(folder, job), signal.SIGKILL)
    seen = await eventually(lambda: look(jobs, job), lambda seen: bool(seen.reason), "the keeper's end")
    assert (seen.state, seen.reason) == (JobState.RUNNING, "its keeper was killed; its processes live")
    stopped = await jobs.stop(JobLook(job_id=job))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", 143)


# Watching


async def test_a_watched_job_is_resumed_once_and_then_seen_to_its_end(
    sandbox: PlainContainer, folder: Path, home: Path, tmp_path: Path
) -> None:
    assert sandbox.description.capabilities.survives_disconnect
    scene, jobs = Scene(tmp_path, cast(OutpostSandbox, sandbox)), sandbox.jobs
    started = await begin(jobs)
    await has_printed(jobs, started.job_id)
    scene.watch(started)
    assert (await scene.tick()).last_summary.endswith("last line: begun")
    kill(folder, started.job_id)
    await not_running(jobs, started.job_id)
    resumed = await scene.tick()
    assert (resumed.job_id, resumed.resume_attempts) == (f"{started.job_id}-r1", 1)
    await has_printed(jobs, resumed.job_id, b"again 7\n")
    assert (await scene.tick()).last_checkpoint == '{"step":8}'
    (home / "go").touch()
    await not_running(jobs, resumed.job_id)
    assert (await scene.tick()).last_exit_code == 3
    assert scene.told == ["interrupted", "resume_started", "completed"]
    scene.database.close()
