from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.cli.render import Page
from remote_sandbox_mcp.cli.setup import Chosen, Setup
from remote_sandbox_mcp.cli.setup_dialogue import SetupAnswers, row_texts
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.problems import parse_toml
from remote_sandbox_mcp.config.schema import MachineEntry
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.resources.checkup import Checkup, ok
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.services.setup.keeping import PASSWORD, MachineSecret
from remote_sandbox_mcp.services.setup.machines import Candidate, Standing, Trial
from tests.cli.conftest import COMMAND, DEADLINE_S, Cli
from tests.support.keyrings import Keyring, keyring_in_use
from tests.support.original import PASSWORD as ORIGINAL_PASSWORD
from tests.support.original import lay_out, statuses
from tests.support.second_factor import machine_with_code
from tests.support.sshd import Fleet, Sshd, closed_port, silent_port, wait_until
from tests.support.terminal import Terminal, terminal

# What is promised: from nothing to a first command.
DIALOGUE_S = 120.0
RING = """
import json, os
from pathlib import Path
import keyring.backend

class Ring(keyring.backend.KeyringBackend):
    priority = 5
    file = Path(os.environ["TEST_RING"])
    def _all(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}
    def get_password(self, service, username):
        return self._all().get(f"{service} {username}")
    def set_password(self, service, username, password):
        self.file.write_text(json.dumps(self._all() | {f"{service} {username}": password}))
    def delete_password(self, service, username):
        kept = self._all()
        del kept[f"{service} {username}"]
        self.file.write_text(json.dumps(kept))
"""
CURSOR = (
    '{\n    "mcpServers": {\n        "other": {"command": "other", "env": {"TOKEN": "hush"}}\n    },\n    "x": 1\n}\n'
)
CODEX = '# mine\nmodel = "m"  # kept\n\n[mcp_servers.other]\ncommand = "other"\n'
VSCODE = '{\n  // servers of mine\n  "servers": {}\n}\n'


@dataclass
class World:
    """A home folder with an ssh_config, and the machines that it names."""

    home: Path
    by_key: Sshd
    by_password: Sshd

    @property
    def config(self) -> Path:
        return Path(os.environ["XDG_CONFIG_HOME"]) / "remote-sandbox-mcp/config.toml"

    @property
    def ring(self) -> Path:
        return Path(os.environ["TEST_RING"])

    @property
    def vscode(self) -> Path:
        return Path(os.environ["XDG_CONFIG_HOME"]) / "Code/User/mcp.json"

    def write_ssh_config(self, *more: str) -> None:
        hosts = [
            f"Host alpha\n  HostName 127.0.0.1\n  Port {self.by_key.port}\n  User {self.by_key.user}\n"
            f"  IdentityFile {self.by_key.key_file}\n  IdentitiesOnly yes",
            f"Host vault\n  HostName 127.0.0.1\n  Port {self.by_password.port}\n  User {self.by_password.user}",
        ]
        folder = self.home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "config").write_text("\n".join([*hosts, "Host *\n  ConnectTimeout 3", *more]) + "\n")

    def know(self, *machines: Sshd) -> None:
        (self.home / ".ssh/known_hosts").write_text("".join(it.known_hosts.read_text() for it in machines))

    def add_clients(self) -> dict[Path, str]:
        texts = {self.home / ".cursor/mcp.json": CURSOR, self.home / ".codex/config.toml": CODEX, self.vscode: VSCODE}
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return texts

    def everything(self) -> dict[str, str]:
        """All files of the home folder, with what is in them."""
        found = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path.relative_to(self.home)): path.read_text(errors="replace") for path in found}

    def texts(self) -> dict[str, str]:
        """The same without our own state."""
        return {path: text for path, text in self.everything().items() if not path.startswith("remote-sandbox-mcp/")}


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> tuple[Sshd, Sshd]:
    return fleet.machine("alpha"), fleet.machine("vault", auth="password")


