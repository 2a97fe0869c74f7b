from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.errors import ConfigError


def test_the_state_folder_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    folder = paths.state_folder({"REMOTE_SANDBOX_MCP_HOME": str(tmp_path / "a" / "b")})
    assert folder == tmp_path / "a" / "b"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert paths.state_folder({"REMOTE_SANDBOX_MCP_HOME": str(tmp_path)}) == tmp_path
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_the_home_folder_may_be_abbreviated(clean_environment: Path) -> None:
    assert paths.state_folder({"REMOTE_SANDBOX_MCP_HOME": "~/state"}) == clean_environment / "state"


def test_a_relative_folder_is_never_one_that_a_project_brings_along(
    tmp_path: Path, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.state_folder({"REMOTE_SANDBOX_MCP_HOME": "here"}) == clean_environment / "here"
    monkeypatch.setenv("XDG_CONFIG_HOME", ".config")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert paths.config_file().is_relative_to(clean_environment)
    assert paths.state_path({}).is_relative_to(clean_environment)


@pytest.mark.parametrize("environ", [{}, {"REMOTE_SANDBOX_MCP_HOME": ""}], ids=["not set", "empty"])
def test_without_a_wish_the_platform_decides(environ: dict[str, str]) -> None:
    assert paths.state_folder(environ) == Path(platformdirs.user_state_dir("remote-sandbox-mcp"))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Set REMOTE_SANDBOX_MCP_HOME to a folder that can be written"):
        paths.state_folder({"REMOTE_SANDBOX_MCP_HOME": str(tmp_path / "file" / "x")})


def test_our_host_keys_are_in_the_state_folder(tmp_path: Path) -> None:
    environ = {"REMOTE_SANDBOX_MCP_HOME": str(tmp_path)}
    assert paths.known_hosts_file(environ) == tmp_path / "known_hosts"


@pytest.mark.parametrize("given", [None, "", "relative", "/somewhere"], ids=["not set", "empty", "relative", "set"])
def test_the_configuration_file_is_where_the_platform_keeps_them(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", given)
    assert paths.config_file() == Path(platformdirs.user_config_dir("remote-sandbox-mcp")) / "config.toml"
