from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, at_a_terminal, entry
from tests.support.sshd import PASSPHRASE, Sshd

WRONG = "wr0ng-but-secret"


@pytest.mark.parametrize("is_right", [True, False], ids=["right password", "wrong password"])
def test_no_verb_ever_prints_a_password(cli: Cli, with_password: Sshd, is_right: bool) -> None:
    password = with_password.password if is_right else WRONG
    cli.machines = [entry(with_password, password=password, key_passphrase=PASSPHRASE, env={"TOKEN": WRONG})]
    name = with_password.name
    for words in (
        ["doctor", name],
        ["doctor", name, "--json"],
        ["sandboxes", "--resources"],
        ["sandboxes", "--json"],
        ["exec", "--sandbox", name, "true"],
        ["exec", "--sandbox", name, "--json", "true"],
        ["exec", "--sandbox", "nobody", "true"],
        ["config", "show"],
        ["config", "show", "--json"],
        ["hosts", "list", "--json"],
        ["hosts", "forget", name],
    ):
        cli(*words)
    said = "".join([*cli.said, at_a_terminal(cli)])
    assert name in said
    for secret in (password, PASSPHRASE, WRONG):
        assert secret not in said
        assert json.dumps(secret)[1:-1] not in said
