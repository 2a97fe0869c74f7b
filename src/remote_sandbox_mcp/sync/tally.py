"""What came of a sync so far: figures, and what went wrong with single entries."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.errors import FileProblem
from ..core.files import Problem
from ..core.lane import Reply

MOST_PROBLEMS = 100
# What ends a transfer instead of being told of a single file.
FATAL = ("No space left on device", "Disk quota exceeded", "Read-only file system")


@dataclass
class Tally:
    """Counts, and keeps the first problems in words. `target` is named where nothing more can be written."""

    target: str
    sent: int = 0
    bytes: int = 0
    deleted_files: int = 0
    deleted_dirs: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)

    def hear(self, reply: Reply) -> Reply:
        """Take in what an answer says of single entries. Raises FileProblem where it is fatal."""
        told = reply.problems()
        for problem in told:
            self.note(problem)
        self.problem_count += max(0, int(reply.end.get("problem_count", 0)) - len(told))
        return reply

    def note(self, problem: Problem) -> None:
        """Raises FileProblem where it is fatal."""
        if any(words in problem.reason for words in FATAL):
            told = f"{self.target}: {problem.reason}; what had arrived by then is in place"
            raise FileProblem(told, "fatal")
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
