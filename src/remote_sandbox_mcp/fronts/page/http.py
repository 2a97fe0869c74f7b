"""Requests and answers of the page, over ASGI; which requests are its own; and its files, read from the package."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ...core.permission import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
# On everything under /ui, so that no other page can use it, frame it, or read it.
EVERYWHERE: tuple[Header, ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NOT_KEPT: Header = (b"cache-control", b"no-store")
# A request that was not let in may have a body that was not read; and a stranger must not hold a connection.
CLOSING: Header = (b"connection", b"close")
# Of one name, of which one is ours.
MOST_COOKIES = 50


class PageRefusal(Exception):
    """A request that is not carried out: its status, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# What our WebSockets speak, and, as they have no headers of their own, the word with the page's token beside it.
SOCKET, TOKEN_WORD = "terminal", "token."


@dataclass(frozen=True)
class PageAnswer:
    """An answer that is sent at once."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


def answer_json(value: object, status: int = 200, *headers: Header) -> PageAnswer:
    return PageAnswer(status, to_json(value), ((b"content-type", b"application/json"), NOT_KEPT, *headers))


def answer_error(status: int, sentence: str, *headers: Header) -> PageAnswer:
    return answer_json({"error": sentence}, status, CLOSING, *headers)


def to_json(value: object) -> bytes:
    """JSON on one line. A name that is not valid UTF-8 is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class PageRequest:
    """One request. Headers that are given more than once count as missing."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: tuple[Header, ...]
    receive: Receive = field(repr=False)
    # The address that it came from.
    peer: str = ""

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> PageRequest:
        """Raises PageRefusal."""
        try:
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=20)
        except ValueError:
            raise PageRefusal(400, "the query has too many fields") from None
        peer = str((scope.get("client") or ("",))[0])
        return cls(scope.get("method", "GET"), scope["path"], dict(query), tuple(scope["headers"]), receive, peer)

    @property
    def is_from_here(self) -> bool:
        """Whether it came from this computer, itself or through a tunnel that ends here."""
        return is_loopback(self.peer)

    def header(self, name: str) -> str:
        values = [value.decode("latin-1") for key, value in self.headers if key == name.encode()]
        return values[0].strip() if len(values) == 1 else ""

    @property
    def token(self) -> str:
        words = (word.strip() for word in self.header("sec-websocket-protocol").split(","))
        spoken = (word.removeprefix(TOKEN_WORD) for word in words if word.startswith(TOKEN_WORD))
        return self.header("x-page-token") or next(spoken, "")

    def cookies(self, name: str) -> list[str]:
        """All of this name: a server at another port of this host can add some of its own."""
        parts = (part.strip().partition("=") for part in self.header("cookie").split(";"))
        return [value for key, _, value in parts if key == name][:MOST_COOKIES]

    def number(self, name: str, usual: int, most: int) -> int:
        """A number of the query. Raises PageRefusal."""
        text = self.query.get(name, "")
        if text and not (text.isdecimal() and len(text) < 19):
            raise PageRefusal(400, f"{name} must be a whole number")
        return min(int(text), most) if text else usual

    async def json(self, most: int) -> dict[str, Any]:
        """The body, which is a JSON object. Raises PageRefusal."""
        if self.header("content-type").partition(";")[0].strip().lower() != "application/json":
            raise PageRefusal(415, "send Content-Type: application/json")
        try:
            value = json.loads(await self._body(most))
        except (ValueError, RecursionError):
            raise PageRefusal(400, "the body is not valid JSON") from None
        if not isinstance(value, dict):
            raise PageRefusal(400, "the body must be a JSON object")
        return value

    async def _body(self, most: int) -> bytes:
        parts, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise PageRefusal(400, "the body did not come to its end")
            size += len(message.get("body", b""))
            if size > most:
                raise PageRefusal(413, f"the body is over {most} bytes")
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)


async def send_answer(answer: PageAnswer, send: Send, *, without_body: bool = False) -> None:
    headers = [*EVERYWHERE, *answer.headers, (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if without_body else answer.body})


ROOT = "/ui"
API = "/ui/api/"


def is_page(path: str) -> bool:
    """
    >>> [is_page(path) for path in ("/ui", "/ui/", "/ui/api/call", "/uix", "/mcp")]
    [True, True, True, False, False]
    """
    return path == ROOT or path.startswith(f"{ROOT}/")


def is_open_to_strangers(path: str) -> bool:
    """Whether a request is answered without a key: to enter, and for the files, in which nothing is secret.

    >>> [is_open_to_strangers(path) for path in ("/ui/page.js", "/ui/enter", "/ui/api/call", "/mcp")]
    [True, True, False, False]
    """
    return is_page(path) and not path.startswith(API)


TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
FIRST = "index.html"


@dataclass(frozen=True)
class File:
    """One file as it is sent."""

    body: bytes
    type: str
    tag: str

    @functools.cached_property
    def packed(self) -> bytes:
        """Compressed bytes, for a browser at the other end of a slow line."""
        return gzip.compress(self.body)

    @property
    def headers(self) -> tuple[Header, ...]:
        return (
            (b"content-type", self.type.encode()),
            # Asked for again each time, which costs an answer without a body: an update is seen at once.
            (b"cache-control", b"no-cache"),
            (b"etag", self.tag.encode()),
            (b"vary", b"accept-encoding"),
        )


@functools.cache
def files() -> Mapping[str, File]:
    """All files by their names under /ui/."""
    root = Path(__file__).with_name("files")
    named = {found.relative_to(root).as_posix(): found for found in root.rglob("*") if found.suffix in TYPES}
    return {name: _read(found) for name, found in named.items()}


# Indentation and lines of comments, which no browser needs; the numbers of lines stay.
FOR_PEOPLE = re.compile(rb"^[ \t]+(?://.*)?|^//.*|^/\*.*\*/$", re.MULTILINE)


def _read(file: Path) -> File:
    body = file.read_bytes()
    # Files of others have their licence in comments.
    if file.suffix in (".js", ".css") and file.parent.name == "files":
        body = FOR_PEOPLE.sub(b"", body)
    return File(body, TYPES[file.suffix], f'W/"{hashlib.sha256(body).hexdigest()[:32]}"')


def answer_file(request: PageRequest, name: str) -> PageAnswer | None:
    """Answer with a file; None where there is no such file."""
    found = files().get(name or FIRST)
    if found is None:
        return None
    if found.tag in (tag.strip() for tag in request.header("if-none-match").split(",")):
        return PageAnswer(304, b"", found.headers)
    if "gzip" in request.header("accept-encoding"):
        return PageAnswer(200, found.packed, (*found.headers, (b"content-encoding", b"gzip")))
    return PageAnswer(200, found.body, found.headers)
