"""Versions of a file in conflict, so that a person can read them before one is chosen."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
from typing import Any

from ...app import App
from ...core.errors import FileProblem, SandboxError
from ...core.sandboxes.files import Span
from ...core.texts.text import visible
from ...core.workspaces.workspace import Workspace
from ...views.results import lean, plain_text, sentence
from .http import PageRefusal

# Of a version; and entries of its folder, of which it is one, that are looked through for its time.
MOST_BYTES, MOST_BESIDE = 200_000, 5000


class Conflicts:
    """Reads only paths that are in conflict: the page is no way to other files of this computer."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def both(self, workspace_id: str, shown: str) -> dict[str, Any]:
        """`mine` and `theirs`, each a text or the reason why there is none. Raises PageRefusal."""
        workspace = next((each for each in self._app.workspaces.all() if each.id == workspace_id), None)
        if workspace is None:
            raise PageRefusal(404, "there is no such workspace (any more)")
        path = await self._path(workspace, shown)
        mine = asyncio.to_thread(read_here, workspace.folder, path)
        found = await asyncio.gather(mine, self._read_there(workspace, path))
        return {"mine": found[0], "theirs": found[1]}

    async def _path(self, workspace: Workspace, shown: str) -> str:
        """The path that the page shows in this way. Raises PageRefusal where it is not in conflict."""
        for tree in (self._app.workspaces.seen_last(workspace)[1], None):
            paths = tree if tree is not None else (await self._app.workspaces.state(workspace)).conflicts
            for path in paths:
                if plain_text(path) == shown:
                    return path
        raise PageRefusal(404, f"{shown[:200]} is not in conflict (any more)")

    async def _read_there(self, workspace: Workspace, path: str) -> dict[str, Any]:
        try:
            sandbox, place = await self._app.fleet.get(workspace.sandbox), workspace.remote_path(path)
            found = await sandbox.read(place, Span(limit=MOST_BYTES))
            beside = await sandbox.list(posixpath.dirname(place), limit=MOST_BESIDE)
        except FileProblem as problem:
            return {"missing": True} if problem.reason == "ENOENT" else {"problem": sentence(problem)}
        except SandboxError as problem:
            return {"problem": sentence(problem)}
        name = posixpath.basename(place)
        mtime = next((each.mtime for each in beside.entries if posixpath.basename(each.path) == name), None)
        return version(found.data, found.size) | lean(mtime=mtime)


def read_here(folder: str, path: str) -> dict[str, Any]:
    """The version of this computer; links are not followed."""
    place = os.path.join(folder, path)
    if os.path.realpath(os.path.dirname(place)) != os.path.normpath(os.path.dirname(place)):
        return {"problem": "its folder is a link"}
    try:
        # A pipe must not be waited for.
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                return {"problem": "it is not a file"}
            return version(opened.read(MOST_BYTES), found.st_size) | {"mtime": found.st_mtime}
    except FileNotFoundError:
        return {"missing": True}
    except OSError as problem:
        return {"problem": sentence(problem.strerror or str(problem))}


def version(data: bytes, size: int) -> dict[str, Any]:
    """A file's content for people, or why it is not shown.

    >>> version(b"a", 1), version(bytes(1), 1)["problem"]
    ({'size': 1, 'text': 'a'}, 'it is not text')
    """
    fields: dict[str, Any] = {"size": size}
    if size > MOST_BYTES:
        return fields | {"problem": f"it has more than {MOST_BYTES:,} bytes"}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    return fields | ({"problem": "it is not text"} if "\0" in text else {"text": visible(text)})
