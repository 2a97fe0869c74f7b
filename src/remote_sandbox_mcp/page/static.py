"""The files of the page: read once from the package, so that no path of a request is ever one of the disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from .http import Answer, Header, Request

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
}
FIRST = "index.html"


@dataclass(frozen=True)
class File:
    """One file as it is sent."""

    body: bytes
    type: str
    tag: str

    @property
    def headers(self) -> tuple[Header, ...]:
        return (
            (b"content-type", self.type.encode()),
            # Asked for again each time, which costs an answer without a body: an update is seen at once.
            (b"cache-control", b"no-cache"),
            (b"etag", self.tag.encode()),
        )


@functools.cache
def files() -> Mapping[str, File]:
    """All files by their names under /ui/."""
    return dict(_below(resources.files(__package__).joinpath("files"), ""))


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, File]]:
    for found in folder.iterdir():
        if found.is_dir():
            yield from _below(found, f"{prefix}{found.name}/")
        elif (kind := TYPES.get(found.name.rpartition(".")[2])) is not None:
            body = found.read_bytes()
            yield f"{prefix}{found.name}", File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def answer_file(request: Request, name: str) -> Answer | None:
    """None where there is no such file."""
    found = files().get(name or FIRST)
    if found is None:
        return None
    if found.tag in (tag.strip() for tag in request.header("if-none-match").split(",")):
        return Answer(304, b"", found.headers)
    return Answer(200, found.body, found.headers)
