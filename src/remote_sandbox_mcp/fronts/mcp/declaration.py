"""A tool's declaration: all that the server has to know of it besides its function. It stands beside that function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class WorkspacePart:
    """The part of a workspace in a tool's calls, by the names of their arguments."""

    # Before the call, what changed here is sent; after it, what changed there comes back.
    sends: bool = False
    brings: bool = False
    # The argument for a folder over there, which is the workspace's own where it is left out.
    folder: str = ""
    # Arguments with shell source, which runs after the workspace's init lines.
    scripts: tuple[str, ...] = ()
    # The shell source that the tool itself makes up runs after the init lines, too.
    prepares: bool = False
    # The argument that names something that has been started before: then nothing is sent.
    handle: str = ""
    # It only reads, and does so even where what changed here could not be sent.
    is_read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Facts about one tool."""

    # It starts a command, job or app: its errors say whether that has happened.
    starts: bool = False
    # The name of what it starts is made from the call, so it is found again where it runs and needs no journal.
    names_its_work: bool = False
    # Repeating it does no harm, but the second answer would be an error: the first one is kept.
    answers_once: bool = False
    # It only waits, so a client may have any number of such calls open.
    only_waits: bool = False
    # A call that leaves out the sandbox means the client's.
    means_selected: bool = True
    # Its result names a new sandbox as sandbox_id.
    makes_sandbox: bool = False
    # Arguments for paths on the sandbox, which may name it, as gpu1:data does: a text, a list of texts, or a list of
    # objects with a `path`.
    paths: tuple[str, ...] = ()
    # Arguments for paths on the user's machine that may be on a second sandbox instead.
    other_paths: tuple[str, ...] = ()
    # None: a workspace has no part in it.
    workspace: WorkspacePart | None = None
    # Work begins with it, so clients that hide tools behind a search show it.
    is_first: bool = False
    # Clients that render MCP Apps show its results as cards.
    is_card: bool = False
    # Fields that the same tool of an earlier program has besides, from the arguments and the fields of a result.
    earlier: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] | None = None
    # The page may call it.
    is_on_page: bool = False


PLAIN = Declaration()
