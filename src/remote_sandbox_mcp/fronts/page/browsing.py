"""Files of a sandbox, for a person to look at and to download; nothing of this computer is reached this way."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from typing import Any

from ...app import App
from ...core.check import text_argument
from ...core.errors import SandboxError
from ...core.sandboxes.files import Span
from ...core.sandboxes.sandbox import Sandbox
from ...views.results import plain_text
from .http import PageRefusal

# Entries of a folder; bytes of a file, which a browser keeps in memory until it has all of it; and how many at once.
MOST_ENTRIES, MOST_BYTES, PIECE_BYTES = 2000, 512 << 20, 1 << 20


class Files:
    """Files of sandboxes, by absolute paths; a relative one begins in the home folder there."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def folder(self, wanted: Mapping[str, Any], _: str) -> dict[str, Any]:
        """Raises PageRefusal, SandboxError."""
        sandbox, path = await self._place(wanted)
        found = await sandbox.list(path, limit=MOST_ENTRIES)
        folder = posixpath.dirname(found.entries[0].path) if found.entries else path
        entries = [asdict(each) | {"name": plain_text(posixpath.basename(each.path))} for each in found.entries]
        return {"folder": folder, "entries": entries, "is_cut": found.truncated}

    async def pieces(self, wanted: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The first `most` bytes of a file; it ends early where the file changes, and the page compares sizes.

        Raises PageRefusal, SandboxError.
        """
        sandbox, path = await self._place(wanted)
        most = wanted.get("most", MOST_BYTES)
        if type(most) is not int or not 0 < most <= MOST_BYTES:
            raise PageRefusal(400, f"most must be a number of bytes, at most {MOST_BYTES}")
        found = await sandbox.read(path, Span(limit=min(most, PIECE_BYTES)))

        async def pieces() -> AsyncGenerator[bytes, None]:
            at, piece = 0, found
            while piece.version == found.version and piece.data:
                yield piece.data
                at += len(piece.data)
                if at >= most or not piece.more:
                    return
                try:
                    piece = await sandbox.read(path, Span(offset=at, limit=min(most - at, PIECE_BYTES)))
                except SandboxError:
                    return

        return pieces()

    async def _place(self, wanted: Mapping[str, Any]) -> tuple[Sandbox, str]:
        name, path = wanted.get("sandbox"), wanted.get("path", "")
        if not isinstance(name, str) or not isinstance(path, str) or not name:
            raise PageRefusal(400, 'send {"sandbox": NAME, "path": PATH}')
        return await self._app.fleet.get(name), text_argument("path", path, required=False) or "."
