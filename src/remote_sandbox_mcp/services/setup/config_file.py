"""The change of config.toml, which adds machines and a folder: planned as text, read back when written, or undone."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import paths
from ...config.load import load
from ...config.problems import plain
from ...config.schema import Configuration
from ...core.errors import BadArgument, ConfigError
from ..gate.allowing import why_no_project
from ..gate.paths import Gate
from . import files, toml_text
from .journal import TOML, SetupChange
from .json_text import NotEditable

BEGINNING = "# The machines of remote-sandbox-mcp. `remote-sandbox-mcp config` prints what is in force.\n"
# The table and the key of the folders that agents may use besides their project.
SERVER, ROOTS = "server", "allowed_roots"
# Where people keep their projects, below the home folder.
USUAL = ("projects", "Projects", "code", "src", "work", "dev", "repos", "git", "Developer", "Documents/GitHub")
LONGEST_SHOWN = 300


@dataclass(frozen=True)
class NewMachine:
    """A machine to be added: by its name in `hosts`, or with a table of `fields`."""

    name: str
    fields: Mapping[str, Any]
    is_plain_alias: bool = False


@dataclass(frozen=True)
class ConfigPlan:
    """The text of config.toml before and after."""

    path: Path
    before: str | None
    after: str
    names: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return self.after == (self.before or "")

    def diff(self) -> Iterator[str]:
        """The lines that change, and no others: those around them may hold secrets."""
        old, new = (self.before or "").splitlines(), self.after.splitlines()
        name = str(self.path)
        return difflib.unified_diff(old, new, name if self.before is not None else os.devnull, name, lineterm="", n=0)


def read(config_path: Path | None) -> Configuration:
    """Read the current configuration, without anything that a project brings."""
    path = config_path or paths.config_file()
    return load(config_path, folder=str(path.parent))


def plan(path: Path, machines: Sequence[NewMachine], projects: str = "", server: str = "") -> ConfigPlan:
    """`projects` is a folder that agents may use, `server` the address of an OpenSandbox server.

    Raises ConfigError where the file cannot be changed; the sentence has the lines to add by hand.
    """
    target = files.locate(path)
    before = files.read(target)
    roots = [projects] if projects else []
    try:
        after = _with(before or "", machines, roots) if machines or roots else before or ""
        after = toml_text.add_table(after, ("opensandbox",), {"server_url": server}) if server else after
    except NotEditable as problem:
        tables = [toml_text.table(("machines", it.name), it.fields) for it in machines]
        lines = "\n".join([*tables, *(toml_text.table((SERVER,), {ROOTS: [root]}) for root in roots)])
        raise ConfigError(
            f"{path} is left as it is: {problem}. Correct it, or add these lines yourself:\n{lines}"
        ) from None
    return ConfigPlan(target, before, after, tuple(machine.name for machine in machines))


def _with(text: str, machines: Sequence[NewMachine], roots: Sequence[str]) -> str:
    aliases = [machine.name for machine in machines if machine.is_plain_alias]
    tables = [machine for machine in machines if not machine.is_plain_alias]
    text = text or BEGINNING
    if aliases:
        try:
            text = toml_text.add_hosts(text, aliases)
        except NotEditable:
            # Tables at the end of the file say the same.
            tables = list(machines)
    for machine in tables:
        text = toml_text.add_table(text, ("machines", machine.name), machine.fields)
    return toml_text.add_to_list(text, SERVER, ROOTS, roots) if roots else text


def carry_out(planned: ConfigPlan, config_path: Path | None, *, with_problems: bool = False) -> SetupChange:
    """Write the file and read it back; with any new problem the old one is put back. Raises ConfigError.

    `with_problems`: only a machine that would not be offered counts.
    """
    problems = None if with_problems else {*read(config_path).problems}
    backup = str(files.keep_backup(planned.path, planned.before)) if planned.before is not None else ""
    try:
        files.write(planned.path, planned.after, planned.before, files.OWNER_ONLY)
        _check(planned, config_path, problems)
    except BaseException:
        _put_back(planned)
        if backup:
            os.unlink(backup)
        raise
    changed = tuple(toml_text.hunks(planned.before or "", planned.after))
    digest = files.digest(planned.after)
    return SetupChange(TOML, "what setup added", str(planned.path), backup, digest, hunks=changed)


def _check(planned: ConfigPlan, config_path: Path | None, problems: set[str] | None) -> None:
    after = read(config_path)
    found = [problem for problem in after.problems if problems is not None and problem not in problems]
    missing = {*planned.names} - {machine.name for machine in after.machines}
    if found or missing:
        why = " ".join(found) or f"{', '.join(sorted(missing))} would not be offered."
        raise ConfigError(f"{planned.path} was put back as it was, because with the change it would say: {why}")


def _put_back(planned: ConfigPlan) -> None:
    if files.read(planned.path) != planned.after:
        return
    if planned.before is None:
        planned.path.unlink(missing_ok=True)
    else:
        files.write(planned.path, planned.before, planned.after)


# The folder where a person's projects are: agents may use it, whatever folder their client was started in


def usual_projects(gate: Gate) -> str:
    """The first of the usual folders that can be used, else the folder of the project in which setup was started."""
    found = (*(os.path.join("~", name) for name in USUAL), *_around_here())
    return next((path for path in found if not _why_no_folder(os.path.expanduser(path), gate)), "")


def _around_here() -> list[str]:
    """The folder beside whose others this project is, and the project itself; nothing outside of a checkout."""
    try:
        here = Path.cwd()
    except OSError:
        return []
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    return [str(top.parent), str(top)] if top else []


def checked_projects(text: str, gate: Gate) -> str:
    """The folder as config.toml names it. Raises BadArgument."""
    path = os.path.realpath(os.path.expanduser(text))
    if why := _why_no_folder(path, gate):
        raise BadArgument(f"{plain(path, LONGEST_SHOWN)} is not the folder of your projects: {why}")
    home = os.path.realpath(os.path.expanduser("~"))
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _why_no_folder(path: str, gate: Gate) -> str:
    if not os.path.isdir(path):
        return "there is no such folder"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is no valid text, which config.toml needs"
    return why_no_project(path, gate)
