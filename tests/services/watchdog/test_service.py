"""Which service, what it is told, and what is told of it."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import ConfigError, SandboxError
from remote_sandbox_mcp.local.processes.locks import LockHolder
from remote_sandbox_mcp.local.processes.process import module_words
from remote_sandbox_mcp.services.watchdog import launchd, original, service, systemd
from remote_sandbox_mcp.services.watchdog.manager import Facts, Program, Service, fixed, is_passing, make_program, which
from remote_sandbox_mcp.services.watchdog.service import notes
from tests.support.programs import look_in

PLAIN = Program(Path("/home/a/.state"), ("/usr/bin/python3", "-m", "remote_sandbox_mcp", "watchdog", "run"))


@pytest.mark.parametrize(
    ("platform", "has_systemd", "has_launchd", "kind"),
    [
        pytest.param("darwin", False, True, "launchd", id="macOS"),
        pytest.param("darwin", True, False, "hub", id="macOS without launchctl"),
        pytest.param("linux", True, False, "systemd", id="Linux"),
        pytest.param("linux", False, False, "hub", id="Linux without systemd, or without a user's"),
        pytest.param("linux", True, True, "systemd", id="Linux with something called launchctl"),
        pytest.param("freebsd14", True, True, "hub", id="others"),
    ],
)
def test_the_kind_of_service(platform: str, has_systemd: bool, has_launchd: bool, kind: str) -> None:
    assert which(platform, has_systemd, has_launchd) == kind


# What is started


def test_the_program_is_ours_with_its_paths_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    program = make_program(tmp_path, Path("my.toml"), {"REMOTE_SANDBOX_MCP_HOME": "x"})
    assert program.words == (
        *module_words("remote_sandbox_mcp"),
        *("--config", str(tmp_path / "my.toml"), "watchdog", "run"),
    )
    assert program.home == str(tmp_path)


def test_only_a_state_folder_that_was_named_gives_a_name_of_its_own(tmp_path: Path) -> None:
    usual, named = make_program(tmp_path, None, {}), make_program(tmp_path, None, {"REMOTE_SANDBOX_MCP_HOME": "x"})
    assert usual.suffix == ""
    assert len(named.suffix) == 9
    assert (fixed(usual), fixed(named)) == ({}, {"REMOTE_SANDBOX_MCP_HOME": str(tmp_path)})


async def test_a_service_that_installs_itself_is_not_started_anew(
    launchctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may ask the hub for it, and the hub may be the service: its call would never be answered."""
    (launchctl / "loaded").touch()
    (launchctl / "state").mkdir()
    monkeypatch.setattr(service, "service_for", launchd.Launchd)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    assert (await service.install(launchctl / "state")).installed
    assert not [line for line in (launchctl / "calls").read_text().splitlines() if not line.startswith("print")]


def test_a_service_finds_the_commands_that_the_user_does(tmp_path: Path) -> None:
    program = make_program(tmp_path, None, {"PATH": "/opt/homebrew/bin:/bin", "REMOTE_PASSWORD": "hunter2"})
    assert fixed(program) == {"PATH": "/opt/homebrew/bin:/bin"}
    for written in (systemd.render(program), launchd.render("x", program).decode()):
        assert "/opt/homebrew/bin:/bin" in written
        assert "hunter2" not in written


@pytest.mark.parametrize(
    ("python", "passing"),
    [("/home/a/.cache/uv/archive-v0/x/bin/python", True), ("/home/a/.local/share/uv/tools/x/bin/python", False)],
)
def test_a_program_in_a_cache_may_be_gone_one_day(python: str, passing: bool) -> None:
    assert is_passing(Program(Path("/s"), (python,))) is passing


# systemd

ODD = [
    pytest.param("a b", '"a b"', id="space"),
    pytest.param("100%", '"100%%"', id="specifier"),
    pytest.param('a"b', '"a\\"b"', id="quote"),
    pytest.param("a\\x41", '"a\\\\x41"', id="backslash"),
    pytest.param("it's;", '"it\'s;"', id="what needs no care in quotes"),
    pytest.param("a\nb\t", '"a\\x0ab\\x09"', id="line break"),
    pytest.param("größe", '"größe"', id="letters"),
]


@pytest.mark.parametrize(("word", "written"), ODD)
def test_a_word_is_quoted_by_the_rules_of_systemd(word: str, written: str) -> None:
    assert systemd.quoted(word) == written


def test_a_dollar_sign_is_one_in_a_command_but_not_in_a_variable() -> None:
    program = Program(Path("/$s"), ("/bin/p", "$HOME"), "/$s")
    text = systemd.render(program)
    assert 'ExecStart="/bin/p" "$$HOME"\n' in text
    assert 'Environment="REMOTE_SANDBOX_MCP_HOME=/$s"\n' in text


