"""Tools that make a folder or file at one place like that at another, at once or in the background."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field, StrictInt
from pydantic.json_schema import SkipJsonSchema

from ....core.check import in_range
from ....core.errors import BadArgument
from ....core.sync.transfer import Headway, Listener, Order, Outcome, Place
from ....core.texts.text import counted
from ....views import originals, sync_results
from ....views.results import lean, plain_text
from ....views.texts import transfers_text
from ..consent import Request, agreed, with_consent
from ..reporting import Reporting
from ..results import reply, told
from ..server import SandboxName, SandboxServer
from ..shapes import CancelledShape, PullShape, PushShape, TransferShape
from ..toolbox import ASK, CHANGE, Declaration, WorkspacePart

if TYPE_CHECKING:
    from ....local.store.transfers import Transfer

COPIES = Declaration(paths=("remote_path",), other_paths=("local_path",), workspace=WorkspacePart())
# A transfer that ends this soon needs no second call.
MOMENT_S = 3.0
# Many clients give a call up after 60 s.
LONGEST_WAIT_S = 55.0
LISTED = 20

LocalPath = Annotated[str, Field(description="On the user's machine")]
RemotePath = Annotated[str, Field(description="gpu1:/path names another sandbox")]
Excludes = Annotated[Sequence[str], Field(description=".gitignore lines")]
ExcludeFile = Annotated[str, Field(description="File of such lines")]
DefaultExcludes = Annotated[bool, Field(description="Also .git, .venv, caches")]
Gitignore = Annotated[bool, Field(description="Obey .gitignore files")]
Checksum = Annotated[bool, Field(description="Compare content, not size and time")]
Extras = Annotated[bool, Field(description="Delete what the source has not; never what is excluded")]
Confirm = Annotated[bool, Field(description="For delete_extras in home or from an empty source")]
DryRun = Annotated[bool, Field(description="Only show what would be done, and why")]


# Earlier versions returned texts.
Number = StrictInt | SkipJsonSchema[str]


def offer(server: SandboxServer) -> None:
    pushes, pulls = (replace(COPIES, earlier=earlier) for earlier in (originals.pushed, originals.pulled))
    server.offer(sync_local_to_remote, "Copy to a sandbox", CHANGE, pushes)
    server.offer(sync_remote_to_local, "Copy from a sandbox", CHANGE, pulls)
    waits = Declaration(only_waits=True, earlier=originals.transferred)
    server.offer(check_file_transfer_task, "Ask after a transfer", ASK, waits)
    server.offer(cancel_file_transfer_task, "Cancel a transfer", CHANGE, Declaration(is_on_page=True))
    # Listed where the operator asks for advanced tools; clients that know its name may always call it.
    copies, is_listed = replace(COPIES, workspace=None), server.app.settings.expose_advanced_tools
    title = "Copy to a sandbox in the background"
    server.offer(sync_local_to_remote_background, title, CHANGE, copies, is_listed=is_listed)


async def sync_local_to_remote(
    server: SandboxServer,
    ctx: Context[None, Any],
    local_path: LocalPath = ".",
    remote_path: RemotePath = ".",
    delete_extras: Extras = False,
    excludes: Excludes = (),
    exclude_file: ExcludeFile = "",
    sandbox_name: SandboxName = "",
    default_excludes: DefaultExcludes = True,
    respect_gitignore: Gitignore = False,
    checksum: Checksum = False,
    confirm_delete: Confirm = False,
    dry_run: DryRun = False,
) -> Annotated[CallToolResult, PushShape]:
    """Make remote_path like local_path: sends only what differs (new or other size or time), with modes and times.

    A large transfer goes on in the background: ask with check_file_transfer_task(task_id)."""
    return await carry_out(server, order_of(server, locals()), ctx, dry_run, confirm=confirm_delete)


async def sync_remote_to_local(
    server: SandboxServer,
    ctx: Context[None, Any],
    remote_path: RemotePath = ".",
    local_path: LocalPath = "./remote_mirror",
    excludes: Excludes = (),
    exclude_file: ExcludeFile = "",
    sandbox_name: SandboxName = "",
    default_excludes: DefaultExcludes = True,
    respect_gitignore: Gitignore = False,
    checksum: Checksum = False,
    dry_run: DryRun = False,
) -> Annotated[CallToolResult, PullShape]:
    """Make local_path like remote_path; as sync_local_to_remote, and nothing is deleted."""
    return await carry_out(server, order_of(server, locals(), is_pull=True), ctx, dry_run)


async def sync_local_to_remote_background(
    server: SandboxServer,
    local_path: LocalPath = ".",
    remote_path: RemotePath = ".",
    delete_extras: Extras = False,
    excludes: Excludes = (),
    exclude_file: ExcludeFile = "",
    sandbox_name: SandboxName = "",
) -> Annotated[CallToolResult, PushShape]:
    """Do sync_local_to_remote in the background at once, however little it is."""
    order = order_of(server, locals())
    await ask_about_secrets(server, [order.source], order.target.sandbox)
    transfer = await server.app.transfers.sync(order, wait_s=0, background=True)
    assert not isinstance(transfer, Outcome)
    return told(f"{transfer.status} in the background", sync_results.started_fields(transfer), "status", "mode")


async def check_file_transfer_task(
    server: SandboxServer,
    task_id: Annotated[Number, Field(description="Default: list the latest")] = 0,
    last_n_lines: Annotated[int, Field(description="Of its log", ge=0, le=1000)] = 50,
    wait_s: Annotated[float, Field(description="Wait so long for its end, at most 55", ge=0)] = 0,
) -> Annotated[CallToolResult, TransferShape]:
    """Check a transfer: its progress or outcome. Use wait_s instead of asking again and again."""
    transfers = server.app.transfers.background
    if not task_id:
        tasks = [sync_results.listed_fields(it, await transfers.is_stale(it)) for it in await transfers.list(LISTED)]
        return reply({"tasks": tasks}, transfers_text(tasks))
    transfer = await server.app.transfers.check(task_id, wait_s=min(wait_s, LONGEST_WAIT_S))
    stale = await transfers.is_stale(transfer)
    log_tail = "\n".join(transfers.log_tail(transfer, last_n_lines))
    fields = sync_results.transfer_fields(transfer, stale) | lean(log_tail=log_tail)
    text = sync_results.headway_text(transfer.headway) if transfer.headway and not transfer.is_over else ""
    first = " ".join(filter(None, (transfer.status, text)))
    return told(first, fields, "status", "running", "pending")


async def cancel_file_transfer_task(
    server: SandboxServer,
    task_id: Annotated[Number, Field(description="As a sync returned it")],
    force_kill_after_s: Annotated[float, Field(description="At most 45")] = 5,
) -> Annotated[CallToolResult, CancelledShape]:
    """End a transfer. Files that have arrived stay; of each other file the old one is still there."""
    in_range("force_kill_after_s", force_kill_after_s, 0, 45)
    done = await server.app.transfers.background.cancel(task_id, wait_s=force_kill_after_s)
    return told(done.transfer.status, sync_results.cancelled_fields(done), "status")


def order_of(server: SandboxServer, given: Mapping[str, Any], *, is_pull: bool = False) -> Order:
    """The order to sync, from the arguments of a tool; most have the names of its fields. Raises BadArgument."""
    transfers = server.app.transfers
    here = transfers.place(given["local_path"], sandbox=None)
    there = transfers.place(given["remote_path"], sandbox=given["sandbox_name"])
    rules = transfers.rules(given["excludes"], given["exclude_file"])
    flags = ("default_excludes", "respect_gitignore", "checksum", "delete_extras")
    source, target = (there, here) if is_pull else (here, there)
    return Order(source=source, target=target, excludes=rules, **{it: given[it] for it in flags if it in given})


async def carry_out(
    server: SandboxServer, order: Order, ctx: Context[None, Any], dry_run: bool, *, confirm: bool = False
) -> CallToolResult:
    app = server.app
    if dry_run:
        job = await app.transfers.preview(order)
        fields = sync_results.preview_fields(job)
        files, size = counted(len(job.plan.send), "file"), counted(job.plan.bytes, "byte")
        first = f"would {'fetch' if order.is_pull else 'send'} {files}, {size}"
        return told(first, fields, "mode", "would_send_files", "would_send_bytes")
    await ask_about_secrets(server, [order.source], order.target.sandbox)
    async with Reporting(ctx) as reporting:

        async def sync(confirmed: bool) -> Outcome | Transfer:
            wanted = replace(order, confirmed=confirmed)
            return await app.transfers.sync(wanted, wait_s=MOMENT_S, listener=listener(reporting))

        done = await with_consent(sync, lambda problem: to_delete(order, problem), confirm=confirm)
    if isinstance(done, Outcome):
        fields = {"mode": "inline"} | sync_results.outcome_fields(done, order)
        moved = "fetched" if order.is_pull else "sent"
        first = f"{counted(done.sent_files, 'file')} {moved}, {done.skipped_files} unchanged"
        return told(first, fields, "mode", "uploaded_files", "downloaded_files", "skipped_files")
    fields = {"auto_switched": True} | sync_results.started_fields(done)
    return told(f"{done.status} in the background", fields, "status", "mode", "auto_switched")


def to_delete(order: Order, problem: BadArgument) -> Request:
    """The request for a deletion that is refused for its danger."""
    command = shlex.join(("remote-sandbox-mcp", "push", str(order.source), str(order.target), "--delete"))
    return Request(
        kind="delete",
        key=f"{order.source} {order.target}",
        question=f"Delete in {order.target} all that {order.source} does not have? {problem.found}.",
        refusal=f"{order.terms.delete} is refused: {problem.found}",
        by_hand=f"a person can run: {plain_text(command)}",
        unasked=problem.remedy,
    )


async def ask_about_secrets(server: SandboxServer, places: Sequence[Place], sandbox: str) -> None:
    """Ask the client's user before local files are sent whose very paths are those of secrets.

    Raises BadArgument without a yes. Where the client shows no forms, the path that the caller named is enough.
    """
    if not (found := list(filter(None, map(server.app.transfers.secret_at, places)))):
        return
    what, command = ", ".join(found), shlex.join(("remote-sandbox-mcp", "push", found[0], f"{sandbox}:PATH"))
    request = Request(
        kind="secret",
        key=f"{what} {sandbox}",
        question=f"Send {what} to {sandbox}? That is the name of a secret.",
        refusal=f"{what} has the name of a secret, so it was not sent",
        by_hand=f"a person can run: {plain_text(command)}",
    )
    await agreed(request, confirm=True)


def listener(reporting: Reporting) -> Listener:
    def hear(headway: Headway) -> None:
        reporting.send(headway.bytes, headway.bytes_total or None, sync_results.headway_text(headway))

    return hear
