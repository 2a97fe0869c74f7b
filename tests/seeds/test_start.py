"""Sections 1 to 6 of remote-sandbox-mcp's README and the guide's configuration: how it is started and set up."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.accepted import accept
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.project_file import find_project
from remote_sandbox_mcp.config.schema import Configuration, Settings
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from tests.config.test_services import SEED
from tests.support.server import COMMAND, environment

from .promise import shown_by

ONE = {"REMOTE_HOST": "192.0.2.1", "REMOTE_USER": "ubuntu"}
TWO = {"name": "gpu2", "host": "192.0.2.2", "user": "ubuntu"}
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def machine(**more: str) -> Machine:
    """The machine of the short variables."""
    (found,) = load(environ=ONE | more).machines
    return found


def listed(**more: Any) -> Machine:
    """The machine of a list with one entry."""
    given = {key: value for key, value in (TWO | more).items() if value is not None}
    (found,) = load(environ={"REMOTE_SANDBOX_LIST": json.dumps([given])}).machines
    return found


def password(found: Machine) -> str:
    return found.login.password.reveal() if found.login.password else ""


def passphrase(found: Machine) -> str:
    return found.login.key_passphrase.reveal() if found.login.key_passphrase else ""


def settings(**environ: str) -> Settings:
    return load(environ=environ).settings


def of_file(**parts: Any) -> Configuration:
    """What a config.json of the guide's form, with these parts changed, comes to when it is given by --config."""
    file = Path("given.json")
    file.write_text(json.dumps(SEED | {name: SEED[name] | part for name, part in parts.items()}))
    found = load(file, {})
    assert found.problems == ()
    return found


def of_project(*, is_accepted: bool) -> Configuration:
    """What the one in the folder of the project comes to."""
    Path("config.json").write_text(json.dumps(SEED))
    found = find_project()
    assert found
    if is_accepted:
        accept(found.path, found.acceptance, paths.state_folder({}))
    return load(environ={})


def served_by(*words: str) -> tuple[str, list[str]]:
    """Start these words as a client does: the server's name, and the machines that it lists."""

    async def ask() -> tuple[str, list[str]]:
        home = Path.cwd()
        env = environment(home, ({"name": "gpu1", "host": "127.0.0.1", "port": 9, "user": "u", "password": "x"},))
        started = StdioServerParameters(command=words[0], args=list(words[1:]), env=env)
        with (home / "stderr").open("a") as errlog:
            async with Client(stdio_client(started, errlog)) as client:
                answer = await client.call_tool("list_sandboxes", {"check_resources": True})
                found = answer.structured_content or {}
                name = client.server_info.name if client.server_info else ""
                return name, [it["name"] for it in found["sandboxes"]]

    return asyncio.run(ask())


def announced(part: str) -> str:
    return str(getattr(of_file().settings.announced, part))


def in_virtual_environment() -> bool:
    return Path(COMMAND).parent == Path(sys.prefix) / "bin" and served_by(COMMAND)[1][0] == "gpu1"


