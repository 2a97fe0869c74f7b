"""The page's requests, one by one: which are let in, and what answers them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ...config import paths
from ...core.errors import BadArgument, SandboxError, UnknownSandbox
from ...core.resources.usage import thinned
from ...core.sandboxes.disposable import ProviderChoice, SandboxOrder
from ...core.sandboxes.secret import Secret
from ...local.store.history import WantedCalls
from ...local.waiting import within
from ...services.jobs.values import Which
from ...views.job_results import curves_fields, session_fields
from ...views.live.service import Live
from ...views.results import sentence
from ..mcp.server import SandboxServer
from . import http
from .allowing import Allowing
from .browsing import Files
from .calls import ToolCaller
from .conflicts import Conflicts
from .entering import Door
from .http import PageAnswer, PageRequest, answer_json
from .logs import LogStream
from .streams import BYTES, EVENTS, PLAIN, EventStreams, changes
from .terminals import Terminals

LARGEST_KEY, LARGEST_PLACE, LARGEST_CALL = 4 << 10, 64 << 10, 1 << 20
# For a stranger's request to come to its end.
ENTER_S = 5.0
MOST_OLDER = 500
LONGEST_SEARCH = 1000
# In the state folder: passes that were given back. There is no secret in it.
LEFT_FILE = "page.left"
ASK_FOR_KEY = "enter the key of this server again"
WRONG_KEY = "that is not the key of this server; remote-sandbox-mcp dashboard opens the page with the right one"
ONLY_HERE = "a folder is allowed on its own computer alone, on this page there or by: remote-sandbox-mcp allow PATH"


# What a stream sends, and of which type it is.
Source = tuple[AsyncGenerator[bytes, None], bytes]


class PageApp:
    """ASGI application for all under /ui. The name of the server and the origin were checked before."""

    def __init__(self, server: SandboxServer, live: Live, key: Secret, seal: str) -> None:
        self._app = server.app
        self._live = live
        self._door = Door(key, seal, paths.state_path() / LEFT_FILE)
        self._caller = ToolCaller(server)
        self._conflicts = Conflicts(server.app)
        self._allowing = Allowing(server.app)
        self._files = Files(server.app)
        self._terminals = Terminals(server.app)
        self._streams = EventStreams()
        self._routes: Mapping[tuple[str, str], Callable[[PageRequest], Awaitable[PageAnswer]]] = {
            ("GET", "log/part"): self._log_part,
            ("GET", "log/search"): self._log_search,
            ("GET", "log/line"): self._log_line,
            ("GET", "calls"): self._calls,
            ("GET", "events"): self._events,
            ("GET", "machine"): self._machine,
            ("GET", "usage"): self._usage,
            ("GET", "choices"): self._choices,
            ("GET", "conflict"): self._conflict,
            ("GET", "allowed"): self._allowed,
            ("POST", "allow"): self._allow,
            ("GET", "curves"): self._curves,
        }

        # With a body, which each of them is given with the cookie.
        self._posts: Mapping[str, Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any]]]] = {
            "call": self._call,
            "disallow": lambda wanted, _: asyncio.to_thread(self._allowing.take_back, wanted),
            "folder": self._files.folder,
        }
        self._sources: Mapping[tuple[str, str], Callable[[PageRequest, str], Awaitable[Source]]] = {
            ("GET", "stream"): self._changes,
            ("GET", "log"): self._follow_log,
            ("GET", "log/whole"): self._whole_log,
            ("POST", "download"): self._download,
        }

    def end(self) -> None:
        """End all streams now: the service winds down."""
        self._streams.end()

    def may_upgrade(self, scope: http.Scope) -> bool:
        """Whether a request may become a WebSocket: our page wants a terminal, and its browser says where it is from.

        A browser sends an Origin with each of them, and lets any page ask: no policy of another page is in the way.
        """
        with suppress(http.PageRefusal):
            request = PageRequest.of(scope, _nothing)
            return request.path == f"{http.API}terminal" and bool(request.header("origin") and self._check(request))
        return False

    async def _socket(self, scope: http.Scope, receive: http.Receive, send: http.Send) -> None:
        try:
            # This header is a field of its own where there is a WebSocket.
            words = (b"sec-websocket-protocol", ", ".join(scope["subprotocols"]).encode())
            cookie = self._check(PageRequest.of({**scope, "headers": [*scope["headers"], words]}, receive))
            over = functools.partial(self._door.until_over, cookie)
            await self._streams.carry(self._terminals.show(receive, send), over)
        except http.PageRefusal:
            # 403, in place of the upgrade.
            await send({"type": "websocket.close"})

    async def __call__(self, scope: http.Scope, receive: http.Receive, send: http.Send) -> None:
        if scope["type"] == "websocket":
            return await self._socket(scope, receive, send)
        request: PageRequest | None = None
        try:
            request = PageRequest.of(scope, receive)
            answer = await self._answer(request, receive, send)
        except http.PageRefusal as refused:
            answer = http.answer_error(refused.status, str(refused))
        except SandboxError as problem:
            is_unknown = isinstance(problem, BadArgument | UnknownSandbox)
            answer = answer_json({"error": sentence(problem), "code": problem.code}, 404 if is_unknown else 502)
        if answer is not None:
            await http.send_answer(answer, send, without_body=bool(request and request.method == "HEAD"))

    async def _answer(self, request: PageRequest, receive: http.Receive, send: http.Send) -> PageAnswer | None:
        """Answer a request; None where the answer was a stream."""
        if not request.path.startswith(http.API):
            return await self._answer_stranger(request)
        cookie = self._check(request)
        name = request.path.removeprefix(http.API)
        if begin := self._sources.get((request.method, name)):
            source, kind = await begin(request, cookie)
            await self._streams.run(source, functools.partial(self._door.until_over, cookie), receive, send, kind)
            return None
        if request.method == "POST" and (work := self._posts.get(name)):
            return answer_json(await work(await request.json(LARGEST_CALL), cookie))
        if route := self._routes.get((request.method, name)):
            return await route(request)
        raise http.PageRefusal(404, f"there is no {request.method} {request.path[:100]}")

    def _check(self, request: PageRequest) -> str:
        """The cookie of a request of our page, in a browser that has entered. Raises PageRefusal."""
        _refuse_other_sites(request)
        for cookie in request.cookies(self._door.cookie_name):
            if self._door.knows(cookie, request.token):
                return cookie
        raise http.PageRefusal(401, ASK_FOR_KEY)

    # Without a key

    async def _answer_stranger(self, request: PageRequest) -> PageAnswer:
        if request.method == "POST" and request.path == "/ui/enter":
            return await self._enter(request)
        if request.method == "POST" and request.path == "/ui/leave":
            return self._leave(request)
        if request.method not in ("GET", "HEAD"):
            raise http.PageRefusal(405, f"{request.method} is not for this address")
        if request.path == http.ROOT:
            # The browser keeps what follows the #.
            return PageAnswer(308, b"", ((b"location", b"/ui/"), http.CLOSING))
        found = http.answer_file(request, request.path.removeprefix(f"{http.ROOT}/"))
        if found is None:
            raise http.PageRefusal(404, f"there is no {request.path[:100]}")
        return PageAnswer(found.status, found.body, (*found.headers, http.CLOSING))

    async def _enter(self, request: PageRequest) -> PageAnswer:
        _refuse_other_sites(request)
        try:
            given = (await within(request.json(LARGEST_KEY), ENTER_S)).get("key")
        except asyncio.TimeoutError:
            raise http.PageRefusal(408, "the key did not come in time") from None
        if not isinstance(given, str) or not self._door.is_key(given.strip()):
            if not await self._door.slow_down():
                raise http.PageRefusal(429, "too many wrong keys; wait a moment")
            raise http.PageRefusal(401, WRONG_KEY)
        new = self._door.new_pass()
        cookie = self._door.set_cookie(new.cookie)
        return answer_json({"token": new.token}, 200, (b"set-cookie", cookie.encode()), http.CLOSING)

    def _leave(self, request: PageRequest) -> PageAnswer:
        self._door.leave(self._check(request))
        return answer_json({}, 200, (b"set-cookie", self._door.set_cookie("").encode()), http.CLOSING)

    # With one: streams

    async def _changes(self, _: PageRequest, cookie: str) -> Source:
        return changes(self._live), EVENTS

    async def _follow_log(self, request: PageRequest, _: str) -> Source:
        return (await self._log(request)).events(), EVENTS

    async def _whole_log(self, request: PageRequest, _: str) -> Source:
        return (await self._log(request)).whole(), PLAIN

    async def _download(self, request: PageRequest, _: str) -> Source:
        return await self._files.pieces(await request.json(LARGEST_PLACE)), BYTES

    # With one: answers

    async def _curves(self, request: PageRequest) -> PageAnswer:
        which = Which(session=request.query.get("job", ""), sandbox=request.query.get("sandbox", ""))
        return answer_json(curves_fields(*await self._app.jobs.curves(which)))

    async def _log(self, request: PageRequest) -> LogStream:
        log = LogStream(self._app, request.query.get("sandbox", ""), request.query.get("job", ""))
        await log.find()
        return log

    async def _log_part(self, request: PageRequest) -> PageAnswer:
        begin, end = request.number("from", 0, 1 << 62), request.number("to", 1 << 62, 1 << 62)
        return answer_json(await (await self._log(request)).part(begin, end))

    async def _log_search(self, request: PageRequest) -> PageAnswer:
        words = request.query.get("words", "")
        if not words or len(words) > LONGEST_SEARCH:
            raise http.PageRefusal(400, f"give up to {LONGEST_SEARCH} characters to search for")
        return answer_json(await (await self._log(request)).search(words, request.number("at", 0, 1 << 62)))

    async def _log_line(self, request: PageRequest) -> PageAnswer:
        number, at = request.number("line", 0, 1 << 62), request.number("at", 0, 1 << 62)
        return answer_json(await (await self._log(request)).line(number, at))

    async def _calls(self, request: PageRequest) -> PageAnswer:
        query = request.query
        before, limit = request.number("before", 0, 1 << 62), request.number("limit", 100, MOST_OLDER)
        named: dict[str, Any] = {name: query.get(name, "") for name in ("client", "sandbox", "tool")}
        wanted = WantedCalls(before=before, limit=limit, failed=query.get("failed") == "1", **named)
        return answer_json({"calls": await self._live.older_calls(wanted)})

    async def _events(self, request: PageRequest) -> PageAnswer:
        before, limit = request.number("before", 0, 1 << 62), request.number("limit", 100, MOST_OLDER)
        return answer_json({"events": await self._live.older_events(before, limit)})

    async def _machine(self, request: PageRequest) -> PageAnswer:
        """Answer with the history of a machine, its sessions and its forwarded ports."""
        member, span_s = self._app.fleet.member(request.query.get("name", "")), _span(request)
        history = self._app.machine_history
        points = (await history.points(span_s, member.name)).get(member.name, ())
        used = await history.gpu_hours(span_s, member.name)
        # A machine is not logged in to for this.
        sessions = await self._app.sessions.list(member.name) if member.is_connected else ()
        ports = [{"port": it.port, "url": it.url} for it in self._app.apps.forwarded() if it.sandbox == member.name]
        found = {"points": thinned(points), "usage": [vars(row) for row in used]}
        return answer_json(found | {"sessions": [session_fields(seen) for seen in sessions], "ports": ports})

    async def _usage(self, request: PageRequest) -> PageAnswer:
        rows = await self._app.machine_history.gpu_hours(_span(request))
        return answer_json({"usage": [vars(row) for row in rows]})

    async def _choices(self, _: PageRequest) -> PageAnswer:
        found = [choice_fields(choice) for choice in self._app.disposables.choices()]
        return answer_json({"providers": found, "timeout_s": SandboxOrder().timeout_s})

    async def _conflict(self, request: PageRequest) -> PageAnswer:
        query = request.query
        return answer_json(await self._conflicts.both(query.get("workspace", ""), query.get("path", "")))

    async def _allowed(self, _: PageRequest) -> PageAnswer:
        return answer_json(await asyncio.to_thread(self._allowing.listed, self._live.clients()))

    async def _allow(self, request: PageRequest) -> PageAnswer:
        # Clients over HTTP have the key, too; their user need not be this computer's.
        if not request.is_from_here:
            raise http.PageRefusal(403, ONLY_HERE)
        return answer_json(await asyncio.to_thread(self._allowing.allow, await request.json(LARGEST_PLACE)))

    async def _call(self, wanted: Mapping[str, Any], _: str) -> dict[str, Any]:
        answer = await self._caller.call(wanted)
        self._live.stir()
        return answer


def _span(request: PageRequest) -> float:
    return 3600.0 * request.number("hours", 24, 24 * 90)


def _refuse_other_sites(request: PageRequest) -> None:
    """Refuse what another web page has sent, where the browser says so."""
    if request.header("sec-fetch-site") not in ("", "same-origin"):
        raise http.PageRefusal(403, "only the page itself may ask for this")


async def _nothing() -> http.Message:
    """The body of a request that has none."""
    return {"type": "http.disconnect"}


def choice_fields(choice: ProviderChoice) -> dict[str, Any]:
    traits = choice.traits
    fields = {"provider": choice.kind, "on": traits.machine or choice.kind, "default_image": choice.image}
    return fields | {"is_default": choice.is_default, "has_cards": traits.has_cards, "is_queue": traits.is_queue}
