"""Tools that run commands, and ask after or end those that outlast a call."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from ...core.command import Running
from ...core.patience import patience_of
from ...core.progress import Beat, Progress
from ..reporting import Reporting
from ..results import exec_fields, exec_text, reply, task_fields
from ..server import SandboxName, SandboxServer
from ..shapes import ExecShape, TaskShape

RUN = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
ASK = ToolAnnotations(read_only_hint=True, open_world_hint=True)
END = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)

Handle = Annotated[str, Field(description="The handle that exec_bash returned")]


def offer(server: SandboxServer) -> None:
    server.offer(run_command(server), title="Run a command", annotations=RUN)
    server.offer(check_task(server), title="Ask after a running command", annotations=ASK)
    server.offer(stop_task(server), title="End a running command", annotations=END)


def run_command(server: SandboxServer) -> Any:
    async def exec_bash(
        command: Annotated[str, Field(description="Shell source, any length")],
        ctx: Context[None, Any],
        cwd: Annotated[str, Field(description="Folder to start in; default: home")] = "",
        timeout_s: Annotated[float, Field(description="Default 120. Then the whole process tree is ended")] = 120,
        max_output_chars: Annotated[int, Field(description="Per stream, default 20000; both ends are kept")] = 20000,
        sandbox_name: SandboxName = "",
    ) -> Annotated[CallToolResult, ExecShape]:
        """Run a command in a new shell and return its exit code and output.

        One that outlasts the call returns running=true and a tmux_session for check_background_task, and goes on."""
        async with Reporting(ctx) as reporting:
            report = await server.app.run(
                command,
                cwd=cwd,
                timeout_s=timeout_s,
                limit=max_output_chars,
                name=sandbox_name,
                patience_s=server.app.patience_s or patience_of(client_name(ctx)),
                progress=beats(reporting, timeout_s),
            )
        return reply(exec_fields(report), exec_text(report))

    return exec_bash


def check_task(server: SandboxServer) -> Any:
    async def check_background_task(
        tmux_session: Handle,
        last_n_lines: Annotated[int, Field(description="Default 50", ge=1, le=5000)] = 50,
        sandbox_name: SandboxName = "",
    ) -> Annotated[CallToolResult, TaskShape]:
        """Ask after a command that outlasted its call: does it run, how did it end, what did it print last."""
        report = await server.app.check(tmux_session, name=sandbox_name)
        return reply(task_fields(report, last_n_lines), exec_text(report))

    return check_background_task


def stop_task(server: SandboxServer) -> Any:
    async def stop_background_task(
        tmux_session: Handle, sandbox_name: SandboxName = ""
    ) -> Annotated[CallToolResult, TaskShape]:
        """End a command's whole process tree (TERM, then KILL) and say whether it is gone."""
        report = await server.app.stop(tmux_session, name=sandbox_name)
        fields = task_fields(report, 50)
        if isinstance(report.seen, Running):
            fields["error"] = "it was told to stop but is still running; ask again with check_background_task"
        return reply(fields, exec_text(report))

    return stop_background_task


def client_name(ctx: Context[None, Any]) -> str:
    params = ctx.session.client_params
    return params.client_info.name if params else ""


def beats(reporting: Reporting, total: float) -> Progress:
    def send(beat: Beat, /) -> None:
        reporting.send(beat.seconds, total, beat.line or f"{beat.seconds:.0f} s, nothing printed yet")

    return send
