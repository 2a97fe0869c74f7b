from __future__ import annotations

import re
from pathlib import Path

import pytest

from remote_sandbox_mcp.config import load as loading
from remote_sandbox_mcp.config.commands import COMMAND_READERS
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.machines import completed
from remote_sandbox_mcp.config.schema import (
    DISPOSABLE_READERS,
    HOOK_READERS,
    HTTP_READERS,
    LOCAL_READERS,
    LOGGING_READERS,
    NOTIFY_READERS,
    OPENSANDBOX_READERS,
    REGISTRY_READERS,
    RESULT_READERS,
    SERVER_READERS,
    SERVER_VARIABLES,
    SERVICE_VARIABLES,
    TOP_KEYS,
    WATCH_READERS,
    MachineEntry,
)
from remote_sandbox_mcp.config.secrets import LITERAL, doubt

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
BY_KEY = (SERVER_VARIABLES, *SERVICE_VARIABLES.values())
VARIABLES = [variable for keys in BY_KEY for variables in keys.values() for variable in variables]
OTHERS = ("REMOTE_SANDBOX_LIST", "REMOTE_SANDBOX_MCP_HOME")
SERVICES = [*OPENSANDBOX_READERS, "api_key", *REGISTRY_READERS, *DISPOSABLE_READERS, *HTTP_READERS, *LOGGING_READERS]
TABLES = [
    *(*SERVER_READERS, *RESULT_READERS, *LOCAL_READERS, *NOTIFY_READERS, "webhook_secret", *WATCH_READERS),
    *(*HOOK_READERS, *SERVICES),
]
OWN = ("where", "is_by_pattern")
KEYS = [*TABLES, *COMMAND_READERS, *(key for key in MachineEntry.__dataclass_fields__ if key not in OWN)]


def test_the_example_works(clean_environment: Path, tmp_path: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    (clean_environment / ".ssh" / "config").write_text("Host gpu2 gpu3\n HostName %h.example.com\n")
    (clean_environment / ".ssh" / "work").touch()
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example
    (tmp_path / "config.toml").write_text(example[1])
    (clean_environment / ".config" / "remote-sandbox-mcp").mkdir(parents=True)
    (clean_environment / ".config" / "remote-sandbox-mcp" / "http-key").touch(mode=0o600)
    configuration = completed(load(tmp_path / "config.toml", {"BASTION_PASSWORD": "x"}))
    assert configuration.problems == ()
    assert [machine.name for machine in configuration.machines] == ["gpu1", "bastion", "big", "gpu2", "gpu3"]
    assert [place.name for place in configuration.commands] == ["web"]
    assert [hop.host for hop in configuration.machines[0].hops] == ["bastion.example.com"]


def test_the_example_of_config_json_works(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert example
    (tmp_path / "config.json").write_text(example[1])
    configuration = load(tmp_path / "config.json", {})
    assert configuration.problems == ()
    assert configuration.settings.platform.server_url == "http://localhost:8080"


@pytest.mark.parametrize("key", dict.fromkeys(KEYS))
def test_every_key_has_its_row(key: str) -> None:
    assert re.search(rf"^\|[^|]*`{key}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("variable", [*VARIABLES, *OTHERS, *map(loading._variable, loading.SINGLE_KEYS)])
def test_every_variable_has_its_row(variable: str) -> None:
    assert f"\n| `{variable}` |" in PAGE


@pytest.mark.parametrize("key", TOP_KEYS)
def test_every_part_of_the_file_is_in_the_example(key: str) -> None:
    assert re.search(rf"^(\[{key}[].]|{key} = )", PAGE, re.MULTILINE)


@pytest.mark.parametrize("prefix", ["env:", "file:", "command:", "keyring:", LITERAL])
def test_every_kind_of_secret_has_its_row(prefix: str) -> None:
    assert f"\n| `{prefix}" in PAGE
    assert bool(doubt(prefix, {})) == (prefix != LITERAL)
