"""What the tests of the configuration share: a file read, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.machines import completed
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.machine import Hop, Machine

HIDDEN = "hunter2-do-not-show"
GOOD = {"name": "good", "host": "192.0.2.9", "user": "ubuntu", "password": HIDDEN}
A = '[machines.a]\nhost = "192.0.2.1"\nuser = "u"\n'


def read(tmp_path: Path, text: str, **environ: str) -> Configuration:
    path = tmp_path / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    return completed(load(path, environ))


def machines(configuration: Configuration) -> dict[str, Machine]:
    assert configuration.problems == ()
    return {machine.name: machine for machine in configuration.machines}


def ways(hops: tuple[Hop, ...]) -> list[str]:
    return [f"{hop.login.user}@{hop.host}:{hop.port}" for hop in hops]


def from_list(*entries: object, **environ: str) -> Configuration:
    return completed(load(environ={"REMOTE_SANDBOX_LIST": json.dumps(entries), **environ}))


def only(configuration: Configuration) -> Machine:
    assert configuration.problems == ()
    (machine,) = configuration.machines
    return machine


def names(configuration: Configuration) -> list[str]:
    return [machine.name for machine in configuration.machines]


def the_problem(configuration: Configuration) -> str:
    (problem,) = configuration.problems
    assert problem.endswith(".")
    assert "\n" not in problem
    everything = f"{problem}{configuration!r}{json.dumps(show(configuration))}"
    assert HIDDEN not in everything
    return problem
