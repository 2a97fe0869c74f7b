"""The tool that runs a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from ....core.errors import BadArgument
from ....core.progress import Beat, Progress
from ....services.commands import Row
from ....views.exec_results import LONGEST_LINE, clip_for, row_head, rows_fields, rows_text
from ....views.results import exec_fields, exec_text
from ..clients import patience, room
from ..reporting import Reporting, beats
from ..results import reply
from ..server import SandboxName, SandboxServer
from ..shapes import ExecShape
from ..toolbox import RUN, Declaration, WorkspacePart

RUNS = WorkspacePart(sends=True, brings=True, folder="cwd", scripts=("command",))
STARTS = WorkspacePart(sends=True, folder="cwd", scripts=("command", "resume_command"))
RUNS_COMMAND = Declaration(starts=True, names_its_work=True, workspace=RUNS, is_on_page=True)


def offer(server: SandboxServer) -> None:
    server.offer(exec_bash, "Run a command", RUN, replace(RUNS_COMMAND, is_first=True))


async def exec_bash(
    server: SandboxServer,
    command: Annotated[str, Field(description="Shell source, any length")],
    ctx: Context[None, Any],
    cwd: Annotated[str, Field(description="Folder to start in; default: home, or the session's")] = "",
    timeout_s: Annotated[float, Field(description="Default 120. Then the whole process tree is ended")] = 120,
    max_output_chars: Annotated[int, Field(description="Per stream, default 20000; both ends are kept")] = 20000,
    sandbox_name: SandboxName = "",
    sandbox_names: Annotated[
        list[str] | Literal["all"] | None, Field(description="Run on all of these at once; a row each")
    ] = None,
    as_root: Annotated[bool, Field(description="By sudo, where the operator allows it")] = False,
    session: Annotated[str, Field(description="A shell that keeps folder, variables and functions")] = "",
    input: Annotated[str, Field(description="Standard input")] = "",
    env: Annotated[Mapping[str, str], Field(description="Variables")] = {},
) -> Annotated[CallToolResult, ExecShape]:
    """Run a command in a new shell, or in a session's, and return its exit code and output.

    One that outlasts the call (50 to 280 s, by client) returns running=true and a tmux_session for
    check_background_task, and goes on."""
    how: dict[str, Any] = {"cwd": cwd, "timeout_s": timeout_s, "limit": max_output_chars, "patience_s": patience()}
    how |= {"as_root": as_root, "session": session, "input": raw(input), "env": env}
    async with Reporting(ctx) as reporting:
        if sandbox_names is None:
            progress = beats(reporting)
            report = await server.app.commands.run(command, name=sandbox_name, room=room(), progress=progress, **how)
            return reply(exec_fields(report), exec_text(report))
        if sandbox_name:
            raise BadArgument("sandbox_name and sandbox_names were both given; pass one of them")
        return await run_on_several(server, reporting, sandbox_names, command, how)


async def run_on_several(
    server: SandboxServer, reporting: Reporting, names: list[str] | Literal["all"], command: str, how: dict[str, Any]
) -> CallToolResult:
    """Run a command on several sandboxes at once."""
    members = await server.app.commands.several(names)
    progress, clip = RowsProgress(reporting, len(members)), clip_for(len(members), how["limit"], room())
    rows = await server.app.commands.run_on_each(
        members, command, clip=clip, ended=progress.ended, progress=progress.of, **how
    )
    return reply(rows_fields(rows, room()), rows_text(rows))


def raw(input: str) -> bytes:
    """Standard input as bytes; a lone surrogate from U+DC80 to U+DCFF stands for one that is not UTF-8."""
    try:
        return input.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadArgument("input holds half of a surrogate pair, which is no text; send valid Unicode") from None


class RowsProgress:
    """Reports each row as it ends and, in between, that the others still run."""

    def __init__(self, reporting: Reporting, total: int) -> None:
        self._reporting = reporting
        self._total = total
        self._ended = 0

    def ended(self, row: Row) -> None:
        self._ended += 1
        self._reporting.add(self._ended, self._total, row_head(row)[:LONGEST_LINE])

    def of(self, name: str) -> Progress:
        def beat(beat: Beat, /) -> None:
            # A sign of life must not take the place of a row.
            if not self._reporting.has_unsent:
                left = f"{self._ended} of {self._total} ended"
                self._reporting.send(self._ended, self._total, f"{left}; {name}: {beat.line or 'nothing printed yet'}")

        return beat
