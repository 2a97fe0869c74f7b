"""`create` and `delete`: a disposable sandbox is made, whose id is printed; or ended, with all that runs in it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument
from ..core.sandboxes.disposable import PENDING, Disposable, Limits, SandboxOrder, gpus, megabytes, volume
from ..services.session import absolute
from . import streams
from .render import print_json
from .verb import add_json, complain, for_each, say, with_app

if TYPE_CHECKING:
    from ..app import App

# How long one may wait in the queue of a cluster before the command returns; it goes on waiting there.
QUEUE_S = 30.0


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "create",
        description="Makes a clean, isolated sandbox and prints its id, which every verb takes as --sandbox. It lives "
        "until it is deleted, or until nobody has used it for its timeout.",
    )
    parser.add_argument("--image", default="", metavar="IMAGE", help="default: the configured one")
    parser.add_argument("--name", default="", metavar="NAME", help="a name for it")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="delete it after S seconds without use")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for its commands")
    parser.add_argument("--cpu", type=float, default=0.0, metavar="N", help="at most N cores")
    parser.add_argument("--memory", default="", metavar="SIZE", help="at most this much memory, such as 512m or 2g")
    parser.add_argument("--gpu", default="0", metavar="N", help='how many GPUs; "0,2" names cards')
    parser.add_argument("--gpu-memory", default="", metavar="SIZE", help="memory that each of them must have, as 40g")
    parser.add_argument("--volume", action="append", default=[], metavar="SOURCE:TARGET[:rw]", help="if it is allowed")
    parser.add_argument(
        "--on", default="", metavar="NAMES", help="a machine with docker, podman or slurm; any, or a,b: the best"
    )
    network = parser.add_mutually_exclusive_group()
    network.add_argument("--network", action="store_true", default=None, help="with the whole network")
    network.add_argument("--no-network", dest="network", action="store_false", help="without a network, or fail")
    network.add_argument("--host", action="append", default=[], metavar="HOST", help="with these hosts only")
    add_json(parser, help="for programs: what create_sandbox returns")
    parser = subparsers.add_parser(
        "delete",
        description="Ends disposable sandboxes and everything that runs in them, and removes their files. If one "
        "cannot be deleted, the others still are. The exit code is 0 if all are gone.",
    )
    parser.add_argument("ids", nargs="+", metavar="ID", help="ids or names")
    add_json(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    return await (_delete if options.verb == "delete" else _create)(app, options)


async def _delete(app: App, options: argparse.Namespace) -> int:
    async def delete(name: str) -> dict[str, str]:
        gone = await app.disposables.service.delete(name)
        await app.apps.forget(gone.id)
        return {"sandbox_id": gone.id}

    return await for_each(options.ids, delete, "sandbox_id", "deleted", options.json)


async def _create(app: App, options: argparse.Namespace) -> int:
    made = await app.disposables.create(_order(app, options))
    if made.status == PENDING:
        complain(f"{made.id} is pending: {made.reason}")
        made = await app.disposables.service.await_start(made.id, QUEUE_S, lambda reason: None)
    return _print_result(made, options.json)


def _print_result(made: Disposable, as_json: bool) -> int:
    if as_json:
        from ..views.app_results import disposable_fields

        print_json(disposable_fields(made))
        return 0
    say(made.id)
    complain(*made.notes)
    return 0


def _order(app: App, options: argparse.Namespace) -> SandboxOrder:
    is_folder = options.image.startswith(("/", "~", "."))
    cards = gpus(int(options.gpu) if options.gpu.isdecimal() else options.gpu)
    cards |= {"gpu_memory_mb": megabytes(options.gpu_memory)}
    return SandboxOrder(
        name=options.name,
        image=absolute(options.image) if is_folder else options.image,
        timeout_s=options.timeout or app.settings.rules.default_timeout_s,
        env=dict(map(_variable, options.env)),
        limits=Limits(cpu=options.cpu, memory_mb=megabytes(options.memory), **cards),
        network=True if options.host else options.network,
        hosts=tuple(options.host),
        volumes=tuple(map(volume, options.volume)),
        provider=options.on,
        free=True,
    )


def _variable(text: str) -> tuple[str, str]:
    """NAME=VALUE; a NAME alone is passed on from here, so that its value is not in the list of processes."""
    name, equals, value = text.partition("=")
    if not equals and name not in streams.caller().environ:
        raise BadArgument(f"--env {name[:60]}: that variable is not set here; write NAME=VALUE, or set it")
    return name, value if equals else streams.caller().environ[name]
