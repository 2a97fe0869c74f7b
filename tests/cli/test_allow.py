"""`allow` and `disallow`: a person says what agents may use, and running servers follow."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config.allowances import USUAL_S, Allowance, allow, allowances
from remote_sandbox_mcp.config.paths import config_file, state_folder
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.gate import NotAllowed
from remote_sandbox_mcp.core.sync.transfer import Place
from remote_sandbox_mcp.services.gate.paths import Gate
from tests.cli.conftest import COMMAND, Cli, entry
from tests.support.server import serve
from tests.support.sshd import Sshd

OUTSIDE = "lies outside of the project and of the folders that agents may use on this computer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "results"
    found.mkdir()
    return found


def configure(text: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)


def test_a_folder_is_allowed_for_the_usual_time(cli: Cli, folder: Path) -> None:
    done = cli("allow", str(folder))
    assert done.code == 0
    (given,) = allowances()
    assert (given.path, given.writing, given.session, given.by) == (str(folder), True, "", "command line")
    assert given.until is not None
    assert abs(given.until - time.time() - USUAL_S) < 60
    assert done.stdout.startswith(f"Agents may read and write {folder} until ")
    assert done.stdout.endswith(f"(for 8 h); take it back by: remote-sandbox-mcp disallow '{folder}'\n")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "writing", "seconds"),
    [
        pytest.param(["--read"], False, USUAL_S, id="read"),
        pytest.param(["--for", "30m"], True, 1800, id="minutes"),
        pytest.param(["--for=2h", "--read"], False, 7200, id="hours"),
        pytest.param(["--for", "1d"], True, 86400, id="day"),
        pytest.param(["--for", "2w"], True, 14 * 86400, id="weeks"),
        pytest.param(["--always"], True, None, id="always"),
    ],
)
def test_options_say_how_and_for_how_long(
    cli: Cli, folder: Path, options: list[str], writing: bool, seconds: float | None
) -> None:
    given = cli("allow", str(folder), *options, "--json").json
    assert (given["path"], given["writing"], given["warnings"]) == (str(folder), writing, [])
    if seconds is None:
        assert given["until"] is None
    else:
        assert abs(given["until"] - time.time() - seconds) < 60


@pytest.mark.parametrize("time", ["0m", "1y", "h", "-1h", "1.5h", "53w", "999999w", "1h30m", ""])
def test_what_is_no_time_allows_nothing(cli: Cli, folder: Path, time: str) -> None:
    assert cli("allow", str(folder), f"--for={time}").code == 2
    assert allowances() == []


@pytest.mark.parametrize("words", [["--read"], ["--always"], ["--for", "1h"]], ids=" ".join)
def test_options_without_a_place_are_a_mistake(cli: Cli, words: list[str]) -> None:
    done = cli("allow", *words)
    assert (done.code, done.stdout) == (2, "")


def test_a_path_is_kept_whole_with_its_links_resolved(cli: Cli, clean_environment: Path, folder: Path) -> None:
    (clean_environment / "link").symlink_to(folder)
    assert cli("allow", "~/link/new/..").code == 0
    assert [it.path for it in allowances()] == [str(folder)]
    assert cli("disallow", "~/link").code == 0
    assert allowances() == []


def test_a_single_file_may_be_allowed(cli: Cli, folder: Path) -> None:
    (folder / "a file").write_text("x")
    assert cli("allow", str(folder / "a file")).code == 0
    assert [it.path for it in allowances()] == [str(folder / "a file")]


def test_a_place_that_is_not_there_is_allowed_with_a_word(cli: Cli, folder: Path) -> None:
    done = cli("allow", str(folder / "nothing"))
    assert (done.code, done.stderr) == (0, f"remote-sandbox-mcp: there is nothing at {folder}/nothing yet\n")


@pytest.mark.parametrize("place", ["/", "~", "~/.."], ids=["root", "home", "above home"])
def test_a_place_with_a_home_folder_in_it_warns(cli: Cli, place: str) -> None:
    done = cli("allow", place, "--for", "1h")
    assert (done.code, len(allowances())) == (0, 1)
    assert "so this allows much more than a project" in done.stderr
    assert cli("allow", place, "--json").json["warnings"]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        pytest.param("~/.ssh", 'allow_hidden = ["~/.ssh"] under [server] in config.toml', id="keys"),
        pytest.param("~/.config/x", 'allow_hidden = ["~/.config"] under [server] in config.toml', id="hidden"),
        pytest.param("/usr/local/bin", "allow_hidden = ", id="system"),
        pytest.param("state", "part of remote-sandbox-mcp itself", id="our state"),
        pytest.param("config", "part of remote-sandbox-mcp itself", id="our configuration"),
        pytest.param("tools", "a folder of programs that run under your name", id="PATH"),
    ],
)
def test_what_stays_closed_is_not_allowed(cli: Cli, folder: Path, place: str, why: str) -> None:
    known = {"state": str(state_folder()), "config": str(config_file().parent), "tools": str(folder)}
    done = cli("allow", known.get(place, place), PATH=f"{folder}:{os.environ['PATH']}")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("remote-sandbox-mcp: nothing was allowed: ")
    assert why in done.stderr
    assert allowances() == []


def test_what_is_closed_to_writing_alone_may_be_allowed_to_be_read(cli: Cli, folder: Path) -> None:
    tools = {"PATH": f"{folder}:{os.environ['PATH']}"}
    assert (
        f"Reading it can be allowed by: remote-sandbox-mcp allow '{folder}' --read"
        in cli("allow", str(folder), **tools).stderr
    )
    assert cli("allow", str(folder), "--read", **tools).code == 0
    assert [(it.path, it.writing) for it in allowances()] == [(str(folder), False)]


def test_all_that_is_allowed_is_listed_with_where_it_was_said(cli: Cli, folder: Path) -> None:
    configure(
        f'[server]\nallowed_roots = ["{folder}/roots"]\nallowed_roots_read = ["/srv"]\nallow_hidden = ["~/.vim"]\n'
    )
    cli("allow", str(folder), "--always")
    allow(Allowance("/data/x", False, time.time() + 600, "s-1", "form"), state_folder())
    page = cli("allow").stdout.splitlines()
    assert len(page) == 5
    assert page[0].split("  ")[0] == "read and write"
    assert "command line" in page[0]
    assert page[0].endswith(str(folder))
    assert "form, session s-1" in page[1]
    assert "allowed_roots in config.toml" in page[2]
    assert "allowed_roots_read in config.toml" in page[3]
    assert page[3].startswith("read  ")
    assert "allow_hidden in config.toml" in page[4]
    found = cli("allow", "--json").json["allowed"]
    assert [(it["path"], it["by"], it.get("key")) for it in found] == [
        (str(folder), "command line", None),
        ("/data/x", "form", None),
        (f"{folder}/roots", "config.toml", "allowed_roots"),
        ("/srv", "config.toml", "allowed_roots_read"),
        (str(Path.home() / ".vim"), "config.toml", "allow_hidden"),
    ]
    assert (found[1]["session"], found[1]["writing"], found[0]["until"]) == ("s-1", False, None)


def test_an_empty_list_says_what_agents_may_use(cli: Cli) -> None:
    assert "the folder that their client was started in, and nothing else" in cli("allow").stdout
    assert cli("allow", "--json").json == {"allowed": []}


def test_taking_back_takes_what_is_inside(cli: Cli, folder: Path) -> None:
    for path in (folder, folder / "inner", folder.parent / "other"):
        cli("allow", str(path), "--always")
    done = cli("disallow", str(folder))
    assert done.code == 0
    assert done.stdout.splitlines() == [
        f"Taken back: agents could read and write {path} always." for path in (folder, folder / "inner")
    ]
    assert [it.path for it in allowances()] == [str(folder.parent / "other")]


def nothing(folder: Path) -> str:
    return f"{folder} was not allowed"


def by_the_operator(folder: Path) -> str:
    configure(f'[server]\nallowed_roots_read = ["{folder.parent}"]\n')
    return f"{folder} is allowed by allowed_roots_read under [server] in config.toml, which names {folder.parent}"


def as_part(folder: Path) -> str:
    allow(Allowance(str(folder.parent)), state_folder())
    return f"{folder} is allowed as part of {folder.parent}; to take that back: remote-sandbox-mcp disallow"


@pytest.mark.parametrize("prepare", [nothing, by_the_operator, as_part], ids=lambda it: it.__name__)
def test_what_was_not_allowed_there_cannot_be_taken_back(
    cli: Cli, folder: Path, prepare: Callable[[Path], str]
) -> None:
    why = prepare(folder)
    done = cli("disallow", str(folder))
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"remote-sandbox-mcp: nothing was taken back: {why}")
    refused = cli("disallow", str(folder), "--json")
    assert (refused.code, refused.json["code"]) == (1, "bad_argument")


def test_what_is_still_allowed_otherwise_is_said(cli: Cli, folder: Path) -> None:
    cli("allow", str(folder))
    configure(f'[server]\nallowed_roots = ["{folder.parent}"]\n')
    done = cli("disallow", str(folder))
    assert done.code == 0
    assert f"{folder} is allowed by allowed_roots under [server] in config.toml" in done.stderr


@pytest.mark.parametrize("writing", [True, False], ids=["write", "read"])
def test_a_link_that_is_put_in_an_allowed_place_leads_nowhere(cli: Cli, folder: Path, writing: bool) -> None:
    """Another user, or an agent that may write around it, makes a link of the place to what is not allowed."""
    private = folder.parent / "private"
    private.mkdir()
    cli("allow", str(folder / "new"), "--always")
    gate = Gate(Settings())
    assert gate.admit(Place("", str(folder / "new")), writing)
    (folder / "new").symlink_to(private)
    for path in (folder / "new", folder / "new/x", private / "x"):
        with pytest.raises(NotAllowed):
            gate.admit(Place("", str(path)), writing)


def test_a_place_that_has_become_a_link_can_be_taken_back(cli: Cli, folder: Path) -> None:
    cli("allow", str(folder))
    folder.rmdir()
    folder.symlink_to("/usr")
    assert cli("disallow", str(folder)).code == 0
    assert allowances() == []


def test_a_folder_that_was_removed_and_a_name_too_long_are_told(cli: Cli, folder: Path) -> None:
    line = f'cd "$1" && rmdir "$1" && exec "{COMMAND}" $2'
    for words, told in (("allow x", "cannot be followed: No such file or directory"), ("doctor", "it was removed")):
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", line, "sh", folder, words], env=cli.env, capture_output=True, text=True, check=False
        )
        assert told in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    done = cli("allow", "/" + "x" * 5000)
    assert (done.code in (0, 2), done.stderr.count("\n")) == (True, 1)


def test_a_name_cannot_write_to_the_terminal(cli: Cli, folder: Path) -> None:
    place = folder / "a\x1b]0;title\x07\x1b[2J\nAgents may read \u202ereversed"
    place.mkdir()
    said = [cli("allow", str(place)), cli("allow"), cli("disallow", str(place / "x")), cli("disallow", str(place))]
    closed = Path.home() / ".ssh" / place.name
    said += [cli("disallow", str(place)), cli("allow", str(closed)), cli("allow", str(closed), "--read")]
    assert [it.code for it in said] == [0, 0, 1, 0, 1, 2, 2]
    for text in (it.stdout + it.stderr for it in said):
        assert text.count("\n") == 1
        assert text.removesuffix("\n").isprintable()


@pytest.mark.parametrize("hub", [True, False], ids=["hub", "no hub"])
async def test_a_running_server_follows_what_a_person_says(
    cli: Cli, good: Sshd, tmp_path: Path, folder: Path, hub: bool
) -> None:
    (folder / "a.txt").write_text("x")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    given: dict[str, Any] = {"local_path": str(folder), "remote_path": f"allowed-{hub}"}
    back: dict[str, Any] = {"local_path": str(folder / "back"), "remote_path": f"allowed-{hub}"}
    own = {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state")}
    no_others = {"REMOTE_SANDBOX_ALLOWED_ROOTS": ""}
    async with serve(home, entry(good), cwd=project, hub=hub, env=no_others) as server:
        refused = (await server.fail("sync_local_to_remote", **given))["error"]
        assert OUTSIDE in refused
        assert f"remote-sandbox-mcp allow '{folder}' --read" in refused
        assert cli("allow", str(folder), "--read", **own).code == 0
        assert (await server.call("sync_local_to_remote", **given))["uploaded_files"] == 1
        refused = (await server.fail("sync_remote_to_local", **back))["error"]
        assert refused.endswith(f"remote-sandbox-mcp allow '{folder}/back'")
        assert cli("allow", str(folder), **own).code == 0
        assert (await server.call("sync_remote_to_local", **back))["downloaded_files"] == 1
        assert cli("disallow", str(folder), **own).code == 0
        assert OUTSIDE in (await server.fail("sync_local_to_remote", **given))["error"]
