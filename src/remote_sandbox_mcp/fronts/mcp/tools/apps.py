"""Tools that run a test suite, start an app for people to look at, and bring a port of a sandbox to this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from ....core.commands.command import Running
from ....core.jobs.placement import place_of, read_request
from ....core.sandboxes.port import DeployOrder
from ....core.suites.suite import TestReport
from ....views.app_results import LOG_CHARS, deployed_fields, forward_fields, report_fields, report_text, running_fields
from ..clients import patience, room
from ..reporting import Reporting, beats
from ..results import placed, reply, told
from ..server import GpuMemory, Gpus, Places, SandboxServer
from ..shapes import DeployedShape, ForwardShape, SuiteShape
from ..toolbox import GET, RUN, Declaration
from .containers import SandboxId
from .exec import RUNS, STARTS

RUNS_TESTS = Declaration(starts=True, workspace=replace(RUNS, folder="path", handle="tmux_session", prepares=True))
OneOrBest = Annotated[Places, Field(description="An id or name, or as in exec_bash_background")]
IN_REPORT_TEXT = ("passed", "failed", "skipped", "errors", "problem", "other_runners")


def offer(server: SandboxServer) -> None:
    server.offer(run_tests, "Run a test suite", RUN, RUNS_TESTS)
    server.offer(deploy_app, "Start an app and give its address", RUN, Declaration(starts=True, workspace=STARTS))
    server.offer(forward_port, "Bring a port to this machine", GET, Declaration(is_on_page=True))


async def run_tests(
    server: SandboxServer,
    sandbox_id: OneOrBest,
    ctx: Context[None, Any],
    command: Annotated[str, Field(description="Default: found by what is in path")] = "",
    path: Annotated[str, Field(description="The project's folder; default: home")] = "",
    timeout: Annotated[float, Field(description="Seconds, default 600")] = 600,
    tmux_session: Annotated[str, Field(description="Of a suite that came back as running: its results")] = "",
    gpus: Gpus = 0,
    gpu_memory: GpuMemory = "",
) -> Annotated[CallToolResult, SuiteShape]:
    """Run a project's tests (pytest, unittest, node, vitest, jest, go, cargo, anything with JUnit XML) and return
    counts, failing ids with message and place, coverage. A crash is told as problem, never as 0 failed."""
    cards = read_request(gpus, gpu_memory)
    sandbox = await server.app.suites.place(sandbox_id, cards, tmux_session)
    if tmux_session:
        return placed(suite_reply(await server.app.suites.results_of(sandbox, tmux_session)), sandbox_id, sandbox)
    async with Reporting(ctx) as reporting:
        limits = {"timeout_s": timeout, "patience_s": patience()}
        report = await server.app.suites.run_tests(
            sandbox, command=command, path=path, progress=beats(reporting), cards=cards, **limits
        )
    return placed(suite_reply(report), sandbox_id, sandbox)


def suite_reply(report: TestReport | Running) -> CallToolResult:
    if isinstance(report, Running):
        again = f"still running; after wait_background_task, call run_tests(tmux_session={report.run_id!r})"
        return told(again, running_fields(report), "running", "tmux_session")
    return told(report_text(report), report_fields(report, min(LOG_CHARS, room() // 4)), *IN_REPORT_TEXT)


async def deploy_app(
    server: SandboxServer,
    sandbox_id: OneOrBest,
    command: Annotated[str, Field(description="Starts it and stays in the foreground")],
    port: Annotated[int, Field(description="That it listens on", ge=1, le=65535)],
    ctx: Context[None, Any],
    health_path: Annotated[str, Field(description="Such as /health; waited for")] = "",
    timeout: Annotated[float, Field(description="Seconds to become healthy, default 60")] = 60,
    cwd: Annotated[str, Field(description="Default: home")] = "",
    gpus: Gpus = 0,
    gpu_memory: GpuMemory = "",
) -> Annotated[CallToolResult, DeployedShape]:
    """Start an app as a background job, wait for its port, and return a URL that opens on the user's machine."""
    async with Reporting(ctx) as reporting:
        sandbox, places = place_of(sandbox_id)
        order = DeployOrder(
            sandbox="" if places else server.app.fleet.member(sandbox).name,
            places=places,
            cards=read_request(gpus, gpu_memory),
            command=command,
            port=port,
            cwd=cwd,
            health_path=health_path,
            timeout_s=min(timeout, patience()),
        )
        deployed = await server.app.apps.deploy(order, beats(reporting))
    fields = deployed_fields(deployed)
    first = ": ".join(filter(None, (fields["status"], fields.get("url"))))
    return told(first, fields, "status", "url")


async def forward_port(
    server: SandboxServer,
    sandbox_id: SandboxId,
    port: Annotated[int, Field(description="In the sandbox", ge=1, le=65535)],
    local_port: Annotated[int, Field(description="If allowed; default: any free", ge=0, le=65535)] = 0,
    close: Annotated[bool, Field(description="End it")] = False,
) -> Annotated[CallToolResult, ForwardShape]:
    """Bring a port of a sandbox (TensorBoard, Jupyter, vLLM) to 127.0.0.1 of the user's machine."""
    if close:
        await server.app.apps.close_port(sandbox_id, port)
        return reply({"status": "closed", "port": port}, f"port {port} is closed")
    opened = await server.app.apps.forward(sandbox_id, port, local_port=local_port)
    fields = forward_fields(opened)
    return told(f"{fields['url']} leads to port {port}", fields, "url", "port")
