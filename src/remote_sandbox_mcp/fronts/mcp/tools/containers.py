"""Tools for disposable sandboxes: make one, run in it, put files in and take them out, throw it away."""

from __future__ import annotations

import asyncio
import base64
import functools
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field
from typing_extensions import TypedDict

from ....core.check import text_argument
from ....core.errors import BadArgument, FileProblem, SandboxError
from ....core.sandboxes.disposable import (
    PENDING,
    Disposable,
    DisposableRules,
    Limits,
    SandboxOrder,
    gpus,
    megabytes,
    volume,
)
from ....core.sandboxes.files import Problem
from ....core.sandboxes.network import EVERY_HOST, unlisted
from ....core.sandboxes.slurm import read_options
from ....services.session import absolute, current
from ....views.app_results import disposable_fields
from ....views.results import exec_fields, exec_text, lean, plain_text, sentence
from ....views.sync_results import MOST_SHOWN, copied_fields, problem_fields
from ....views.texts import files_text, taken_text
from ..clients import calling, own_front, patience, room
from ..consent import Request, with_consent
from ..reporting import Reporting, beats, with_signs_of_life
from ..results import ResultImages, read_slice, reply, told
from ..server import GpuMemory, Places, SandboxServer
from ..shapes import CommandShape, DisposableShape, FilesShape
from ..toolbox import CHANGE, GET, MAKE, RUN, UNLISTED, Declaration
from .exec import RUNS_COMMAND, raw
from .files import READS, WRITES, from_base64
from .sync import ask_about_secrets

USUAL_BYTES, MOST_BYTES = 1_000_000, 16_000_000
CUT = "what is truncated: {}local_dir copies it whole"

Cards = Annotated[str, Field(pattern="[0-9]")]
SandboxId = Annotated[str, Field(description="An id or name, also of an SSH machine")]
LastCreated = Annotated[str, Field(description="Default: selected, or else created last")]


class Upload(TypedDict, total=False):
    """One file: its bytes as base64 or text, or a file or folder of the user's machine."""

    path: str
    content: str
    text: str
    local_path: str


def offer(server: SandboxServer) -> None:
    server.offer(create_sandbox, "Make a disposable sandbox", MAKE, Declaration(makes_sandbox=True, is_on_page=True))
    server.offer(run_command, "Run a command in a sandbox", RUN, RUNS_COMMAND)
    server.offer(upload_files, "Put files into a sandbox", CHANGE, replace(WRITES, paths=("files",)))
    server.offer(download_files, "Take files out of a sandbox", GET, replace(READS, paths=("paths",)))
    end = Declaration(means_selected=False, answers_once=True, is_on_page=True)
    server.offer(delete_sandbox, "Throw a sandbox away", CHANGE, end)


async def create_sandbox(
    server: SandboxServer,
    ctx: Context[None, Any],
    image: Annotated[str, Field(description="Default: the configured one")] = "",
    timeout: Annotated[float, Field(description="Seconds to live; renewed while in use. 0: configured")] = 0,
    env: Annotated[Mapping[str, str], Field(description="Variables of its commands")] = {},
    name: Annotated[str, Field(description="To call it by")] = "",
    cpu: Annotated[float, Field(description="Cores, at most")] = 0,
    memory: Annotated[str, Field(description="As 512m or 2g")] = "",
    gpu: Annotated[int | Cards, Field(description='How many; "0,2": these cards of a machine; "a100:2"')] = 0,
    gpu_memory: GpuMemory = "",
    network: Annotated[bool | list[str] | None, Field(description="false, or the only hosts, as pypi.org")] = None,
    volumes: Annotated[Sequence[str], Field(description="source:target[:rw], where the platform allows")] = (),
    on: Annotated[
        Places, Field(description="A machine with docker, podman or slurm; any, or a list; default: as configured")
    ] = "",
    slurm: Annotated[Mapping[str, str | int | bool], Field(description="sbatch options, as partition")] = {},
    # Accepted for old configurations: every sandbox outlives its process anyway.
    keep: Annotated[bool, UNLISTED] = False,
) -> Annotated[CallToolResult, DisposableShape]:
    """Make a clean, isolated sandbox; all tools take its sandbox_id as sandbox_name. delete_sandbox when done."""
    order = SandboxOrder(
        name=name,
        image=image,
        timeout_s=timeout or server.app.settings.rules.default_timeout_s,
        env=env,
        limits=Limits(cpu=cpu, memory_mb=megabytes(memory), gpu_memory_mb=megabytes(gpu_memory), **gpus(gpu)),
        network=network if network is None else bool(network),
        hosts=tuple(network) if isinstance(network, list) else (),
        volumes=tuple(map(volume, volumes)),
        provider=on,
        slurm=read_options(slurm),
    )
    if text_argument("image", image, required=False).startswith(("/", "~", ".")):
        # A folder of the user's computer is mounted as its root file system.
        order = replace(order, image=absolute(image))
        server.app.transfers.check_folder(image)
    until = time.monotonic() + patience()
    async with Reporting(ctx) as reporting:
        what = f"making a sandbox{f' from {image}' if image else ''}{f' on {on}' if on else ''}"

        async def make(is_agreed: bool) -> Disposable:
            # Whoever uses a front end of ours is a person.
            wanted = replace(order, free=is_agreed or bool(own_front.get()))
            return await with_signs_of_life(server.app.disposables.create(wanted), what, reporting)

        made = await with_consent(make, lambda problem: to_reach(order, server.app.settings.rules, problem))
        if made.status == PENDING:
            made = await started(server, made, until - time.monotonic(), reporting)
    if session := server.clients.session(ctx):
        session.note_created(made.id)
    if not (server.app.fleet.default or server.app.fleet.refusal) and session:
        # Where nothing else is configured, it becomes the client's selected sandbox.
        await session.selection.choose(made.id)
    return told(f"{made.id} is {made.status}", disposable_fields(made), "sandbox_id", "status")


