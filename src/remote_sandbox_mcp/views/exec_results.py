"""exec_bash's result for several sandboxes: one row for each, cut so that all rows fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..core.commands.command import Completed, Missing, Running
from ..core.task import Report
from ..core.texts.text import clip_ends, counted
from ..services.commands import Clip, Row
from .results import error_fields, exec_fields, exec_head, lean, size_of, with_fate

# Characters of a row besides its output: names, numbers, and the files with the whole output.
ROW_BESIDES = 240
LONGEST_ERROR = 300
# Output is left out if fewer characters than this would be left of it.
LEAST_OUTPUT = 40
LONGEST_LINE = 200


def clip_for(rows: int, limit: int, room: int) -> Clip:
    """Cuts the output of each row so that all rows fit into `room`."""
    each = room // rows - ROW_BESIDES
    own = each if each >= LEAST_OUTPUT else 0

    def clip(seen: Completed | Running | Missing) -> Report:
        return Report(seen, *clip_ends(seen.stdout, seen.stderr, min(limit, own), own))

    return clip


def row_fields(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {"sandbox": row.name}
    if row.problem is not None:
        problem = error_fields(row.problem)
        fields |= {"error": _error(row), "code": problem["code"]} | lean(tmux_session=problem.get("tmux_session"))
    elif row.report is not None:
        # The counts of bytes are left out: the name of the file with all of the output shows that it was cut.
        fields |= {name: value for name, value in exec_fields(row.report).items() if not name.endswith("_bytes")}
    return fields | {"duration": round(row.seconds, 1)}


def _error(row: Row) -> str:
    assert row.problem is not None
    text = with_fate(error_fields(row.problem)["error"], row.problem, starts=True)
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]} [...]"


def rows_fields(rows: Sequence[Row], room: int) -> dict[str, Any]:
    """All rows in their order; if they do not all fit, failures come first."""
    fields = {"summary": summary(rows), "results": [row_fields(row) for row in rows]}
    if size_of(fields) > room:
        fields["results"] = [row_fields(row) for row in sorted(rows, key=lambda row: row.is_good)]
    return fields


def summary(rows: Sequence[Row]) -> str:
    """Count the tests by how they ended."""
    ways = Counter(map(_way, rows))
    return f"{counted(len(rows), 'sandbox', 'sandboxes')}: {', '.join(f'{n} {way}' for way, n in ways.most_common())}"


def _way(row: Row) -> str:
    if row.report is None or isinstance(row.report.seen, Missing):
        return "failed"
    seen = row.report.seen
    return f"exit {seen.exit_code}" if isinstance(seen, Completed) else "still running"


def rows_text(rows: Sequence[Row]) -> str:
    return "\n".join((summary(rows), *map(row_text, rows)))


def row_text(row: Row) -> str:
    """A row for clients that read only text: its first line, then the last part of the output."""
    if row.report is None:
        return row_head(row)
    fields = exec_fields(row.report)
    lines = [row_head(row)]
    lines += [f"  [... all of it: read_remote_file {fields[name]}]" for name in FILES if name in fields]
    lines += [_indented(f"{title}{fields[name]}") for title, name in STREAMS if name in fields]
    return "\n".join(lines)


FILES = ("stdout_file", "stderr_file")
STREAMS = (("", "stdout"), ("stderr:\n", "stderr"))


def row_head(row: Row) -> str:
    if row.problem is not None:
        return f"{row.name}: {row.problem.code}: {_error(row)}"
    return f"{row.name}: {exec_head(row.report)}" if row.report else row.name


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip("\n").split("\n"))
