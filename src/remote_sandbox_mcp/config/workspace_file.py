"""The .remote-sandbox.toml of a project: what its workspace leaves out, brings back and runs first, once accepted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..core.address import read_target
from ..core.errors import ConfigError
from ..core.workspaces.workspace import DEFAULT_PULL, Rules, Workspace
from . import paths
from .accepted import Acceptance, acceptance, digest_of, first_bytes, invitation, whole
from .problems import CONTROLS, Fault, Reporter, parse_toml, plain, position, quoted, unreported

NAME = paths.WORKSPACE_FILE
LARGEST = 64 << 10
MOST_PATTERNS, LONGEST_PATTERN = 200, 1000
NOTHING_GIVEN = Rules()


@dataclass(frozen=True)
class WorkspaceFile:
    """Settings of a project's file. None of its keys opens the gate, names a machine's address or holds a secret."""

    sandbox: str = ""
    # Folder on the sandbox; empty where the file names none.
    remote: str = ""
    excludes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    # None where the file says nothing, which means the default.
    pull: tuple[str, ...] | None = None
    init: tuple[str, ...] = ()
    only_remote: bool = False

    def target(self, offered: Collection[str]) -> tuple[str, str]:
        """The sandbox, of those that the operator's configuration offers, and the folder there; "" for not named."""
        if self.sandbox and self.sandbox not in offered:
            raise ConfigError(
                f"{NAME} names the sandbox {quoted(self.sandbox)}, which your configuration does not offer; add it "
                f"to config.toml, or say which one is meant: remote-sandbox-mcp link SANDBOX:FOLDER"
            )
        return self.sandbox, self.remote


@dataclass(frozen=True)
class Brought:
    """The file as it lies in the project, whether or not it was accepted; `fault` says why it cannot be used."""

    path: str
    content: str = ""
    fault: str = ""

    @property
    def acceptance(self) -> Acceptance:
        """Record to keep once the user accepts it: the content, which stays in force whatever the file becomes."""
        return Acceptance(digest_of(self.content.encode()), self.content)

    def settings(self, report: Reporter) -> dict[str, Any]:
        """Read the file's settings by key. Raises ConfigError with all of its faults: nothing is accepted by halves."""
        values, faults = ({}, [f"it {self.fault}"]) if self.fault else _read(self.content, self.path, report)
        if faults:
            raise ConfigError(f"{plain(self.path, 200)} is not accepted: {', and '.join(faults)}; correct it there")
        return values


def find(path: str) -> Brought | None:
    """The file at this path; None where nothing has that name."""
    path = whole(path)
    if not os.path.lexists(path):
        return None
    # A link would have us read a file that is not the project's.
    found = first_bytes(path, LARGEST + 1, os.O_NOFOLLOW)
    if found is None:
        return Brought(path, fault="must be a file that you can read, and no link, pipe or folder")
    if len(found) > LARGEST:
        return Brought(path, fault=f"is larger than {LARGEST >> 10} KiB")
    try:
        return Brought(path, found.decode())
    except UnicodeDecodeError:
        return Brought(path, fault="is not text in UTF-8")


def refusal(path: str) -> ConfigError:
    """Explain why there is nothing to accept at a path."""
    return ConfigError(f"{quoted(whole(path))} is not there, so there is nothing to accept; name another file")


def accepted_file(folder: str, environ: Mapping[str, str] = os.environ) -> WorkspaceFile | None:
    """Return the accepted settings of the project in this folder (without links in its path); None for none.

    It is kept outside of the project, so it holds until the user accepts something else: whoever changes or deletes
    the project's file changes no rule by that.
    """
    found = acceptance(os.path.join(folder, NAME), environ)
    return _understood(found.content) if found else None


def rules_of(file: WorkspaceFile | None, given: Rules = NOTHING_GIVEN) -> Rules:
    """The rules of a workspace: what the project's accepted file says, and what its user gave when linking it."""
    if file is None:
        return given
    return replace(
        given,
        excludes=_with(file.excludes, given.excludes),
        includes=_with(file.includes, given.includes),
        pull=given.pull if file.pull is None else _with(file.pull, given.pull, DEFAULT_PULL),
        init=_with(file.init, given.init),
        only_remote=file.only_remote or given.only_remote,
    )


