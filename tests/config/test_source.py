"""Configurations that change while they are in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.secrets import resolve_secret
from remote_sandbox_mcp.config.source import ConfigSource
from remote_sandbox_mcp.core.client import ClientVariables, Variables

ONE = '[machines.one]\nhost = "one.example.org"\nuser = "me"\nkey_file = "/k"\n'
LONG_AGO = 1_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def put(file: Path, text: str, when: int) -> None:
    """Write a file with a time of its own: two changes may come in one tick of the file system's clock."""
    file.write_text(text)
    file.chmod(0o600)
    os.utime(file, (when, when))


def source_of(file: Path, text: str) -> ConfigSource:
    put(file, text, LONG_AGO)
    source = ConfigSource(file, {})
    source.read()
    return source


def test_nothing_is_news_while_no_file_changes(file: Path) -> None:
    assert source_of(file, ONE).refresh() is None


def test_a_change_is_told_once(file: Path) -> None:
    source = source_of(file, ONE)
    put(file, ONE + ONE.replace("one", "two"), LONG_AGO + 1)
    found = source.refresh()
    assert found
    assert [machine.name for machine in found.machines] == ["one", "two"]
    assert source.refresh() is None


def test_a_file_that_was_written_while_it_was_read_is_read_once_more(file: Path) -> None:
    source = source_of(file, ONE)
    file.write_text(ONE.replace("one", "two"))
    assert source.refresh()
    # As young as the reading itself, and of the same length.
    file.write_text(ONE.replace("one", "six"))
    found = source.refresh()
    assert found
    assert [machine.name for machine in found.machines] == ["six"]


def test_a_broken_file_leaves_what_was_before_and_says_so(file: Path) -> None:
    source = source_of(file, ONE)
    put(file, "[machines", LONG_AGO + 1)
    found = source.refresh()
    assert found
    assert [machine.name for machine in found.machines] == ["one"]
    assert "not valid TOML" in found.problems[-1]
    put(file, "[machin", LONG_AGO + 2)
    assert source.refresh() is None
    put(file, ONE, LONG_AGO + 3)
    again = source.refresh()
    assert again
    assert not any("TOML" in problem for problem in again.problems)


def test_a_file_that_is_gone_for_a_moment_is_not_missed(clean_environment: Path) -> None:
    file = clean_environment / "xdg/config_home/remote-sandbox-mcp/config.toml"
    file.parent.mkdir(parents=True)
    put(file, ONE, LONG_AGO)
    source = ConfigSource(None, {})
    source.read()
    file.unlink()
    assert source.refresh() is None
    put(file, ONE, LONG_AGO)
    assert source.refresh() is None
    file.unlink()
    assert source.refresh() is None
    found = source.refresh()
    assert found
    assert not found.machines


@pytest.mark.parametrize(
    ("text", "one", "two", "same"),
    [
        pytest.param("env:A", {"A": "1"}, {"A": "1", "B": "2"}, True, id="the same value"),
        pytest.param("env:A", {"A": "1"}, {"A": "2"}, False, id="another value"),
        pytest.param("command:pass", {"A": "1", "PWD": "/a"}, {"A": "1", "PWD": "/b"}, True, id="another terminal"),
        pytest.param("command:pass", {"VAULT": "a"}, {"VAULT": "b"}, False, id="another variable"),
        pytest.param("keyring:a/b", {"A": "1"}, {"A": "2"}, True, id="the same keyring"),
        pytest.param(
            "keyring:a/b", {"DBUS_SESSION_BUS_ADDRESS": "1"}, {"DBUS_SESSION_BUS_ADDRESS": "2"}, False, id="another bus"
        ),
        pytest.param("file:/a", {"A": "1"}, {"A": "2"}, True, id="the same file"),
        pytest.param("text", {"A": "1"}, {"A": "2"}, True, id="the secret itself"),
    ],
)
def test_secrets_are_the_same_if_what_decides_about_them_is(
    text: str, one: dict[str, str], two: dict[str, str], same: bool
) -> None:
    first, second = resolve_secret(text, one), resolve_secret(text, two)
    assert (first == second) == same
    assert "1" not in repr(first)


def test_a_relative_file_is_another_in_another_folder() -> None:
    first, second = (resolve_secret("file:secret", ClientVariables({}, folder)) for folder in ("/a", "/b"))
    assert first != second


def test_variables_are_never_shown() -> None:
    assert "hidden" in repr(Variables({"PASSWORD": "x"}))
