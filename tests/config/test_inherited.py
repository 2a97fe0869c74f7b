from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import keyring.backends.fail
import pytest

from remote_sandbox_mcp.config import keyring_store
from remote_sandbox_mcp.config.inherited import FILE, PLATFORM, files_of, hand_over, watchdog_environ, withdraw
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Origin
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from tests.support.keyrings import Keyring

HIDDEN = "hunter2-do-not-show"
GPU1 = {"name": "gpu1", "host": "192.0.2.1", "user": "u", "password": HIDDEN}
GPU2 = {"name": "gpu2", "host": "192.0.2.2", "user": "u", "agent": "none"}


class Advised(Keyring):
    """One that the library advises against, as it does with files in plain text."""

    priority = 0.5  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def no_keyring() -> Iterator[None]:
    """The library's own answer where a platform has none."""
    before = keyring.get_keyring()
    keyring.set_keyring(keyring.backends.fail.Keyring())
    yield
    keyring.set_keyring(before)


@pytest.fixture
def wallet() -> Keyring:
    made = Keyring()
    keyring.set_keyring(made)
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def listed(*entries: object, **environ: str) -> dict[str, str]:
    return {"REMOTE_SANDBOX_LIST": json.dumps(entries), **environ}


def handed_entries(state: Path) -> str:
    """The machines that were handed over, as REMOTE_SANDBOX_LIST takes them."""
    return watchdog_environ({}, state).get("REMOTE_SANDBOX_LIST", "[]")


def handed(state: Path) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(handed_entries(state))}


def seen_by_daemon(state: Path, config: str = "", **environ: str) -> dict[str, Machine]:
    """What the daemon comes to, in an environment that has nothing of the client's."""
    path = state / "config.toml"
    path.write_text(config)
    configuration = load(path, watchdog_environ(environ, state))
    assert configuration.problems == ()
    return {machine.name: machine for machine in configuration.machines}


def everything_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.iterdir())


# --- in the keyring --------------------------------------------------------------------------------------------------


def test_a_keyring_takes_secrets_and_nothing_of_them_is_in_a_file(state: Path, wallet: Keyring) -> None:
    assert hand_over(["gpu1"], listed(GPU1, GPU2), state) == ""
    assert handed(state) == {"gpu1": GPU1}
    assert HIDDEN not in everything_in(state)
    ((service, user),) = wallet.kept
    assert service == "remote-sandbox-mcp"
    assert user.startswith("handed-over:")
    password = seen_by_daemon(state)["gpu1"].login.password
    assert password
    assert password.reveal() == HIDDEN


def test_two_state_folders_do_not_share_what_they_keep(tmp_path: Path, wallet: Keyring) -> None:
    hand_over(["gpu1"], listed(GPU1), tmp_path / "a")
    hand_over(["gpu1"], listed({**GPU1, "host": "other"}), tmp_path / "b")
    assert len(wallet.kept) == 2
    assert handed(tmp_path / "a")["gpu1"]["host"] == "192.0.2.1"


def test_machines_are_merged_by_name_and_the_newest_wins(state: Path, wallet: Keyring) -> None:
    hand_over(["gpu1"], listed(GPU1), state)
    hand_over(["gpu2"], listed(GPU2), state)
    hand_over(["gpu1"], listed({**GPU1, "host": "192.0.2.99"}), state)
    assert {name: entry["host"] for name, entry in handed(state).items()} == {"gpu1": "192.0.2.99", "gpu2": "192.0.2.2"}
    hand_over(["gpu1"], listed({"name": "gpu1", "host": "192.0.2.88", "agent": "none"}), state)
    assert handed(state)["gpu1"]["host"] == "192.0.2.88"
    assert wallet.kept == {}


