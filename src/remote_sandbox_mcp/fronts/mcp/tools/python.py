"""The tool that runs Python in a session that lives on the sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from ....core.commands.command import Excerpt, Running
from ....core.commands.interpreter import PythonOrder, PythonRecord
from ....core.jobs.placement import read_request
from ....core.texts.image import recognise
from ....core.texts.text import clip, harmless
from ....views.results import exec_head, lean, plain_text, truncation
from ..clients import patience, room
from ..reporting import Reporting, beats
from ..results import ResultImages, placed, told
from ..server import GpuMemory, Gpus, Places, SandboxServer
from ..shapes import PythonShape
from ..toolbox import RUN, UNLISTED
from .exec import RUNS, RUNS_COMMAND

if TYPE_CHECKING:
    from ....services.sessions.python import PythonReport

MEGABYTE = 1_000_000
RUNS_PYTHON = replace(RUNS_COMMAND, workspace=replace(RUNS, scripts=(), prepares=True), is_on_page=False)
GOES_ON = "the code did not end when it was interrupted and still runs; the session is busy until it ends"


def offer(server: SandboxServer) -> None:
    server.offer(run_python, "Run Python", RUN, RUNS_PYTHON)


async def run_python(
    server: SandboxServer,
    code: Annotated[str, Field(description="Empty: last result")],
    ctx: Context[None, Any],
    session: Annotated[str, Field(description="Name")] = "main",
    timeout_s: Annotated[float, Field(description="Limit")] = 120,
    sandbox_name: Places = "",
    python: Annotated[str, Field(description="Program or environment")] = "",
    cwd: Annotated[str, Field(description="Default: home")] = "",
    gpus: Gpus = 0,
    gpu_memory: GpuMemory = "",
    max_output_chars: Annotated[int, UNLISTED] = 20000,
) -> Annotated[CallToolResult, PythonShape]:
    """Run code in a Python that lives on the sandbox between calls, with its variables. Figures are shown."""
    order = PythonOrder(
        code=code, session=session, timeout_s=timeout_s, python=python, cwd=cwd, limit=max_output_chars,
        cards=read_request(gpus, gpu_memory),
    )  # fmt: skip
    async with Reporting(ctx) as reporting:
        report = await server.app.pythons.run(
            order, name=sandbox_name, patience_s=patience(), room=room(), progress=beats(reporting)
        )
    # Value, traceback and what was printed have to fit together.
    return placed(result_of(report, min(max_output_chars, room() // 4)), sandbox_name, report.sandbox)


def result_of(report: PythonReport, limit: int) -> CallToolResult:
    if report.record is None or isinstance(report.seen, Running):
        fields = {"running": True, "tmux_session": report.seen.run_id}
        fields |= lean(stdout=report.stdout.text, stderr=report.stderr.text) | truncation(report)
        return told(exec_head(report), fields, "running", "tmux_session")
    images = ResultImages()
    fields = record_fields(report, report.record, limit) | lean(images=image_fields(report, images))
    without = ("new", "python", "timed_out", "interrupted")
    return told(first_line(report.record), fields, *without, images=images.blocks)


def record_fields(report: PythonReport, record: PythonRecord, limit: int) -> dict[str, Any]:
    # Of the session, that it is new, or in another folder than the call wanted.
    python, gpus = (f"{record.version} {record.python}", [*record.cards]) if record.is_new else ("", [])
    return lean(
        value=clipped(record.value, limit),
        stdout=report.stdout.text,
        stderr=report.stderr.text,
        traceback=clipped(record.traceback, limit),
        timed_out=record.state == "timed_out",
        interrupted=record.state == "interrupted",
        still_running=GOES_ON if record.goes_on else "",
        died=plain_text(record.death),
        earlier_output=clipped(record.earlier, limit // 3),
        earlier_output_dropped=record.earlier_dropped or None,
        new=record.is_new,
        python=plain_text(python),
        folder=plain_text(record.folder),
        gpus=gpus,
        note=report.note,
        images_not_shown=record.unseen or None,
        memory_mb=round(record.memory / MEGABYTE) or None,
        gpu_memory_mb=round(record.gpu / MEGABYTE) or None,
    ) | truncation(report)


def image_fields(report: PythonReport, images: ResultImages) -> list[dict[str, Any]]:
    """One entry for each image; what is none, or is too large, is not shown and says why."""
    rows = []
    for found in report.images:
        image = recognise(found.data)
        rows.append(images.add(image, found) if image else {"size": found.size, "problem": "it is no image"})
    return rows


def clipped(text: str, limit: int) -> str:
    data = text.encode("utf-8", "surrogateescape")
    return clip(Excerpt(data, total=len(data)), max(200, limit)).text


def first_line(record: PythonRecord) -> str:
    how = {"done": "done", "error": "an exception", "timed_out": "timed out", "died": "died"}.get(record.state)
    new = f", in a new session of {record.version} {record.python}" if record.is_new else ""
    return harmless(f"{how or record.state} after {record.seconds:.1f} s{new}".encode("utf-8", "surrogateescape"))
