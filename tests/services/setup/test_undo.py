from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.setup import config_file, keeping
from remote_sandbox_mcp.services.setup.config_file import NewMachine
from remote_sandbox_mcp.services.setup.journal import SetupJournal
from remote_sandbox_mcp.services.setup.undo import undo
from tests.support.keyrings import Keyring, keyring_in_use

PASSWORD = "hunter2-do-not-show"


@pytest.fixture
def wallet() -> Iterator[Keyring]:
    with keyring_in_use() as made:
        yield made


@pytest.fixture
def config(clean_environment: Path) -> Path:
    path = clean_environment / "config.toml"
    path.write_text("# mine\n")
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path


def add(config: Path, state: Path, name: str, *, password: str = "") -> None:
    """What one run of setup does for one machine."""
    fields = {"host": f"{name}.example.org", "user": "me"}
    if password:
        kept = keeping.keep(name, keeping.MachineSecret(keeping.PASSWORD, password), config)
        SetupJournal(state).add(kept)
        fields["password"] = keeping.reference_of(kept)
    SetupJournal(state).add(config_file.carry_out(config_file.plan(config, [NewMachine(name, fields)]), config))


def test_passwords_of_a_later_run_are_removed_with_those_of_the_first(
    config: Path, state: Path, wallet: Keyring
) -> None:
    add(config, state, "a")
    add(config, state, "b", password=PASSWORD)
    assert all("would be" in it.said for it in undo(state, is_dry=True))
    results = undo(state)
    assert [it.is_done for it in results] == [True, True, True]
    assert (config.read_text(), wallet.kept) == ("# mine\n", {})
    assert SetupJournal(state).changes() == []


def test_a_password_that_config_toml_still_names_is_kept(config: Path, state: Path, wallet: Keyring) -> None:
    add(config, state, "a", password=PASSWORD)
    add(config, state, "b")
    # So changed that what setup added cannot be told apart.
    config.write_text(config.read_text().replace("a.example.org", "a.example.com"))
    results = undo(state)
    assert [it.is_done for it in results] == [True, False, False]
    assert "is kept, because config.toml still names it" in results[2].said
    assert [*wallet.kept.values()] == [PASSWORD]


def test_a_change_that_cannot_be_undone_keeps_no_password_of_another_run(
    config: Path, state: Path, wallet: Keyring
) -> None:
    add(config, state, "a", password=PASSWORD)
    add(config, state, "b")
    config.write_text(config.read_text().replace("b.example.org", "b.example.com"))
    assert [it.is_done for it in undo(state)] == [False, True, True]
    assert wallet.kept == {}


def test_a_keyring_that_keeps_its_password_is_told(config: Path, state: Path, wallet: Keyring) -> None:
    add(config, state, "a", password=PASSWORD)
    wallet.locked = True
    results = undo(state)
    assert [it.is_done for it in results] == [True, False]
    assert results[1].said.endswith("remove it yourself: service remote-sandbox-mcp, account ssh-a.")
    wallet.locked = False
    assert [it.is_done for it in undo(state)] == [True]
    assert (wallet.kept, undo(state)) == ({}, [])


def test_a_password_that_is_gone_already_counts_as_removed(config: Path, state: Path, wallet: Keyring) -> None:
    add(config, state, "a", password=PASSWORD)
    wallet.kept.clear()
    assert [it.is_done for it in undo(state)] == [True, True]
