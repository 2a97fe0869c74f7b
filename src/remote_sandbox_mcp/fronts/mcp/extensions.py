"""Tools, resources and prompts of the operator's own: their files are loaded, checked and offered beside ours."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import stat
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

from mcp.types import CallToolResult

from ...api import Sandboxes
from ...core.client import begin_call
from ...core.errors import BadArgument, ConfigError, SandboxError
from ...core.texts.shown import shown
from ...core.texts.text import visible
from ...extensions import MARK, Offered
from ...local.waiting import within
from ...views.results import sentence, shorten
from .clients import room
from .resources import unread
from .results import reply
from .server import SandboxServer
from .toolbox import RUN

log = logging.getLogger(__name__)

# A file that takes longer to load is left out; what it does goes on in its thread.
LOAD_S = 20.0
# Addresses of resources that only we offer.
OURS = ("sandbox://", "job://", "skill://", "ui://")


@dataclass(frozen=True)
class Own:
    """A function of an extension, and what it is offered as."""

    file: str
    function: Callable[..., Any]
    offered: Offered

    @property
    def name(self) -> str:
        return self.function.__name__


# The functions of a file, or why it is not used.
Loaded = Sequence[Own] | str


async def load_all(files: Sequence[str]) -> Sequence[Loaded]:
    """Load all files, in threads, so that no client waits for them."""

    async def load_in_time(path: str) -> Loaded:
        try:
            return await within(asyncio.to_thread(load, path), LOAD_S)
        except asyncio.TimeoutError:
            return f"{path} was not loaded within {LOAD_S:.0f} s, so none of its tools is offered"

    return [await load_in_time(path) for path in files]


def load(path: str) -> Loaded:
    """The functions that a file offers, or why it is not used, in a sentence."""
    try:
        source = read_safely(path)
    except ConfigError as problem:
        return str(problem)
    module = ModuleType(f"remote_sandbox_extension_{os.path.basename(path).partition('.')[0]}")
    module.__file__ = path
    # Dataclasses and annotations look their module up by its name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as problem:
        log.warning("the extension %s cannot be loaded", path, exc_info=problem)
        return f"{path} cannot be loaded, so none of its tools is offered: {in_words(problem)}"
    marked = [(it, getattr(it, MARK, None)) for it in vars(module).values() if callable(it)]
    return [Own(path, it, offered) for it, offered in marked if isinstance(offered, Offered)]


def read_safely(path: str) -> bytes:
    """The content of a file that only this user or root can have written. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            found, content = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ConfigError(f"{path}, an extension, cannot be read: {error.strerror}") from None
    is_ours, by_others = found.st_uid in (0, os.geteuid()), found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if by_others or not is_ours:
        why = "others can write it; run: chmod go-w" if is_ours else "it belongs to another user"
        raise ConfigError(f"{path}, an extension, is not loaded, because {why}")
    return content


def in_words(problem: BaseException) -> str:
    kind = "" if isinstance(problem, SandboxError) else f"{type(problem).__name__}: "
    return " ".join(f"{kind}{problem}".split())[:300]


def offer(server: SandboxServer) -> None:
    """Offer what was loaded. What cannot be offered is a problem of the configuration."""
    loaded = server.app.extensions or ()
    problems = [it for it in loaded if isinstance(it, str)]
    for own in (own for it in loaded if not isinstance(it, str) for own in it):
        try:
            check(own)
            offer_one(server, own)
        except Exception as problem:
            # Also what the SDK and pydantic say of its parameters.
            log.warning("%s of %s is not offered", own.name, own.file, exc_info=problem)
            problems.append(f"{own.file}: {own.name} is not offered: {sentence(in_words(problem))}")
    server.app.extension_problems = tuple(problems)


def offer_one(server: SandboxServer, own: Own) -> None:
    if own.offered.kind == "tool":
        server.offer_own(tool_function(server, own), own.name.replace("_", " ").capitalize(), RUN)
    elif own.offered.kind == "resource":
        server.resource(own.offered.uri, name=own.name, mime_type="text/plain")(text_function(server, own))
    else:
        server.prompt(own.name, description=own.function.__doc__)(text_function(server, own))


def check(own: Own) -> None:
    """Raises BadArgument, and what its annotations raise."""
    if not inspect.iscoroutinefunction(own.function):
        raise BadArgument("it is no async function; begin it with async def")
    signature_of(own)
    if own.offered.kind == "resource" and ("://" not in own.offered.uri or own.offered.uri.startswith(OURS)):
        raise BadArgument(f"its address must be like benchmark://{{name}}, and begin with none of {', '.join(OURS)}")


def signature_of(own: Own) -> inspect.Signature:
    """The parameters that a client gives: all after `boxes`, each with its type."""
    hints = typing.get_type_hints(own.function, include_extras=True)
    first, *rest = inspect.signature(own.function).parameters.values() or (None,)
    if first is None or first.name != "boxes":
        raise BadArgument("its first parameter must be boxes")
    for one in rest:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY) or one.name.startswith("_"):
            raise BadArgument(f"its parameter {one.name} has no name that a client could give")
        if one.name not in hints:
            raise BadArgument(f"its parameter {one.name} has no type; annotate it, as in {one.name}: str")
    return inspect.Signature([one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in rest])


def dressed(own: Own, function: Callable[..., Any], returns: Any) -> Callable[..., Any]:
    """A function of ours that the SDK takes for the operator's."""
    given: Any = function
    given.__name__, given.__qualname__, given.__doc__ = own.name, own.name, own.function.__doc__
    given.__signature__ = signature = signature_of(own).replace(return_annotation=returns)
    # pydantic reads these.
    given.__annotations__ = {it.name: it.annotation for it in signature.parameters.values()} | {"return": returns}
    return function


def tool_function(server: SandboxServer, own: Own) -> Callable[..., Any]:
    async def call(**given: Any) -> CallToolResult:
        plain = await made(server, own, given)
        fields = plain if isinstance(plain, dict) else {"result": plain}
        return reply(fields, plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, indent=1))

    return dressed(own, call, Annotated[CallToolResult, dict[str, Any]])


def text_function(server: SandboxServer, own: Own) -> Callable[..., Any]:
    async def call(**given: Any) -> str:
        try:
            plain = await made(server, own, given)
        except SandboxError as problem:
            raise unread(problem) from None
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
        return shorten(visible(shown(text)), room())

    return dressed(own, call, str)


async def made(server: SandboxServer, own: Own, given: Mapping[str, Any]) -> Any:
    """Return what the operator's function returns, as JSON has it. Raises SandboxError for each of its failures."""

    async def run() -> Any:
        # Commands of one call would otherwise share the one name that a call has; the journal makes it once.
        begin_call(None)
        return await own.function(Sandboxes(_app=server.app), **given)

    try:
        return json.loads(json.dumps(await asyncio.create_task(run()), default=str))
    except SandboxError:
        raise
    except Exception as problem:
        log.warning("%s of %s failed", own.name, own.file, exc_info=problem)
        raise SandboxError(
            f"{own.name} of {os.path.basename(own.file)} ended with an error: {in_words(problem)}"
        ) from None