@pytest.fixture
def world(pair: tuple[Sshd, Sshd], clean_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "testring.py").write_text(RING)
    for name, value in {
        "PYTHONPATH": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "testring.Ring",
        "TEST_RING": str(tmp_path / "ring.json"),
        "TERM": "xterm-256color",
        # Neither clients of this computer nor their settings.
        "PATH": f"{Path(COMMAND).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    # Not in a checkout: that would be offered as the folder of projects.
    monkeypatch.chdir(clean_environment)
    world = World(clean_environment, *pair)
    world.write_ssh_config()
    return world


def setup(*words: str) -> AbstractContextManager[Terminal]:
    return terminal([COMMAND, "setup", *words])


def answer_all(here: Terminal, password: str) -> None:
    """From the choice to the end: both machines, the password, config.toml and all clients."""
    here.wait("Enter goes on")
    here.press("Enter")
    here.type("y", after="Is that the right one?")
    here.type(password, after="Password of")
    here.type("", after="Another machine?")
    here.type("", after="Where are your projects?")


def test_from_nothing_to_a_first_command_within_two_minutes(world: World) -> None:
    clients, password = world.add_clients(), world.by_password.password
    with closed_port() as dead, silent_port() as silent:
        world.write_ssh_config(
            f"Host dead\n  HostName 127.0.0.1\n  Port {dead}", f"Host mute\n  HostName 127.0.0.1\n  Port {silent}"
        )
        # One is known already; the other's key has to be accepted.
        world.know(world.by_password)
        before, begun = world.texts(), time.monotonic()
        with setup() as here:
            answer_all(here, password)
            here.type("", after="Write this? [Y/n]")
            here.type("", after="Add it to Codex? [Y/n]")
            here.type("", after="Add it to Cursor? [Y/n]")
            assert here.end() == 0, here.shown()
            seconds, shown = time.monotonic() - begun, here.shown()
    assert seconds < DIALOGUE_S
    assert_well_told(shown, world)
    assert password not in shown
    document = parse_toml(world.config.read_text())
    assert document["hosts"] == ["alpha"]
    kept = {"ssh_alias": "vault", "password": "keyring:remote-sandbox-mcp/ssh-vault"}
    assert document["machines"] == {"vault": kept}
    assert json.loads(world.ring.read_text()) == {"remote-sandbox-mcp ssh-vault": password}
    assert stat.S_IMODE(world.config.stat().st_mode) == 0o600
    assert_clients_told(world, clients)
    assert not [path for path, text in world.everything().items() if password in text]
    assert world.texts()[".ssh/config"] == before[".ssh/config"]
    assert load(world.config).problems == ()
    again_and_back(world, before)


def assert_well_told(shown: str, world: World) -> None:
    for said in (
        "nothing listens on that port",
        "it is open, but says nothing within 3 s",
        f"key of 127.0.0.1 has the fingerprint\n  {fingerprint(world.by_key)}",
        '+hosts = ["alpha"]',
        "+ [mcp_servers.remote-sandbox]",
        "is not plain JSON: it may hold comments",
        "A first command  alpha",
        "load average",
        "Say to your agent",
        "remote-sandbox-mcp doctor",
    ):
        assert said in shown, shown


def fingerprint(sshd: Sshd) -> str:
    import asyncssh

    return asyncssh.import_public_key(sshd.host_key).get_fingerprint()


def assert_clients_told(world: World, texts: dict[Path, str]) -> None:
    cursor, codex = world.home / ".cursor/mcp.json", world.home / ".codex/config.toml"
    servers = json.loads(cursor.read_text())["mcpServers"]
    assert servers["remote-sandbox"] == {"command": COMMAND}
    assert cursor.read_text().startswith(CURSOR.partition("}}")[0])
    assert codex.read_text() == f'{CODEX}\n[mcp_servers.remote-sandbox]\ncommand = "{COMMAND}"\n'
    assert world.vscode.read_text() == VSCODE
    for path in (cursor, codex):
        (backup,) = path.parent.glob(f"{path.name}.before-setup-*")
        assert backup.read_text() == texts[path]
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def again_and_back(world: World, before: dict[str, str]) -> None:
    """A second run changes nothing, and undo leaves what was there before the first."""
    cli, after = Cli(), world.texts()
    # A process of its own: one that was forked would not find the keyring.
    fresh = {"PYTHONPATH": os.environ["PYTHONPATH"], "REMOTE_SANDBOX_LIST": ""}
    second = cli("setup", "--yes", **fresh)
    assert "nothing to change" in second.stdout
    assert second.stdout.count("registered already, as remote-sandbox") == 2
    assert world.texts() == after
    assert cli("setup", "undo", **fresh).code == 0
    assert world.texts() == before
    assert json.loads(world.ring.read_text()) == {}


# A key with a passphrase


@pytest.fixture
def locked(world: World, fleet: Fleet) -> Sshd:
    """The only machine of ~/.ssh/config, with a key that is encrypted."""
    sshd = fleet.machine("locked", auth="encrypted_key")
    world.know(sshd)
    lines = (
        f"Host locked\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n  IdentityFile {sshd.key_file}\n"
    )
    (world.home / ".ssh/config").write_text(f"{lines}  IdentitiesOnly yes\n")
    return sshd


def test_the_passphrase_of_a_key_is_asked_for_and_kept_in_the_keyring(world: World, locked: Sshd) -> None:
    (world.home / ".ssh/known_hosts").unlink()
    with setup("--no-clients") as here:
        here.wait(f"needs the passphrase of {locked.key_file}")
        here.type("", after="Enter goes on")
        asked = f"Passphrase of {locked.key_file}, kept in the keyring (Enter leaves locked out):"
        here.type("wrong", after=asked)
        here.type(locked.key_passphrase, after=asked, times=2)
        # Only now can it be connected to, and shows its own key.
        here.type("y", after="Is that the right one?")
        here.type("", after="Another machine?")
        here.type("", after="Where are your projects?")
        here.type("", after="Write this?")
        assert here.end() == 0, here.shown()
        shown = here.shown()
    assert "firewall" not in shown
    assert locked.key_passphrase not in shown
    assert "load average" in shown
    kept = {"ssh_alias": "locked", "key_passphrase": "keyring:remote-sandbox-mcp/key-locked"}
    assert parse_toml(world.config.read_text())["machines"] == {"locked": kept}
    assert json.loads(world.ring.read_text()) == {"remote-sandbox-mcp key-locked": locked.key_passphrase}
    assert Cli()("setup", "undo", PYTHONPATH=os.environ["PYTHONPATH"]).code == 0
    assert json.loads(world.ring.read_text()) == {}


def test_without_a_keyring_the_key_is_given_to_the_agent(
    world: World, locked: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    folder = Path(tempfile.mkdtemp(prefix="rsmcp-agent-", dir="/tmp"))
    socket = folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists, what="the agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        with setup("--no-clients") as here:
            here.type("", after="Enter goes on")
            here.type("wrong", after="for your ssh-agent (Enter leaves locked out):")
            here.type(locked.key_passphrase, after="for your ssh-agent (Enter leaves locked out):", times=2)
            here.type("", after="Another machine?")
            here.type("", after="Where are your projects?")
            here.type("", after="Write this?")
            assert here.end() == 0, here.shown()
            assert "load average" in here.shown()
        listed = subprocess.run(["ssh-add", "-l"], capture_output=True, text=True, check=True).stdout
        assert "(ED25519)" in listed
    finally:
        agent.terminate()
        agent.wait()
        shutil.rmtree(folder)
    assert parse_toml(world.config.read_text()) == {"hosts": ["locked"]}
    assert not [path for path, text in world.everything().items() if locked.key_passphrase in text]


def test_an_encrypted_key_is_told_with_what_opens_it(world: World, locked: Sshd) -> None:
    assert locked.key_passphrase
    (found,) = unasked("--hosts", "locked", code=1)["machines"]
    assert found["state"] == "passphrase"
    assert found["said"] == f"no usable key: {locked.key_file}: it is encrypted and key_passphrase is missing or wrong"
    assert found["remedy"].startswith(
        "Give an encrypted key to your agent with ssh-add, or set key_passphrase. By hand:"
    )
    assert "firewall" not in found["remedy"]


# The key of a machine


@pytest.fixture
def two_keys(world: World, fleet: Fleet, tmp_path: Path) -> tuple[Sshd, str]:
    """A machine with keys of two types, and the one that is not ed25519."""
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(tmp_path / "rsa")], check=True)
    sshd = fleet.machine("two-keys", extra_config=[f"HostKey {tmp_path}/rsa"])
    lines = f"Host two\n  HostName localhost\n  Port {sshd.port}\n  User {sshd.user}\n  IdentityFile {sshd.key_file}\n"
    (world.home / ".ssh/config").write_text(lines)
    return sshd, " ".join((tmp_path / "rsa.pub").read_text().split()[:2])


