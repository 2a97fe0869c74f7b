"""What the background jobs of every Sandbox that has them keep to.

JobContract is for every place that has background jobs. WholeJobContract is for each program that keeps jobs, once:
the one of machines with Python, the shell's, a batch system's; places that share a program need not repeat it.
Neither says how a job is kept (tmux, a process, a node of a cluster): only what its owner can rely on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted
from remote_sandbox_mcp.core.jobs.job import (
    JobOrder,
    JobQuery,
    JobRefused,
    Jobs,
    JobStarted,
    JobState,
    JobWait,
    Submission,
    new_job_id,
    next_attempt,
    read_screen,
    screen_script,
    why_no_screen,
)
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.local.waiting import within
from remote_sandbox_mcp.services.jobs.attach import Attached, Window, attach
from tests.support.jobs import begin, has_printed, look, not_running, run
from tests.support.pace import at_most
from tests.support.waiting import eventually
from tests.support.watched import Scene

from .basics import Basics, is_dead, prepare, read_pid, said, table

# Ends all of a job from outside, as a crash does, so that it leaves no exit status.
Interrupt = Callable[[JobStarted], Awaitable[object]]

STAYS = "echo begun; sleep 300"
# Draws as an installer does: wipes the screen, then goes to places on it.
MENU = r"printf 'wiped\033[2J\033[2;5H[x] one\033[3;1Hchoose '; sleep 300"


class JobContract(Basics):
    """Jobs run in a shell; a sandbox without one has its own tests."""

    # Given where jobs are submitted to a queue, in which one may be pending before it runs.
    submission: Submission | None = None
    # Whether programs in it can have a terminal, which tmux and what is typed need.
    terminals: bool = True
    # Whether a terminal can be brought here, which takes a port.
    has_ports = True

    def order(self, session: str, script: str, **fields: Any) -> JobOrder:
        return JobOrder(session=session, script=script, submission=self.submission, **fields)

    @pytest.fixture
    def session(self) -> str:
        return new_job_id().replace("job-", "test-")

    async def test_a_job_runs_to_its_end(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, "echo out; echo err >&2; exit 3"))
        assert (started.session, started.recovered) == (session, False)
        waited = await sandbox.jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=15))
        assert (waited.why, waited.seen.state, waited.seen.exit_code) == ("ended", JobState.ENDED, 3)
        assert waited.seen.log == b"out\nerr\nEXIT_CODE=3\n"
        rest = await look(sandbox.jobs, started.job_id, cursor=4)
        assert (rest.log, rest.cursor, rest.log_size) == (b"err\nEXIT_CODE=3\n", 20, 20)

    async def test_a_job_starts_once_for_its_id(self, sandbox: Sandbox, session: str, folder: str) -> None:
        order = self.order(session, f"echo >> {folder}; echo begun; sleep 60")
        started = await asyncio.gather(*(sandbox.jobs.start(order) for _ in range(5)))
        assert sorted(each.recovered for each in started) == [False, True, True, True, True]
        # What kept it out of tmux is said where it was tried.
        alike = {replace(each, recovered=False, notes=()) for each in started}
        assert alike == {replace(started[0], recovered=False, notes=())}
        await has_printed(sandbox.jobs, order.job_id)
        stopped = await sandbox.jobs.stop(JobQuery(job_id=order.job_id))
        assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
        assert (await sandbox.jobs.start(order)).recovered
        assert (await sandbox.read(folder, Span())).data == b"\n"

    async def test_a_name_is_used_by_one_job_at_a_time(self, sandbox: Sandbox, session: str) -> None:
        first = await sandbox.jobs.start(self.order(session, "sleep 60"))
        with pytest.raises(JobRefused) as refused:
            await sandbox.jobs.start(self.order(session, "sleep 60"))
        assert refused.value.reason == "in_use"
        (seen,) = await sandbox.jobs.inspect([JobQuery(session=session)])
        assert (seen.job_id, seen.is_over) == (first.job_id, False)
        assert self.submission or seen.is_running
        assert (await sandbox.jobs.wait(JobQuery(session=session), JobWait(seconds=0))).why == "timeout"
        await sandbox.jobs.stop(JobQuery(session=session))
        again = await sandbox.jobs.start(self.order(session, "true"))
        assert (await sandbox.jobs.inspect([JobQuery(session=session)]))[0].job_id == again.job_id

    async def test_a_job_is_never_started_in_place_of_one_that_ended(self, sandbox: Sandbox, session: str) -> None:
        first = await sandbox.jobs.start(self.order(session, "true"))
        await sandbox.jobs.wait(JobQuery(job_id=first.job_id), JobWait(seconds=15))
        for before, reason in ((first.job_id, "ended"), ("job-0000000000000000", "missing")):
            with pytest.raises(JobRefused) as refused:
                await sandbox.jobs.start(self.order(session, "true", instead_of=before))
            assert refused.value.reason == reason
        asked_for = JobOrder(session=session, script="true", instead_of=first.job_id, even_ended=True)
        assert (await sandbox.jobs.start(asked_for)).job_id != first.job_id

    async def test_what_cannot_start_is_an_error_at_once(self, sandbox: Sandbox, session: str) -> None:
        for order in (
            self.order(session, "true", cwd="/none"),
            self.order(session, "echo 'open"),
            self.order(session, "true", log_file="/proc/none/log"),
        ):
            with pytest.raises(NotStarted):
                await sandbox.jobs.start(order)
        (seen,) = await sandbox.jobs.inspect([JobQuery(session=session)])
        assert seen.state is JobState.MISSING

    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        if not self.terminals:
            pytest.skip("no terminals can be made here")
        started = await sandbox.jobs.start(self.order(session, 'echo ready; read -r a; echo "<$a>"'))
        look = JobQuery(job_id=started.job_id)
        await sandbox.jobs.wait(look, JobWait(seconds=15, pattern="ready"))
        await sandbox.jobs.send(look, text="it's; $x", keys=["Enter"])
        waited = await sandbox.jobs.wait(look, JobWait(seconds=15))
        assert waited.seen.log == b"ready\n<it's; $x>\nEXIT_CODE=0\n"

    async def test_the_screen_of_a_job_is_what_a_person_sees(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, MENU))
        (seen,) = await sandbox.jobs.inspect([JobQuery(job_id=started.job_id)])
        if started.via != "tmux":
            assert "so it has no screen" in why_no_screen(replace(seen, state=JobState.RUNNING))
            await sandbox.jobs.stop(JobQuery(job_id=started.job_id), 0)
            return
        assert why_no_screen(seen) == ""
        shown = await eventually(
            lambda: sandbox.run(Command(screen_script(seen.session))), lambda done: b"choose" in done.stdout.head, "it"
        )
        screen = read_screen(shown.stdout.head)
        assert (screen.columns, screen.rows, screen.line, screen.column) == (200, 50, 3, 8)
        # What was wiped is not on it; the log has it.
        assert [line.rstrip() for line in screen.text.rstrip(b"\n").split(b"\n")] == [b"", b"    [x] one", b"choose"]
        await sandbox.jobs.stop(JobQuery(job_id=started.job_id), 0)

    async def test_a_persons_terminal_is_attached_to_a_job_and_leaves_it(self, sandbox: Sandbox, session: str) -> None:
        script = 'while read -r line; do echo "<$line> $(stty size)"; done'
        started = await sandbox.jobs.start(self.order(session, script))
        if started.via == "tmux" and self.has_ports:
            attached = await attach(sandbox, session, Window(20, 70, "no-such-term"))
            await attached.type(b"hello\r")
            shown = b""
            while b"<hello> 19 70" not in shown:
                shown += await within(attached.read(), 20)
            await attached.close()
            (seen,) = await sandbox.jobs.inspect([JobQuery(job_id=started.job_id)])
            assert seen.is_running
            detached = await attach(sandbox, session, Window(20, 70))
            shown = b""
            while b"<hello> 19 70" not in shown:
                shown += await within(detached.read(), 20)
            # By a command: keys that follow each other at once are pasted text for tmux.
            await sandbox.run(Command(f"tmux detach-client -s ={session}"))
            assert await self.left(detached, b"[detached (from session %b)]" % session.encode()) == 0
            refused = await attach(sandbox, "no-such-session", Window(20, 70))
            assert await self.left(refused, b"can't find session: no-such-session") == 1
        await sandbox.jobs.stop(JobQuery(job_id=started.job_id), 0)

    async def left(self, attached: Attached, last: bytes) -> int | None:
        """The exit code, once this was shown and nothing more comes."""
        shown = b""
        while data := await within(attached.read(), 20):
            shown += data
        assert last in shown
        return await attached.close()

    async def test_all_jobs_are_listed(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, "exit 2"))
        await sandbox.jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=15))
        listed = await sandbox.jobs.list()
        assert (listed[0].job_id, listed[0].exit_code, listed[0].log) == (started.job_id, 2, b"")


SCRIPTS = {
    "its own exit": ("(exit 4)\nexit 5", 5, b""),
    "no set -e": ("false\necho on", 0, b"on\n"),
    "no set -u": ('echo "[$NOT_SET]"', 0, b"[]\n"),
    "no pipefail": ("false | true", 0, b""),
    "heredoc": ("cat <<'END'\n$x `y` }\nEND\n", 0, b"$x `y` }\n"),
    "an open end": ("echo a; # no newline '", 0, b"a\n"),
    "quotes and dollars": ('echo \'"$HOME"\' "it\'s"', 0, b'"$HOME" it\'s\n'),
    "begins with a dash": ("-x; exit 7", 7, b""),
    "unicode": ("echo 日本語", 0, "日本語\n".encode()),
    "a megabyte": ("#" * 1_000_000 + "\necho long; exit 6", 6, b"long\n"),
}
# Paths are in the test's own folder, where there is a pipe and a file.
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no such folder": ({"cwd": "/none"}, "unable to enter /none"),
    "a log in a folder that is closed": ({"log_file": "/proc/x/log"}, "unable to write the log /proc/x/log"),
    "a log that is a folder": ({"log_file": "/tmp"}, "unable to write the log /tmp"),
    "a log that is a pipe": ({"log_file": "pipe"}, "unable to write the log"),
    "a log below a file": ({"log_file": "file/a/log"}, "unable to write the log .*Not a directory"),
    "a syntax error": ({"script": "echo a\nif true; then\n", "log_file": "new/log"}, "syntax error"),
    "quotes that do not close": ({"script": "echo 'a"}, "syntax error"),
    "nothing to be replaced": ({"instead_of": "job-0000000000000000"}, "nothing is known of it"),
    "an id that is a path": ({"job_id": "../../../x"}, "not the name of a job"),
    "a variable that is two": ({"env": {"A\0B": "c"}}, "cannot be the name of a variable"),
    "a NUL": ({"script": "echo \0"}, "with a NUL"),
    "a session that is a path": ({"session": "../x"}, "cannot be the name of a session"),
    "a long script": ({"script": "#" * 200_000, "cwd": "/none"}, "unable to enter /none"),
}
# What a stop must end besides the shell itself.
TREES = {
    "ignores TERM": "trap '' TERM; echo $$ > pid; echo begun; while :; do sleep 0.05; done",
    "another group": "set -m; sleep 300 & echo $! > pid; echo begun; wait",
    "its parent is gone": "(sleep 300 & echo $! > pid); echo begun; sleep 300",
}


class WholeJobContract(JobContract):
    """All of it. A file has fixtures `opener` and, for jobs that a crash may end, `interrupt`."""

    @pytest.fixture
    def interrupt(self) -> Interrupt:
        raise NotImplementedError

    @pytest.fixture
    def jobs(self, sandbox: Sandbox) -> Jobs:
        return sandbox.jobs

    @pytest.fixture
    async def work(self, sandbox: Sandbox, folder: str) -> str:
        """A folder of the test's own, which is there."""
        await prepare(sandbox, folder)
        return folder

    # A job's life

    @pytest.mark.parametrize(("script", "code", "printed"), **table(SCRIPTS))
    async def test_a_script_runs_as_it_is(
        self, jobs: Jobs, session: str, script: str, code: int, printed: bytes
    ) -> None:
        seen = await run(jobs, script, session)
        assert seen.exit_code == code
        assert printed in seen.log
        assert seen.log.endswith(b"EXIT_CODE=%d\n" % code)

    async def test_a_job_has_its_folder_and_variables(self, jobs: Jobs, session: str, work: str) -> None:
        shown = 'env | grep -E "^(RSM|rs_)" | sort; echo "$TOKEN"; pwd; umask'
        # A relative folder starts at home.
        started = await begin(jobs, shown, session, cwd=work.rpartition("/")[2], env={"TOKEN": "a b"})
        assert (started.cwd, started.log_file) == (work, f"{work}/.codex_logs/{session}.log")
        waited = await jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=15))
        assert waited.seen.log == f"RSMCP_JOB_ID={started.job_id}\na b\n{work}\n0022\nEXIT_CODE=0\n".encode()
        seen = waited.seen
        assert (seen.session, seen.command, seen.cwd, seen.log_file) == (session, shown, work, started.log_file)
        assert abs(seen.started - time.time()) < 60

    async def test_the_log_is_appended_to_and_ends_in_a_line_of_its_own(
        self, sandbox: Sandbox, session: str, work: str
    ) -> None:
        await run(sandbox.jobs, "printf first", session, cwd=work, log_file="logs/../logs/a/log")
        seen = await run(sandbox.jobs, "printf second", session, log_file=f"~/{work.rpartition('/')[2]}/logs/a/log")
        assert seen.log_file == f"{work}/logs/a/log"
        assert (await sandbox.read(seen.log_file, Span())).data == b"first\nEXIT_CODE=0\nsecond\nEXIT_CODE=0\n"

    @pytest.mark.parametrize("name", ["日本語-é", "a=b,c+d@e%f", "9", "_x", "n" * 60])
    async def test_session_names(self, jobs: Jobs, name: str) -> None:
        started = await begin(jobs, STAYS, name)
        assert (await jobs.inspect([JobQuery(session=name)]))[0].job_id == started.job_id
        assert (await jobs.inspect([JobQuery(session=name[:-1] or "8")]))[0].state is JobState.MISSING
        with pytest.raises(JobRefused, match="runs already"):
            await begin(jobs, STAYS, name)
        assert (await jobs.stop(JobQuery(session=name))).state is JobState.ENDED

    async def test_a_name_is_not_the_beginning_of_another(self, jobs: Jobs, session: str) -> None:
        ten = await begin(jobs, STAYS, f"{session}-10")
        first = await begin(jobs, STAYS, f"{session}-1")
        assert (await jobs.stop(JobQuery(session=f"{session}-1"))).job_id == first.job_id
        assert (await look(jobs, ten.job_id)).is_running
        assert (await jobs.inspect([JobQuery(session=f"{session}-1")]))[0].job_id == first.job_id
        await jobs.stop(JobQuery(job_id=ten.job_id))

    # Starting

    @pytest.mark.parametrize(("fields", "message"), **table(REFUSALS))
    async def test_a_refusal_comes_at_once_and_nothing_runs(
        self, sandbox: Sandbox, session: str, work: str, fields: dict[str, Any], message: str
    ) -> None:
        await prepare(sandbox, work, "mkfifo pipe; : > file")
        begun, wanted = time.monotonic(), JobOrder(session=session, script="touch ran", cwd=work)
        with pytest.raises(NotStarted, match=message):
            await sandbox.jobs.start(replace(wanted, **fields))
        assert time.monotonic() - begun < at_most(5)
        assert (await sandbox.jobs.inspect([JobQuery(session=session)]))[0].state is JobState.MISSING
        assert [entry.path.rpartition("/")[2] for entry in (await sandbox.list(work)).entries] == ["file", "pipe"]

    async def test_after_a_refusal_a_name_still_leads_to_the_job_before(self, jobs: Jobs, session: str) -> None:
        first = await run(jobs, "exit 3", session)
        for fields in ({"env": {"LARGE": "x" * 200_000}}, {"log_file": "/proc/none"}):
            with pytest.raises(JobRefused):
                await begin(jobs, "true", session, **fields)
            (seen,) = await jobs.inspect([JobQuery(session=session)])
            assert (seen.job_id, seen.exit_code) == (first.job_id, 3)

    async def test_of_many_jobs_of_one_name_one_starts(self, jobs: Jobs, session: str) -> None:
        await run(jobs, "true", session)
        results = await asyncio.gather(*(begin(jobs, STAYS, session) for _ in range(8)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, JobRefused)]
        assert [refusal.reason for refusal in refused] == ["in_use"] * 7
        assert len([seen for seen in await jobs.list() if seen.session == session]) == 2
        await jobs.stop(JobQuery(session=session))

    async def test_a_name_can_be_used_again_at_once(self, jobs: Jobs, session: str) -> None:
        for number in range(3):
            assert (await run(jobs, f"exit {number}", session)).exit_code == number

    async def test_a_job_replaces_one_that_is_gone_and_no_other(
        self, jobs: Jobs, session: str, interrupt: Interrupt
    ) -> None:
        gone = await begin(jobs, STAYS, session)
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, STAYS, session, instead_of=gone.job_id)
        assert refused.value.reason == "running"
        await interrupt(gone)
        seen = await not_running(jobs, gone.job_id)
        assert (seen.state, seen.exit_code, seen.rebooted) == (JobState.GONE, None, False)
        assert seen.reason
        again = next_attempt(gone.job_id, 1)
        resumed = await begin(jobs, STAYS, session, job_id=again, instead_of=gone.job_id)
        assert (await jobs.inspect([JobQuery(session=session)]))[0].job_id == resumed.job_id == again
        await jobs.stop(JobQuery(job_id=again))

    # Looking

    async def test_many_jobs_are_seen_at_once(self, jobs: Jobs, session: str) -> None:
        running = await begin(jobs, "echo a; sleep 300", f"{session}-a")
        ended = await run(jobs, "echo b; exit 3", f"{session}-b")
        await has_printed(jobs, running.job_id, b"a\n")
        ids = (running.job_id, "job-0000000000000000", ended.job_id, "../x")
        seen = await jobs.inspect([*(JobQuery(job_id=each) for each in ids), JobQuery(session="none")])
        assert [each.state.value for each in seen] == ["running", "missing", "ended", "missing", "missing"]
        assert [each.log for each in seen] == [b"a\n", b"", b"b\nEXIT_CODE=3\n", b"", b""]
        assert (seen[2].exit_code, seen[0].seconds > 0) == (3, True)
        assert "nothing is known of it" in seen[1].reason
        assert await jobs.inspect([]) == []
        await jobs.stop(JobQuery(job_id=running.job_id))

    async def test_the_log_by_lines_and_from_a_cursor(self, sandbox: Sandbox, session: str, work: str) -> None:
        seen = await run(sandbox.jobs, "seq 1 200000", session, cwd=work, log_file="log")
        jobs, job, size = sandbox.jobs, seen.job_id, int(await said(sandbox, f"wc -c < {work}/log"))
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
        await said(sandbox, f"echo new > {work}/log")
        assert (await look(jobs, job, cursor=size)).log == b"new\n"

    async def test_checkpoints(self, sandbox: Sandbox, session: str, work: str) -> None:
        await prepare(sandbox, work, "echo step 5 > state")
        jobs, job = sandbox.jobs, (await begin(sandbox.jobs, STAYS, session, cwd=work)).job_id
        for path in ("state", f"{work}/state"):
            found = (await look(jobs, job, checkpoint_path=path)).checkpoint
            assert found is not None
            assert (found.text, found.problem) == (b"step 5\n", "")
            assert abs(found.mtime - time.time()) < 60
        by_command = (await look(jobs, job, checkpoint_command='env | grep "^RSM_"; cat s*')).checkpoint
        assert by_command is not None
        assert (by_command.text, by_command.problem) == (b"step 5\n", "")
        long = (await look(jobs, job, checkpoint_command="pwd; seq 1 100000")).checkpoint
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
        await jobs.stop(JobQuery(job_id=job))

    async def test_what_a_job_uses(self, jobs: Jobs, session: str) -> None:
        job = (await begin(jobs, "echo begun; sleep 300 & while :; do :; done", session)).job_id
        seen = await eventually(
            lambda: look(jobs, job, usage=True, checkpoint_command="true"),
            lambda seen: bool(seen.usage and seen.usage.cpu_s > 0.1),
            "use",
        )
        assert seen.usage is not None
        assert seen.usage.processes == 2
        assert 0.3 < seen.usage.memory_mb < 100
        await jobs.stop(JobQuery(job_id=job))
        assert (await look(jobs, job, usage=True)).usage is None

    async def test_the_list_has_all_jobs_newest_first(self, jobs: Jobs, session: str) -> None:
        names = [f"{session}-{number}" for number in range(3)]
        for name in names:
            await begin(jobs, "true" if name == names[1] else STAYS, name)
        listed = (await jobs.list())[:3]
        assert [seen.session for seen in listed] == names[::-1]
        assert [seen.session for seen in await jobs.list(limit=2)] == names[:0:-1]
        assert all(seen.log == b"" and seen.command for seen in listed)
        await asyncio.gather(*(jobs.stop(JobQuery(session=name)) for name in names))

    # Waiting

    async def test_a_wait_ends_with_the_job(self, jobs: Jobs, session: str) -> None:
        job = (await begin(jobs, "sleep 0.5; exit 9", session)).job_id
        begun = time.monotonic()
        waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=30))
        assert (waited.why, waited.seen.exit_code) == ("ended", 9)
        assert time.monotonic() - begun < at_most(10)

    async def test_a_wait_finds_a_pattern_in_what_was_and_is_printed(
        self, sandbox: Sandbox, session: str, work: str
    ) -> None:
        jobs = sandbox.jobs
        # An earlier job of the same log is not searched.
        await run(jobs, "echo loss=0", session, cwd=work)
        later = "while ! [ -e go ]; do sleep 0.05; done; printf lo; sleep 0.3; echo ss=2; printf 'name: '; sleep 300"
        job = (await begin(jobs, f"echo old loss=1; {later}", session, cwd=work)).job_id
        await has_printed(jobs, job, b"old")
        first = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=10, pattern=r"loss=\d"))
        assert (first.why, first.line) == ("pattern", "old loss=1")
        rest = JobQuery(job_id=job, cursor=first.seen.cursor)
        assert (await jobs.wait(rest, JobWait(seconds=0.3, pattern=r"loss=\d"))).why == "timeout"
        await sandbox.write(f"{work}/go", b"")
        second = await jobs.wait(rest, JobWait(seconds=10, pattern=r"^loss=\d$"))
        assert (second.why, second.line) == ("pattern", "loss=2")
        # What asks for an answer ends without a newline.
        assert (await jobs.wait(rest, JobWait(seconds=10, pattern="name: $"))).why == "pattern"
        await jobs.stop(JobQuery(job_id=job))

    async def test_a_pattern_is_found_deep_in_a_log_of_a_job_that_has_ended(self, jobs: Jobs, session: str) -> None:
        job = (await run(jobs, "seq 1 400000; echo 'the end'; seq 1 9", session)).job_id
        waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=0, pattern="the e.d"))
        assert (waited.why, waited.line, waited.seen.exit_code) == ("pattern", "the end", 0)
        assert (await jobs.wait(JobQuery(job_id=job), JobWait(seconds=0, pattern="none"))).why == "ended"

    async def test_a_wait_ends_with_silence(self, jobs: Jobs, session: str) -> None:
        job = (await begin(jobs, "for n in 1 2 3; do echo $n; sleep 0.3; done; sleep 300", session)).job_id
        waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=20, silence_s=0.8))
        assert (waited.why, waited.seen.log) == ("silence", b"1\n2\n3\n")
        assert waited.seen.silent_s >= 0.8
        await jobs.stop(JobQuery(job_id=job))

    async def test_a_pattern_that_is_none_is_an_error(self, jobs: Jobs, session: str) -> None:
        job = (await run(jobs, "true", session)).job_id
        with pytest.raises(BadArgument, match="not a regular expression"):
            await jobs.wait(JobQuery(job_id=job), JobWait(pattern="("))

    # Stopping

    @pytest.mark.parametrize("script", **table(TREES))
    async def test_a_stop_ends_the_whole_tree(self, sandbox: Sandbox, session: str, work: str, script: str) -> None:
        job = (await begin(sandbox.jobs, script, session, cwd=work)).job_id
        await has_printed(sandbox.jobs, job)
        pid = await read_pid(sandbox, f"{work}/pid")
        stopped = await sandbox.jobs.stop(JobQuery(session=session), grace_s=0.5)
        assert (stopped.state, stopped.ending, stopped.survivors) == (JobState.ENDED, "stopped", ())
        assert stopped.log.endswith(b"EXIT_CODE=%d\n" % (stopped.exit_code or 0))
        assert await is_dead(sandbox, pid)
        assert (await sandbox.jobs.stop(JobQuery(job_id=job))).exit_code == stopped.exit_code

    async def test_a_job_has_its_grace_to_end_in(self, jobs: Jobs, session: str) -> None:
        script = "trap 'sleep 0.5; echo saved; exit 4' TERM; echo begun; while :; do sleep 0.05; done"
        job = (await begin(jobs, script, session)).job_id
        await has_printed(jobs, job)
        stopped, other = await asyncio.gather(*(jobs.stop(JobQuery(job_id=job)) for _ in range(2)))
        assert (stopped.exit_code, stopped.ending, stopped.signal) == (4, "stopped", "")
        assert stopped.log == other.log
        # A shell may say that what it waited for was ended, too.
        assert stopped.log.endswith(b"\nsaved\nEXIT_CODE=4\n")
        assert stopped.log.count(b"saved") == 1
        assert (await jobs.stop(JobQuery(job_id=job))).exit_code == 4
        assert (await jobs.stop(JobQuery(session=f"{session}-none"))).state is JobState.MISSING

    # Watching

    async def test_a_watched_job_is_resumed_once_and_then_seen_to_its_end(
        self, sandbox: Sandbox, session: str, work: str, interrupt: Interrupt, tmp_path: Path
    ) -> None:
        scene, jobs = Scene(tmp_path, sandbox), sandbox.jobs
        started = await begin(jobs, STAYS, session, cwd=work)
        await has_printed(jobs, started.job_id)
        scene.watch(started)
        assert (await scene.tick()).last_summary.endswith("last line: begun")
        await interrupt(started)
        await not_running(jobs, started.job_id)
        resumed = await scene.tick()
        assert (resumed.job_id, resumed.resume_attempts) == (f"{started.job_id}-r1", 1)
        await has_printed(jobs, resumed.job_id, b"again 7\n")
        assert (await scene.tick()).last_checkpoint == '{"step":8}'
        await sandbox.write(f"{work}/go", b"")
        await not_running(jobs, resumed.job_id)
        ended = await scene.tick()
        assert (ended.status.value, ended.last_exit_code) == ("completed", 3)
        assert ended.last_log_tail.splitlines()[-2:] == ["again 7", "EXIT_CODE=3"]
        assert scene.told == ["interrupted", "resume_started", "completed"]
        scene.database.close()
