"""The tool that links the client's folder to a folder of a sandbox, shows that link, decides conflicts and ends it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from ....core.address import read_address
from ....core.errors import BadArgument
from ....core.workspaces.workspace import LinkOrder, Moved, Preview, Workspace
from ....services.session import absolute, client_folder
from ....views.results import plain_text, sentence
from ....views.sync_results import linked_fields, moved_fields, notes, place_fields, state_fields, unlinked_fields
from ....views.texts import one_line
from ..consent import Request, agreed
from ..reporting import Reporting
from ..results import reply, told
from ..server import SandboxServer
from ..shapes import WorkspaceShape
from ..toolbox import CHANGE, UNLISTED, Declaration
from .sync import listener

LINKS = Declaration(means_selected=False, is_on_page=True, paths=("remote_path",))
NONE = (
    "{folder} is in no workspace; link_workspace(remote_path='SANDBOX:FOLDER') makes one, so that what you edit here "
    "runs there"
)
LESS = "exclude data by a line in .gitignore"


def offer(server: SandboxServer) -> None:
    server.offer(link_workspace, "Edit here, run there", CHANGE, LINKS)


async def link_workspace(
    server: SandboxServer,
    ctx: Context[None, Any],
    remote_path: Annotated[str, Field(description="gpu1:project; none: show the state")] = "",
    local_path: Annotated[str, Field(description="Default: current folder")] = "",
    # Not listed: remote_path can name it.
    sandbox_name: Annotated[str, UNLISTED] = "",
    keep_local: Annotated[Sequence[str], Field(description="Paths in conflict: take the local file")] = (),
    keep_remote: Annotated[Sequence[str], Field(description="Take the remote one")] = (),
    unlink: Annotated[bool, Field(description="End it; files stay")] = False,
    dry_run: Annotated[bool, Field(description="Only show it")] = False,
    confirm: Annotated[bool, Field(description="The user agrees to send much")] = False,
) -> Annotated[CallToolResult, WorkspaceShape]:
    """Bind a local project to a sandbox's folder: calls run there, edits are sent before, results come back."""
    verbs = Verbs(server, ctx)
    if remote_path:
        if keep_local or keep_remote or unlink:
            raise BadArgument("remote_path makes a link; to decide conflicts or to unlink, leave it out")
        return await verbs.link(sandbox_name, remote_path, local_path, dry_run=dry_run, confirm=confirm)
    workspace = verbs.own(local_path)
    if workspace is None:
        return none_here()
    if unlink:
        return await verbs.unlink(workspace)
    if keep_local or keep_remote:
        return await verbs.decide(workspace, keep_local, keep_remote)
    return await verbs.show(workspace)


class Verbs:
    """Actions of one call of link_workspace: make a link, and anything to the workspace that its client is in."""

    def __init__(self, server: SandboxServer, ctx: Context[None, Any]) -> None:
        self._server = server
        self._ctx = ctx
        self._service = server.app.workspaces

    def own(self, local_path: str) -> Workspace | None:
        """The client's workspace. Raises BadArgument for that of another folder: its own clients decide about it."""
        found = self._server.workspaces.at_hand()
        if local_path and self._service.find(absolute(local_path)) != found:
            raise BadArgument(
                f"{local_path} is not the workspace that you work in, so nothing was changed; a person can show or "
                "end it by: remote-sandbox-mcp workspaces, remote-sandbox-mcp unlink FOLDER"
            )
        return found

    # Making one

    async def link(
        self, sandbox: str, remote_path: str, local_path: str, *, dry_run: bool, confirm: bool
    ) -> CallToolResult:
        order = await self._order(sandbox, remote_path, local_path)
        preview = await self._service.preview(order)
        if dry_run:
            fields = place_fields("would link", preview.folder, preview.sandbox, preview.remote)
            fields |= {"would_send_files": preview.files, "would_send_bytes": preview.bytes, **notes(preview)}
            return told(f"would link, and send {preview.first_line}", fields, "status")
        if preview.is_large:
            await agreed(to_send(preview), confirm=confirm)
        async with Reporting(self._ctx) as reporting:
            link = self._service.link(replace(order, confirmed=True), listener(reporting))
            linked = await self._server.workspaces.linked(link)
        if session := self._server.clients.session(self._ctx):
            # Calls without sandbox_name mean the workspace's from now on.
            await session.selection.choose("")
        if linked is None:
            fields = place_fields("linking", preview.folder, preview.sandbox, preview.remote) | notes(preview)
            return told(f"linking, and still sending {preview.first_line}", fields, "status")
        return told("linked", linked_fields(linked), "status")

    async def _order(self, sandbox: str, remote_path: str, local_path: str) -> LinkOrder:
        app = self._server.app
        is_named = bool(sandbox or read_address(remote_path).sandbox)
        target = app.fleet.address(remote_path, sandbox if is_named else await self._server.meant(self._ctx))
        where, remote = target.sandbox, target.path
        folder = absolute(local_path or ".")
        if linked := self._linked(folder):
            # To link again goes on where the first time was cut off; the rules stay those of its owner.
            rules = self._service.given(linked)
            return LinkOrder(folder=folder, sandbox=where, remote=remote, rules=rules, free=linked.free)
        if secret := app.transfers.secret_at(app.transfers.place(folder, sandbox=None)):
            raise BadArgument(
                f"{secret} has the name of a secret, so it is not linked for an agent; a person can: "
                "remote-sandbox-mcp link"
            )
        return LinkOrder(folder=folder, sandbox=where, remote=remote)

    def _linked(self, folder: str) -> Workspace | None:
        """The workspace of this very folder."""
        found = self._service.find(folder)
        return found if found and found.folder == os.path.realpath(folder) else None

    # The client's own

    async def unlink(self, workspace: Workspace) -> CallToolResult:
        gone = await self._service.unlink(workspace.folder)
        return told("unlinked; both sides keep their files", unlinked_fields(gone), "status")

    async def decide(
        self, workspace: Workspace, keep_local: Sequence[str], keep_remote: Sequence[str]
    ) -> CallToolResult:
        moved = await self._service.decide(workspace, keep_local, keep_remote)
        return await self.show(workspace, moved)

    async def show(self, workspace: Workspace, moved: Moved | None = None) -> CallToolResult:
        state = await self._service.state(workspace)
        fields = state_fields(state) | (moved_fields(moved) if moved else {})
        return told(fields["status"], fields, "status")


def to_send(preview: Preview) -> Request:
    """The request for a large first send."""
    what, there = one_line(sentence(preview.first_line)), f"{preview.sandbox}:{preview.remote}"
    command = shlex.join(("remote-sandbox-mcp", "link", there, preview.folder))
    return Request(
        kind="send",
        key=f"{preview.folder} {there}",
        question=f"Send {what}?",
        refusal=f"{what} are much to send, so nothing was sent",
        by_hand=f"{LESS}, or a person can run: {plain_text(command)}",
        unasked=f"{LESS}, or ask the user, then repeat this with confirm=true",
    )


def none_here() -> CallToolResult:
    folder = plain_text(client_folder())
    return reply({"status": "none", "local_path": folder}, NONE.format(folder=folder))