def test_a_keyring_that_cuts_off_what_is_too_long_is_not_used(state: Path, wallet: Keyring) -> None:
    wallet.longest = 200
    assert hand_over(["gpu1"], listed(GPU1), state) == ""
    assert wallet.kept
    said = hand_over(["gpu3"], listed({**GPU1, "name": "gpu3", "env": {"A": "x" * 300}}), state)
    assert "secrets of gpu3," in said
    assert wallet.kept == {}
    assert set(handed(state)) == {"gpu1", "gpu3"}


def test_a_locked_keyring_keeps_what_it_has_and_the_file_takes_the_rest(state: Path, wallet: Keyring) -> None:
    hand_over(["gpu1"], listed(GPU1), state)
    wallet.locked = True
    assert "secrets of gpu3," in hand_over(["gpu3"], listed({**GPU1, "name": "gpu3"}), state)
    assert set(handed(state)) == {"gpu3"}
    wallet.locked = False
    assert set(handed(state)) == {"gpu1", "gpu3"}
    assert hand_over(["gpu3"], listed({**GPU1, "name": "gpu3"}), state) == ""
    assert HIDDEN not in everything_in(state)
    assert set(handed(state)) == {"gpu1", "gpu3"}


def test_what_was_handed_over_while_the_keyring_was_locked_is_newer(state: Path, wallet: Keyring) -> None:
    hand_over(["gpu1"], listed(GPU1), state)
    wallet.locked = True
    hand_over(["gpu1"], listed({**GPU1, "host": "192.0.2.99"}), state)
    wallet.locked = False
    assert handed(state)["gpu1"]["host"] == "192.0.2.99"


def test_a_keyring_that_never_answers_is_not_waited_for(
    state: Path, wallet: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_store, "LIMIT_S", 0.05)
    wallet.gate.clear()
    assert "secrets of gpu1," in hand_over(["gpu1"], listed(GPU1), state)
    wallet.gate.set()
    assert set(handed(state)) == {"gpu1"}


# --- in a file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [None, Advised()], ids=["none", "advised against"])
def test_without_a_keyring_an_owner_only_file_takes_them_and_it_is_said(state: Path, made: Keyring | None) -> None:
    if made:
        keyring.set_keyring(made)
    said = hand_over(["gpu1"], listed(GPU1), state)
    assert said == (
        "The watchdog needs the secrets of gpu1, which only this client's environment has; there is no keyring that "
        f"takes them, so they are in {state / FILE}, readable by you alone. To avoid that, put them into "
        "config.toml and their secrets where a reference (keyring:, file:, command:) finds them."
    )
    assert (state / FILE).stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in state.iterdir()) == [FILE, "handed-over.lock"]
    assert seen_by_daemon(state)["gpu1"].login.password
    assert not made or not made.kept


@pytest.mark.parametrize(
    ("extra", "secret"),
    [
        pytest.param({"key_file": "/k"}, False, id="key"),
        pytest.param({"agent": True}, False, id="agent"),
        pytest.param({"password": "keyring:a/b"}, False, id="keyring"),
        pytest.param({"password": "file:/pw"}, False, id="file"),
        pytest.param({"password": "env:NOT_SET"}, False, id="variable that is not set"),
        pytest.param({"password": ""}, False, id="empty password"),
        pytest.param({"password": "x"}, True, id="password"),
        pytest.param({"password": "literal:env:x"}, True, id="password that looks like a reference"),
        pytest.param({"key_passphrase": "x"}, True, id="passphrase"),
        pytest.param({"password": "env:PW"}, True, id="variable"),
        pytest.param({"password": "command:op read x"}, True, id="command, whose words may be secret"),
        pytest.param({"env": {"TOKEN": "x"}}, True, id="variables for commands"),
        pytest.param({"init": "export TOKEN=x"}, True, id="start-up lines"),
    ],
)
def test_only_secrets_are_worth_a_sentence(state: Path, extra: dict[str, Any], secret: bool) -> None:
    environ = listed({"name": "m", "host": "h", **extra}, PW=HIDDEN)
    assert bool(hand_over(["m"], environ, state)) == secret
    assert set(handed(state)) == {"m"}


