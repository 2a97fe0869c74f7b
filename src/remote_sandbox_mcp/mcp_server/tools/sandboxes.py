"""Tools that name, choose and survey sandboxes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from ..containers import listed_fields
from ..results import lean, reply, sandbox_fields
from ..server import SandboxServer
from ..shapes import ActiveShape, SandboxesShape, SelectedShape
from ..suites import app_fields

LOOK = ToolAnnotations(read_only_hint=True, open_world_hint=True)
CHOOSE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def offer(server: SandboxServer) -> None:
    app = server.app

    async def list_sandboxes(
        check_resources: Annotated[
            bool, Field(description="Also measure CPU, memory, disk, GPUs and their users")
        ] = False,
    ) -> Annotated[CallToolResult, SandboxesShape]:
        """All sandboxes, whether each answers and, on request, how busy it is (idle_score: 1 is idle, 0 is busy)."""
        # Asked first: those of an earlier server are members from then on.
        made = {it.id: listed_fields(it) for it in await app.disposables.list()}
        views, deployed = await asyncio.gather(app.survey(resources=check_resources), app.workshop.apps())
        listed = [
            sandbox_fields(view) | made.get(view.name, {}) | lean(apps=app_fields(deployed, view.name))
            for view in views
        ]
        fields: dict[str, Any] = {"active_sandbox": app.fleet.active, "sandboxes": listed}
        alive = sum(view.alive for view in views)
        return reply(fields | lean(problems=list(app.problems)), f"{len(views)} sandboxes, {alive} of them answer")

    async def select_sandbox(
        sandbox_name: Annotated[str, Field(description="A name from list_sandboxes")],
    ) -> Annotated[CallToolResult, SelectedShape]:
        """Choose the sandbox that is used when a call names none."""
        app.fleet.select(sandbox_name)
        return reply({"active_sandbox": app.fleet.active, "status": "selected"}, f"{app.fleet.active} is active")

    async def get_active_sandbox() -> Annotated[CallToolResult, ActiveShape]:
        """The sandbox that is used when a call names none, and whether it answers."""
        view = await app.view(app.fleet.member())
        fields = sandbox_fields(view)
        fields.pop("is_active")
        answers = "answers" if view.alive else f"does not answer: {view.trouble}"
        return reply({"active_sandbox": fields.pop("name")} | fields, f"{app.fleet.active} {answers}")

    server.offer(list_sandboxes, title="List sandboxes", annotations=LOOK)
    server.offer(select_sandbox, title="Select a sandbox", annotations=CHOOSE)
    server.offer(get_active_sandbox, title="Show the active sandbox", annotations=LOOK)
