"""`sandboxes`: lists them, whether each answers, how busy it is, and who uses its GPUs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.resources.checkup import address
from ..core.resources.usage import Gpu, Usage, gpu_fields
from ..core.sandboxes.cluster import ClusterUsage, cluster_fields
from ..views.texts import cluster_lines, gpu_users
from .render import Page, print_json, styled
from .verb import add_json, opened_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..core.sandboxes.sandbox import Description
    from ..services.survey import View

GIB = 1024


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sandboxes",
        description="Lists all sandboxes and whether each answers. * marks the one that is used when none is named.",
    )
    parser.add_argument("--resources", action="store_true", help="also CPU, memory, GPUs and who uses them")
    add_json(parser, help="for programs: what list_sandboxes returns")


async def run(options: argparse.Namespace) -> int:
    async with opened_app(options.config) as app:
        await (_print_json(app, options.resources) if options.json else _show(app, options.resources))
    return 0


async def _print_json(app: App, resources: bool) -> None:
    """Call the tool list_sandboxes itself, so that programs get exactly what agents get."""
    from ..fronts.mcp.prefetch import load

    # In the hub another client may be loading the same modules at this moment, in a thread.
    server = await asyncio.to_thread(load, ".server")
    result = await server.build(app).call_tool("list_sandboxes", {"check_resources": resources})
    print_json(getattr(result, "structured_content", None))


async def _show(app: App, resources: bool) -> None:
    page = Page()
    with page.waiting("asking all sandboxes"):
        views = await app.survey.of_all(resources=resources)
    if resources:
        for view in sorted(views, key=lambda view: -view.score):
            _show_resources(page, view)
        page.print("", styled(("idle: 1.00 is all free, 0.00 is all taken", "dim")))
    else:
        page.rows([_row(page, view) for view in views], indent=0)
    why_none = "" if views or not app.fleet.default else await app.fleet.member().why_not()
    if why_none:
        page.problems([f"{app.fleet.default} cannot be used here: {why_none}"])
    elif not views:
        page.print("No sandbox is configured; remote-sandbox-mcp doctor says where to begin.")
    page.problems(app.standing_problems())
    if not all(view.alive for view in views):
        page.print(styled(("remote-sandbox-mcp doctor looks closer at those that do not answer", "dim")))


def _row(page: Page, view: View) -> tuple[Text | str, ...]:
    what = view.description
    trouble = f"\n{view.cause}" if view.cause else ""
    name = styled((what.name, "bold"), (" *" if view.active else "", "cyan"))
    mark = page.mark("ok" if view.alive else "failed")
    return mark, name, what.kind, styled((_address(what), ""), (trouble, "red"))


def _address(what: Description) -> str:
    return address(what.user, what.host, what.port) if what.host else "this machine"


def _show_resources(page: Page, view: View) -> None:
    what = view.description
    idle = f"  idle {view.score:.2f}" if view.usage else ""
    title = [(what.name, "bold"), (" *" if view.active else "", "cyan")]
    page.print("", styled(*title, (f"  {what.kind} {_address(what)}", "dim"), (idle, "bold cyan")))
    if trouble := view.cause or view.usage_trouble:
        page.rows([(page.mark("failed"), styled((trouble, "red")))])
    if view.usage:
        if view.usage.cluster:
            show_cluster(page, view.usage.cluster)
        page.rows(_usage_rows(page, view.usage))
        page.problems([text for text in (view.usage.gpu_error, *view.usage.problems) if text])


def show_cluster(page: Page, cluster: ClusterUsage) -> None:
    """Print the lines that an agent gets for the cluster: they are a table already."""
    page.rows([(styled((line, "")),) for line in cluster_lines(cluster_fields(cluster))])
    page.print(styled(("  the login node itself:", "dim")))


def _usage_rows(page: Page, usage: Usage) -> Iterator[tuple[Text | str, ...]]:
    if cpu := usage.cpu:
        used, cpus = cpu.shown_pct, cpu.online or cpu.count or "?"
        load = ", ".join(filter(None, (f"load {cpu.load_1m:.1f} on {cpus} CPUs", _limited(usage))))
        bar = page.bar((used or 0.0) / 100)
        yield "CPU", bar, "?" if used is None else f"{used:.0f} %", styled((load, "dim"))
    if memory := usage.memory:
        share = memory.used_mb / memory.total_mb
        yield "memory", page.bar(share), _amount(memory.used_mb, memory.total_mb), ""
    if usage.disks and (disk := usage.disks[0]):
        used = disk.used_pct / 100
        yield "disk", page.bar(used), f"{disk.free_gb:.0f} GB free", styled((disk.path, "dim"))
    for gpu in usage.gpus:
        whose = styled((gpu.name, "dim"), (f"  {gpu_users(gpu_fields(gpu))}", ""))
        yield f"GPU {gpu.index}", page.bar(_share(gpu)), _gpu_use(gpu), whose


def _limited(usage: Usage) -> str:
    cpu = usage.cpu
    return f"{cpu.count} of them for us" if cpu and cpu.count and cpu.online and cpu.count < cpu.online else ""


def _amount(used_mb: float, total_mb: float) -> str:
    return f"{used_mb / GIB:.0f} of {total_mb / GIB:.0f} GB"


def _share(gpu: Gpu) -> float:
    """Return how full a GPU is: by its memory or its compute, whichever is fuller."""
    return max(gpu.mem_used_pct or 0, gpu.util_pct or 0) / 100


def _gpu_use(gpu: Gpu) -> str:
    parts = [] if gpu.util_pct is None else [f"{gpu.util_pct:.0f} %"]
    if gpu.mem_used_mb is not None and gpu.mem_total_mb:
        parts.append(_amount(gpu.mem_used_mb, gpu.mem_total_mb))
    return ", ".join(parts) or "unknown"