@pytest.mark.parametrize("path", ["/a/it's", '/a/"b"', "/a\\b", "/a/$b", "/a\nb"])
def test_a_program_whose_path_systemd_refuses_is_started_by_a_shell(path: str) -> None:
    assert systemd.command_line((path,)).startswith('"/bin/sh" "-c" "exec \\"$$@\\"" "sh" "/a')


def test_the_unit() -> None:
    lines = systemd.render(PLAIN).splitlines()
    assert 'ExecStart="/usr/bin/python3" "-m" "remote_sandbox_mcp" "watchdog" "run"' in lines
    for line in (
        "KillMode=mixed",
        "Restart=always",
        "RestartSec=5",
        "WantedBy=default.target",
        "UMask=0077",
        "WorkingDirectory=/",
    ):
        assert line in lines
    # They would take sudo away from hooks, and the sockets of agents and proxies from ssh.
    assert not [line for line in lines if line.startswith(("NoNewPrivileges", "Private", "Protect", "SystemCall"))]


@pytest.mark.parametrize("word", [pytest.param(row.values[0], id=str(row.id)) for row in ODD])
def test_systemd_itself_accepts_the_unit(tmp_path: Path, word: str) -> None:
    verify = shutil.which("systemd-analyze")
    assert verify, "systemd-analyze is missing; run: apt-get install systemd"
    unit = tmp_path / "watchdog.service"
    # Programs must exist.
    program = Program(tmp_path, ("/bin/true", word, "$x"), f"/{word}")
    unit.write_bytes(systemd.render(program).encode("utf-8"))
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([verify, "verify", "--user", str(unit)], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [systemd.Systemd, launchd.Launchd])
async def test_a_folder_whose_name_is_no_text_is_refused(
    kind: Callable[[Program], Service], clean_environment: Path
) -> None:
    service = kind(Program(Path("/a\udcffb"), PLAIN.words))
    with pytest.raises(ConfigError, match=r"'/a\\udcffb' is no text, so no service"):
        await service.install(start_now=True)
    assert not service.is_installed()


# launchd, as launchd.plist(5) has it

DOCUMENTED: dict[str, Any] = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "WorkingDirectory": str,
    "RunAtLoad": bool,
    "KeepAlive": (bool, dict),
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": (int, str),
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
PROCESS_TYPES = ("Background", "Standard", "Adaptive", "Interactive")


