"""A place of this computer that an agent may not use yet: the client says what it works in, or its user is asked."""

from __future__ import annotations

import asyncio
import os
import time
from urllib.parse import unquote, urlsplit

from mcp.shared.exceptions import MCPError
from mcp.types import ListRootsRequest, ListRootsResult
from pydantic import ValidationError

from ...config import paths
from ...config.allowances import USUAL_S, Allowance, allow
from ...core.gate import NotAllowed
from ...core.permission import is_loopback
from ...local.waiting import within
from ...services.gate.paths import Gate
from ...services.session import Session, current
from .clients import CallContext, abilities
from .consent import Request, agreed
from .forms import is_in_rounds

ROOTS_S = 5.0
MOST_ROOTS = 100
QUESTION = (
    "May the agent {what} {path} on this computer? It lies outside of the project. (A yes holds for this conversation, "
    "{hours:.0f} hours at most; remote-sandbox-mcp disallow takes it back.)"
)


async def make_way(problem: NotAllowed, gate: Gate, context: CallContext) -> None:
    """Return where the path is allowed by now. Raises NotAllowed, BadArgument, AnswerNeeded."""
    session = current()
    if session.is_over_http and not _is_near(context):
        # Whoever has the key from another computer is not the one at this one, and could answer a form by itself.
        raise problem
    if await _has_new_roots(session, context) and gate.would_allow(problem):
        return
    what = "read and write" if problem.writing else "read"
    question = QUESTION.format(what=what, path=problem.path, hours=USUAL_S / 3600)
    request = Request(
        kind="folder", key=f"{what} {problem.path}", question=question, refusal=problem.refusal, by_hand=problem.by_hand
    )
    await agreed(request)
    allowance = Allowance(problem.path, problem.writing, time.time() + USUAL_S, session.name, "form")
    await asyncio.to_thread(allow, allowance, paths.state_folder())


async def learn_roots(context: CallContext) -> None:
    """Ask a client over HTTP, once, where it works: the folder of the server is none of its own.

    Not a client on another computer: the gate allows what lies in these folders.
    """
    session = current()
    if session.is_over_http and not session.is_of_many and not session.are_roots_asked and _is_near(context):
        session.are_roots_asked = True
        await _has_new_roots(session, context)


async def _has_new_roots(session: Session, context: CallContext) -> bool:
    """Ask the client which folders it works in; whether they are others than before."""
    roots = session.roots
    found = abilities(context)
    if context is None or is_in_rounds(context) or found is None or found.roots is None:
        return False
    try:
        # Not list_roots: the SDK warns that the newest protocol has no roots any more.
        listed = await within(context.session.send_request(ListRootsRequest(), ListRootsResult), ROOTS_S)
    except (asyncio.TimeoutError, TimeoutError, MCPError, ValidationError, ValueError):
        return False
    session.roots = tuple(filter(None, (_path_of(str(root.uri)) for root in listed.roots[:MOST_ROOTS])))
    return session.roots != roots


def _is_near(context: CallContext) -> bool:
    """Whether a call over HTTP comes from this computer."""
    request = context.request_context.request if context else None
    peer = getattr(request, "client", None)
    return peer is not None and is_loopback(peer.host)


def _path_of(uri: str) -> str:
    """The whole path that a file URI names; empty for any other."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    is_here = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return os.path.normpath(path) if is_here and os.path.isabs(path) and "\0" not in path else ""
