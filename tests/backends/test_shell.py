"""The shell program for places without Python, in the plainest shells: what no platform or sshd shows at will."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opensandbox.exceptions import SandboxConnectionException

from remote_sandbox_mcp.backends.opensandbox.api import Link
from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.opensandbox.problems import checked
from remote_sandbox_mcp.backends.shell.search import required
from remote_sandbox_mcp.backends.shell.transport import Paused
from remote_sandbox_mcp.core.commands.command import (
    Command,
    Completed,
    Ending,
    Environment,
    Missing,
    Observation,
    Running,
)
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, FileProblem, LostContact, NotStarted
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable
from remote_sandbox_mcp.core.sandboxes.files import Match, Search, Span
from tests.backends.contract.basics import HOSTILE_NAMES, cancel, finish, in_background, is_dead, said, table
from tests.support.means import require_program
from tests.support.waiting import eventually

FOREVER = "echo begun; while :; do sleep 0.05; done"
Verbs = list[str]


class HereLink:
    """A platform whose containers are this machine: each request is a shell of the plain kind that it was made with."""

    def __init__(self, path: str, home: Path) -> None:
        self.environment = {"PATH": path, "HOME": str(home)}
        self.asked: Verbs = []
        self.fate: ConnectError | None = None
        # Called with each request's process once it runs; who raises cuts the line.
        self.watch: Callable[[str, asyncio.subprocess.Process], Any] | None = None

    async def sandbox(self, key: str, doing: str) -> Any:
        return SimpleNamespace(commands=self, files=self)

    async def why_not(self, disposable: Disposable) -> ConnectError | None:
        return self.fate

    def forget(self, key: str) -> None:
        pass

    async def run(self, line: str, opts: Any, handlers: Any) -> Any:
        verb = opts.envs["RSM_VERB"]
        self.asked.append(verb)
        shell = shutil.which("sh", path=self.environment["PATH"])
        assert shell
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                shell,
                "-c",
                line,
                env={**self.environment, **opts.envs},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                limit=1 << 24,
            )
        )
        try:
            # If cancelled itself, asyncio waits until all that the shell has started by then has closed its pipes.
            process = await asyncio.shield(starting)
            assert process.stderr
            if self.watch:
                await self.watch(verb, process)
            out, err = await asyncio.gather(_read(process.stdout, handlers), process.stderr.read())
            await process.wait()
        except BaseException:
            # As an agent does when its client has left.
            process = await starting
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return SimpleNamespace(
            exit_code=process.returncode, logs=SimpleNamespace(stdout=_lines(out), stderr=_lines(err))
        )

    async def write_file(self, path: str, content: bytes, mode: int) -> None:
        await asyncio.to_thread(Path(path).write_bytes, content)

    name = "the platform at http://platform.example.org"

    async def checked_by_agent(self, doing: str, answer: Any) -> Any:
        return await checked(doing, answer, self.name, agent=True)

    async def take_file(self, key: str, place: str, doing: str) -> bytes:
        content = await asyncio.to_thread(Path(place).read_bytes)
        Path(place).unlink()
        return content


async def _read(stream: Any, handlers: Any) -> bytes:
    """All of it, each line told as it comes."""
    read = b""
    async for line in stream:
        read += line
        await handlers.on_stdout(SimpleNamespace(text=line.decode("utf-8", "replace").rstrip("\n")))
    return read


def _lines(text: bytes) -> list[SimpleNamespace]:
    return [SimpleNamespace(text=line) for line in text.decode("utf-8", "replace").split("\n") if line]


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with busybox alone."""
    folder = tmp_path_factory.mktemp("busybox")
    subprocess.run([require_program("busybox"), "--install", "-s", str(folder)], check=True, capture_output=True)
    return str(folder)


