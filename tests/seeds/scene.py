"""One session with a real server, over stdio or HTTP: calls are made once, and many promises look at their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.types import Implementation

from tests.fronts.http.conftest import connected, service
from tests.support.server import Caller, Entry, error_of, serve, text_of

TRANSPORTS = ("stdio", "http")
# What the Python SDK calls itself, and with it all programs that do not say otherwise.
PROGRAM = Implementation(name="mcp", version="0.1.0")


@asynccontextmanager
async def session(
    transport: str,
    home: Path,
    *entries: Entry,
    env: dict[str, str] | None = None,
    config: str = "",
    cwd: Path | None = None,
    local: bool = True,
) -> AsyncIterator[Caller]:
    """A client of the installed command: a program over stdio, an agent over HTTP.

    Over HTTP it is at an address without a path, as the guide has it.
    """
    if transport == "stdio":
        async with serve(home, *entries, env=env, config=config, cwd=cwd, local=local, who=PROGRAM) as server:
            yield server
        return
    with service(home, entries=entries, env=env, config=config, cwd=cwd, local=local) as served:
        # The era of clients that have a session over HTTP, so that they can select a sandbox.
        async with connected(served, path="", mode="legacy") as caller:
            yield caller


class Scene:
    """The answers of a session by the names of its steps; `notes` is what else was seen."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.answers: dict[str, dict[str, Any]] = {}
        self.texts: dict[str, str] = {}
        self.notes: dict[str, Any] = {}

    async def do(self, step: str, tool: str, **given: Any) -> dict[str, Any]:
        """Make a call and keep its answer, whatever it is: only promises that look at it may fail."""
        answer = await self.caller.ask(tool, **given)
        fields = {"failed": error_of(answer)} if answer.is_error else dict(answer.structured_content or {})
        self.answers[step], self.texts[step] = fields, text_of(answer)
        return fields

    def __getitem__(self, step: str) -> dict[str, Any]:
        return self.answers[step]


Check = Callable[[Scene], object]


def holds(checks: dict[str, Check], promise: str, scene: Scene) -> None:
    """Fails with the answers that a promise looks at."""
    assert promise in checks, f"nobody looks at {promise!r}"
    looked = _Looked(scene)
    assert checks[promise](looked), looked.seen


class _Looked(Scene):
    """A scene that remembers which answers were looked at."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.caller)
        self.answers, self.texts, self.notes = scene.answers, scene.texts, scene.notes
        self.seen: dict[str, Any] = {}

    def __getitem__(self, step: str) -> dict[str, Any]:
        self.seen[step] = self.answers[step]
        return self.answers[step]
