"""Background jobs without Python, in the plainest shells: what no platform or sshd shows at will."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from opensandbox.exceptions import SandboxConnectionException

from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.shell.jobs import read_jobs
from remote_sandbox_mcp.backends.shell.program import ShellAnswer
from remote_sandbox_mcp.backends.shell.transport import Gone, Paused, ShellPlace
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, LostContact, NotStarted, Unreachable, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobQuery, JobRefused, Jobs, JobState, JobWait
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.far.shell.search_lines import LONGEST_PARTIAL, search_lines
from tests.backends.contract import Opener, WholeJobContract
from tests.backends.contract.jobs import REFUSALS, Interrupt
from tests.backends.test_shell import HereLink, busybox, dash, link, opened
from tests.support.jobs import FOREVER, begin, has_printed, look, not_running, order, run
from tests.support.sshd import wait_until
from tests.support.waiting import eventually

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
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
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


class TestInPlainShells(WholeJobContract):
    """On this machine, as a container would run it."""

    @pytest.fixture(scope="class", params=["busybox", "dash"])
    @classmethod
    def root(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[HereLink, Path]:
        folder = tmp_path_factory.mktemp("plain")
        (folder / "home").mkdir()
        return HereLink(request.getfixturevalue(request.param), folder / "home"), folder

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, root: tuple[HereLink, Path]) -> Iterator[Opener]:
        link, folder = root

        async def open_it(environment: Environment) -> Sandbox:
            return opened(link, folder, environment)

        yield open_it
        wait_until(lambda: is_quiet(link.environment["HOME"]), what="what it ran to be gone")

    @pytest.fixture
    def interrupt(self, root: tuple[HereLink, Path]) -> Interrupt:
        return lambda started: asyncio.to_thread(kill, root[1] / "runs", started.job_id)

    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        """The one thing that jobs cannot have here is told; they have no terminal either."""
        assert (await run(sandbox.jobs, 'read -r line; echo "<$line>"', session)).log.startswith(b"<>\n")
        with pytest.raises(Unsupported, match="bare: nothing can be typed into its jobs, because that needs tmux"):
            await sandbox.jobs.send(JobQuery(session=session), text="x")


# A job's life


async def test_a_job_takes_one_request_and_outlives_it(link: HereLink, jobs: Jobs, home: Path) -> None:
    started = await begin(jobs)
    assert (started.via, started.recovered, started.notes) == ("detached", False, ())
    assert (started.log_file, started.cwd) == (f"{home}/.codex_logs/train.log", str(home))
    assert link.asked == ["job_start"]
    seen = await has_printed(jobs, started.job_id)
    assert (seen.session, seen.command, seen.cwd, seen.via) == ("train", FOREVER, str(home), "detached")
    assert abs(seen.started - time.time()) < 30
    stopped = await jobs.stop(JobQuery(job_id=started.job_id))
    assert (stopped.state, stopped.ending, stopped.signal, stopped.survivors) == (
        JobState.ENDED,
        "stopped",
        "SIGTERM",
        (),
    )
    assert stopped.log == b"begun\nEXIT_CODE=143\n"


async def test_neither_the_keepers_arguments_nor_the_folder_show_secrets(jobs: Jobs, folder: Path) -> None:
    started = await begin(jobs, "echo begun; sleep 60; echo secret-word", env={"TOKEN": "hush"})
    words = Path(f"/proc/{keeper_of(folder, started.job_id)}/cmdline").read_bytes()
    assert b"secret-word" not in words
    mine = folder / started.job_id
    assert mine.stat().st_mode & 0o077 == 0
    assert not any(b"hush" in path.read_bytes() for path in mine.iterdir() if path.is_file())


# Starting


MORE_REFUSALS = {
    **REFUSALS,
    "variables too long": ({"env": {"A": "x" * 200_000}}, "the variables are longer than"),
}


async def test_refusals_leave_nothing(jobs: Jobs, home: Path, folder: Path) -> None:
    os.mkfifo(home / "pipe")
    (home / "file").touch()
    for fields, message in MORE_REFUSALS.values():
        with pytest.raises(NotStarted, match=message):
            await jobs.start(replace(order("touch ran"), **fields))
    assert (job_folders(folder), sorted(os.listdir(home))) == ([], ["file", "pipe"])


async def test_a_missing_shell_is_an_error(link: HereLink, tmp_path: Path) -> None:
    sandbox = opened(link, tmp_path, Environment(shell=("no-such-shell", "-c")))
    with pytest.raises(JobRefused, match="unable to start no-such-shell: No such file or directory"):
        await begin(sandbox.jobs)
    await sandbox.close()


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
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.program.CHECK_S", 0.1)

    async def freeze(verb: str, process: asyncio.subprocess.Process) -> None:
        link.fate = fate
        await asyncio.Event().wait()

    link.watch = freeze
    with pytest.raises(raised, match=str(fate)):
        await begin(jobs)
    assert link.asked == ["job_start"]


async def test_a_container_that_was_restarted_has_none_of_its_jobs(jobs: Jobs, folder: Path) -> None:
    started = await begin(jobs)
    record = folder / started.job_id / "pid"
    words = record.read_text().split()
    record.write_text(" ".join([*words[:5], "another-boot/1"]) + "\n")
    seen = await look(jobs, started.job_id)
    assert (seen.state, seen.rebooted, seen.reason) == (JobState.GONE, True, "the container was restarted")
    record.write_text(" ".join(words) + "\n")


# Looking


async def test_many_jobs_are_seen_or_listed_with_one_request(link: HereLink, jobs: Jobs) -> None:
    running, ended = await begin(jobs, session="a"), await run(jobs, "true", "b")
    link.asked.clear()
    seen = await jobs.inspect(
        [JobQuery(job_id=running.job_id), JobQuery(job_id=ended.job_id), JobQuery(session="none")]
    )
    assert [each.state.value for each in seen] == ["running", "ended", "missing"]
    assert seen[2].reason == "nothing is known of it in this container"
    assert [each.session for each in await jobs.list()] == ["b", "a"]
    assert link.asked == ["job_look", "job_list"]


async def test_jobs_that_are_not_ours_are_known_by_their_logs(jobs: Jobs, home: Path) -> None:
    mine = JobQuery(session="theirs", log_file="log")
    expected = ((None, JobState.MISSING, None), ("half\n", JobState.GONE, None), ("EXIT_CODE=7\n", JobState.ENDED, 7))
    for text, state, code in expected:
        if text:
            (home / "log").write_text(text)
        (seen,) = await jobs.inspect([mine])
        assert (seen.state, seen.exit_code, seen.foreign) == (state, code, bool(text))
    started = await begin(jobs, FOREVER, "theirs", log_file="other")
    assert (await jobs.inspect([replace(mine, log_file="~/other")]))[0].job_id == started.job_id
    assert (await jobs.inspect([mine]))[0].foreign


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
    waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=30))
    assert (waited.why, waited.seen.exit_code, link.asked) == ("ended", 9, ["job_wait"])


async def test_a_wait_for_a_pattern_takes_few_requests(link: HereLink, jobs: Jobs, home: Path) -> None:
    job = (await begin(jobs, "while ! [ -e go ]; do sleep 0.05; done; sleep 0.3; echo loss=2; sleep 60")).job_id
    link.asked.clear()
    (home / "go").touch()
    waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=10, pattern=r"^loss=\d$"))
    assert (waited.why, waited.line) == ("pattern", "loss=2")
    assert len(link.asked) < 6


async def test_a_pattern_that_takes_for_ever_is_an_error(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.patterns.SEARCH_S", 0.5)
    job = (await run(jobs, f"echo {'a' * 60}")).job_id
    with pytest.raises(BadArgument, match="make it simpler"):
        await jobs.wait(JobQuery(job_id=job), JobWait(pattern="(a+)+$b"))


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
    place = ShellPlace("bare", "container", jobs_at_home=False)
    with pytest.raises(Unreachable, match="bare's answer"):
        read_jobs(ShellAnswer({"clock": "1 1", **printed} if printed else {}, place), [JobQuery()], place)


# Stopping


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
        await jobs.stop(JobQuery(job_id=job), grace_s=0.3)
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
    stopped = await jobs.stop(JobQuery(job_id=job))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", 143)