def test_a_keyring_is_not_asked_for_what_it_was_never_given(state: Path, wallet: Keyring) -> None:
    wallet.gate.clear()
    assert hand_over(["gpu2"], listed(GPU2), state) == ""
    assert set(handed(state)) == {"gpu2"}


# --- what is handed over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [pytest.param(["local", "other"], id="of the file"), pytest.param([], id="none")])
def test_what_the_environment_does_not_have_needs_no_handing_over(state: Path, names: list[str]) -> None:
    assert hand_over(names, listed(GPU1), state) == ""
    assert not (state / FILE).exists()
    assert handed_entries(state) == "[]"
    assert watchdog_environ({"A": "b"}, state) == {"A": "b"}


def test_a_machine_that_moved_to_the_file_is_no_longer_handed_over(state: Path, wallet: Keyring) -> None:
    hand_over(["gpu1", "gpu2"], listed(GPU1, GPU2), state)
    assert hand_over(["gpu1"], {}, state) == ""
    assert set(handed(state)) == {"gpu2"}
    assert wallet.kept == {}
    config = '[machines.gpu1]\nhost = "from.file"\nuser = "u"\n'
    assert {name: machine.host for name, machine in seen_by_daemon(state, config).items()} == {
        "gpu2": "192.0.2.2",
        "gpu1": "from.file",
    }


@pytest.mark.parametrize("made", [None, Keyring()], ids=["file", "keyring"])
def test_the_file_changes_when_there_is_something_new_and_only_then(state: Path, made: Keyring | None) -> None:
    if made:
        keyring.set_keyring(made)

    def changes(*names: str, **environ: str) -> bool:
        before = (state / FILE).stat().st_ino
        hand_over(names, environ, state)
        return (state / FILE).stat().st_ino != before

    first = hand_over(["gpu1", "gpu2"], listed(GPU1, GPU2), state)
    # Kept open, so that its number is not given to the next file.
    with open(state / FILE):
        assert not changes("gpu1", "gpu2", **listed(GPU1, GPU2))
        assert not changes("gpu1", **listed(GPU1, SSH_AUTH_SOCK="/run/of another terminal"))
        assert not changes("other", **listed(GPU1))
        assert changes("gpu1", **listed({**GPU1, "password": "new"}))
    with open(state / FILE):
        assert changes("gpu1", **listed(GPU2))
    assert bool(first) == (made is None)
    assert set(handed(state)) == {"gpu2"}


def test_it_is_said_every_time_that_secrets_are_in_a_file(state: Path) -> None:
    assert hand_over(["gpu1"], listed(GPU1), state) == hand_over(["gpu1"], listed(GPU1), state) != ""


def test_the_single_machine_is_handed_over_under_its_host(state: Path) -> None:
    environ = {"REMOTE_HOST": "h", "REMOTE_PORT": "2222", "REMOTE_USER": "u", "REMOTE_PASSWORD": HIDDEN}
    assert "secrets of h," in hand_over(["h"], environ, state)
    machine = seen_by_daemon(state)["h"]
    assert (machine.host, machine.port, machine.login.user) == ("h", 2222, "u")


def test_jump_hosts_come_along(state: Path) -> None:
    bastion = {"name": "bastion", "host": "b", "user": "j", "password": HIDDEN}
    inner = {"name": "inner", "host": "i", "user": "u", "agent": "none", "jump": ["bastion", "u@outside"]}
    assert "secrets of bastion," in hand_over(["inner"], listed(inner, bastion, GPU1), state)
    assert set(handed(state)) == {"inner", "bastion"}
    (first, second) = seen_by_daemon(state)["inner"].complete().hops
    assert (first.host, second.host) == ("b", "outside")
    assert first.login.password


