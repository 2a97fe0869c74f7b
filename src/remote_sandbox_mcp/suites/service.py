"""The verbs on test suites: run one, and read the results of one that outlasted its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import check
from ..core.command import Running
from ..core.progress import Progress, silent
from ..core.suites.report import TestReport
from ..core.text import clip
from ..fleet import Fleet, Member
from .run import results_of, run_tests

if TYPE_CHECKING:
    from ..jobs.commands import Commands

# Characters of a suite's output that its sandbox's log keeps.
TAIL = 4000


class SuiteService:
    """Runs test suites in the sandboxes of a fleet, and notes each in the log of its sandbox."""

    def __init__(self, fleet: Fleet, commands: Commands) -> None:
        self._fleet = fleet
        self._commands = commands

    async def run_tests(
        self, sandbox: str, *, command: str = "", path: str = "", timeout_s: float = 600,
        patience_s: float | None = None, progress: Progress = silent,
    ) -> TestReport | Running:  # fmt: skip
        """Run a suite, found in the folder where no command is given."""
        for name, text in (("command", command), ("path", path)):
            check.text_argument(name, text, required=False)
        check.in_range("timeout", timeout_s, 1, check.LONGEST_TIMEOUT_S)
        member = self._fleet.member(sandbox)
        report = await run_tests(
            await member.open(),
            command=command,
            path=path,
            timeout_s=timeout_s,
            patience_s=patience_s,
            progress=progress,
        )
        return self._noted(member, report)

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