def to_reach(order: SandboxOrder, rules: DisposableRules, problem: BadArgument) -> Request:
    """The request for a network that the operator's list does not have."""
    hosts = sorted({host.lower() for host in unlisted(order.hosts, rules.network_hosts)})
    everything = "all that this computer reaches" if rules.shares_host_network else "every host of the internet"
    command = shlex.join(["remote-sandbox-mcp", "create", *(f"--host={host}" for host in order.hosts)])
    return Request(
        kind="network",
        key=" ".join(hosts) or EVERY_HOST,
        question=f"Make a sandbox that can reach {', '.join(hosts) or everything}, and so send there what it is given?",
        refusal=f"no sandbox was made; network: {problem.found}",
        by_hand=f"{problem.remedy}, or make it with: {command if hosts else f'{command} --network'}",
        unasked=problem.remedy,
    )


async def started(server: SandboxServer, made: Disposable, seconds: float, reporting: Reporting) -> Disposable:
    """Wait until its queue has started it, or the client's patience ends. A call that is cancelled takes it out."""
    begun = time.monotonic()

    def report(reason: str) -> None:
        reporting.send(time.monotonic() - begun, None, f"{made.id} is pending: {reason}")

    disposables = server.app.disposables
    try:
        return await disposables.service.await_start(made.id, seconds, report)
    except asyncio.CancelledError:
        disposables.give_up(made.id)
        raise


async def run_command(
    server: SandboxServer,
    command: Annotated[str, Field(description="Shell source")],
    ctx: Context[None, Any],
    sandbox_id: LastCreated = "",
    timeout: Annotated[float, Field(description="Seconds, default 120")] = 120,
    cwd: Annotated[str, Field(description="Default: home")] = "",
    input: Annotated[str, UNLISTED] = "",
    env: Annotated[Mapping[str, str], UNLISTED] = {},
) -> Annotated[CallToolResult, CommandShape]:
    """Run a command in a sandbox, as exec_bash does."""
    async with Reporting(ctx) as reporting:
        report = await server.app.commands.run(
            command,
            cwd=cwd,
            timeout_s=timeout,
            name=sandbox_id,
            patience_s=patience(),
            room=room(),
            progress=beats(reporting),
            input=raw(input),
            env=env,
        )
    fields = {"stdout": "", "stderr": "", "duration": round(getattr(report.seen, "seconds", 0.0), 3)}
    return reply(fields | exec_fields(report), exec_text(report))


async def upload_files(
    server: SandboxServer,
    sandbox_id: SandboxId,
    files: Annotated[
        Sequence[Upload], Field(description="path, and one of content (base64), text, local_path (file or folder)")
    ],
) -> Annotated[CallToolResult, FilesShape]:
    """Put files into a sandbox. local_path copies from the user's machine without passing through you."""
    done: list[dict[str, Any]] = []
    transfers = server.app.transfers
    named = [transfers.place(file["local_path"], sandbox=None) for file in files if file.get("local_path")]
    await ask_about_secrets(server, named, sandbox_id)
    try:
        for file in files:
            done.append(await put(server, sandbox_id, file))
    except SandboxError as problem:
        if done:
            before = ", ".join(str(file["path"]) for file in done)
            problem.args = (f"{problem}; of {len(files)}, these were put in place before it: {before}",)
        raise
    return reply({"files": done}, files_text("put in place", done))