def test_the_fingerprint_is_the_one_that_ssh_shows(two_keys: tuple[Sshd, str]) -> None:
    sshd, _ = two_keys
    (found,) = unasked()["machines"]
    assert found["host_key"] == fingerprint(sshd)
    words = ["ssh", "-F", "none", "-v", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    ssh = subprocess.run([*words, "-p", str(sshd.port), "localhost"], capture_output=True, text=True, check=False)
    assert f"Server host key: ssh-ed25519 {found['host_key']}" in ssh.stderr


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_machine_that_is_known_by_another_key_is_asked_for_that_one(
    world: World, two_keys: tuple[Sshd, str], name: str
) -> None:
    sshd, rsa = two_keys
    (world.home / ".ssh/known_hosts").write_text(f"[{name}]:{sshd.port} {rsa}\n")
    (found,) = unasked()["machines"]
    assert found["state"] == "ready", found


def test_without_a_keyring_a_typed_machines_password_is_in_a_file_of_its_owner_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    (world.home / ".ssh/config").unlink()
    machine = world.by_password
    world.know(machine)
    with setup("--no-clients") as here:
        here.type("no such machine", after="A machine?")
        here.type(f"{machine.user}@127.0.0.1:{machine.port}", after="is no machine")
        here.type("wrong", after="Password of")
        here.type(machine.password, after="Password of", times=2)
        here.type("", after="Another machine?")
        here.type("", after="Where are your projects?")
        here.type("", after="Write this?")
        assert here.end() == 0, here.shown()
        shown = here.shown()
    kept = world.config.parent / "passwords/127.0.0.1"
    assert "There is no keyring here, so the password of 127.0.0.1 is in" in shown
    assert "load average" in shown
    assert machine.password not in shown
    assert kept.read_text() == f"{machine.password}\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    fields = parse_toml(world.config.read_text())["machines"]["127.0.0.1"]
    assert (fields["user"], fields["port"]) == (machine.user, machine.port)
    assert machine.password not in world.config.read_text()
    assert Cli()("setup", "undo").code == 0
    assert not kept.parent.exists()
    assert not world.config.exists()


@pytest.mark.parametrize("question", ["Which of them", "Password of", "Where are your projects?", "Write this?"])
def test_ctrl_c_at_any_question_changes_no_file(world: World, question: str) -> None:
    world.add_clients()
    world.know(world.by_password)
    before = world.texts()
    with setup() as here:
        for asked, typed in (
            ("Which of them", ""),
            ("Is that the right one?", "y"),
            ("Password of", world.by_password.password),
            ("Another", ""),
            ("Where are your projects?", ""),
            ("Write this?", ""),
        ):
            if asked == "Which of them":
                here.wait("Enter goes on")
            if asked == question:
                here.wait(question)
                here.press("C-c")
                break
            here.type(typed, after=asked)
        assert here.end() == 130, here.shown()
    assert world.texts() == before
    assert not world.ring.exists()


def test_ctrl_c_while_machines_are_tested_ends_it_at_once(world: World) -> None:
    with silent_port() as silent:
        world.write_ssh_config(f"Host mute\n  HostName 127.0.0.1\n  Port {silent}\n  ConnectTimeout 100")
        with setup() as here:
            here.wait("mute")
            here.press("C-c")
            assert here.end() == 130, here.shown()
    assert not world.config.exists()


def test_keys_choose_and_a_dumb_terminal_takes_numbers(world: World) -> None:
    world.know(world.by_key, world.by_password)
    with setup("--no-clients", "--dry-run") as here:
        here.wait("Enter goes on")
        # None, then the second again.
        here.press("a", "a", "a")
        here.press("Down", "Space", "Enter")
        here.wait("Password of")
        here.press("C-c")
        assert here.end() == 130
    with terminal(["env", "TERM=dumb", COMMAND, "setup", "--no-clients", "--dry-run"]) as here:
        here.type("7", after="all or none [1,2]")
        here.type("1", after="all or none [1,2]", times=2)
        here.type("", after="Another")
        here.type("", after="Where are your projects?")
        assert here.end() == 0
        assert '+hosts = ["alpha"]' in here.shown()
    assert not world.config.exists()


@pytest.fixture
def plain(world: World) -> World:
    """A world in which nothing has to be asked."""
    world.know(world.by_key)
    return world


def unasked(*words: str, code: int = 0, **environ: str) -> dict[str, Any]:
    outcome = Cli()("setup", "--json", *words, REMOTE_SANDBOX_LIST="", **environ)
    assert outcome.code == code, outcome.stdout + outcome.stderr
    answer: dict[str, Any] = outcome.json
    return answer


def test_without_a_terminal_nothing_is_changed_that_was_not_asked_for(plain: World) -> None:
    plain.add_clients()
    before = plain.texts()
    done = unasked()
    assert {it["name"]: it["state"] for it in done["machines"]} == {"alpha": "ready", "vault": "host_key"}
    assert done["machines"][1]["host_key"] == fingerprint(plain.by_password)
    assert [it["state"] for it in done["clients"]] == ["new", "new", "refused"]
    assert any("alpha was left out: it works" in sentence for sentence in done["left"])
    assert plain.texts() == before


EXISTING = """# mine
default = "old"   # keep

# a comment that belongs to the table
[machines.old]
host = "192.0.2.1"
user = "me"
password = "literal-secret"
"""


@pytest.fixture
def alone(plain: World) -> World:
    """A world without machines, in which only the folder of projects is asked for."""
    (plain.home / ".ssh/config").unlink()
    return plain


def ask_for_projects(here: Terminal, *answers: str) -> str:
    here.type("", after="A machine?")
    for times, answer in enumerate(answers, 1):
        here.type(answer, after="Where are your projects?", times=times)
    if answers[-1] not in ("-", "none"):
        here.type("", after="Write this?")
    assert here.end() == 0, here.shown()
    return " ".join(here.shown().split())


def test_the_folder_of_projects_is_asked_for_and_undone(alone: World) -> None:
    (alone.home / "code").mkdir()
    (alone.home / "work").mkdir()
    before = alone.texts()
    with setup("--no-clients") as here:
        shown = ask_for_projects(here, "")
    assert "Agents use the folder that their client was started in. Clients such as Claude Desktop start us" in shown
    assert "Where are your projects? [~/code], or - for none:" in shown
    assert parse_toml(alone.config.read_text()) == {"server": {"allowed_roots": ["~/code"]}}
    assert load(alone.config).settings.allowed_roots == (str(alone.home / "code"),)
    # It is asked for once.
    with setup("--no-clients") as here:
        here.type("", after="A machine?")
        assert here.end() == 0
        assert "Where are your projects?" not in here.shown()
    assert Cli()("setup", "undo").code == 0
    assert alone.texts() == before


def test_where_no_usual_folder_is_there_that_of_the_checkout_around_is_offered(
    alone: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone.home / "stuff/one/.git").mkdir(parents=True)
    (alone.home / "stuff/one/inside").mkdir()
    monkeypatch.chdir(alone.home / "stuff/one/inside")
    with setup("--no-clients") as here:
        shown = ask_for_projects(here, "")
    assert f"Where are your projects? [{alone.home}/stuff], or - for none:" in shown
    assert parse_toml(alone.config.read_text()) == {"server": {"allowed_roots": ["~/stuff"]}}


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
def test_without_a_machine_the_first_command_runs_in_the_local_sandbox(alone: World) -> None:
    with setup() as here:
        ask_for_projects(here, "-")
        shown = here.shown()
    assert f"$ {COMMAND} exec --sandbox local -- " in shown
    assert "load average" in shown
    assert "Say to your agent" in shown
    # Whoever has installed it has no docs folder: what to do is in the answer itself.
    assert "docs/" not in shown
    assert '"remote-sandbox": {' in shown
    assert f"{COMMAND} doctor" in shown


def test_a_folder_that_is_no_place_for_projects_is_refused_and_asked_for_again(alone: World, tmp_path: Path) -> None:
    (alone.home / "code").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    wrong = ["~", "/", "~/..", "~/.ssh", "/usr/local", "~/missing"]
    with setup("--no-clients") as here:
        shown = ask_for_projects(here, *wrong, str(tmp_path / "link"))
    assert shown.count("is not the folder of your projects") == len(wrong)
    assert "it is, or contains, a home folder or one of the system" in shown
    assert "there is no such folder" in shown
    assert parse_toml(alone.config.read_text()) == {"server": {"allowed_roots": [str(tmp_path / "mine")]}}


def test_no_folder_of_projects_may_be_named(alone: World) -> None:
    (alone.home / "src").mkdir()
    with setup("--no-clients") as here:
        ask_for_projects(here, "-")
    assert not alone.config.exists()


def test_without_a_question_only_a_named_folder_of_projects_is_written(plain: World) -> None:
    (plain.home / "code").mkdir()
    assert unasked("--yes", "--no-clients")["projects"] == ""
    assert parse_toml(plain.config.read_text()) == {"hosts": ["alpha"]}
    plain.config.write_text('hosts = ["alpha"]\n[server]\nallowed_roots = ["/srv"] # ours\n')
    for added in ("~/code", ""):
        assert unasked("--projects", "~/code/../code", "--no-clients")["projects"] == added
        assert plain.config.read_text() == 'hosts = ["alpha"]\n[server]\nallowed_roots = ["/srv", "~/code"] # ours\n'


@pytest.mark.parametrize("folder", ["~", "/", "~/.config", "~/missing", "/etc"])
def test_a_named_folder_that_is_no_place_for_projects_is_a_mistake(plain: World, folder: str) -> None:
    outcome = Cli()("setup", "--yes", "--projects", folder, REMOTE_SANDBOX_LIST="")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "is not the folder of your projects" in outcome.stderr
    assert not plain.config.exists()


def test_a_file_that_cannot_take_the_folder_tells_the_lines(plain: World) -> None:
    (plain.home / "code").mkdir()
    plain.config.parent.mkdir(parents=True)
    plain.config.write_text("server = {}\n")
    outcome = Cli()("setup", "--projects", "~/code", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 2
    assert '[server]\nallowed_roots = ["~/code"]' in outcome.stderr
    assert plain.config.read_text() == "server = {}\n"


def test_an_existing_file_keeps_its_comments_and_shows_none_of_its_secrets(plain: World) -> None:
    plain.config.parent.mkdir(parents=True)
    plain.config.write_text(EXISTING)
    plain.config.chmod(0o644)
    outcome = Cli()("setup", "--hosts", "alpha", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 0, outcome.stderr
    assert plain.config.read_text() == EXISTING.replace("# keep\n", '# keep\nhosts = ["alpha"]\n')
    assert "literal-secret" not in outcome.stdout + outcome.stderr
    (backup,) = plain.config.parent.glob("config.toml.before-setup-*")
    assert backup.read_text() == EXISTING
    assert {stat.S_IMODE(path.stat().st_mode) for path in (backup, plain.config)} == {0o600}
    assert "load average" in outcome.stdout


def test_another_config_file_is_made_and_clients_are_given_it(plain: World, tmp_path: Path) -> None:
    plain.add_clients()
    config = tmp_path / "other.toml"
    done = unasked("--hosts", "alpha", "--clients", "codex", "--config", str(config))
    assert done["first_command"]["exit_code"] == 0
    assert parse_toml(config.read_text())["hosts"] == ["alpha"]
    server = parse_toml((plain.home / ".codex/config.toml").read_text())["mcp_servers"]["remote-sandbox"]
    assert server["args"] == ["--config", str(config)]
    assert not plain.config.exists()


def test_a_broken_file_is_told_before_anything_is_asked_or_changed(plain: World) -> None:
    plain.config.parent.mkdir(parents=True)
    plain.config.write_text("hosts = [\n")
    outcome = Cli()("setup", "--yes", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 2
    assert "is not valid TOML" in outcome.stderr
    assert plain.config.read_text() == "hosts = [\n"


def test_a_link_is_followed_and_one_that_leads_nowhere_refused(plain: World, tmp_path: Path) -> None:
    plain.config.parent.mkdir(parents=True)
    target = tmp_path / "dotfiles.toml"
    plain.config.symlink_to(target)
    refused = Cli()("setup", "--hosts", "alpha", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert refused.code == 2
    assert "is a link to" in refused.stderr
    target.write_text("# in a repository of mine\n")
    unasked("--hosts", "alpha", "--no-clients")
    assert plain.config.is_symlink()
    assert target.read_text().startswith('# in a repository of mine\nhosts = ["alpha"]')


def test_what_a_project_brings_is_not_read(plain: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"opensandbox": {"server_url": "http://192.0.2.1"}}')
    (tmp_path / "claude").write_text("#!/bin/sh\ntouch was-run\n")
    (tmp_path / "claude").chmod(0o755)
    done = unasked("--yes", PATH=f".:{os.environ['PATH']}")
    assert done["config"]["changed"]
    assert done["clients"] == []
    assert not (tmp_path / "was-run").exists()


def test_a_named_machine_that_cannot_be_reached_is_left_and_told_by_the_exit_code(plain: World) -> None:
    with closed_port() as dead:
        outcome = Cli()("setup", "--hosts", f"me@127.0.0.1:{dead}", "--json", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 255
    assert "nothing listens" in outcome.json["left"][0]
    assert not plain.config.exists()


def test_a_named_machine_that_is_configured_and_cannot_be_reached_is_told_by_the_exit_code(plain: World) -> None:
    plain.config.parent.mkdir(parents=True)
    with closed_port() as dead:
        plain.config.write_text(f'[machines.gpu1]\nhost = "127.0.0.1"\nport = {dead}\nuser = "me"\n')
        outcome = Cli()("setup", "--hosts", "gpu1", "--json", "--no-clients", REMOTE_SANDBOX_LIST="")
        told = Cli()("setup", "--hosts", "gpu1", "--no-clients", REMOTE_SANDBOX_LIST="")
        unnamed = Cli()("setup", "--json", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert outcome.code == told.code == 255
    assert "gpu1 is configured, but does not work: nothing listens" in outcome.json["left"][0]
    assert "All that were named are configured." in told.stdout
    assert unnamed.code == 0


def test_a_named_machine_that_a_person_leaves_out_unreached_is_told_by_the_exit_code(plain: World) -> None:
    with closed_port() as dead, setup("--hosts", f"me@127.0.0.1:{dead}", "--no-clients") as here:
        here.wait("Enter goes on")
        here.press("Enter")
        here.type("", after="Another machine?")
        here.type("", after="Where are your projects?")
        assert here.end() == 255, here.shown()


@pytest.mark.parametrize("is_known", [True, False], ids=["a password", "an unseen key"])
def test_a_named_machine_that_needs_a_person_is_told_by_the_exit_code(plain: World, is_known: bool) -> None:
    if is_known:
        plain.know(plain.by_password)
    outcome = Cli()("setup", "--hosts", "vault", "--json", "--no-clients", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 1
    assert "vault was left out" in outcome.json["left"][0]


def test_a_named_client_that_is_left_as_it_is_is_told_by_the_exit_code(plain: World) -> None:
    plain.add_clients()
    named = Cli()("setup", "--hosts", "alpha", "--clients", "vscode", "--json", REMOTE_SANDBOX_LIST="")
    found = Cli()("setup", "--hosts", "alpha", "--json", REMOTE_SANDBOX_LIST="")
    assert (named.code, found.code) == (1, 0)
    assert any("VS Code was left as it is" in sentence for sentence in found.json["left"])


def test_from_the_cache_of_uvx_clients_get_the_whole_path_and_a_warning(plain: World, tmp_path: Path) -> None:
    plain.add_clients()
    cached = made_environment(tmp_path / "uv/archive-v0/x")
    path = {"PATH": f"{cached.parent}:/usr/bin:/bin", "REMOTE_SANDBOX_LIST": ""}
    words = [cached, "setup", "--hosts", "alpha", "--clients", "codex", "--json"]
    done = subprocess.run(words, env=os.environ | path, capture_output=True, timeout=DEADLINE_S, check=True)
    server = parse_toml((plain.home / ".codex/config.toml").read_text())["mcp_servers"]["remote-sandbox"]
    assert server["command"] == str(cached)
    assert any("from the cache of uvx" in sentence for sentence in json.loads(done.stdout)["left"])


def made_environment(folder: Path) -> Path:
    """Another virtual environment with this program; gives its command."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "rest.pth").write_text("\n".join(path for path in sys.path if path and Path(path).is_dir()))
    command = folder / "bin/remote-sandbox-mcp"
    command.write_text(
        f"#!{folder}/bin/python\nimport sys\nfrom remote_sandbox_mcp.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return command


def test_a_client_that_does_not_exist_is_told_with_the_one_that_was_meant(plain: World) -> None:
    outcome = Cli()("setup", "--yes", "--clients", "codex,cursr", REMOTE_SANDBOX_LIST="")
    assert outcome.code == 2
    assert "did you mean cursor?" in outcome.stderr
    # Before anything is tested or changed.
    assert outcome.stdout == ""
    assert not plain.config.exists()


def test_a_machine_that_asks_for_a_code_is_kept_with_what_to_do(plain: World, fleet: Fleet) -> None:
    machine = machine_with_code(fleet, name="factor").machine
    plain.write_ssh_config(
        f"Host factor\n  HostName 127.0.0.1\n  Port {machine.port}\n  User {machine.user}\n"
        f"  IdentityFile {machine.key_file}\n  IdentitiesOnly yes"
    )
    plain.know(machine)
    done = unasked("--hosts", "factor", "--no-clients")
    assert (done["machines"][0]["state"], done["machines"][0]["chosen"]) == ("code", True)
    assert "remote-sandbox-mcp login factor" in done["left"][0]
    assert parse_toml(plain.config.read_text()) == {"hosts": ["factor"]}
    assert done["first_command"] is None


def chosen(name: str) -> Chosen:
    entry = MachineEntry(name, "setup", host=f"{name}.example.org", user="me")
    trial = Trial(Candidate(name, Machine(name, entry.host), entry), Checkup(name, "ssh", "", ()), Standing.READY)
    return Chosen(trial, (MachineSecret(PASSWORD, f"password of {name}"),))


@pytest.fixture
def wallet() -> Iterator[Keyring]:
    with keyring_in_use() as made:
        yield made


@pytest.fixture
def run(clean_environment: Path) -> Setup:
    config = clean_environment / "config.toml"
    return Setup(argparse.Namespace(config=config), Page.silent(), SetupAnswers(True, []))


async def test_where_one_password_cannot_be_kept_none_is(run: Setup, wallet: Keyring, clean_environment: Path) -> None:
    (clean_environment / "passwords").write_text("a file where the folder should be")
    # Too long for this keyring, so that it would have to be in a file.
    wallet.longest = len("password of a")
    with pytest.raises(ConfigError, match="Not a directory"):
        await run._write([chosen("a"), chosen("bb")])
    assert wallet.kept == {}
    assert not (clean_environment / "config.toml").exists()


async def test_ctrl_c_while_a_password_is_kept_leaves_none(run: Setup, wallet: Keyring) -> None:
    wallet.gate.clear()
    writing = asyncio.ensure_future(run._write([chosen("a")]))
    await asyncio.to_thread(wallet.asked.wait)
    writing.cancel()
    wallet.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    # The thread that stores it has ended, too.
    await asyncio.get_running_loop().shutdown_default_executor()
    assert wallet.kept == {}


def test_what_a_machine_says_cannot_move_the_cursor() -> None:
    step = ok("GPUs", "1 × \x1b[2Jevil\u202e")
    trial = Trial(Candidate("a", Machine("a", "192.0.2.1")), Checkup("a", "ssh", "", (step,)), Standing.READY)
    (row,) = row_texts([trial])
    assert "evil" in row.plain
    assert row.plain.isprintable()


def test_a_home_that_0_x_has_used_is_taken_over_and_its_entry_replaced(world: World, cli: Cli) -> None:
    """Without a question for --yes; the entry of a client keeps its variables, which are not shown."""
    database = lay_out(paths.state_path())
    given = {"command": "uvx", "args": ["remote-sandbox-mcp"], "env": {"REMOTE_SANDBOX_LIST": "[]", "TOKEN": "hush"}}
    cursor = world.home / ".cursor/mcp.json"
    cursor.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"gpus": given}}))
    asked = cli("setup", "--clients", "cursor", "--json")
    assert any("remote-sandbox-mcp import" in sentence for sentence in asked.json["left"])
    assert statuses(database)[5] == "active"
    assert cli("setup", "undo").code == 0
    done = cli("setup", "--yes", "--clients", "cursor", "--json")
    assert done.json["imported"]["done"]
    assert statuses(database)[5] == "imported"
    assert "[machines.gpu1]" in world.config.read_text()
    assert ORIGINAL_PASSWORD not in world.config.read_text()
    (entry,) = json.loads(cursor.read_text())["mcpServers"].values()
    assert (entry["env"], Path(entry["command"]).name) == (given["env"], "remote-sandbox-mcp")
    assert not [text for text in cli.said if ORIGINAL_PASSWORD in text or "hush" in text]
    cli("hub", "stop", "--all")


def test_at_a_terminal_the_machines_of_an_entry_are_moved(world: World) -> None:
    sshd = world.by_password
    machine = {"name": "gpu9", "host": "127.0.0.1", "port": sshd.port, "user": sshd.user, "password": sshd.password}
    given = {"command": "uvx", "args": ["remote-sandbox-mcp"], "env": {"REMOTE_SANDBOX_LIST": json.dumps([machine])}}
    cursor = world.home / ".cursor/mcp.json"
    cursor.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"gpus": given}}))
    (world.home / ".ssh/config").write_text("")
    with setup() as here:
        here.type("", after="machine? user@host")
        here.type("", after="Where are your projects?")
        here.type("", after="Move them to config.toml, and secrets to the keyring? [Y/n]")
        here.type("", after="Put this program in the place of 0.x in Cursor? [Y/n]")
        here.end()
        assert sshd.password not in here.shown()
    (entry,) = json.loads(cursor.read_text())["mcpServers"].values()
    assert entry["env"] == {}
    assert parse_toml(world.config.read_text())["machines"]["gpu9"]["password"] == "keyring:remote-sandbox-mcp/ssh-gpu9"