def rendered(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(launchd.render("remote-sandbox-mcp.watchdog", program))
    return found


def test_every_key_of_the_property_list_is_documented_and_of_its_type() -> None:
    odd = Program(Path("/a <&> b"), ("/usr/bin/p", "ä <x> & 'y' \"z\" ]]>"), "/a <&> b")
    fields = rendered(odd)
    assert fields.keys() <= DOCUMENTED.keys()
    for key, value in fields.items():
        assert isinstance(value, DOCUMENTED[key]), key
        # A truth is a number to Python, but not to launchd.
        assert isinstance(value, bool) == (key in ("RunAtLoad", "KeepAlive")), key
    assert all(isinstance(word, str) for word in fields["ProgramArguments"])
    assert fields["EnvironmentVariables"] == {"REMOTE_SANDBOX_MCP_HOME": "/a <&> b"}
    assert fields["ProgramArguments"] == list(odd.words)
    assert fields["ProcessType"] in PROCESS_TYPES


def test_the_agent_starts_with_the_login_and_is_kept_alive() -> None:
    fields = rendered(PLAIN)
    assert (fields["RunAtLoad"], fields["KeepAlive"], fields["Umask"]) == (True, True, 0o077)
    assert fields["StandardErrorPath"] == fields["StandardOutPath"] == "/home/a/.state/watchdog.log"
    assert fields["ThrottleInterval"] >= 10
    assert "EnvironmentVariables" not in fields


LAUNCHCTL = """#!/bin/sh
# Knows one agent by a file, as launchd would.
echo "$@" >> "$HOME/calls"
case $1 in
print) [ -e "$HOME/loaded" ] || exit 113; printf 'x = {\\n\\tstate = running\\n\\n\\tpid = 4711\\n}\\n' ;;
bootout) [ -e "$HOME/loaded" ] || { echo "Boot-out failed: 3: No such process" >&2; exit 3; }; rm "$HOME/loaded" ;;
bootstrap) [ -e "$3" ] || exit 2; [ ! -e "$HOME/refuses" ] || { echo "Bootstrap failed: 5" >&2; exit 5; }
    touch "$HOME/loaded" ;;
esac
"""


@pytest.fixture
def launchctl(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which launchd seems to be; what it was asked is in `calls`."""
    program = clean_environment / "bin/launchctl"
    program.parent.mkdir()
    program.write_text(LAUNCHCTL)
    program.chmod(0o755)
    look_in(monkeypatch, program.parent, os.environ["PATH"])
    return clean_environment


async def test_an_agent_is_installed_started_and_removed(launchctl: Path) -> None:
    agent = launchd.Launchd(Program(launchctl, PLAIN.words))
    target = f"gui/{os.getuid()}/remote-sandbox-mcp.watchdog"
    await agent.install(start_now=True)
    assert agent.is_installed()
    assert plistlib.loads(agent.file.read_bytes())["ProgramArguments"] == list(PLAIN.words)
    assert (launchctl / "watchdog.log").stat().st_mode & 0o777 == 0o600
    assert await agent.facts() == Facts(enabled=True, active=True, pid=4711)
    await agent.install(start_now=True)
    await agent.remove()
    assert not agent.is_installed()
    assert await agent.facts() == Facts()
    await agent.remove()
    calls = (launchctl / "calls").read_text().splitlines()
    assert calls.count(f"bootstrap gui/{os.getuid()} {agent.file}") == 2
    assert calls.count(f"bootout {target}") == 3


async def test_an_agent_that_is_not_loaded_is_loaded_when_it_is_needed(launchctl: Path) -> None:
    agent = launchd.Launchd(Program(launchctl, PLAIN.words))
    await agent.install(start_now=False)
    assert not (launchctl / "calls").exists()
    await agent.start()
    await agent.start()
    verbs = [line.split()[0] for line in (launchctl / "calls").read_text().splitlines()]
    assert verbs == ["print", "bootstrap", "kickstart", "print", "kickstart"]


async def test_what_launchd_refuses_is_told(launchctl: Path) -> None:
    (launchctl / "refuses").touch()
    agent = launchd.Launchd(Program(launchctl, PLAIN.words))
    with pytest.raises(SandboxError, match=r"unable to run launchctl bootstrap gui/\d+ .*: Bootstrap failed: 5"):
        await agent.install(start_now=True)


# What is told

GOOD = Facts(enabled=True, active=True, pid=7, lingering=True)


@pytest.mark.parametrize(
    ("facts", "found", "beat", "active", "told"),
    [
        pytest.param(GOOD, LockHolder(7, "x"), 990.0, 3, "", id="all is well"),
        pytest.param(Facts(enabled=True, lingering=False), None, None, 0, "loginctl enable-linger", id="no lingering"),
        pytest.param(Facts(), None, None, 0, "not enabled", id="not enabled"),
        pytest.param(GOOD, LockHolder(8, "x"), 990.0, 3, "Process 8 was started without", id="another process"),
        pytest.param(GOOD, LockHolder(7, "x"), 500.0, 3, "no sign of life for 500 s", id="silent"),
        pytest.param(GOOD, None, 500.0, 3, "Nobody looks after", id="nobody"),
    ],
)
def test_what_an_operator_should_know(
    facts: Facts, found: LockHolder | None, beat: float | None, active: int, told: str
) -> None:
    sentences = notes(True, facts, found, beat, active, 1000.0)
    assert len(sentences) == bool(told)
    assert told in "".join(sentences)


async def test_with_ours_the_agent_of_the_original_is_removed_too(launchctl: Path) -> None:
    agent = launchd.Launchd(Program(launchctl, PLAIN.words))
    theirs = launchd.Launchd(Program(launchctl, PLAIN.words), launchd.ORIGINAL)
    for one in (agent, theirs):
        await one.install(start_now=True)
    await agent.remove()
    assert [one.is_installed() for one in (agent, theirs)] == [False, False]
    calls = (launchctl / "calls").read_text().splitlines()
    assert f"bootout gui/{os.getuid()}/com.remote-sandbox-mcp.watchdog" in calls


async def test_the_agent_of_the_original_is_found_and_unloaded(launchctl: Path) -> None:
    theirs = launchd.Launchd(Program(launchctl, PLAIN.words), launchd.ORIGINAL)
    await theirs.install(start_now=True)
    database = launchctl / "watchdog.sqlite3"
    found = original.find(database)
    assert (found.agent, str(found)) == (theirs.file, "the launchd agent com.remote-sandbox-mcp.watchdog")
    assert "still runs as the launchd agent" in original.why_not(database, 0.0, found)
    await original.end(found, database)
    assert original.why_not(database, 0.0, found) == ""
    assert not (launchctl / "loaded").exists()
