"""Tools for disposable sandboxes: make one, run in it, put files in and take them out, throw it away."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field
from typing_extensions import TypedDict

from ...core.disposable import Limits, SandboxOrder, Volume
from ...core.errors import BadArgument, SandboxError
from ...core.files import Span
from ..clients import calling, room
from ..containers import disposable_fields
from ..reporting import Reporting
from ..results import exec_fields, exec_text, plain_text, reply
from ..server import SandboxServer
from ..shapes import CommandShape, DisposableShape, FilesShape
from ..texts import files_text, told
from ..transfers import copied_fields
from .exec import RUN, beats, patience

MAKE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
GET = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
END = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)

SandboxId = Annotated[str, Field(description="An id or name, also of an SSH machine")]


class Upload(TypedDict, total=False):
    """One file: its bytes as base64 or text, or a file or folder of the user's machine."""

    path: str
    content: str
    text: str
    local_path: str


def offer(server: SandboxServer) -> None:
    # Each outlives its server, so that there is nothing to ask for; earlier clients still do.
    server.offer(create(server), title="Make a disposable sandbox", annotations=MAKE, unlisted=("keep",))
    server.offer(run(server), title="Run a command in a sandbox", annotations=RUN)
    server.offer(upload(server), title="Put files into a sandbox", annotations=END)
    server.offer(download(server), title="Take files out of a sandbox", annotations=GET)
    server.offer(delete(server), title="Throw a sandbox away", annotations=END)


def create(server: SandboxServer) -> Any:
    async def create_sandbox(
        ctx: Context[None, Any],
        image: Annotated[str, Field(description="Default: the configured one")] = "",
        timeout: Annotated[float, Field(description="Seconds to live; renewed while in use. 0: configured")] = 0,
        env: Annotated[Mapping[str, str], Field()] = {},
        name: str = "",
        cpu: float = 0,
        memory: Annotated[str, Field(description="As 512m or 2g")] = "",
        gpu: int = 0,
        network: Annotated[bool | list[str] | None, Field(description="false, or the only hosts: must hold")] = None,
        volumes: Annotated[Sequence[str], Field(description="source:target[:rw], where the platform allows")] = (),
        keep: bool = False,
    ) -> Annotated[CallToolResult, DisposableShape]:
        """Make a clean, isolated sandbox; all tools take its sandbox_id as sandbox_name. delete_sandbox when done."""
        order = SandboxOrder(
            name=name,
            image=image,
            timeout_s=timeout or server.app.settings.rules.default_timeout_s,
            env=env,
            limits=Limits(cpu=cpu, memory_mb=megabytes(memory), gpus=gpu),
            network=network if network is None else bool(network),
            hosts=tuple(network) if isinstance(network, list) else (),
            volumes=tuple(map(volume, volumes)),
        )
        if image.startswith(("/", "~", ".")):
            # A folder of the user's machine is shown inside.
            server.app.copies.check_roots(image)
        made = await server.app.disposables.create(order)
        selection = server.clients.selection(ctx)
        if not (server.app.fleet.default or server.app.fleet.refusal) and selection:
            # Where nothing else is configured, it is the one that is meant.
            await selection.choose(made.id)
        await tell_change(ctx)
        fields = disposable_fields(made)
        return reply(fields, told(f"{made.id} is {made.status}", fields, without=("sandbox_id", "status")))

    return create_sandbox


def run(server: SandboxServer) -> Any:
    async def run_command(
        sandbox_id: SandboxId,
        command: str,
        ctx: Context[None, Any],
        timeout: Annotated[float, Field(description="Seconds, default 120")] = 120,
        cwd: str = "",
    ) -> Annotated[CallToolResult, CommandShape]:
        """Run a command in a sandbox, as exec_bash does."""
        async with Reporting(ctx) as reporting:
            report = await server.app.run(
                command,
                cwd=cwd,
                timeout_s=timeout,
                name=sandbox_id,
                patience_s=patience(server, ctx),
                room=room(),
                progress=beats(reporting, timeout),
            )
        fields = {"stdout": "", "stderr": "", "duration": round(getattr(report.seen, "seconds", 0.0), 3)}
        return reply(fields | exec_fields(report), exec_text(report))

    return run_command


def upload(server: SandboxServer) -> Any:
    async def upload_files(
        sandbox_id: SandboxId,
        files: Annotated[
            Sequence[Upload], Field(description="path, and one of content (base64), text, local_path (file or folder)")
        ],
    ) -> Annotated[CallToolResult, FilesShape]:
        """Put files into a sandbox. local_path copies from the user's machine without passing through you."""
        done: list[dict[str, Any]] = []
        try:
            for file in files:
                done.append(await put(server, sandbox_id, file))
        except SandboxError as problem:
            if done:
                before = ", ".join(str(file["path"]) for file in done)
                problem.args = (f"{problem}; of {len(files)}, these were put in place before it: {before}",)
            raise
        return reply({"files": done}, files_text("put in place", done))

    return upload_files


