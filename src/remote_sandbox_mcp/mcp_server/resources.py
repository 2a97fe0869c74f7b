"""MCP resources: the list of sandboxes, the status of one, the last commands that were run in it, and the cards."""

from __future__ import annotations

import json
from typing import Any

from mcp.server.apps import APP_MIME_TYPE
from mcp.server.mcpserver.exceptions import ResourceError

from ..core.errors import SandboxError
from ..core.text import visible
from .cards import cards_page
from .results import sandbox_fields, sentence
from .server import SandboxServer
from .toolbox import CARDS
from .tools.app_results import disposable_fields, log_text
from .tools.sandboxes import active_sandbox

JSON, TEXT = "application/json", "text/plain"
# Cards have the client's background, so it should draw a line around them.
BORDERED = {"ui": {"prefersBorder": True}}


def offer(server: SandboxServer) -> None:
    app = server.app

    @server.resource("sandbox://list", title="Sandboxes", mime_type=JSON)
    async def sandboxes() -> str:
        """All sandboxes that can be used: machines, containers, the local one."""
        made = {it.id: it for it in await app.disposables.list()}
        members = await app.fleet.offered()
        listed = [{"name": it.name, "kind": it.describe().kind} | _more(made.get(it.name)) for it in members]
        # A resource is read without a session, so over HTTP the client's selected sandbox is unknown here.
        known = server.clients.session(None) is not None
        active = {"active_sandbox": (await active_sandbox(server, None))[0]} if known else {}
        return _json(active | {"sandboxes": listed})

    @server.resource("sandbox://{id}/status", title="How a sandbox stands", mime_type=JSON)
    async def status(id: str) -> str:
        """Whether it answers, how long it lives, what it may use."""
        try:
            member = app.fleet.member(id)
            view = sandbox_fields(await app.view(member))
            found = await app.disposables.find(id)
            return _json(view | (disposable_fields(found) if found else {}))
        except SandboxError as problem:
            raise ResourceError(sentence(problem)) from None

    @server.resource("sandbox://{id}/logs", title="What was run in a sandbox", mime_type=TEXT)
    async def logs(id: str) -> str:
        """The last commands that were run there by the user's servers, and the end of what they printed."""
        try:
            return visible(log_text(await app.jobs.commands.latest(app.fleet.member(id))))
        except SandboxError as problem:
            raise ResourceError(sentence(problem)) from None

    @server.resource(CARDS, title="Machines and jobs as cards", mime_type=APP_MIME_TYPE, meta=BORDERED)
    def cards() -> str:
        """Shows the results of list_sandboxes and check_background_task inside clients that render apps."""
        return cards_page()


def _more(made: Any) -> dict[str, Any]:
    return {} if made is None else {"id": made.id, "status": made.status, "image": made.image}


def _json(value: object) -> str:
    return visible(json.dumps(value, ensure_ascii=False, indent=1))
