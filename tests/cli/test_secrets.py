from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.conftest import Cli, at_a_terminal, entry
from tests.support.sshd import PASSPHRASE, Sshd

WRONG, TOKEN = "wr0ng-but-secret", "t0ken-of-somebody"
VERBS = [
    "doctor vault",
    "doctor vault --json",
    "sandboxes --resources",
    "sandboxes --json",
    "exec --sandbox vault id",
    "exec --sandbox vault --json id",
    "exec --sandbox nobody true",
    "config show",
    "config show --json",
    "hosts list --json",
    "hosts forget vault",
]


def assert_hidden(said: str, *secrets: str) -> None:
    for secret in (*secrets, PASSPHRASE, TOKEN):
        assert secret not in said
        assert json.dumps(secret)[1:-1] not in said


@pytest.mark.parametrize("words", VERBS)
def test_no_verb_prints_a_secret(cli: Cli, with_password: Sshd, words: str) -> None:
    hidden = {"key_passphrase": PASSPHRASE, "env": {"TOKEN": TOKEN}}
    cli.machines = [entry(with_password, **hidden), entry(with_password, name="wrong", password=WRONG, **hidden)]
    cli(*shlex.split(words.replace("doctor vault", "doctor vault wrong")))
    assert any(cli.said)
    assert_hidden("".join(cli.said), with_password.password, WRONG)


def test_a_refused_login_prints_no_secret(cli: Cli, with_password: Sshd) -> None:
    cli.machines = [entry(with_password, password=WRONG, env={"TOKEN": TOKEN})]
    assert cli("exec", "true").code == 255
    assert "the login was refused" in cli.said[-1]
    assert_hidden("".join([*cli.said, at_a_terminal(cli)]), WRONG)