def test_paths_and_references_mean_the_same_elsewhere(
    state: Path, tmp_path: Path, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "key", clean_environment / "key", tmp_path / "pw"):
        path.write_text(HIDDEN)
        path.chmod(0o600)
    entry = {
        "host": "h",
        "user": "u",
        "key_file": ["key", "~/key"],
        "password": "file:pw",
        "key_passphrase": "env:PHRASE",
        "sudo": "env:PHRASE",
    }
    hand_over(["h"], listed(entry, PHRASE="env:looks like a reference"), state)
    monkeypatch.chdir("/")
    machine = seen_by_daemon(state)["h"]
    assert machine.login.key_files == (str(tmp_path / "key"), str(clean_environment / "key"))
    assert machine.login.password
    assert machine.login.password.reveal() == HIDDEN
    assert machine.login.key_passphrase
    assert machine.login.key_passphrase.reveal() == "env:looks like a reference"
    # The watchdog runs nothing as root.
    assert machine.sudo is None


def test_an_agent_is_found_by_the_daemon(state: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent"
    socket.touch()
    entries = [{"host": "a", "user": "u", "agent": True}, {"host": "b", "user": "u", "agent": "$MINE"}]
    hand_over(["a", "b"], listed(*entries, SSH_AUTH_SOCK=str(socket), MINE="/run/mine"), state)
    machines = seen_by_daemon(state)
    assert machines["a"].login.agent == str(socket)
    assert machines["b"].login.agent == "/run/mine"
    assert seen_by_daemon(state, SSH_AUTH_SOCK="/run/own")["a"].login.agent == "/run/own"
    socket.unlink()
    assert "SSH_AUTH_SOCK" not in watchdog_environ({}, state)


def test_what_the_daemon_has_itself_comes_first(state: Path) -> None:
    hand_over(["gpu1", "gpu2"], listed(GPU1, GPU2), state)
    own = listed({"name": "gpu1", "host": "own", "user": "u", "agent": "none"})
    assert {name: machine.host for name, machine in seen_by_daemon(state, **own).items()} == {
        "gpu1": "own",
        "gpu2": "192.0.2.2",
    }


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(["not a table", {"name": "gpu1"}, {"host": 5}], id="unusable entries"),
        pytest.param([], id="none"),
    ],
)
def test_entries_that_cannot_be_used_are_left_to_be_told_elsewhere(state: Path, entries: list[object]) -> None:
    assert hand_over(["gpu1"], listed(*entries), state) == ""
    assert hand_over(["gpu1"], {"REMOTE_SANDBOX_LIST": "{broken"}, state) == ""


@pytest.mark.parametrize("text", ["", "{broken", "[]", '{"machines": [1]}', '{"machines": {"a": 1}}', "\ud800"])
def test_a_broken_file_is_as_good_as_none(state: Path, text: str) -> None:
    state.mkdir()
    (state / FILE).write_text(text, errors="surrogatepass")
    assert handed_entries(state) == "[]"
    hand_over(["gpu2"], listed(GPU2), state)
    assert set(handed(state)) == {"gpu2"}


PLATFORM_VARIABLES = {"OPENSANDBOX_SERVER": "http://192.0.2.9:8080", "OPEN_SANDBOX_API_KEY": HIDDEN}


def test_the_platform_of_a_client_is_known_to_the_daemon(state: Path, wallet: Keyring) -> None:
    assert hand_over(["sb-1234", PLATFORM], listed(GPU1, **PLATFORM_VARIABLES), state) == ""
    assert HIDDEN not in everything_in(state)
    assert handed(state) == {}
    found = load(state / "config.toml", watchdog_environ({}, state))
    assert found.settings.platform.server_url == "http://192.0.2.9:8080"
    assert found.settings.platform.api_key is not None
    assert found.settings.platform.api_key.reveal() == HIDDEN


def test_a_platforms_key_in_a_file_is_told(state: Path) -> None:
    assert "the secrets of the OpenSandbox platform, which" in hand_over([PLATFORM], PLATFORM_VARIABLES, state)
    assert (state / FILE).stat().st_mode & 0o777 == 0o600