def _with(first: tuple[str, ...], more: tuple[str, ...], less: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Join two lists, without items of the second that are in the first or in the third."""
    return (*first, *(item for item in more if item not in first and item not in less))


def current_rules(workspace: Workspace, environ: Mapping[str, str] = os.environ) -> Rules:
    """The rules at this moment; `workspace.rules` are those that were given when it was linked. Costs one stat."""
    return rules_of(accepted_file(workspace.folder, environ), workspace.rules)


def notice(folder: str, environ: Mapping[str, str] = os.environ) -> str:
    """One sentence where a project's file is not what its user has accepted; empty where it is, or is not there."""
    path = whole(os.path.join(folder, NAME))
    file, accepted = find(path), acceptance(path, environ)
    shown = plain(path, 200)
    if accepted is None:
        if file is None:
            return ""
        if file.fault:
            return f"{shown} counts for nothing: it {file.fault}."
        return f"{shown} came with the project and counts for nothing until the user accepts it: {invitation(path)}"
    if file is None:
        denied = f"remote-sandbox-mcp config deny {shlex.quote(shown)}"
        return f"{shown} is gone; what was accepted of it stays in force until this is run: {denied}."
    if file.fault or file.acceptance != accepted:
        return f"{shown} has changed; what was accepted of it before stays in force: {invitation(path)}"
    return ""


@lru_cache(maxsize=32)
def _understood(content: str) -> WorkspaceFile:
    # It was read without a fault when it was accepted; what another version cannot read is left out.
    values, _ = _read(content, NAME, unreported)
    target = read_target(values.pop("sandbox", ""))
    return WorkspaceFile(target.sandbox, target.path, **values)


def _read(content: str, path: str, report: Reporter) -> tuple[dict[str, Any], list[str]]:
    from . import readers

    patterns = {"excludes": _patterns, "includes": _names, "pull": _patterns}
    allowed = {"sandbox": _target, **patterns, "init": _lines, "only_remote": readers.flag}
    try:
        document = parse_toml(content.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as unreadable:
        return {}, [f"it is not valid TOML{position(unreadable)}"]
    return readers.read_table(document, allowed, plain(path, 200), report)


def _target(value: object) -> str:
    """A sandbox's name and perhaps a folder there, as in gpu1:projects/vision."""
    from . import readers

    given = readers.text(value)
    target = read_target(given)
    if not readers.name(target.sandbox):
        raise Fault('must begin with the name of a sandbox, as in "gpu1" or "gpu1:projects/vision"')
    if ".." in target.path.split("/"):
        raise Fault('must not hold ".." in its folder')
    return given


def _lines(value: object) -> tuple[str, ...]:
    """Shell lines; none that could look like something else on a terminal."""
    from . import readers

    given = tuple(line for item in readers.lines(value) for line in item.splitlines())
    if any(CONTROLS.search(line.replace("\t", " ")) for line in given):
        raise Fault("must not hold control characters")
    return given


def _patterns(value: object) -> tuple[str, ...]:
    """Lines of .gitignore that each fit something; none that takes another one back."""
    from . import readers

    given = readers.texts(value)
    if len(given) > MOST_PATTERNS or any(len(item) > LONGEST_PATTERN for item in given):
        raise Fault(f"must be at most {MOST_PATTERNS} patterns of at most {LONGEST_PATTERN} characters")
    # Otherwise excludes = ["!.env"] would send what is left out for its name.
    if any(item.startswith(("!", "#")) for item in given):
        raise Fault(
            'must not hold patterns that begin with "!" or "#"; what is to be sent in any case goes to includes'
        )
    if any(".." in item.split("/") for item in given):
        raise Fault('must not hold ".."; patterns are about files of the project')
    return given


def _names(value: object) -> tuple[str, ...]:
    """Patterns that name something: one for everything would send every secret of the project."""
    given = _patterns(value)
    if any(not item.strip("*?./") for item in given):
        raise Fault('must name files, as in [".env.test"], and not all of them')
    return given
