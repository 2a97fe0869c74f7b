"""MCP resources: sandboxes, the status and the last commands of one, logs of jobs, and cards of clients (MCP Apps)."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from mcp.server.apps import APP_MIME_TYPE
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from ... import __version__
from ...core.errors import SandboxError, UnknownSandbox, UnknownTask
from ...core.texts.shown import each_text, shown
from ...core.texts.text import visible
from ...views.app_results import disposable_fields, log_text
from ...views.results import sandbox_fields, sentence
from .job_logs import ADDRESS
from .server import SandboxServer
from .toolbox import CARDS
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
        has_session = server.clients.session(None) is not None
        active = {"active_sandbox": (await active_sandbox(server, None))[0]} if has_session else {}
        return _json(active | {"sandboxes": listed})

    @server.resource("sandbox://{id}/status", title="How a sandbox stands", mime_type=JSON)
    async def status(id: str) -> str:
        """Whether it answers, how long it lives, what it may use."""
        try:
            member = app.fleet.member(id)
            view = sandbox_fields(await app.survey.of(member))
            found = await app.disposables.find(id)
            return _json(view | (disposable_fields(found) if found else {}))
        except SandboxError as problem:
            raise unread(problem) from None

    @server.resource("sandbox://{id}/logs", title="What was run in a sandbox", mime_type=TEXT)
    async def logs(id: str) -> str:
        """The last commands that were run there under this configuration, and the end of what they printed."""
        try:
            return visible(shown(log_text(await app.jobs.commands.latest(app.fleet.member(id)))))
        except SandboxError as problem:
            raise unread(problem) from None

    @server.resource(ADDRESS, title="The log of a background job", mime_type=TEXT)
    async def job_log(name: str) -> str:
        """The end of a job's log; subscribe to hear when it grows."""
        try:
            return await server.job_logs.read(name)
        except SandboxError as problem:
            raise unread(problem) from None

    @server.resource(CARDS, title="Machines and jobs as cards", mime_type=APP_MIME_TYPE, meta=BORDERED)
    def cards() -> str:
        """Shows the results of list_sandboxes and check_background_task inside clients that render apps."""
        return cards_page()


def unread(problem: SandboxError) -> ResourceError:
    """Explain why a resource cannot be read; for a sandbox that is not there, its address is an invalid parameter."""
    kind = ResourceNotFoundError if isinstance(problem, (UnknownSandbox, UnknownTask)) else ResourceError
    return kind(sentence(problem))


def _more(made: Any) -> dict[str, Any]:
    return {} if made is None else {"id": made.id, "status": made.status, "image": made.image}


def _json(value: object) -> str:
    return visible(json.dumps(each_text(value, shown), ensure_ascii=False, indent=1))


# The page itself is served above this layer; here its files are only read.
FILES = Path(__file__).parents[1] / "page" / "files"
# Each after those that it imports.
SCRIPTS = ("dom", "words", "sentences", "format", "chart", "cards", "inside_client")
STYLES = ("page.css", "inside_client.css")
NAME = re.compile(r"\w+")
# What is around the name of an imported file.
QUOTED = '";'
# How a line begins that exports a name.
EXPORTS = tuple(f"export {kind} " for kind in ("async function", "function", "class", "const", "let"))


@functools.cache
def cards_page() -> str:
    """The document. A client shows it in a frame that can load nothing, so everything is in it."""
    script = "".join(as_value(name, (FILES / f"{name}.js").read_text("utf-8")) for name in SCRIPTS)
    style = "\n".join((FILES / name).read_text("utf-8") for name in STYLES)
    return (
        f'<!doctype html>\n<html lang="en" data-version="{__version__}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>remote-sandbox-mcp</title>\n'
        f"<style>\n{style}</style>\n</head>\n"
        '<body class="inside-client">\n<main id="cards"></main>\n'
        f'<script type="module">\n{script}</script>\n</body>\n</html>\n'
    )


def as_value(name: str, module: str) -> str:
    """A module's source as part of one script: a value with the names that it exports, and its own ones hidden."""
    exported: list[str] = []
    lines = [_as_part(line, exported) for line in module.splitlines()]
    return "\n".join((f"const {name} = (() => {{", *lines, f"return {{ {', '.join(exported)} }};", "})();", ""))


def _as_part(line: str, exported: list[str]) -> str:
    """A line without what only a module may say; names that it exports are added to the list."""
    if line.startswith("import {"):
        names, _, file = line.removeprefix("import ").partition(" from ")
        return f"const {names.replace(' as ', ': ')} = {Path(file.strip(QUOTED)).stem};"
    kind = next((kind for kind in EXPORTS if line.startswith(kind)), "")
    if found := NAME.match(line, len(kind)) if kind else None:
        exported.append(found[0])
        return line.removeprefix("export ")
    return line
