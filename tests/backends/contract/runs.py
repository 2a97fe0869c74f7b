"""Commands, from their start to the day when nobody asks for them any more."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.core.commands.command import (
    Command,
    Completed,
    Ending,
    Environment,
    Excerpt,
    Missing,
    Observation,
    Running,
    new_run_id,
)
from remote_sandbox_mcp.core.progress import Beat
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.support.pace import at_most
from tests.support.waiting import eventually

from .basics import (
    DEADLINE_S,
    Basics,
    Opener,
    Programs,
    begin,
    cancel,
    counted,
    ended,
    finish,
    forgotten,
    in_background,
    table,
)

NEVER = "/no/such/file"
OUTPUTS = {
    "nothing": (b"", b""),
    "both": (b"out\n", b"err\n"),
    "only stderr": (b"", b"err"),
    "no last newline": (b"a\nb", b"c"),
    "every byte": (bytes(range(256)), bytes(reversed(range(256)))),
    "not utf-8": (b"\xff\xfe\x80", b"\xc3"),
    "NUL": (b"\0a\0", b"\0"),
    "line ends": (b"a\r\nb\rc\n\n\n", b"\n"),
}
EXIT_CODES = (0, 1, 2, 77, 124, 125, 126, 127, 128, 130, 137, 143, 254, 255)


class RunContract(Basics):
    """Commands, from their start to the day when nobody asks for them any more."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    async def beating(cls, sandbox: Sandbox, programs: Programs, home: str) -> AsyncIterator[asyncio.Task[list[Beat]]]:
        async with in_background(cls._beats(sandbox, programs, f"{home}/go-{secrets.token_hex(4)}")) as task:
            yield task

    @classmethod
    async def _beats(cls, sandbox: Sandbox, programs: Programs, go: str) -> list[Beat]:
        beats: list[Beat] = []

        async def heard() -> list[Beat]:
            return list(beats)

        command = Command(programs.waits_for(go, b"one\ntwo\n"))
        async with in_background(sandbox.run(command, progress=beats.append)) as running:
            # The first may come before anything was heard of what the run has printed.
            await eventually(heard, lambda beats: any(beat.bytes for beat in beats), "a beat")
            await sandbox.write(go, b"")
            assert isinstance(await running, Completed)
        return beats

    async def test_it_is_open_once_it_was_opened(self, sandbox: Sandbox) -> None:
        await sandbox.open()
        assert sandbox.is_open
        assert sandbox.description.name

    @pytest.mark.parametrize("code", EXIT_CODES)
    async def test_the_exit_code_is_the_commands_own(self, sandbox: Sandbox, programs: Programs, code: int) -> None:
        done = await finish(sandbox, programs.prints(b"x", code=code))
        assert (done.exit_code, done.ending, done.signal) == (code, Ending.EXITED, "")
        assert (done.survivors, done.left_running) == ((), ())
        assert 0 <= done.seconds < DEADLINE_S

    @pytest.mark.parametrize("streams", **table(OUTPUTS))
    async def test_streams_are_apart_and_exact(
        self, sandbox: Sandbox, programs: Programs, streams: tuple[bytes, bytes]
    ) -> None:
        done = await finish(sandbox, programs.prints(*streams))
        assert (done.stdout.head, done.stderr.head) == streams
        assert (done.stdout.total, done.stderr.total) == tuple(map(len, streams))
        assert (done.stdout.tail, done.stderr.tail) == (b"", b"")

    @pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 129, 1000])
    async def test_an_excerpt_has_both_ends_and_no_byte_twice(
        self, sandbox: Sandbox, programs: Programs, size: int
    ) -> None:
        data = bytes(number % 251 for number in range(size))
        done = await finish(sandbox, programs.prints(data, data[::-1]), keep=64)
        for seen in (done, await sandbox.observe(done.run_id, keep=64)):
            check_excerpt(seen.stdout, data, 64)
            check_excerpt(seen.stderr, data[::-1], 64)

    async def test_a_large_output_is_counted_and_can_be_read_in_full(
        self, sandbox: Sandbox, programs: Programs
    ) -> None:
        data = counted(625_000)
        done = await finish(sandbox, programs.counts(625_000), keep=2_000_000)
        assert done.exit_code == 0
        check_excerpt(done.stdout, data, 2_000_000)
        again = await sandbox.observe(done.run_id, keep=10_000)
        check_excerpt(again.stdout, data, 10_000)
        for offset in (0, 10_000, 2_499_997, 4_999_000) if done.stdout.file else ():
            found = await sandbox.read(done.stdout.file, Span(offset, 1000))
            assert (found.data, found.size) == (data[offset : offset + 1000], 5_000_000)

    async def test_thirty_at_once_each_get_their_own(self, sandbox: Sandbox, programs: Programs) -> None:
        scripts = [programs.prints(b"out %d" % n, b"err %d" % n, code=n) for n in range(30)]
        done = await asyncio.gather(*(finish(sandbox, script) for script in scripts))
        assert [(each.exit_code, each.stdout.head, each.stderr.head) for each in done] == [
            (n, b"out %d" % n, b"err %d" % n) for n in range(30)
        ]

    async def test_a_timeout_ends_the_command_and_keeps_its_output(self, sandbox: Sandbox, programs: Programs) -> None:
        done = await finish(sandbox, programs.waits_for(NEVER, b"so far"), timeout_s=0.5)
        assert (done.ending, done.exit_code, done.stdout.head) == (Ending.TIMED_OUT, 124, b"so far")
        assert (done.survivors, done.left_running) == ((), ())
        assert 0.4 < done.seconds < at_most(5)
        assert await sandbox.observe(done.run_id) == done

    async def test_impatience_leaves_the_run_going(self, sandbox: Sandbox, programs: Programs, folder: str) -> None:
        script = programs.waits_for(f"{folder}/go", b"first ", b"then")
        running = await begin(sandbox, script)
        seen = await eventually(
            lambda: sandbox.observe(running.run_id), lambda seen: seen.stdout.head == b"first ", "the first output"
        )
        assert isinstance(seen, Running)
        assert seen.seconds > 0.2
        await sandbox.write(f"{folder}/go", b"")
        done = await ended(sandbox, running.run_id)
        assert (done.exit_code, done.ending, done.stdout.head) == (0, Ending.EXITED, b"first then")

    async def test_a_run_can_be_observed_as_soon_as_it_was_started(self, sandbox: Sandbox, programs: Programs) -> None:
        running = await sandbox.run(Command(programs.waits_for(NEVER)), patience_s=0)
        assert isinstance(running, Running)
        assert isinstance(await sandbox.observe(running.run_id), Running)
        assert isinstance(await sandbox.stop(running.run_id), Completed)

    async def test_stop_ends_the_run_and_says_so(self, sandbox: Sandbox, programs: Programs) -> None:
        running = await begin(sandbox, programs.waits_for(NEVER, b"so far"))
        done = await sandbox.stop(running.run_id)
        assert isinstance(done, Completed)
        assert (done.ending, done.stdout.head, done.survivors) == (Ending.STOPPED, b"so far", ())
        assert done.exit_code != 0
        assert await sandbox.observe(running.run_id) == done

    async def test_who_waits_for_a_run_is_told_that_it_was_stopped(self, sandbox: Sandbox, programs: Programs) -> None:
        command = Command(programs.waits_for(NEVER, b"so far"))
        async with in_background(sandbox.run(command)) as running:
            await self._seen_running(sandbox, command.run_id)
            await sandbox.stop(command.run_id)
            done = await running
        assert isinstance(done, Completed)
        assert done.ending is Ending.STOPPED

    async def test_stop_after_the_end_tells_the_end(self, sandbox: Sandbox, programs: Programs) -> None:
        done = await finish(sandbox, programs.prints(b"x", code=3))
        stopped = await sandbox.stop(done.run_id)
        assert isinstance(stopped, Completed)
        assert (stopped.exit_code, stopped.ending, stopped.stdout.head) == (3, Ending.EXITED, b"x")

    async def test_a_run_that_nobody_knows_is_missing(self, sandbox: Sandbox) -> None:
        run_id = new_run_id()
        for seen in (await sandbox.observe(run_id), await sandbox.stop(run_id)):
            assert isinstance(seen, Missing)
            assert seen.run_id == run_id
            assert seen.reason

    async def test_one_id_is_one_start(self, sandbox: Sandbox, programs: Programs, folder: str) -> None:
        await sandbox.write(f"{folder}/log", b"")
        command = Command(programs.appends(f"{folder}/log", "started "))
        together = await asyncio.gather(*(sandbox.run(command) for _ in range(5)))
        later = await sandbox.run(command)
        for done in (*together, later):
            assert isinstance(done, Completed)
            assert (done.run_id, done.exit_code) == (command.run_id, 0)
        assert (await sandbox.read(f"{folder}/log", Span())).data == b"started "

    async def test_cancelling_the_call_stops_the_run(self, sandbox: Sandbox, programs: Programs) -> None:
        command = Command(programs.waits_for(NEVER, b"so far"))
        running = asyncio.ensure_future(sandbox.run(command))
        await self._seen_running(sandbox, command.run_id)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        done = await ended(sandbox, command.run_id)
        assert (done.ending, done.stdout.head) == (Ending.STOPPED, b"so far")

    async def test_cancelling_at_once_leaves_nothing_running(self, sandbox: Sandbox, programs: Programs) -> None:
        commands = [Command(programs.waits_for(NEVER)) for _ in range(12)]
        for turns, command in enumerate(commands):
            running = asyncio.ensure_future(sandbox.run(command))
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancel(running)

        async def going() -> list[Observation]:
            seen = await asyncio.gather(*(sandbox.observe(command.run_id) for command in commands))
            return [each for each in seen if isinstance(each, Running)]

        # Another run, so that those have had the time to start.
        other = await begin(sandbox, programs.waits_for(NEVER))
        await sandbox.stop(other.run_id)
        await eventually(going, lambda seen: not seen, "cancelled runs to end")

    async def _seen_running(self, sandbox: Sandbox, run_id: str) -> None:
        await eventually(
            lambda: sandbox.observe(run_id),
            lambda seen: isinstance(seen, Running) and seen.stdout.head == b"so far",
            "the run to print",
        )

    async def test_a_run_that_goes_on_gives_signs_of_life(self, beating: asyncio.Task[list[Beat]]) -> None:
        first = next(beat for beat in await beating if beat.bytes)
        assert (first.bytes, first.line) == (8, "two")
        assert 0 <= first.seconds < DEADLINE_S

    async def test_a_forgotten_run_is_gone(self, sandbox: Sandbox, programs: Programs) -> None:
        done = await finish(sandbox, programs.prints(b"x"))
        sandbox.forget(done.run_id)
        await forgotten(sandbox, done.run_id)

    async def test_forgetting_does_not_harm_a_run_that_goes_on(self, sandbox: Sandbox, programs: Programs) -> None:
        running = await begin(sandbox, programs.waits_for(NEVER))
        other = await finish(sandbox, programs.prints())
        sandbox.forget(running.run_id)
        sandbox.forget(other.run_id)
        await forgotten(sandbox, other.run_id)
        assert isinstance(await sandbox.stop(running.run_id), Completed)

    async def test_a_closed_sandbox_opens_again_and_finds_its_runs(self, opener: Opener, programs: Programs) -> None:
        sandbox = await opener(Environment())
        try:
            running = await begin(sandbox, programs.waits_for(NEVER, b"so far"))
            await sandbox.close()
            assert not sandbox.is_open
            assert sandbox.connection is None
            seen = await sandbox.stop(running.run_id)
            assert sandbox.is_open
            assert sandbox.connection is not None
            survives = sandbox.description.capabilities.survives_disconnect
            assert isinstance(seen, Completed if survives else Missing)
            assert seen.stdout.head == b"so far"
        finally:
            await sandbox.close()


def check_excerpt(excerpt: Excerpt, data: bytes, keep: int) -> None:
    # Without a message pytest would compare megabytes letter by letter.
    rest = data[max(keep, len(data) - keep) :]
    assert excerpt.total == len(data)
    assert excerpt.head == data[:keep] or not "the beginning of the stream"
    assert excerpt.tail == rest or not "the end of the stream"
    assert excerpt.omitted == max(0, len(data) - 2 * keep)
