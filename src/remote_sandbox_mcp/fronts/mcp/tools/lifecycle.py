"""Advanced tools on a disposable sandbox's life: renew, pause, resume, snapshot, restore, endpoint."""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from ....core.sandboxes.disposable import Disposable, NeedsHeaders, SandboxOrder
from ....views.app_results import disposable_fields
from ....views.results import lean
from ..results import reply, told
from ..server import SandboxServer
from ..shapes import DisposableShape, EndpointShape, SnapshotShape
from ..toolbox import GET, MAKE, Declaration

SandboxId = Annotated[str, Field(description="As create_sandbox returned it")]
OF_ONE = Declaration(means_selected=False)
# Only the header's name, never its value: a key must not be in a result.
HEADERS = "its requests must carry the header {}, which no browser sends: forward_port gives an address that opens"


def offer(server: SandboxServer) -> None:
    """Listed only where the operator asks for them."""
    if not server.app.settings.expose_advanced_tools:
        return
    server.offer(renew_sandbox, "Let a sandbox live longer", GET, OF_ONE)
    server.offer(pause_sandbox, "Pause a sandbox", GET, OF_ONE)
    server.offer(resume_sandbox, "Resume a sandbox", GET, OF_ONE)
    server.offer(snapshot_sandbox, "Keep a sandbox's files", MAKE, OF_ONE)
    server.offer(restore_sandbox, "Make a sandbox of a snapshot", MAKE)
    server.offer(get_sandbox_endpoint, "Show a port's address", GET, OF_ONE)


def made_reply(made: Disposable, first: str) -> CallToolResult:
    return told(first, disposable_fields(made), "sandbox_id")


async def renew_sandbox(
    server: SandboxServer, sandbox_id: SandboxId, timeout: Annotated[float, Field(description="Seconds from now")]
) -> Annotated[CallToolResult, DisposableShape]:
    """Let it live for so long from now on."""
    made = await server.app.disposables.service.renew(sandbox_id, timeout)
    return made_reply(made, f"{made.id} lives on")


async def pause_sandbox(server: SandboxServer, sandbox_id: SandboxId) -> Annotated[CallToolResult, DisposableShape]:
    """Stop everything in it for a while; nothing is lost."""
    made = await server.app.disposables.service.pause(sandbox_id)
    return made_reply(made, f"{made.id} is {made.status}")


async def resume_sandbox(server: SandboxServer, sandbox_id: SandboxId) -> Annotated[CallToolResult, DisposableShape]:
    """Let a paused one go on."""
    made = await server.app.disposables.service.resume(sandbox_id)
    return made_reply(made, f"{made.id} is {made.status}")


async def snapshot_sandbox(
    server: SandboxServer,
    sandbox_id: SandboxId,
    name: Annotated[str, Field(description="Of the snapshot; default: made up")] = "",
) -> Annotated[CallToolResult, SnapshotShape]:
    """Keep its files as they are now; restore_sandbox makes another with them."""
    kept = await server.app.disposables.service.snapshot(sandbox_id, name)
    return reply({"snapshot": kept, "sandbox_id": sandbox_id}, f"{kept} has the files of {sandbox_id}")


async def restore_sandbox(
    server: SandboxServer,
    snapshot: Annotated[str, Field(description="As snapshot_sandbox returned it")],
    name: Annotated[str, Field(description="To call it by")] = "",
    timeout: Annotated[float, Field(description="Seconds; 0: configured")] = 0,
) -> Annotated[CallToolResult, DisposableShape]:
    """A new sandbox with the files of a snapshot."""
    order = SandboxOrder(name=name, timeout_s=timeout or server.app.settings.rules.default_timeout_s)
    made = await server.app.disposables.restore(snapshot, order)
    return made_reply(made, f"{made.id} is {made.status}")


async def get_sandbox_endpoint(
    server: SandboxServer,
    sandbox_id: SandboxId,
    port: Annotated[int, Field(description="In the sandbox", ge=1, le=65535)],
) -> Annotated[CallToolResult, EndpointShape]:
    """The platform's own address of a port; forward_port works for every sandbox."""
    try:
        url, notes = await server.app.disposables.service.endpoint(sandbox_id, port), []
    except NeedsHeaders as problem:
        url, notes = problem.url, [HEADERS.format(" and ".join(problem.headers))]
    return reply({"url": url, "port": port} | lean(notes=notes), "\n".join((url, *notes)))
