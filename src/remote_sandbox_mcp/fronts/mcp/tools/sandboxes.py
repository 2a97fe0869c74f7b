"""Tools that name, choose and survey sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from ....core import check
from ....core.errors import ConfigError, UnknownSandbox, Unsupported
from ....core.workspaces.workspace import Workspace
from ....views.app_results import app_fields, listed_fields
from ....views.results import lean, plain_text, sandbox_fields, sentence
from ....views.texts import sandbox_line, sandboxes_text
from ..results import reply
from ..server import SandboxServer
from ..shapes import ActiveShape, SandboxesShape, SelectedShape
from ..toolbox import ASK, SET, Declaration

NO_SESSION = (
    "nothing was selected: this client has no session in which a selection could be kept for it alone; name "
    "sandbox_name in each call"
)


def offer(server: SandboxServer) -> None:
    server.offer(list_sandboxes, "List sandboxes", ASK, Declaration(is_first=True, is_card=True))
    server.offer(select_sandbox, "Select a sandbox", SET, Declaration(means_selected=False))
    server.offer(get_active_sandbox, "Show the active sandbox", ASK)


async def list_sandboxes(
    server: SandboxServer,
    ctx: Context[None, Any],
    check_resources: Annotated[
        bool, Field(description="Also measure CPU, memory, disk, GPUs and their users; a cluster's partitions")
    ] = False,
) -> Annotated[CallToolResult, SandboxesShape]:
    """All sandboxes, whether each answers and, on request, how busy it is (idle_score: 1 is idle, 0 is busy)."""
    app = server.app
    # Asked first, because this adds sandboxes of earlier processes to the fleet.
    disposables = await app.disposables.list()
    made = {it.id: listed_fields(it) for it in disposables}
    active, trouble = await active_sandbox(server, ctx)
    surveying = app.survey.of_all(resources=check_resources, active=active)
    views, deployed, troubles, images = await asyncio.gather(
        surveying,
        app.apps.list(),
        app.disposables.troubles(disposables),
        app.disposables.images() if check_resources else nothing(),
    )
    trouble += troubles
    workspace = server.workspaces.at_hand()
    listed = [
        sandbox_fields(view)
        | made.get(view.name, {})
        | lean(apps=app_fields(deployed, view.name), workspace=place_in(workspace, view.name))
        | lean(images=list(images.get(view.name, ())))
        for view in views
    ]
    fields: dict[str, Any] = {"active_sandbox": active, "sandboxes": listed}
    fields |= lean(problems=[*app.standing_problems(), *trouble])
    return reply(fields, sandboxes_text(fields))


async def select_sandbox(
    server: SandboxServer,
    sandbox_name: Annotated[str, Field(description="A name from list_sandboxes")],
    ctx: Context[None, Any],
) -> Annotated[CallToolResult, SelectedShape]:
    """Choose the sandbox that is used when a call names none."""
    check.text_argument("sandbox_name", sandbox_name)
    name, session = server.app.fleet.member(sandbox_name).name, server.clients.session(ctx)
    if session is None:
        raise Unsupported(NO_SESSION)
    await session.selection.choose(name)
    return reply({"active_sandbox": name, "status": "selected"}, f"{name} is active")


async def get_active_sandbox(server: SandboxServer, ctx: Context[None, Any]) -> Annotated[CallToolResult, ActiveShape]:
    """The sandbox that is used when a call names none, and whether it answers."""
    name = await server.meant(ctx)
    view = await server.app.survey.of(server.app.fleet.member(name))
    fields = sandbox_fields(view)
    text = sandbox_line(fields)
    fields.pop("is_active")
    return reply({"active_sandbox": fields.pop("name")} | fields, text)


async def nothing() -> Mapping[str, Sequence[str]]:
    """For a list without the images of machines."""
    return {}


def place_in(workspace: Workspace | None, sandbox: str) -> str:
    """The client's workspace, on the sandbox that it is linked to."""
    return plain_text(f"{workspace.folder} = {workspace.remote}") if workspace and workspace.sandbox == sandbox else ""


async def active_sandbox(server: SandboxServer, ctx: Context[None, Any] | None) -> tuple[str, list[str]]:
    """The sandbox for calls that name none; empty, with the reason, where it is over or cannot be used here."""
    try:
        name = await server.meant(ctx)
        why_not = await server.app.fleet.member(name).why_not()
        return ("", [f"{name} cannot be used here: {sentence(why_not)}"]) if why_not else (name, [])
    except (UnknownSandbox, ConfigError) as problem:
        # If no configured machine can be used, the problems of the configuration say why.
        is_reported = isinstance(problem, ConfigError) and bool(server.app.fleet.refusal)
        return "", [sentence(problem)] if server.app.fleet.default and not is_reported else []
