"""The verbs on test suites, and a suite on a sandbox: look at the folder, start the runner, collect its results."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import check
from ...core.client import preamble
from ...core.commands.command import Command, Completed, Ending, Excerpt, Missing, Running, new_run_id
from ...core.commands.shell import join, quote
from ...core.errors import FileProblem, NotStarted, SandboxError
from ...core.jobs.cards import CardRequest
from ...core.jobs.placement import place_of
from ...core.progress import Progress, silent
from ...core.sandboxes.files import Span
from ...core.sandboxes.sandbox import Sandbox
from ...core.suites.detect import NoSuite, choose
from ...core.suites.suite import GIVEN, Collected, Suite, SuiteFolder, TestReport, parse_collected, parse_inspection
from ...core.suites.verdict import Evidence, make_report
from ...core.texts.text import clip, harmless, last_line
from ...far.program import read_program
from ..fleet import Fleet, Member
from ..jobs.values import Wanted
from . import loan

if TYPE_CHECKING:
    from ..jobs.service import JobService

# Characters of a suite's output that its sandbox's log keeps.
TAIL = 4000


class SuiteService:
    """Runs test suites in the sandboxes of a fleet, and notes each in the log of its sandbox."""

    def __init__(self, fleet: Fleet, jobs: JobService) -> None:
        self._fleet = fleet
        self._jobs = jobs
        self._commands = jobs.commands

    async def place(self, names: str, cards: CardRequest | None, handle: str = "") -> str:
        """The machine for a run, the best of several, or where the run with that handle is. Raises NoCards."""
        named, places = place_of(names)
        if not places:
            return named
        row = await self._commands.find(handle) if handle else None
        return row.sandbox if row else await self._jobs.waiting.one_of(places, cards)

    async def run_tests(
        self, sandbox: str, *, command: str = "", path: str = "", timeout_s: float = 600,
        patience_s: float | None = None, progress: Progress = silent, cards: CardRequest | None = None,
    ) -> TestReport | Running:  # fmt: skip
        """Run a suite, found in the folder where no command is given, with cards of its own. Raises NoCards."""
        for name, text in (("command", command), ("path", path)):
            check.text_argument(name, text, required=False)
        check.in_range("timeout", timeout_s, 1, check.LONGEST_TIMEOUT_S)
        member = self._fleet.member(sandbox)
        report = await run_tests(
            await member.open(), command=command, path=path, timeout_s=timeout_s, patience_s=patience_s,
            progress=progress, hold=functools.partial(self._hold, member.name, cards) if cards else None,
        )  # fmt: skip
        return self._noted(member, report)

    async def _hold(self, sandbox: str, cards: CardRequest, run_id: str, place: str) -> None:
        """Lease cards by a job that lives as long as the run. Raises NoCards."""
        await self._jobs.start(
            Wanted(
                command=HOLD.format(place=quote(place)), session=f"tests-{run_id}", log_file="/dev/null",
                sandbox=sandbox, cards=cards, waits=False, slurm=False if self._fleet.member(sandbox).slurm else None,
            )
        )  # fmt: skip

    async def results_of(self, sandbox: str, handle: str) -> TestReport | Running:
        """Result of a suite that outlasted its call."""
        member = self._fleet.member(sandbox)
        return self._noted(member, await results_of(await member.open(), check.run_handle(handle)))

    def _noted(self, member: Member, report: TestReport | Running) -> TestReport | Running:
        if isinstance(report, Running):
            self._commands.outlasted(member, report, "run_tests")
        else:
            counts = f"{report.passed} passed, {report.failed} failed, {report.errors} errors, {report.skipped} skipped"
            outcome = report.problem or f"{counts}, exit {report.exit_code}"
            tail = clip(report.log, TAIL).text or clip(report.stderr, TAIL).text
            self._commands.add(member, report.command, outcome, report.duration, tail)
        return report


KEEP = 200_000
CHECK_S = 30.0
COLLECT_S = 60.0
# Answers of collect.sh are a little longer than the files, because each line is indented by a space.
LARGEST_FILE = 8 << 20
LARGEST_ANSWER = 24 << 20
MOST_TEXT = 8 << 20
LEAST_PATIENCE_S = 1.0
# Holds the cards of a run: says in `seen` which ones it may see, and ends when no process of the run has `held` open,
# or if none has opened it in a minute, or the run was given up and its place is gone.
HOLD = """cd {place} && mkfifo held && env | grep _VISIBLE_DEVICES= >seen.new && mv seen.new seen || exit 1
cat held & cat=$!
(sleep 60; : >held || kill $cat) 2>/dev/null & wait $cat; kill $!"""
# Goes before the run's own source.
HELD = """rsmcp=0; until [ -f {place}/seen ] || [ $rsmcp = 300 ]; do rsmcp=$((rsmcp + 1)); sleep 0.1; done
[ -f {place}/seen ] || {{ echo 'the job that holds the GPUs did not start' >&2; exit 1; }}
export $(cat {place}/seen); exec 9>{place}/held"""
# Leases the cards of a run, by its id and its place.
Hold = Callable[[str, str], Awaitable[None]]


async def run_tests(
    sandbox: Sandbox, *, command: str = "", path: str = "", timeout_s: float = 600, patience_s: float | None = None,
    progress: Progress = silent, hold: Hold | None = None,
) -> TestReport | Running:  # fmt: skip
    """Run a folder's tests and report what came of it, or, when patience is over, that they still run.

    Without a command the runner is found by what is in `path` (default: the home folder). `results_of` reports on a
    run that outlasted its caller. Raises what `sandbox.run` raises, and SandboxError, with nothing run, where the
    folder cannot be looked at or has no tests that can be run.
    """
    check.text_argument("command", command, required=False)
    check.text_argument("path", path, required=False)
    check.in_range("timeout", timeout_s, 0.1, check.LONGEST_TIMEOUT_S)
    begun, run_id = time.monotonic(), new_run_id()
    given = Suite(GIVEN, command=command) if command.strip() else None
    found, place = await _inspect(sandbox, run_id, path, given)
    try:
        suite = given or await _choose(sandbox, found, place)
        source = command if given else _started(suite, place)
        if hold:
            await hold(run_id, place)
            source = f"{HELD.format(place=quote(place))}\n{source}"
        order = Command(source, path, timeout_s, KEEP, run_id)
        left = None if patience_s is None else max(LEAST_PATIENCE_S, patience_s - (time.monotonic() - begun))
        seen = await sandbox.run(order, patience_s=left, progress=progress)
    except (NotStarted, _NothingToRun):
        await _tidy(sandbox, run_id)
        raise
    return seen if isinstance(seen, Running) else await _report(sandbox, suite, seen)


async def results_of(sandbox: Sandbox, run_id: str) -> TestReport | Running:
    """Result of tests that `run_tests` left running; can be read once. Raises SandboxError where it is lost."""
    seen = await sandbox.observe(check.run_handle(run_id), keep=KEEP)
    if isinstance(seen, Running):
        return seen
    if isinstance(seen, Missing):
        raise SandboxError(
            f"the tests of {run_id} on {sandbox.description.name} are lost: {seen.reason}; run them again"
        )
    return await _report(sandbox, None, seen)


class _NothingToRun(SandboxError):
    """The folder has no tests that can be run."""


async def _inspect(sandbox: Sandbox, run_id: str, path: str, given: Suite | None) -> tuple[SuiteFolder, str]:
    source = script("inspect.sh", run_id, given.dumped()) if given else _after_preamble(script("inspect.sh", run_id))
    # The script prints names and texts of files, so it may print more than a command usually keeps.
    seen = await sandbox.run(Command(source, path, CHECK_S, KEEP * 5))
    sandbox.forget(seen.run_id)
    try:
        return parse_inspection(seen.stdout.head + seen.stdout.tail)
    except ValueError as problem:
        if isinstance(seen, Completed) and seen.ending is not Ending.EXITED:
            why = f"it took longer than {CHECK_S:g} s to look at it; give a smaller folder or a command"
        else:
            why = last_line(seen.stderr.head + seen.stderr.tail) or str(problem)
        raise SandboxError(f"unable to run the tests in {path or '~'} on {sandbox.description.name}: {why}") from None


async def _choose(sandbox: Sandbox, found: SuiteFolder, place: str) -> Suite:
    """The suite; if only pytest is missing, it is lent to the sandbox."""
    suite = _chosen(sandbox, _remedied(sandbox, found), place)
    if not suite.lent:
        return suite
    try:
        await sandbox.write(suite.argv[1], await asyncio.to_thread(loan.packed))
    except FileProblem as problem:
        return _chosen(sandbox, replace(found, remedy=f"it could not be lent either ({problem})"), place)
    return suite


def _remedied(sandbox: Sandbox, found: SuiteFolder) -> SuiteFolder:
    """Lend a pytest to sandboxes only; nothing is put on a machine of the user, which can install its own."""
    if sandbox.description.host:
        return found
    may_install = sandbox.description.capabilities.network
    if lendable := loan.find_loan():
        return replace(found, loan=lendable, remedy=found.remedy if may_install else "use an image with a newer Python")
    offer = "let the operator install pytest beside remote-sandbox-mcp, which then lends it to sandboxes"
    return replace(found, remedy=f"{found.remedy}, or {offer}" if may_install else f"without a network, {offer}")


def _chosen(sandbox: Sandbox, found: SuiteFolder, place: str) -> Suite:
    try:
        return choose(found, f"{place}/report")
    except NoSuite as problem:
        where = harmless(found.folder.encode("utf-8", "surrogateescape"))
        raise _NothingToRun(f"unable to run the tests in {where} on {sandbox.description.name}: {problem}") from None


def _started(suite: Suite, place: str) -> str:
    return _after_preamble(script("run.sh", place, suite.dumped(), *suite.argv))


def _after_preamble(source: str) -> str:
    """Put the call's preamble before our own source, so that it has the environment of the call's commands."""
    before = preamble.get()
    return f"{before}\n{source}" if before else source


# What came of it


async def _report(sandbox: Sandbox, suite: Suite | None, end: Completed) -> TestReport:
    collected = Collected()
    try:
        collected = await _collect(sandbox, end.run_id)
    except SandboxError:
        # Its output is known and says the most; a later call needs the plan, and can be repeated.
        if suite is None:
            raise
    planned = suite or _planned(sandbox, end.run_id, collected)
    evidence = await _evidence(sandbox, end, collected)
    report = await asyncio.to_thread(make_report, planned, end, evidence)
    # Everything printed is in the report, so the machine's copy can go; otherwise the report names its file.
    if not (end.stdout.omitted or end.stderr.omitted or report.log.omitted or report.stderr.omitted):
        sandbox.forget(end.run_id)
        return replace(report, log=replace(report.log, file=""), stderr=replace(report.stderr, file=""))
    return report


async def _collect(sandbox: Sandbox, run_id: str) -> Collected:
    """Files that the run wrote; removes its folder."""
    source = script("collect.sh", run_id, str(LARGEST_FILE), str(LARGEST_FILE))
    seen = await sandbox.run(Command(source, "", COLLECT_S, LARGEST_ANSWER))
    sandbox.forget(seen.run_id)
    try:
        return parse_collected(seen.stdout.head + seen.stdout.tail)
    except ValueError:
        return Collected()


def _planned(sandbox: Sandbox, run_id: str, collected: Collected) -> Suite:
    try:
        return Suite.loaded(collected.plan)
    except ValueError:
        raise SandboxError(
            f"{run_id} on {sandbox.description.name} has no test results: it ran no tests, or they were told before; "
            "check_background_task shows what it printed"
        ) from None


async def _evidence(sandbox: Sandbox, end: Completed, collected: Collected) -> Evidence:
    notes = [f"{name} was read only in part: it is too large" for name in collected.cut[:3]]
    if not collected.whole:
        notes.append("what the run wrote could not be brought, or only in part")
    # With a report file, the printed middle adds nothing, and may be large.
    stdout, gap = await _whole(sandbox, end.stdout, wanted=not collected.report)
    stderr, other = await _whole(sandbox, end.stderr, wanted=not collected.report)
    if (gap or other) and not collected.report:
        notes.append(f"{gap + other} bytes in the middle of what it printed were not read")
    text = "\n".join(filter(None, (harmless(stdout), harmless(stderr))))
    return Evidence(text, collected.report, collected.files, tuple(notes))


async def _whole(sandbox: Sandbox, excerpt: Excerpt, *, wanted: bool) -> tuple[bytes, int]:
    """A stream with its middle, read from its file on the far side, and how much is missing here."""
    if not excerpt.omitted:
        return excerpt.head + excerpt.tail, 0
    middle = b""
    if wanted and excerpt.file:
        with contextlib.suppress(SandboxError):
            span = Span(offset=len(excerpt.head), limit=min(excerpt.omitted, MOST_TEXT))
            middle = (await sandbox.read(excerpt.file, span)).data
    left_out = excerpt.omitted - len(middle)
    # A line break in place of the gap, so that two halves do not form a line that was never printed.
    return excerpt.head + middle + (b"\n" if left_out else b"") + excerpt.tail, left_out


async def _tidy(sandbox: Sandbox, run_id: str) -> None:
    """Remove the folder of a run that never began. That of a cancelled run stays until look.sh finds it."""
    with contextlib.suppress(SandboxError):
        await _collect(sandbox, run_id)


def script(name: str, *words: str) -> str:
    """One command that runs the script with sh and these words."""
    return "exec " + join(["sh", "-c", read_program(f"suites/{name}"), name, *words])