CHECKS: dict[str, Callable[[], object]] = {
    "command remote-sandbox-mcp": lambda: served_by(COMMAND)[0] == "remote-sandbox-mcp",
    "module remote_sandbox_mcp.server": lambda: served_by(sys.executable, "-m", "remote_sandbox_mcp.server")[1],
    "function main": lambda: served_by(
        sys.executable, "-c", "from remote_sandbox_mcp.server import main; raise SystemExit(main())"
    )[1],
    "started in a virtual environment": in_virtual_environment,
    "list after connecting": lambda: served_by(COMMAND)[1][0] == "gpu1",
    "python 3.10": lambda: re.search(r'requires-python = ">=3\.10"', PYPROJECT.read_text()),
    "REMOTE_HOST": lambda: machine().host == "192.0.2.1",
    "REMOTE_PORT": lambda: machine(REMOTE_PORT="2222").port == 2222,
    "REMOTE_PORT=22": lambda: machine().complete().port == 22,
    "REMOTE_USER": lambda: machine().login.user == "ubuntu",
    "REMOTE_PASSWORD": lambda: password(machine(REMOTE_PASSWORD="your_password")) == "your_password",
    "REMOTE_KEY_FILE": lambda: (
        machine(REMOTE_KEY_FILE="~/.ssh/id_ed25519").login.key_files == (os.path.expanduser("~/.ssh/id_ed25519"),)
    ),
    "REMOTE_KEY_PASSPHRASE": lambda: (
        [passphrase(machine(REMOTE_KEY_FILE="/k", REMOTE_KEY_PASSPHRASE=said)) for said in ("", "p")] == ["", "p"]
    ),
    "REMOTE_SANDBOX_LIST": lambda: (
        [it.name for it in load(environ={"REMOTE_SANDBOX_LIST": json.dumps([TWO, TWO | {"name": "L20"}])}).machines]
        == ["gpu2", "L20"]
    ),
    "list.name": lambda: listed().name == "gpu2",
    "list.name=host": lambda: listed(name=None).name == "192.0.2.2",
    "list.host": lambda: (
        load(environ={"REMOTE_SANDBOX_LIST": '[{"name": "x", "user": "u"}]'}).problems[0].endswith("host is missing.")
    ),
    "list.port": lambda: listed(port=2200).port == 2200,
    "list.port=22": lambda: listed().complete().port == 22,
    "list.user": lambda: listed().login.user == "ubuntu",
    "list.password": lambda: password(listed(password="secret1")) == "secret1",
    "list.key_file": lambda: listed(key_file="~/k").login.key_files == (os.path.expanduser("~/k"),),
    "list.key_passphrase": lambda: passphrase(listed(key_file="/k", key_passphrase="mypass")) == "mypass",
    "list.password and key_file": lambda: (
        (both := listed(password="x", key_file="/k")).login.key_files == ("/k",) and password(both) == "x"
    ),
    "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES": lambda: (
        settings(REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES="7").inline_sync_max_files == 7
    ),
    "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES=200": lambda: settings().inline_sync_max_files == 200,
    "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": lambda: (
        settings(REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES="9").inline_sync_max_bytes == 9
    ),
    "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES=67108864": lambda: settings().inline_sync_max_bytes == 67108864,
    "REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": lambda: (
        settings(REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS="1").expose_advanced_tools is True
    ),
    "OPENSANDBOX_SERVER": lambda: (
        settings(OPENSANDBOX_SERVER="http://localhost:8080").platform.server_url == "http://localhost:8080"
        and settings().platform.server_url == ""
    ),
    "OPENSANDBOX_DEFAULT_IMAGE": lambda: (
        settings(OPENSANDBOX_DEFAULT_IMAGE="nvda-vision:latest").rules.default_image == "nvda-vision:latest"
        and settings().rules.default_image == ""
    ),
    "OPENSANDBOX_DEFAULT_TIMEOUT": lambda: settings(OPENSANDBOX_DEFAULT_TIMEOUT="60").rules.default_timeout_s == 60,
    "OPENSANDBOX_DEFAULT_TIMEOUT=600": lambda: settings().rules.default_timeout_s == 600,
    "MCP_LOG_LEVEL": lambda: (
        (settings(MCP_LOG_LEVEL="INFO").logging.level, settings().logging.level) == ("INFO", "WARNING")
    ),
    "config.json by --config": lambda: of_file().settings.platform.server_url == "http://localhost:8080",
    "config.json in the project": lambda: (
        "config allow" in of_project(is_accepted=False).settings.rules.refusal
        and of_project(is_accepted=True).settings.platform.server_url == "http://localhost:8080"
    ),
    "config.json server.name": lambda: announced("name") == "opensandbox",
    "config.json server.version": lambda: announced("version") == "0.1.0",
    "config.json server.description": lambda: announced("description") == "any",
    "config.json opensandbox.server_url": lambda: (
        of_file(opensandbox={"server_url": "http://192.0.2.9:1"}).settings.platform.server_url == "http://192.0.2.9:1"
    ),
    "config.json opensandbox.default_image": lambda: of_file().settings.rules.default_image == "nvda-vision:latest",
    "config.json opensandbox.default_timeout": lambda: (
        of_file(opensandbox={"default_timeout": 61}).settings.rules.default_timeout_s == 61
    ),
    "config.json opensandbox.max_concurrent_sandboxes": lambda: (
        (of_file().settings.rules.max_concurrent, settings().rules.max_concurrent) == (4, 5)
    ),
    "config.json opensandbox.auto_cleanup": lambda: (
        of_file(opensandbox={"auto_cleanup": False}).settings.rules.auto_cleanup is False
        and settings().rules.auto_cleanup is True
    ),
    "config.json opensandbox.cleanup_after_minutes": lambda: (
        (of_file().settings.rules.cleanup_after_minutes, settings().rules.cleanup_after_minutes) == (31, 30)
    ),
    "config.json logging.level": lambda: of_file().settings.logging.level == "INFO",
    "config.json logging.file": lambda: of_file().settings.logging.file == str(Path("mcp-server.log").absolute()),
    "config.json logging.max_size_mb": lambda: (
        (of_file(logging={"max_size_mb": 3}).settings.logging.max_size_mb, settings().logging.max_size_mb) == (3, 10)
    ),
}


@pytest.mark.parametrize("promise", shown_by("test_start.py::test_promise"))
def test_promise(promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CHECKS[promise]()


def test_a_program_that_takes_the_server_object_is_told_what_to_do() -> None:
    """The guide, extending: @mcp.tool()."""
    with pytest.raises(ImportError, match=r"`extensions` in config\.toml"):
        from remote_sandbox_mcp.server import mcp  # type: ignore[attr-defined]  # noqa: F401