async def download_files(
    server: SandboxServer,
    sandbox_id: SandboxId,
    paths: Annotated[Sequence[str], Field(description="Files there; with local_dir also folders")],
    local_dir: Annotated[str, Field(description="Folder of the user's machine to copy into instead")] = "",
    content: Annotated[bool, Field(description="Whole content, 16 MB each, also of images")] = False,
    max_bytes: Annotated[int, Field(description="Of each file", ge=0, le=MOST_BYTES)] = 0,
    encoding: Annotated[Literal["", "base64"], UNLISTED] = "",
) -> Annotated[CallToolResult, FilesShape]:
    """Take files out of a sandbox: images are shown, others come as base64 or, with local_dir, all are copied
    (folders, too) without passing by you."""
    is_whole = content or calling.get().is_stranger
    # Known clients cut results for their model, and truncated base64 is useless.
    room_each = MOST_BYTES if is_whole else room() * 3 // 4 // max(1, len(paths))
    images = None if encoding else ResultImages()
    taking = functools.partial(take, server, sandbox_id, max_bytes=max_bytes, is_whole=is_whole, images=images)
    done, problems = [], []
    for path in paths:
        try:
            done.append(fitting(await taking(path, local_dir), room_each))
        except FileProblem as problem:
            problems.append(Problem(path, sentence(problem)))
    if problems and not done:
        raise FileProblem("; ".join(problem.reason for problem in problems[:MOST_SHOWN]))
    is_cut = any(file.get("truncated") for file in done)
    note = CUT.format("" if is_whole else "content=true returns up to 16 MB of it, ") if is_cut else ""
    fields = {"files": done} | problem_fields(tuple(problems), len(problems)) | lean(note=note)
    return reply(fields, taken_text(fields), whole=is_whole, images=images.blocks if images else ())


async def delete_sandbox(
    server: SandboxServer,
    sandbox_id: Annotated[str, Field(description="An id or name")],
) -> Annotated[CallToolResult, DisposableShape]:
    """End a disposable sandbox and all that runs in it, and remove its files."""
    if await server.app.restart(sandbox_id):
        text = f"{sandbox_id} is configured, so it stays, with its files; all that ran in it was ended"
        return reply({"sandbox_id": sandbox_id, "status": "restarted"}, text)
    gone = await server.app.disposables.service.delete(sandbox_id)
    await server.app.apps.forget(gone.id)
    current().note_deleted(gone.id)
    return reply({"sandbox_id": gone.id, "status": "deleted"}, f"{gone.id} is deleted")


async def put(server: SandboxServer, sandbox: str, file: Upload) -> dict[str, Any]:
    path = file.get("path", "")
    given = [kind for kind in ("content", "text", "local_path") if kind in file]
    if not path or len(given) != 1:
        raise BadArgument("each of files needs path and exactly one of content (base64), text or local_path")
    if given == ["local_path"]:
        return copied_fields(path, await server.app.transfers.copy_in(file["local_path"], path, name=sandbox))
    if given == ["content"]:
        data = from_base64(file["content"], f"content of {path[:200]} is not base64; send base64, or use text")
    else:
        data = file["text"].encode("utf-8", "surrogateescape")
    written = await server.app.files.write(path, data, name=sandbox)
    return {"path": plain_text(path), "size": written.size}


async def take(
    server: SandboxServer,
    sandbox: str,
    path: str,
    local_dir: str,
    *,
    max_bytes: int,
    is_whole: bool,
    images: ResultImages | None,
) -> dict[str, Any]:
    if local_dir:
        place, outcome = await server.app.transfers.copy_out(path, local_dir, name=sandbox)
        return copied_fields(path, outcome) | {"local_path": place}
    usual = MOST_BYTES if is_whole else USUAL_BYTES
    found, image = await read_slice(server.app, path, usual=usual, limit=max_bytes or usual, name=sandbox)
    fields: dict[str, Any] = {"path": plain_text(path), "size": found.size}
    is_shown = image is not None and images is not None
    if image and images:
        fields |= images.add(image, found)
    if is_whole or not is_shown:
        fields |= {"content": base64.b64encode(found.data).decode()} | lean(truncated=found.more)
    return fields


def fitting(taken: dict[str, Any], most: int) -> dict[str, Any]:
    """The fields of a file with at most so many bytes of its content."""
    content = base64.b64decode(taken.get("content", ""))
    if len(content) <= most:
        return taken
    return taken | {"content": base64.b64encode(content[: max(1, most)]).decode(), "truncated": True}
