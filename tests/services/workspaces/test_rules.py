"""The accepted file of a project gives the rules of every pass; whoever edits it changes none of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from remote_sandbox_mcp.cli.workspaces import make_order
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.accepted import accept, withdraw
from remote_sandbox_mcp.config.workspace_file import NAME, find
from remote_sandbox_mcp.core.errors import BadArgument, ConfigError
from remote_sandbox_mcp.core.workspaces.workspace import Rules
from tests.services.workspaces.conftest import World, contents, write


def accepted(folder: Path, text: str) -> None:
    write(folder, {NAME: text})
    found = find(str(folder / NAME))
    assert found
    accept(found.path, found.acceptance, paths.state_folder())


async def test_each_pass_follows_what_is_accepted_then_and_no_edit_of_the_file(world: World) -> None:
    write(world.here, {"a": "1", "private/b": "1", ".env.test": "1"})
    accepted(world.here, 'excludes = ["private/"]\nincludes = [".env.test"]\ninit = "umask 77"\nonly_remote = true')
    preview = await world.app.workspaces.preview(world.order())
    assert (preview.files, preview.secret_count) == (3, 0)
    await world.link()
    assert sorted(contents(world.there)) == [".env.test", NAME, "a"]
    write(world.here, {NAME: "excludes = []\nonly_remote = false"})
    moved = await world.send()
    assert moved.sent == (NAME,)
    assert "has changed; what was accepted of it before stays in force" in moved.line()
    assert (await world.send()).is_quiet
    # A machine cannot change it.
    write(world.there, {NAME: 'includes = ["id_rsa"]'})
    assert (await world.bring()).kept_there == (NAME,)
    assert contents(world.here)[NAME] == "excludes = []\nonly_remote = false"
    await world.decide(keep_local=(NAME,))
    found = world.app.workspaces.find(str(world.here / "private"))
    assert found
    assert (found.rules.init, found.rules.only_remote) == (("umask 77",), True)
    assert world.app.workspaces.given(found) == Rules()
    accepted(world.here, "")
    assert (await world.send()).sent == (NAME, "private/b")


async def test_rules_end_when_the_acceptance_does(world: World) -> None:
    accepted(world.here, 'pull = ["/plots/**"]')
    write(world.here, {"a": "1"})
    await world.link()
    write(world.there, {"plots/a.bin": b"\0", "results/b.bin": b"\0"})
    assert (await world.bring()).came == ("plots/a.bin",)
    assert withdraw(str(world.here / NAME), paths.state_folder())
    assert (await world.bring()).came == ("results/b.bin",)


async def test_a_project_names_its_sandbox_if_that_is_configured(world: World) -> None:
    wanted = argparse.Namespace(remote="", folder=str(world.here), exclude=[], include=[], pull=[])
    with pytest.raises(BadArgument, match="is not said"):
        make_order(world.app, wanted)
    accepted(world.here, 'sandbox = "x:projects/vision"\nexcludes = "data/"')
    order = make_order(world.app, wanted)
    assert (order.sandbox, order.remote, order.rules) == ("x", "projects/vision", Rules())
    accepted(world.here, 'sandbox = "elsewhere"')
    with pytest.raises(ConfigError, match="which your configuration does not offer"):
        make_order(world.app, wanted)
