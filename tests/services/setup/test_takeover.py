"""Taking over a state folder that 0.7.6 has made, and giving it back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.problems import parse_toml
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.jobs.watch import Decision, Status, Watch
from remote_sandbox_mcp.local.store import original as rows
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.transfers import id_of
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.setup import config_file, takeover
from remote_sandbox_mcp.services.setup.takeover import Takeover
from remote_sandbox_mcp.services.transfers.records import TransferRecords
from tests.support.keyrings import Keyring, keyring_in_use
from tests.support.original import PASSPHRASE, PASSWORD, lay_out, statuses

BEFORE = {1: "completed", 2: "completed", 3: "cancelled", 4: "active", 5: "active", 6: "active", 7: "active"}
NEW = Watch(sandbox="gpu1", session="new")


@pytest.fixture
def state() -> Path:
    return paths.state_path()


@pytest.fixture
def database(state: Path) -> Path:
    return lay_out(state)


@pytest.fixture
def ring() -> Iterator[Keyring]:
    with keyring_in_use() as ring:
        yield ring


def look() -> Takeover:
    return takeover.look(config_file.read(None))


def take() -> Takeover:
    found = look()
    takeover.take_machines(found, None)
    takeover.take_watches(look())
    return found


def ours(state: Path) -> dict[int, Watch]:
    with closing(Database(state / STATE_FILE)) as opened:
        return {watch.id: watch for watch in Watches(opened).list(limit=100)}


def texts(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_it_is_told_in_one_sentence_with_the_command(database: Path) -> None:
    (problem,) = load().problems
    assert "remote-sandbox-mcp import" in problem
    assert f"watches in {database.parent} and machines with passwords in plain text in {database.parent}" in problem
    assert PASSWORD not in problem


def test_its_config_json_beside_ours_is_one_sentence_not_three(database: Path) -> None:
    beside = paths.config_file().with_name("config.json")
    beside.parent.mkdir(parents=True)
    shutil.copy(database.with_name("config.json"), beside)
    shutil.rmtree(database.parent)
    (problem,) = load().problems
    assert "remote-sandbox-mcp import" in problem
    assert load().faults == ()
    assert [machine.name for machine in takeover.look(config_file.read(None), beside).machines] == ["gpu1", "lab-gpu"]


def test_looking_changes_nothing(database: Path, state: Path) -> None:
    found = look()
    assert (len(found.machines), len(found.watches), len(found.transfers)) == (2, 7, 2)
    assert statuses(database) == BEFORE
    assert not (state / STATE_FILE).exists()
    assert PASSWORD not in repr(found)


def test_machines_come_over_with_their_secrets_in_the_keyring(database: Path, state: Path, ring: Keyring) -> None:
    take()
    document = parse_toml(paths.config_file().read_text())["machines"]
    assert document["gpu1"] == {
        "host": "gpu1.example.org", "port": 22, "user": "me", "password": "keyring:remote-sandbox-mcp/ssh-gpu1",
    }  # fmt: skip
    assert document["lab-gpu"]["key_file"] == "~/.ssh/id_ed25519"
    assert {*ring.kept.values()} == {PASSWORD, PASSPHRASE}
    machines = {machine.name: machine.login for machine in load().machines}
    assert str((password := machines["gpu1"].password) and password.reveal()) == PASSWORD
    takeover.remove_list(state, state / "config.json", None)
    assert PASSWORD not in texts(state)
    assert PASSPHRASE not in texts(paths.config_file().parent)
    # Nothing but that a key is missing here.
    assert ["id_ed25519" in problem for problem in load().problems] == [True]


def test_without_a_keyring_secrets_are_in_files_for_their_owner_alone(database: Path, ring: Keyring) -> None:
    ring.locked = True
    (warning,) = takeover.take_machines(look(), None)
    folder = paths.config_file().parent
    kept = [folder / "passwords/gpu1", folder / "passphrases/lab-gpu"]
    assert [path.read_text() for path in kept] == [f"{PASSWORD}\n", f"{PASSPHRASE}\n"]
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600, 0o600]
    assert all(str(path) in warning for path in kept)


def test_watches_keep_their_numbers_and_new_ones_come_after(database: Path, state: Path, ring: Keyring) -> None:
    take()
    found = ours(state)
    assert {number: watch.status.value for number, watch in found.items()} == BEFORE | {4: "cancelled"}
    assert [found[number].last_state for number in (1, 2, 3)] == ["completed", "failed", "cancelled"]
    sweep = found[6]
    assert (sweep.sandbox, sweep.session, sweep.job_id) == ("lab-gpu", "sweep", "")
    assert (sweep.last_state, sweep.interrupted_at, sweep.resume_attempts) == ("interrupted", 1_700_000_000.0, 1)
    assert (sweep.policy.auto_resume, sweep.policy.resume_command) == (True, "python train.py --resume")
    assert sweep.metadata == {"run": "sweep"}
    assert found[5].metadata == {"run": "train", "resume_plan": {"steps": [1, 2]}}
    with closing(Database(state / STATE_FILE)) as opened:
        watches = Watches(opened)
        assert watches.add(NEW).id == 8
        assert [(event.id, event.watch_id) for event in watches.events()] == [(1, 1), (2, 2), (3, 6)]
        assert watches.pending(2e9) == ()
    assert {*statuses(database).values()} == {rows.IMPORTED}


def test_of_two_watches_over_one_session_the_newer_one_stays_active(database: Path) -> None:
    found = look()
    assert [it.number for it in found.watches if it.watch.session == "train" and it.watch.status is Status.ACTIVE] == [
        5
    ]
    assert "watch 4 is cancelled, because a newer one has the session train." in found.problems


def test_a_session_that_is_watched_here_already_is_not_watched_twice(database: Path, state: Path) -> None:
    with closing(Database(state / STATE_FILE)) as opened:
        Watches(opened).add(Watch(sandbox="lab-gpu", session="sweep"))
    (sweep,) = [it.watch for it in look().watches if it.number == 6]
    assert sweep.status is Status.CANCELLED


def test_new_numbers_begin_after_the_originals_even_before_it_is_taken_over(database: Path, state: Path) -> None:
    with closing(Database(state / STATE_FILE)) as opened:
        assert Watches(opened).add(NEW).id == 8


def test_a_number_that_is_taken_is_told(state: Path) -> None:
    state.mkdir(parents=True)
    with closing(Database(state / STATE_FILE)) as opened:
        Watches(opened).add(NEW)
    shutil.rmtree(state / "hub", ignore_errors=True)
    kept = state.with_name("kept")
    state.rename(kept)
    lay_out(state)
    for file in kept.iterdir():
        shutil.move(file, state / file.name)
    found = look()
    assert [it.watch.id for it in found.watches] == [8, 2, 3, 4, 5, 6, 7]
    assert "watch 1 becomes watch 8, because there is another watch 1." in found.problems
    take()
    assert (ours(state)[1].session, ours(state)[8].session) == ("new", "build")


def test_transfers_are_known_by_their_numbers(database: Path, state: Path, ring: Keyring) -> None:
    take()
    with closing(TransferRecords(state)) as records:
        done, cut = (records.ledger.get(id_of(number)) for number in (1, "2"))
        assert done
        assert (done.status, done.outcome and done.outcome.sent_files) == ("completed", 2)
        assert cut
        assert (cut.status, cut.error) == ("failed", takeover.CUT_OFF)
        assert records.log("tr-00000001").tail(9) == ["[transfer] task=1 completed"]


def test_hooks_that_are_not_allowed_are_left_out_and_told(database: Path) -> None:
    (codex,) = [it.watch for it in look().watches if it.number == 7]
    assert codex.policy.hooks == ()
    assert [problem for problem in look().problems if problem.startswith("watch 7: codex_command")]


def test_taking_over_twice_takes_nothing_more(database: Path, state: Path, ring: Keyring) -> None:
    take()
    before, kept = ours(state), dict(ring.kept)
    assert look().is_empty
    take()
    assert (ours(state), ring.kept) == (before, kept)


def test_what_was_cut_off_is_finished_and_not_taken_twice(
    database: Path, state: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rows, "change", die)
        with pytest.raises(KeyboardInterrupt):
            take()
    assert statuses(database) == BEFORE
    assert len(ours(state)) == 7
    assert look().watches == ()
    assert {*statuses(database).values()} == {rows.IMPORTED}


def test_all_of_it_can_be_given_back(database: Path, state: Path, ring: Keyring) -> None:
    listed = json.loads((state / "config.json").read_text())
    take()
    takeover.remove_list(state, state / "config.json", None)
    assert not (state / "config.json").exists()
    assert all("given back" in it.said or "would be" in it.said for it in takeover.give_back(state, is_dry=True))
    results = takeover.give_back(state)
    assert all(it.is_done for it in results)
    assert any("7 watches and 2 transfers" in it.said for it in results)
    assert statuses(database) == BEFORE
    assert json.loads((state / "config.json").read_text()) == listed
    assert (state / "config.json").stat().st_mode & 0o777 == 0o600
    assert (ours(state), ring.kept, paths.config_file().exists()) == ({}, {}, False)
    assert takeover.give_back(state) == []
    assert len(look().watches) == 7


def test_what_has_ended_here_is_not_begun_again_by_the_original(database: Path, state: Path, ring: Keyring) -> None:
    take()
    with closing(Database(state / STATE_FILE)) as opened:
        watches = Watches(opened)
        sweep = watches.get(6)
        assert sweep
        assert watches.commit(Decision(replace(sweep, status=Status.COMPLETED)), 1.0)
        watches.cancel(7)
    takeover.give_back(state)
    assert statuses(database) == BEFORE | {6: "completed", 7: "cancelled"}


def test_a_secret_that_was_not_kept_keeps_the_file(database: Path, state: Path, ring: Keyring) -> None:
    take()
    ring.kept["remote-sandbox-mcp", "ssh-gpu1"] = "another"
    with pytest.raises(ConfigError, match="stays: its password of gpu1"):
        takeover.remove_list(state, state / "config.json", None)
    assert (state / "config.json").exists()


def test_of_a_damaged_database_nothing_is_taken_and_machines_are(database: Path, state: Path, ring: Keyring) -> None:
    data = bytearray(database.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    database.write_bytes(data)
    found = look()
    assert (len(found.new_machines), found.watches, found.has_database) == (2, (), False)
    (problem,) = found.problems
    assert f"{database} is damaged" in problem
    takeover.take_machines(found, None)
    assert len(load().machines) == 2
    database.write_text("no database at all")
    assert "is damaged" in look().problems[0]


@pytest.mark.parametrize("name", ["", "watchdog.sqlite3", "config.json"])
def test_a_link_is_refused(database: Path, state: Path, tmp_path: Path, name: str) -> None:
    place = state / name if name else state
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link, so nothing is taken over from it"):
        look()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("name", ["", "watchdog.sqlite3", "config.json"])
def test_what_belongs_to_another_user_is_refused(database: Path, state: Path, name: str) -> None:
    os.chown(state / name, 65534, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        look()


def test_a_folder_that_everybody_can_write_to_is_refused(database: Path, state: Path) -> None:
    state.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        look()