def download(server: SandboxServer) -> Any:
    async def download_files(
        sandbox_id: SandboxId,
        paths: Sequence[str],
        local_dir: Annotated[str, Field(description="Folder of the user's machine to copy into instead")] = "",
        max_bytes: Annotated[int, Field(description="Of each file, default 1000000", ge=1, le=16_000_000)] = 1_000_000,
    ) -> Annotated[CallToolResult, FilesShape]:
        """Take files out of a sandbox: as base64 or, with local_dir, copied (folders, too) without passing by you."""
        # A client that shows results to a model cuts them; base64 that is cut is of no use to anybody.
        each = max_bytes if not calling.get().name else min(max_bytes, room() * 3 // 4 // max(1, len(paths)))
        done = [await take(server, sandbox_id, path, local_dir, max(1, each)) for path in paths]
        more = any(file.get("truncated") for file in done)
        text = files_text("taken", done) + ("\nwhat is truncated: local_dir copies it whole" if more else "")
        return reply({"files": done}, text, whole=True)

    return download_files


def delete(server: SandboxServer) -> Any:
    async def delete_sandbox(sandbox_id: str, ctx: Context[None, Any]) -> Annotated[CallToolResult, DisposableShape]:
        """End a disposable sandbox and all that runs in it, and remove its files."""
        if await server.app.restart(sandbox_id):
            text = f"{sandbox_id} is configured, so it stays, with its files; all that ran in it was ended"
            return reply({"sandbox_id": sandbox_id, "status": "restarted"}, text)
        gone = await server.app.disposables.delete(sandbox_id)
        await server.app.workshop.forget(gone.id)
        await tell_change(ctx)
        return reply({"sandbox_id": gone.id, "status": "deleted"}, f"{gone.id} is deleted")

    return delete_sandbox


async def put(server: SandboxServer, sandbox: str, file: Upload) -> dict[str, Any]:
    path = file.get("path", "")
    given = [kind for kind in ("content", "text", "local_path") if kind in file]
    if not path or len(given) != 1:
        raise BadArgument("each of files needs path and exactly one of content (base64), text or local_path")
    if given == ["local_path"]:
        return copied_fields(path, await server.app.copies.copy_in(file["local_path"], path, name=sandbox))
    data = decoded(file["content"], path) if given == ["content"] else file["text"].encode("utf-8", "surrogateescape")
    written = await server.app.write(path, data, name=sandbox)
    return {"path": plain_text(path), "size": written.size}


async def take(server: SandboxServer, sandbox: str, path: str, local_dir: str, most: int) -> dict[str, Any]:
    if local_dir:
        place, outcome = await server.app.copies.copy_out(path, local_dir, name=sandbox)
        return copied_fields(path, outcome) | {"local_path": place}
    found = await server.app.read(path, Span(limit=most), name=sandbox)
    fields = {"path": plain_text(path), "size": found.size, "content": base64.b64encode(found.data).decode()}
    return fields | ({"truncated": True} if found.more else {})


def decoded(content: str, path: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise BadArgument(f"content of {path[:200]} is not base64; send base64, or use text") from None


def megabytes(text: str) -> int:
    """512m, 2g, 1.5GiB, or a plain number of megabytes."""
    units = {
        "": 1.0,
        "m": 1.0,
        "mb": 1.0,
        "mib": 1.0,
        "mi": 1.0,
        "g": 1024.0,
        "gb": 1024.0,
        "gib": 1024.0,
        "gi": 1024.0,
    }
    number = text.strip().lower()
    unit = number.lstrip("0123456789.")
    try:
        return int(float(number[: len(number) - len(unit)]) * units[unit.strip()]) if number else 0
    except (KeyError, ValueError, OverflowError):
        raise BadArgument(f"memory is {text[:40]!r}; write it as 512m or 2g") from None


def volume(text: str) -> Volume:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise BadArgument(f"a volume is written as source:/target or source:/target:rw, not {text[:80]!r}")
    return Volume(source, target, read_only=mode != "rw")


async def tell_change(ctx: Context[None, Any]) -> None:
    """Whoever has subscribed hears that the list of sandboxes is another, whichever protocol it speaks."""
    await ctx.notify_resources_changed()
    await ctx.session.send_resource_list_changed()
