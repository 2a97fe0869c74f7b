"""`platform`: an OpenSandbox server on the user's own Docker engine, for those who have no server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..config import paths
from ..config.load import load
from ..services.platform_server import life
from ..services.platform_server.life import PlatformState
from .render import Page, print_json
from .verb import add_json, complain, say

# Exit code of `status` where it does not run, or does not answer.
NOT_RUNNING = 1
NAMED = 5


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "platform",
        description="Disposable sandboxes as containers: starts an opensandbox-server on your Docker engine, which "
        "listens on this machine alone, with a key of its own. The tools find it by themselves. "
        "Without an action, shows its status.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    up = actions.add_parser("up", help="start it in the background, unless it is running")
    up.add_argument("--port", type=_port, default=0, help="default: the port used last time, else any free one")
    up.add_argument(
        "--execd-image", default="", metavar="IMAGE", help="the image of the agent that runs in each sandbox"
    )
    down = actions.add_parser("down", help="stop it; its sandboxes stay in the engine")
    status = actions.add_parser("status", help="show its status; exit code 1 if it does not run")
    add_json(parser, up, down, status)


def _port(word: str) -> int:
    if not word.isdecimal() or not 1024 <= int(word) <= 65535:
        raise argparse.ArgumentTypeError("must be a whole number from 1024 to 65535")
    return int(word)


async def run(options: argparse.Namespace) -> int:
    return await {"up": _up, "down": _down, "status": _status}[options.action or "status"](options)


async def _up(options: argparse.Namespace) -> int:
    volumes = load(options.config).settings.platform.volumes
    folders = [volume for volume in volumes if volume.startswith("/")]
    stands = await life.up(paths.state_folder(), port=options.port, execd_image=options.execd_image, folders=folders)
    if not _as_json(options, stands):
        say(f"The platform runs at {stands.url}, as process {stands.pid}.")
    # Read again: the configuration finds the platform that runs now, unless it names another server.
    in_force = load(options.config).settings.platform.server_url
    if in_force != stands.url:
        complain(f"the configuration names another server, {in_force}, so that one is used; config show says where.")
    return 0


async def _down(options: argparse.Namespace) -> int:
    before = await life.down(paths.state_folder())
    if _as_json(options, replace(before, running=False, pid=0)):
        return 0
    say("The platform has ended." if before.running else "The platform does not run.")
    if before.sandboxes and before.sandboxes.count:
        say(*_left(before.sandboxes.count, before.sandboxes.ids))
    return 0


def _left(count: int, ids: tuple[str, ...]) -> Iterator[str]:
    more = f" and {count - NAMED} more" if count > NAMED else ""
    plural = "es are" if count > 1 else " is"
    yield f"{count} sandbox{plural} left in the Docker engine: {', '.join(ids[:NAMED])}{more}."
    yield "Nobody ends them when their time is over until the platform is up again."


async def _status(options: argparse.Namespace) -> int:
    stands = await life.status(paths.state_folder())
    if not _as_json(options, stands):
        Page().facts(_facts(stands))
    return 0 if stands.answers else NOT_RUNNING


def _facts(stands: PlatformState) -> Iterator[tuple[str, str]]:
    yield "platform", f"runs as process {stands.pid or '?'}" if stands.running else "does not run"
    if stands.running:
        yield "address", stands.url
        yield "sandboxes", str(stands.sandboxes.count) if stands.sandboxes else "it does not answer"
        yield "log", str(stands.place.log)


def _as_json(options: argparse.Namespace, stands: PlatformState) -> bool:
    if options.json:
        sandboxes = stands.sandboxes
        fields = {
            "running": stands.running,
            "answers": stands.answers if stands.running else None,
            "pid": stands.pid or None,
            "url": stands.url or None,
            "sandboxes": sandboxes.count if sandboxes else None,
            "sandbox_ids": list(sandboxes.ids) if sandboxes and sandboxes.ids else None,
            "folder": str(stands.place.folder),
            "log_file": str(stands.place.log),
        }
        print_json({name: value for name, value in fields.items() if value is not None})
    return bool(options.json)
