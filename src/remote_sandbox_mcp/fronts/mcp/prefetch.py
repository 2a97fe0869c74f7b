"""Opens the sandbox of a client's first call while the SDK is still loading, with as few validators as possible."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from ...app import App, Stock, compose
from ...config.source import ConfigSource
from ...core.errors import SandboxError
from ...local.processes import descriptors
from ...local.waiting import Chores
from ...services.session import KeptSelection, client_folder, current
from .handshake import LONGEST_QUESTION, NO_MESSAGE, Handshake

# Tools that begin by opening their sandbox, and the argument without which they do nothing.
OPENERS = {
    "exec_bash": "command",
    "exec_bash_background": "command",
    "run_command": "command",
    "run_python": "code",
    "read_remote_file": "remote_path",
    "list_remote_files": "",
    "search_remote_files": "",
}
# Held by whoever imports many modules. One at a time: two that change pydantic at once would not both put back what was
# there before, and two threads that each hold a module for which the other waits would fail.
turn = threading.Lock()


async def serve(source: ConfigSource, handshake: Handshake | None, loaded: Callable[[], None]) -> None:
    """Load the server in a thread, then serve; `loaded` is called in between. The process ends here."""
    descriptors.raise_limit()
    stock = Stock()
    members = stock.take(source.current)
    app = compose(source.current, members=members)
    selection = KeptSelection(app.identity)
    opening = Opening(app, selection)
    if handshake is not None:
        loop = asyncio.get_running_loop()

        def report(call: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(opening.take, call)

        handshake.report_calls(report)
    # Calls that were read before are heeded first.
    await asyncio.sleep(0)
    await opening.prepared()
    stdio = await asyncio.to_thread(load, ".stdio")
    loaded()
    await stdio.serve(app, source, stock, members, handshake, selection)


class Opening:
    """Opens the sandboxes that calls name, or else the one that this client has selected."""

    def __init__(self, app: App, selection: KeptSelection, folder: str = "") -> None:
        """`folder` is the client's current one, where this process has another."""
        self._app = app
        self._fleet = app.fleet
        self._selection = selection
        self._folder = folder
        self._chores = Chores("opening a sandbox ahead of its call")
        self.is_asked = False

    async def prepared(self) -> None:
        """Wait until what opening needs is loaded: two imports at once share the interpreter, and both end late."""
        if preparing := list(self._chores):
            await asyncio.wait(preparing)

    def take(self, call: dict[str, Any]) -> None:
        """Take a call that came before the server was ready."""
        named = sandbox_in(call)
        if named is not None:
            self.is_asked = True
            self._chores.start(self._open(named))

    def take_line(self, line: bytes) -> None:
        """Open the sandbox of a call in a line, if the line contains such a call."""
        with contextlib.suppress(*NO_MESSAGE):
            message = json.loads(line) if line and len(line) <= LONGEST_QUESTION else None
            if isinstance(message, dict) and message.get("method") == "tools/call":
                self.take(message)

    async def _open(self, named: str) -> None:
        # The call itself reports why the sandbox cannot be found.
        with contextlib.suppress(SandboxError):
            name = named or await self._selection.name() or self._linked or current().default or self._fleet.default
            # Other names may be disposable sandboxes, which are not loaded yet.
            if name in self._fleet.names:
                member = self._fleet.member(name)
                if member.sandbox is None:
                    await asyncio.to_thread(member.prepare)
                member.preopen()

    @property
    def _linked(self) -> str:
        """The sandbox of the workspace that the client is in."""
        found = self._app.workspaces.find(self._folder or client_folder())
        return found.sandbox if found else ""


def sandbox_in(call: dict[str, Any]) -> str | None:
    """The sandbox that a call names; empty where it names none, None where it would not open any."""
    params = call.get("params")
    tool, given = (params.get("name"), params.get("arguments")) if isinstance(params, dict) else (None, None)
    if not isinstance(tool, str) or tool not in OPENERS or not isinstance(given, dict) or given.get("sandbox_names"):
        return None
    needed, named = OPENERS[tool], given.get("sandbox_name") or given.get("sandbox_id") or ""
    is_complete = not needed or (isinstance(given.get(needed), str) and bool(given[needed].strip()))
    return named if is_complete and isinstance(named, str) else None


def load(module: str) -> ModuleType:
    """Import a module of this package, and with it the SDK."""
    with turn, validators_made_when_used():
        return importlib.import_module(module, __package__)


@contextmanager
def validators_made_when_used() -> Iterator[None]:
    """Defer the validators of models that are defined meanwhile to their first use.

    The SDK defines hundreds of models, for every message of every protocol version, and a session uses few. Without
    this a start takes a sixth more processor time until the tools are listed, and a quarter more with a new hub.
    """
    from pydantic import BaseModel, TypeAdapter

    usual, make, rebuild = BaseModel.model_config, TypeAdapter.__init__, BaseModel.__dict__["model_rebuild"]

    def make_later(self: Any, type: Any, *, config: Any = None, _parent_depth: int = 2, **more: Any) -> None:
        bare = get_args(type)[0] if get_origin(type) is Annotated else type
        # Other types have their own configuration, and must not be given one.
        if config is None and get_origin(bare) in (Union, UnionType):
            config = {"defer_build": True}
        make(self, type, config=config, _parent_depth=_parent_depth + 1, **more)

    def rebuild_later(cls: Any, /, *, _parent_namespace_depth: int = 2, **more: Any) -> Any:
        caller = sys._getframe(1)
        is_module = caller.f_locals is caller.f_globals and caller.f_globals.get("__name__") == cls.__module__
        # A module that has defined all names which its model refers to: the first use finds them there, too.
        if is_module and not more:
            return None
        return rebuild.__func__(cls, _parent_namespace_depth=_parent_namespace_depth + 1, **more)

    BaseModel.model_config = {**usual, "defer_build": True}
    BaseModel.model_rebuild = classmethod(rebuild_later)  # type: ignore[method-assign, assignment]
    TypeAdapter.__init__ = make_later  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseModel.model_config = usual
        BaseModel.model_rebuild = rebuild  # type: ignore[method-assign]
        TypeAdapter.__init__ = make  # type: ignore[method-assign]
