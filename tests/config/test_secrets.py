from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest

from remote_sandbox_mcp.config import secrets
from remote_sandbox_mcp.config.secrets import doubt, resolve_secret
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.support.pace import Deadline

HIDDEN = "hunter2-do-not-show"
PRINT = f"command:{sys.executable} -c \"print('{HIDDEN}')\""


class Keyring(keyring.backend.KeyringBackend):
    priority = 1
    locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise keyring.errors.KeyringLocked(HIDDEN)
        return HIDDEN if (service, username) == ("my/service", "ubuntu") else None

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    ring = Keyring()
    monkeypatch.setattr(keyring, "get_password", ring.get_password)
    return ring


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{HIDDEN}\r\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("text", "plain", "source"),
    [
        pytest.param("abc", "abc", "", id="itself"),
        pytest.param("", "", "", id="empty"),
        pytest.param("a:b", "a:b", "", id="colon"),
        pytest.param("environment:X", "environment:X", "", id="other prefix"),
        pytest.param("ENV:X", "ENV:X", "", id="prefixes are in small letters"),
        pytest.param("literal:env:X", "env:X", "", id="escaped reference"),
        pytest.param("literal:literal:x", "literal:x", "", id="escaped escape"),
        pytest.param("env:PW", HIDDEN, "env:PW", id="env"),
    ],
)
def test_a_secret_is_what_the_operator_wrote_or_what_it_refers_to(text: str, plain: str, source: str) -> None:
    secret = resolve_secret(text, {"PW": HIDDEN})
    assert (secret.reveal(), secret.source) == (plain, source)


def test_a_file_gives_its_text_without_the_line_end(kept: Path) -> None:
    assert resolve_secret(f"file:{kept}").reveal() == HIDDEN
    assert doubt(f"file:{kept}") == ""


def test_a_file_in_the_home_folder_is_found(clean_environment: Path) -> None:
    (clean_environment / "pw").write_text(" two words \n")
    assert resolve_secret("file:~/pw").reveal() == " two words "


def test_a_file_that_others_may_read_is_doubted_and_still_read(kept: Path) -> None:
    kept.chmod(0o640)
    assert f"chmod 600 {kept}" in doubt(f"file:{kept}")
    assert resolve_secret(f"file:{kept}").reveal() == HIDDEN


def test_a_command_gives_the_first_line_it_prints() -> None:
    script = f"import sys; print('{HIDDEN}'); print('more'); sys.exit(bool(sys.stdin.read()))"
    secret = resolve_secret(f'command:{sys.executable} -c "{script}"')
    assert secret.reveal() == HIDDEN
    assert secret.source == f"command:{sys.executable}"


def test_a_command_does_not_run_in_the_current_folder(
    tmp_path: Path, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_secret("command:pwd").reveal() == str(clean_environment)


def test_a_command_is_not_shell_source(tmp_path: Path) -> None:
    assert resolve_secret(f"command:echo $HOME; touch {tmp_path}/x").reveal() == f"$HOME; touch {tmp_path}/x"
    assert not (tmp_path / "x").exists()


def test_the_keyring_is_asked_for_a_service_and_a_user(ring: Keyring) -> None:
    secret = resolve_secret("keyring:my/service/ubuntu")
    assert (secret.reveal(), secret.source) == (HIDDEN, "keyring:my/service/ubuntu")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("env:NOT_SET", "env:NOT_SET", id="env not set"),
        pytest.param("file:/nowhere/pw", "file:/nowhere/pw", id="no file"),
        pytest.param("command:/nowhere/op read", "command:/nowhere/op", id="no program"),
        pytest.param(f"command:'{HIDDEN}", "check its quotes", id="quotes"),
        pytest.param("command:", "command:", id="no words"),
        pytest.param("command:bin/secret", "by its whole path", id="program of the current folder"),
        pytest.param("command:true", "printed nothing", id="silent command"),
        pytest.param(f"command:sh -c 'echo {HIDDEN}; exit 3'", "status 3", id="failing command"),
        pytest.param("keyring:my/service/nobody", "keyring set my/service nobody", id="not in the keyring"),
    ],
)
@pytest.mark.usefixtures("ring")
def test_a_secret_that_cannot_be_had_is_told_by_its_place_alone(text: str, told: str) -> None:
    secret = resolve_secret(text, {})
    with pytest.raises(ConfigError) as caught:
        secret.reveal()
    assert told in str(caught.value)
    assert HIDDEN not in f"{caught.value}{secret.source}{doubt(text, {})}"