def test_a_platform_without_a_key_is_no_secret(state: Path) -> None:
    assert hand_over([PLATFORM], {"OPEN_SANDBOX_DOMAIN": "192.0.2.9:8080"}, state) == ""
    assert watchdog_environ({}, state)["OPEN_SANDBOX_DOMAIN"] == "192.0.2.9:8080"


def test_a_key_is_not_sent_to_another_platform(state: Path, wallet: Keyring) -> None:
    hand_over([PLATFORM], PLATFORM_VARIABLES, state)
    assert "OPEN_SANDBOX_API_KEY" not in watchdog_environ({"OPENSANDBOX_SERVER": "http://192.0.2.8:8080"}, state)


def test_a_platform_that_moved_to_the_file_is_no_longer_handed_over(state: Path, wallet: Keyring) -> None:
    hand_over([PLATFORM], PLATFORM_VARIABLES, state)
    hand_over([PLATFORM], {}, state)
    assert watchdog_environ({}, state) == {}
    assert not wallet.kept


def test_withdrawing_removes_everything(state: Path, wallet: Keyring) -> None:
    hand_over(["gpu1", "gpu2"], listed(GPU1, GPU2), state)
    withdraw(state)
    assert (wallet.kept, handed_entries(state), (state / FILE).exists()) == ({}, "[]", False)
    withdraw(state)


def test_a_folder_that_cannot_be_written_is_told_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="unable to hand machines over to the watchdog") as caught:
        hand_over(["gpu1"], listed(GPU1), tmp_path / "file" / "state")
    assert HIDDEN not in str(caught.value)


def test_clients_that_hand_over_at_once_lose_nothing(state: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from remote_sandbox_mcp.config.inherited import hand_over\n"
        "for name in sys.argv[2:]:\n"
        "    entry = {'name': name, 'host': 'h', 'agent': 'none'}\n"
        "    hand_over([name], {'REMOTE_SANDBOX_LIST': json.dumps([entry])}, Path(sys.argv[1]))\n"
    )
    wanted = [[f"{client}-{number}" for number in range(10)] for client in "ab"]
    clients = [
        subprocess.Popen([sys.executable, "-c", code, str(state), *names], env=dict(os.environ)) for names in wanted
    ]
    assert [client.wait(50) for client in clients] == [0, 0]
    assert set(handed(state)) == {name for names in wanted for name in names}


def test_nothing_heavy_is_imported_before_it_is_needed(state: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from remote_sandbox_mcp.config import inherited\n"
        f"inherited.hand_over(['a'], {{}}, Path({str(state)!r}))\n"
        f"inherited.watchdog_environ({{}}, Path({str(state)!r}))\n"
        "print(sorted({'keyring', 'asyncssh', 'subprocess', 'hashlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_two_configurations_keep_their_machines_of_one_name_apart(state: Path) -> None:
    one, two = Origin("one", "/etc/one.toml"), Origin("two", "")
    hand_over(["gpu2"], listed(GPU2), state, one)
    hand_over(["gpu2"], listed({**GPU2, "host": "192.0.2.99"}), state, two)
    hosts = [
        [entry["host"] for entry in json.loads(watchdog_environ({}, state, identity)["REMOTE_SANDBOX_LIST"])]
        for identity in ("one", "two", "")
    ]
    # Without a configuration, the newest entry counts.
    assert hosts == [["192.0.2.2"], ["192.0.2.99"], ["192.0.2.99"]]
    # One that has put it into its file does not take it away from the other.
    hand_over(["gpu2"], {}, state, two)
    assert "192.0.2.2" in watchdog_environ({}, state, "one")["REMOTE_SANDBOX_LIST"]
    assert watchdog_environ({}, state, "two") == {}
    assert files_of(state) == {"one": "/etc/one.toml", "two": ""}
