"""[sandboxes.NAME] of config.toml: sandboxes behind a command that gives a shell, and presets of such commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..core.client import Variables
from ..core.commands.command import Environment
from ..core.sandboxes.machine import CommandPlace
from ..core.sandboxes.secret import Secret
from ..local.processes.variables import ALWAYS, is_among
from . import readers
from .problems import Fault, Reporter, plain, quoted
from .readers import Reader, read_table, table
from .variables import for_programs

TABLE = "sandboxes"
ENGINES = ("docker", "podman")
# The keys that say what the command is: a table has one of them.
DOORS = ("command", "container", "pod", "devcontainer")
# What each of the others goes with.
COMPANIONS = {
    "engine": ("container",),
    "user": ("container",),
    "context": ("container", "pod"),
    "pod_container": ("pod",),
}
# Not beginning with a dash, which the command would read as an option.
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_CONTEXT = re.compile(r"(?!-).+")
_POD = re.compile(r"[a-z0-9][a-z0-9.-]*(?:/[a-z0-9][a-z0-9.-]*){0,2}", re.ASCII)


def _workspace(value: object) -> str:
    found = readers.folders([value])
    if len(found) != 1:
        raise Fault("must be the whole path of a workspace folder")
    return found[0]


COMMAND_READERS: dict[str, Reader] = {
    "command": readers.program,
    "container": readers.fitting(_NAME, 'must be the name or the id of a container, as in "web"'),
    "engine": readers.word(*ENGINES),
    "user": readers.fitting(_NAME, 'must be a user of the container, as in "dev" or "1000"'),
    "pod": readers.fitting(_POD, 'must be a pod, as in "namespace/web" or "namespace/deployment/web"'),
    "pod_container": readers.fitting(_NAME, 'must be the name of a container of the pod, as in "app"'),
    "context": readers.fitting(_CONTEXT, "must be the name of a context, which does not begin with a dash"),
    "devcontainer": _workspace,
    "python": readers.text,
    "shell": readers.words,
    "init": readers.lines,
    "env": readers.variables,
    "connect_timeout_s": readers.seconds,
}


def _for_container(values: Mapping[str, Any]) -> tuple[str, ...]:
    engine = values.get("engine", ENGINES[0])
    # Where the engine is: docker calls that a context, podman a connection.
    option = "--context" if engine == "docker" else "--connection"
    where = (option, values["context"]) if "context" in values else ()
    user = ("--user", values["user"]) if "user" in values else ()
    return (engine, *where, "exec", "-i", *user, values["container"], "sh", "-c")


def _for_pod(values: Mapping[str, Any]) -> tuple[str, ...]:
    *namespace, pod = values["pod"].split("/", 1)
    where = ("--context", values["context"]) if "context" in values else ()
    within = ("--namespace", *namespace) if namespace else ()
    inner = ("--container", values["pod_container"]) if "pod_container" in values else ()
    return ("kubectl", *where, *within, "exec", "-i", pod, *inner, "--", "sh", "-c")


def _for_devcontainer(values: Mapping[str, Any]) -> tuple[str, ...]:
    return ("devcontainer", "exec", "--workspace-folder", values["devcontainer"], "sh", "-c")


PRESETS: dict[str, Callable[[Mapping[str, Any]], tuple[str, ...]]] = {
    "container": _for_container,
    "pod": _for_pod,
    "devcontainer": _for_devcontainer,
}


def read_commands(
    document: Mapping[str, Any],
    file: str,
    environ: Mapping[str, str],
    secrets: Iterable[Secret | None],
    pass_env: Iterable[str],
    taken: Iterable[str],
    report: Reporter,
) -> Iterator[CommandPlace]:
    """The sandboxes that can be used; `taken` are names of others, `secrets` all that the configuration names.

    Their commands get the variables `pass_env` besides those that every such program gets.
    """
    used, variables = set(taken), for_programs(environ, secrets, pass_env)
    for name, raw in table(document, TABLE, file, report).items():
        where = f"{file} [{TABLE}.{plain(name)}]"
        place = _place(name, raw, where, variables, report)
        if place and place.name in used:
            report(f"{where} is left out: a machine is named {quoted(name)} as well; give it a name of its own.")
        elif place:
            used.add(place.name)
            yield place


def _place(name: str, raw: object, where: str, variables: Mapping[str, str], report: Reporter) -> CommandPlace | None:
    """One table. Left out, with the reason reported, where anything in it is wrong: it would start something else."""
    if not isinstance(raw, Mapping):
        report(f"{where} is left out: it must be a table of keys and values, with one of {', '.join(DOORS)}.")
        return None
    values, faults = read_table(raw, COMMAND_READERS, where, report)
    faults += [f"its name {fault}" for fault in _faults_of(readers.name, name)]
    if faults := faults or list(_misfits(values)):
        report(f"{where} is left out: {', and '.join(faults)}.")
        return None
    door = next(key for key in DOORS if key in values)
    command = values["command"] if door == "command" else PRESETS[door](values)
    return CommandPlace(
        name=name.strip(),
        command=command,
        # A command of the operator's may hold a key; a preset cannot.
        shown=shlex.join(command) if door in PRESETS else f"{command[0]} ...",
        environ=_with_table(variables, values.get("env", {})),
        environment=Environment(values.get("shell", ()), values.get("init", ()), values.get("env", {})),
        **{key: values[key] for key in ("python", "connect_timeout_s") if key in values},
    )


def _with_table(variables: Mapping[str, str], env: Mapping[str, str]) -> Variables:
    """The variables of a command, with those of its table: but PATH, HOME and their like are meant for the inside."""
    return Variables({**variables, **{name: value for name, value in env.items() if not is_among(name, ALWAYS)}})


def _faults_of(reader: Reader, value: object) -> Iterator[str]:
    try:
        if not reader(value):
            yield "is empty"
    except Fault as fault:
        yield str(fault)


def _misfits(values: Mapping[str, Any]) -> Iterator[str]:
    doors = [key for key in DOORS if key in values]
    if len(doors) != 1:
        found = f"has {' and '.join(doors)}" if doors else "has none"
        yield f"it must have exactly one of {', '.join(DOORS)}, and {found}"
        return
    for key, others in COMPANIONS.items():
        if key in values and doors[0] not in others:
            yield f"{key} goes with {' or '.join(others)} only"
