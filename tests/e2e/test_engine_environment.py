"""The engine of a machine is found as a person finds it there: by the machine's `env`, and by its login files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server import entry, serve
from tests.support.sshd import Fleet

# Stands for the client of a rootless engine: without its variable it finds no engine.
CLIENT = """\
#!/bin/sh
[ "$DOCKER_HOST" = unix:///run/user/docker.sock ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; }
case $1 in
    images) echo python:3.12; echo "<none>:<none>"; echo busybox:latest ;;
    *) echo "asked with $DOCKER_HOST" >&2; exit 1 ;;
esac
"""
VARIABLE = "unix:///run/user/docker.sock"


@pytest.mark.parametrize("by", ["env", "profile"])
async def test_an_engine_is_found_by_the_machines_variables(fleet: Fleet, tmp_path: Path, by: str) -> None:
    machine = fleet.machine("rootless")
    client = machine.home / "docker"
    client.write_text(CLIENT)
    client.chmod(0o755)
    if by == "profile":
        with (machine.home / ".profile").open("a") as file:
            file.write(f"\necho hello; export DOCKER_HOST={VARIABLE}\n")
    given = {"docker": [str(client)], **({"env": {"DOCKER_HOST": VARIABLE, "TOKEN": "x"}} if by == "env" else {})}
    async with serve(tmp_path, entry(machine, **given)) as server:
        (row,) = (await server.call("list_sandboxes", check_resources=True))["sandboxes"]
        assert (row["makes"], row["images"]) == ("containers (docker)", ["python:3.12", "busybox:latest"])
        (row,) = (await server.call("list_sandboxes"))["sandboxes"]
        assert (row["makes"], "images" in row) == ("containers (docker)", False)
        problem = await server.fail("create_sandbox", image="python:3.12", on="rootless")
        assert f"asked with {VARIABLE}" in problem["error"]
    machine.stop()
