"""Places of this computer that agents may use, on the page: a person sees them, allows one, and takes it back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...app import App
from ...config.allowances import allowances
from ...core.errors import BadArgument
from ...core.gate import is_allowed
from ...services.gate import allowing
from ...services.session import Session, begin, current
from .http import PageRefusal

BY = "page"
SHAPE = 'send {"path": "/a/folder", "writing": true, "for_s": 3600}, with for_s null for always'


class Allowing:
    """Allowances on the page. Each method reads the disk and may wait for another process: call it in a thread."""

    def __init__(self, app: App) -> None:
        self._app = app

    def listed(self, clients: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """List what is allowed now, and the folders of `clients` that are connected."""
        operators = allowing.configured(self._app.settings)
        return {
            "projects": [self._folder_fields(client) for client in clients],
            "configured": [{**allowing.fields(it), "key": it.by} for it in operators],
            "allowed": [allowing.fields(it) for it in allowances()],
        }

    def allow(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Raises PageRefusal, ConfigError."""
        path, writing, for_s = wanted.get("path"), wanted.get("writing"), wanted.get("for_s")
        # What is missing must not mean always.
        is_time = "for_s" in wanted and (for_s is None or _is_time(for_s))
        if not isinstance(path, str) or not isinstance(writing, bool) or not is_time:
            raise PageRefusal(400, SHAPE)
        try:
            given = allowing.allow(self._app.transfers.gate, _whole(path), writing=writing, for_s=for_s, by=BY)
        except BadArgument as problem:
            raise PageRefusal(400, str(problem)) from None
        return {"allowed": allowing.fields(given.allowance), "warnings": given.warnings}

    def take_back(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Raises PageRefusal, ConfigError."""
        path = wanted.get("path")
        if not isinstance(path, str):
            raise PageRefusal(400, 'send {"path": "/a/folder"}')
        try:
            gone = allowing.take_back(_whole(path), self._app.settings)
        except BadArgument as problem:
            raise PageRefusal(400, str(problem)) from None
        return {"taken_back": [allowing.fields(it) for it in gone.allowances], "still": gone.still}

    def _folder_fields(self, client: Mapping[str, Any]) -> dict[str, Any]:
        """The folder in which a client has started us, and whether it counts as a project."""
        folder = str(client.get("folder") or "/")
        # The gate decides for the current session; a thread has a context of its own.
        begin(Session(folder=folder, environ=current().environ))
        gate = self._app.transfers.gate
        why = allowing.why_no_project(folder, gate)
        is_one = not why and is_allowed(allowing.real(folder), gate.ground(), writing=True)
        return {"client": client.get("client", ""), "path": folder, "is_project": is_one}


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and allowing.SHORTEST_S <= value <= allowing.LONGEST_S  # type: ignore[operator]


def _whole(path: str) -> str:
    """A path as a person types it. Raises BadArgument for a relative one: the page is in no folder."""
    path = os.path.expanduser(path.strip())
    if not os.path.isabs(path):
        raise BadArgument("write the whole path, which begins with / or ~")
    return path