@pytest.fixture(scope="module")
def dash(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with dash as its shell, and the usual programs."""
    folder = tmp_path_factory.mktemp("dash")
    (folder / "sh").symlink_to(cast(str, shutil.which("dash")))
    return f"{folder}:/usr/bin:/bin"


@pytest.fixture(params=["busybox", "dash"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> HereLink:
    home = tmp_path / "home"
    home.mkdir()
    return HereLink(request.getfixturevalue(request.param), home)


@pytest.fixture
async def sandbox(link: HereLink, tmp_path: Path) -> AsyncIterator[PlainContainer]:
    sandbox = opened(link, tmp_path)
    yield sandbox
    await sandbox.close()


def opened(link: HereLink, folder: Path, environment: Environment | None = None) -> PlainContainer:
    made = Disposable(id="sb-00000000", provider="opensandbox", name="bare")
    sandbox = PlainContainer(cast(Link, link), made, environment or Environment())
    # Not where others of this machine keep their runs.
    (folder / "runs").mkdir(mode=0o700, exist_ok=True)
    sandbox._shell._base = str(folder / "runs")
    return sandbox


# Runs


async def test_a_command_is_one_request(link: HereLink, sandbox: PlainContainer) -> None:
    done = await finish(sandbox, "printf 'a\\0b'; printf no >&2; exit 3")
    assert (done.exit_code, done.stdout.head, done.stderr.head) == (3, b"a\0b", b"no")
    assert link.asked == ["start"]


async def test_the_far_side_enforces_the_time_limit(link: HereLink, sandbox: PlainContainer) -> None:
    done = await finish(sandbox, "trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done", timeout_s=0.3)
    assert (done.ending, done.exit_code, done.stdout.head) == (Ending.TIMED_OUT, 124, b"bye\n")
    assert link.asked == ["start"]


async def test_a_stop_ends_a_command_that_ignores_term(sandbox: PlainContainer) -> None:
    running = await sandbox.run(Command(f"trap '' TERM; {FOREVER}"), patience_s=0.3)
    assert isinstance(running, Running)
    done = await sandbox.stop(running.run_id)
    assert isinstance(done, Completed)
    assert (done.ending, done.stdout.head, done.exit_code, done.survivors) == (Ending.STOPPED, b"begun\n", 137, ())
    assert await sandbox.observe(running.run_id) == done


async def test_nothing_of_a_run_stays_but_the_processes_it_left(sandbox: PlainContainer) -> None:
    done = await finish(sandbox, "sleep 61 & echo $!", timeout_s=4711)
    left = int(done.stdout.head)
    assert done.left_running == (left,)
    assert await asyncio.to_thread(processes_with, b"sleep\x004711.000") == []
    os.kill(left, 9)


def processes_with(words: bytes) -> list[bytes]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_bytes())
    return [line for line in found if words in line]


async def test_a_cut_line_is_mended_and_the_command_runs_once(
    link: HereLink, sandbox: PlainContainer, tmp_path: Path
) -> None:
    cuts: list[int] = []

    async def cut(verb: str, process: asyncio.subprocess.Process) -> None:
        if verb == "start" and not cuts:
            await eventually(lambda: asyncio.to_thread((tmp_path / "began").exists), bool, "the command")
            cuts.append(process.pid)
            raise SandboxConnectionException("cut")

    link.watch = cut
    script = f"echo x >> {tmp_path}/began; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"
    async with in_background(sandbox.run(Command(script))) as running:
        await eventually(lambda: asyncio.sleep(0, link.asked.count("start")), lambda count: count > 1, "a new line")
        (tmp_path / "go").touch()
        done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, (tmp_path / "began").read_text()) == (5, "x\n")


async def test_a_start_that_comes_after_its_stop_starts_nothing(sandbox: PlainContainer, tmp_path: Path) -> None:
    command = Command(f"touch {tmp_path}/ran")
    await sandbox._stop_quietly(command.run_id)
    with pytest.raises(NotStarted, match="it was stopped before it started"):
        await sandbox.run(command)
    assert not (tmp_path / "ran").exists()
    assert isinstance(await sandbox.observe(command.run_id), Missing)


async def test_a_cancel_at_any_moment_of_a_start_leaves_nothing_running(sandbox: PlainContainer) -> None:
    commands = [Command("while :; do sleep 0.0471; done", timeout_s=60) for _ in range(30)]
    for number, command in enumerate(commands):
        running = asyncio.ensure_future(sandbox.run(command))
        await asyncio.sleep(number / 1000)
        await cancel(running)

    async def going() -> list[Observation]:
        seen = await asyncio.gather(*(sandbox.observe(command.run_id) for command in commands))
        return [each for each in seen if isinstance(each, Running)]

    await eventually(going, lambda seen: not seen, "cancelled runs to end")
    await eventually(
        lambda: asyncio.to_thread(processes_with, b"0.0471"), lambda seen: not seen, "their processes to end"
    )


async def test_a_run_whose_keeper_was_killed_is_lost_and_can_be_ended(sandbox: PlainContainer, tmp_path: Path) -> None:
    running = await sandbox.run(Command(FOREVER), patience_s=0.3)
    group, _, keeper, *_ = (tmp_path / "runs" / running.run_id / "pid").read_text().split()
    os.kill(int(keeper), 9)
    seen = await eventually(
        lambda: sandbox.observe(running.run_id), lambda seen: not isinstance(seen, Running), "the loss"
    )
    assert isinstance(seen, Missing)
    assert (seen.reason, seen.stdout.head) == ("the process that kept it was killed", b"begun\n")
    stopped = await sandbox.stop(running.run_id)
    assert isinstance(stopped, Completed)
    assert stopped.ending is Ending.STOPPED
    assert await is_dead(sandbox, int(group))


async def test_a_pause_is_reported_while_a_command_runs(
    link: HereLink, sandbox: PlainContainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.program.CHECK_S", 0.1)

    async def freeze(verb: str, process: asyncio.subprocess.Process) -> None:
        await eventually(lambda: asyncio.to_thread((tmp_path / "began").exists), bool, "the command")
        link.fate = Paused("it is paused")
        await asyncio.Event().wait()

    link.watch = freeze
    command = Command(f"touch {tmp_path}/began; {FOREVER}")
    with pytest.raises(LostContact, match="bare was paused while the command ran") as lost:
        await sandbox.run(command)
    assert lost.value.outcome == "unknown"
    link.fate = link.watch = None
    assert isinstance(await sandbox.stop(command.run_id), Completed)


async def test_variables_reach_the_command_and_not_the_program(link: HereLink, tmp_path: Path) -> None:
    hard = 'it\'s "x" $HOME\n\\ \udcff'
    variables = {"PATH": f"/nowhere:{link.environment['PATH']}", "HOME": "/", "IFS": "x", "HARD": hard}
    sandbox = opened(link, tmp_path, Environment(env=variables))
    shown = await said(sandbox, 'env | grep -aE "^(PATH|HOME|RSM_|rs_)" | sort; printf %s "$HARD"')
    expected = f"HOME=/\nPATH={variables['PATH']}\n{hard}"
    assert shown == expected.encode("utf-8", "surrogateescape")
    await sandbox.close()


async def test_a_command_that_variables_cannot_hold_is_not_started(
    sandbox: PlainContainer, link: HereLink, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match="NUL"):
        await sandbox.run(Command("echo \0"))
    wide = opened(link, tmp_path, Environment(env={"WIDE": "x" * 200_000}))
    with pytest.raises(NotStarted, match="the variables are longer than 100000 bytes"):
        await wide.run(Command("true"))
    await wide.close()


async def test_a_refused_command_leaves_nothing(sandbox: PlainContainer, tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="unable to enter /none: No such file or directory"):
        await sandbox.run(Command("true #" + "x" * 200_000, cwd="/none"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mark"]


def make_run(runs: Path, name: str, hours: float, mark: str = "end") -> None:
    (runs / name).mkdir()
    (runs / name / mark).write_text("exited 0 1.00\n")
    then = time.time() - 3600 * hours
    os.utime(runs / name, (then, then))


def replace_du(link: HereLink, folder: Path, script: str) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "du").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "du").chmod(0o755)
    link.environment["PATH"] = f"{folder}/bin:{link.environment['PATH']}"


async def names_become(runs: Path, expected: set[str]) -> None:
    async def names() -> set[str]:
        return {path.name for path in runs.glob("run-*")}

    await eventually(names, lambda found: found == expected, "pruning")


async def test_an_opening_prunes_old_runs_without_a_process_for_each(
    link: HereLink, sandbox: PlainContainer, tmp_path: Path
) -> None:
    runs, recent = tmp_path / "runs", {f"run-{number}" for number in range(20)}
    for name in recent:
        make_run(runs, name, 1)
    make_run(runs, "run-old", 50)
    make_run(runs, "run-of-an-outpost", 50, "lock")
    replace_du(link, tmp_path, f"echo $* >>{tmp_path}/asked; echo 100 .")
    await sandbox.open()
    await names_become(runs, recent | {"run-of-an-outpost"})
    assert (tmp_path / "asked").read_text() == "-sk .\n"


async def test_an_opening_prunes_the_oldest_runs_beyond_a_gibibyte(
    link: HereLink, sandbox: PlainContainer, tmp_path: Path
) -> None:
    for hours in range(1, 6):
        make_run(tmp_path / "runs", f"run-{hours}", hours)
    replace_du(link, tmp_path, "case $2 in .) echo 2000000 .;; *) printf '400000\\t%s\\n' \"$2\";; esac")
    await sandbox.open()
    await names_become(tmp_path / "runs", {"run-1", "run-2"})


# Files


@pytest.mark.parametrize("name", **table(HOSTILE_NAMES))
async def test_any_name_can_be_used(sandbox: PlainContainer, name: str) -> None:
    written = await sandbox.write(f"d/{name}", b"one\na needle\n", expected="")
    path = f"{await sandbox._shell.home()}/d/{name}"
    found = await sandbox.read(path, Span(line=2, lines=1))
    assert (found.data, found.version) == (b"a needle\n", written.version)
    assert [(entry.path, entry.size) for entry in (await sandbox.list("d")).entries] == [(path, 13)]
    assert (await sandbox.search(Search("d", pattern="need.e"))).matches == (Match(path, 2, "a needle"),)


async def test_small_files_take_one_request_each_way(link: HereLink, sandbox: PlainContainer) -> None:
    await sandbox.write("~/file", b"x" * 60_000)
    link.asked.clear()
    await sandbox.write("file", b"x" * 60_000)
    await sandbox.read("file", Span())
    await sandbox.list("~")
    await sandbox.search(Search("~", pattern="x$"))
    assert link.asked == ["put", "get", "list", "search"]


async def test_large_files_come_and_go_whole(sandbox: PlainContainer) -> None:
    content = bytes(range(256)) * 9000
    await sandbox.write("large", content)
    for span in (Span(limit=5 << 20), Span(1000, 2_000_000), Span(-2_000_000, 1_500_000), Span(line=2, lines=9000)):
        found = await sandbox.read("large", span)
        expected = content[found.offset :][: span.limit]
        assert found.data == expected or not "the same bytes"
        assert (found.size, found.more) == (len(content), found.offset + len(expected) < len(content))


async def test_of_several_writers_that_expect_the_same_version_one_succeeds(sandbox: PlainContainer) -> None:
    first = await sandbox.write("file", b"0")
    results = await asyncio.gather(
        *(sandbox.write("file", b"%d" % number, expected=first.version) for number in range(6)),
        return_exceptions=True,
    )
    refused = [result.reason for result in results if isinstance(result, FileProblem)]
    assert refused == ["stale"] * 5
    assert len((await sandbox.list("~")).entries) == 1


async def test_a_search_goes_on_beyond_one_answer(
    link: HereLink, sandbox: PlainContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.search.LARGEST_PAGE", 1000)
    for number in range(5):
        await sandbox.write(f"d/{number}", b"some text\n" * 30 + b"%d\n" % number)
    await sandbox.write("d/3", b"text\n" * 1000)
    link.asked.clear()
    found = await sandbox.search(Search("d", pattern="^(0|4)$"))
    assert [(match.path[-1], match.line) for match in found.matches] == [("0", 31), ("4", 31)]
    assert [problem.path[-1] for problem in found.problems] == ["3"]
    assert 2 < link.asked.count("search") < 8


async def test_a_pattern_that_takes_for_ever_stops_no_other_request(
    sandbox: PlainContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.backends.shell.patterns.SEARCH_S", 0.5)
    await sandbox.write("d/file", b"a" * 60 + b"\n")
    with pytest.raises(BadArgument, match="takes longer than"):
        await sandbox.search(Search("d", pattern="(a+)+b"))


@pytest.mark.parametrize("pattern", ["(?s)NEEDLE", "n(e)edle", "Needle"])
async def test_a_search_may_ignore_case(sandbox: PlainContainer, pattern: str) -> None:
    await sandbox.write("d/file", b"a nEEdle\n")
    found = await sandbox.search(Search("d", pattern=pattern, ignore_case=True))
    assert [match.text for match in found.matches] == ["a nEEdle"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("needle", "needle"),
        ("^def +main", "def "),
        (r"^class \w+\[x?yz+", "class "),
        (r"foo\(bar\)", "foo(bar)"),
        ("colou?r", "colo"),
        ("ab*cd", "cd"),
        ("ab{2}", "a"),
        ("[abc]def[^]]g", "def"),
        ("(one)two", ""),
        ("one|two", ""),
        (r"\x41bc", ""),
        (r"a\101", ""),
        ("", ""),
    ],
)
def test_the_text_that_a_pattern_requires_is_found(pattern: str, expected: str) -> None:
    assert required(pattern) == expected
    line = {"colou?r": "color", "ab*cd": "acd", "ab{2}": "abb", r"foo\(bar\)": "foo(bar)"}.get(pattern)
    assert line is None or (re.search(pattern, line) and expected in line)
