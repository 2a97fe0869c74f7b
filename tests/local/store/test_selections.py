"""Selected sandboxes as rows: who inherits what from whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.disposables import Owner
from remote_sandbox_mcp.local.store.sessions import SelectedSandbox, SelectionRows

CLIENT, OTHER = Owner(10, "a"), Owner(11, "b")
OLD, OLD_TOO, NEW, NEW_TOO = Owner(20, "c"), Owner(21, "d"), Owner(22, "e"), Owner(23, "f")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SelectionRows]:
    database = Database(tmp_path / "state.db")
    yield SelectionRows(database)
    database.close()


def inherit(rows: SelectionRows, server: Owner, *living: Owner, client: Owner = CLIENT, of: str = "x") -> set[str]:
    alive = {CLIENT, OTHER, server, *living}
    return set(rows.inherit(SelectedSandbox(client, of, server), alive.__contains__))


def test_a_server_takes_over_from_one_of_the_same_client_that_has_ended(rows: SelectionRows) -> None:
    rows.put(SelectedSandbox(CLIENT, "x", OLD, "local"))
    assert inherit(rows, NEW) == {"local"}
    assert inherit(rows, NEW_TOO, NEW) == set()


def test_a_running_server_keeps_its_choice_until_it_releases_it(rows: SelectionRows) -> None:
    choice = SelectedSandbox(CLIENT, "x", OLD, "local")
    rows.put(choice)
    assert inherit(rows, NEW, OLD) == set()
    rows.release(choice)
    assert inherit(rows, NEW_TOO, NEW, OLD) == {"local"}


@pytest.mark.parametrize(
    ("client", "of"),
    [pytest.param(OTHER, "x", id="another client"), pytest.param(CLIENT, "y", id="another configuration")],
)
def test_other_clients_and_configurations_inherit_nothing(rows: SelectionRows, client: Owner, of: str) -> None:
    rows.put(SelectedSandbox(CLIENT, "x", OLD, "local"))
    assert inherit(rows, NEW, client=client, of=of) == set()
    assert inherit(rows, NEW_TOO, NEW) == {"local"}


def test_every_successor_learns_that_the_predecessors_disagree(rows: SelectionRows) -> None:
    rows.put(SelectedSandbox(CLIENT, "x", OLD, "local"))
    rows.put(SelectedSandbox(CLIENT, "x", OLD_TOO, ""))
    assert inherit(rows, NEW) == {"local", ""}
    assert inherit(rows, NEW_TOO, NEW) == {"local", ""}


def test_rows_of_clients_that_have_ended_are_removed(rows: SelectionRows) -> None:
    rows.put(SelectedSandbox(Owner(12, "gone"), "x", OLD, "local"))
    inherit(rows, NEW)
    with rows.database.reading() as connection:
        assert [row["client_pid"] for row in connection.execute("SELECT * FROM selections")] == [CLIENT.pid]


def test_a_server_whose_process_was_replaced_keeps_its_choice(rows: SelectionRows) -> None:
    rows.put(SelectedSandbox(CLIENT, "x", NEW, "local"))
    assert inherit(rows, NEW, NEW) == {"local"}
    assert inherit(rows, NEW, NEW) == {"local"}
