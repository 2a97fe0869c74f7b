"""`usage`: GPU-hours of the machines, by user, job, day or machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..core.resources.history import total
from .allow import duration
from .render import Page, one_line, print_json, styled
from .verb import add_json, complain, with_app

if TYPE_CHECKING:
    from ..app import App

# What stands beside each of these in the table.
BESIDES = {"user": ("user",), "job": ("job", "user"), "day": ("day", "user"), "machine": ("machine", "user")}
BAR = 20


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "usage",
        description="Adds up for how long GPUs were used on machines that were connected: by a job that had leased "
        "them, else by the users of the processes on them. What was measured is kept for 90 days.",
    )
    parser.add_argument(
        "--since", type=duration, default=duration("7d"), metavar="TIME", help="30m, 12h, 7d (default) or 4w ago"
    )
    parser.add_argument("--by", choices=[*BESIDES], default="user", help="user (default), job, day or machine")
    add_json(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    rows = await app.machine_history.gpu_hours(options.since)
    names = BESIDES[options.by]
    sums = {key: hours for key, hours in total(rows, *names).items() if key[0]}
    if options.json:
        used = [{**dict(zip(names, key, strict=True)), "gpu_hours": hours} for key, hours in sums.items()]
        print_json({"since_s": options.since, "by": options.by, "total": round(sum(sums.values()), 2), "usage": used})
        return 0
    if not sums:
        complain("no GPU of a connected machine was used in this time, as far as it was measured")
        return 0
    most = max(sums.values())
    table: list[tuple[Any, ...]] = [
        (*map(one_line, key), f"{hours:.1f}", styled(("\u2588" * max(1, round(BAR * hours / most)), "cyan")))
        for key, hours in sums.items()
    ]
    Page().table((*names, "GPU-hours", ""), table)
    return 0