def test_a_locked_keyring_is_told_without_its_own_words(ring: Keyring) -> None:
    ring.locked = True
    with pytest.raises(ConfigError, match="locked or there is none") as caught:
        resolve_secret("keyring:my/service/ubuntu").reveal()
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [pytest.param(b"\n", "it is empty", id="empty"), pytest.param(b"\xff\xfe", "not UTF-8", id="binary")],
)
def test_a_file_without_a_secret_is_told(kept: Path, content: bytes, why: str) -> None:
    kept.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        resolve_secret(f"file:{kept}").reveal()


def test_a_command_that_does_not_end_is_ended_with_all_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(secrets, "COMMAND_LIMIT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"did not end within 0\.5 s"):
        resolve_secret(f"command:sh -c 'sleep 50 & echo $! > {tmp_path}/pid; wait'").reveal()
    assert time.monotonic() - began < 10
    pid = int((tmp_path / "pid").read_text())
    deadline = Deadline(10)
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert not deadline.has_passed()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("plain", "", id="literal"),
        pytest.param("env:SET", "", id="env"),
        pytest.param("env:NOT_SET", "not set", id="env not set"),
        pytest.param("file:/nowhere", "cannot be found", id="no file"),
        pytest.param("command:op read x", "", id="command"),
        pytest.param("command:op 'read", "quotes", id="quotes"),
        pytest.param("command:./op read", "by its whole path", id="program of the current folder"),
        pytest.param("keyring:service/user", "", id="keyring"),
        pytest.param("keyring:service", "keyring:SERVICE/USER", id="keyring without a user"),
    ],
)
def test_doubts_are_seen_without_fetching(text: str, why: str) -> None:
    said = doubt(text, {"SET": HIDDEN})
    assert why in said
    assert bool(said) == bool(why)


def test_nothing_is_fetched_before_it_is_needed_and_then_once() -> None:
    fetched: list[int] = []
    secret = Secret.later(lambda: fetched.append(1) or HIDDEN, "test")  # type: ignore[func-returns-value]
    assert secret
    assert repr(secret) == str(secret) == "Secret(hidden)"
    assert secret == secret
    assert hash(secret) == hash(secret)
    assert not fetched
    assert secret.reveal() == secret.reveal() == HIDDEN
    assert len(fetched) == 1
    secret.forget()
    assert secret.reveal() == HIDDEN
    assert len(fetched) == 2


def test_a_failed_fetch_is_tried_again(kept: Path) -> None:
    kept.rename(kept.with_suffix(".away"))
    secret = resolve_secret(f"file:{kept}")
    with pytest.raises(ConfigError):
        secret.reveal()
    kept.with_suffix(".away").rename(kept)
    assert secret.reveal() == HIDDEN


def test_secrets_from_the_same_place_are_equal_and_others_are_not() -> None:
    assert resolve_secret("env:A") == resolve_secret("env:A") != resolve_secret("env:B")
    assert resolve_secret("abc") == Secret("abc") != Secret("abd")
    assert resolve_secret("literal:env:A") != resolve_secret("env:A")


def test_forgetting_a_literal_changes_nothing() -> None:
    secret = Secret("abc")
    secret.forget()
    assert secret.reveal() == "abc"


@pytest.mark.parametrize("text", [HIDDEN, PRINT])
def test_a_secret_is_not_copied(text: str) -> None:
    with pytest.raises(TypeError):
        copy.deepcopy(resolve_secret(text))


def test_neither_keyring_nor_subprocess_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from remote_sandbox_mcp.config.load import load; load();"
        "print(sorted({'keyring', 'asyncssh', 'subprocess', 'tomllib', 'json', 'difflib', 'rich'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]"
