"""`make coverage`: how much of each room the tests ran, and the lines of a change that none of them ran."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from coverage import CoverageData
from coverage.python import PythonParser

PACKAGE = Path("src/remote_sandbox_mcp")
Lines = dict[str, set[int]]


def changed_since(base: str) -> Lines:
    """Read from git which lines of the source are new or other than in a revision, also those not committed."""
    diff = subprocess.run(
        ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", base, "--", str(PACKAGE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if diff.returncode:
        sys.exit(
            f"{base} cannot be compared with: {diff.stderr.strip()}; name another revision: make coverage BASE=main"
        )
    found: Lines = defaultdict(set)
    name = ""
    for line in diff.stdout.splitlines():
        if line.startswith("+++ "):
            name = line[4:].removeprefix("b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found[name].update(range(first, first + count))
    return found


def spans(lines: set[int]) -> str:
    """Write lines as people do: 3, 7-9."""
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def measured(data: Any) -> tuple[Lines, Lines]:
    """Give the lines that could run, and those that did not, by file."""
    could: Lines = {}
    missed: Lines = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parser = PythonParser(filename=str(file), exclude="if TYPE_CHECKING:|pragma: no cover")
        parser.parse_source()
        ran = parser.translate_lines(data.lines(str(file.resolve())) or ())
        could[str(file)] = parser.statements
        missed[str(file)] = parser.statements - ran
    return could, missed


def report(could: Lines, missed: Lines) -> None:
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, lines in could.items():
        room = Path(name).relative_to(PACKAGE).parts[0].removesuffix(".py")
        for each in (rooms[room], rooms["all"]):
            each[0] += len(lines)
            each[1] += len(missed[name])
    for room, (lines, gone) in sorted(rooms.items(), key=lambda item: (item[0] == "all", item[0])):
        print(f"{room:12} {lines:6} lines  {100 * (lines - gone) / max(lines, 1):5.1f} %")


def main(base: str) -> None:
    data = CoverageData()
    data.read()
    could, missed = measured(data)
    report(could, missed)
    changed = changed_since(base)
    print(f"\nchanged since {base}, and run by no test:")
    found = {name: missed[name] & lines for name, lines in changed.items() if name in missed}
    for name, lines in found.items():
        if lines:
            print(f"  {name}: {spans(lines)}")
    if not any(found.values()):
        print("  nothing")


if __name__ == "__main__":
    main(sys.argv[1])
