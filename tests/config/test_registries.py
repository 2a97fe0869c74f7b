from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.disposable import RegistryLogin
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.support.config_reading import HIDDEN, read, the_problem

LOGIN = f"user = 'bob'\npassword = '{HIDDEN}'\n"


def test_a_login_is_kept_under_its_host(tmp_path: Path) -> None:
    configuration = read(
        tmp_path,
        f'[registries."Registry.example.org:5000"]\n{LOGIN}'
        '[registries."index.docker.io"]\nuser = "alice"\npassword = "env:HUB"\n',
        HUB=HIDDEN,
    )
    assert configuration.problems == ()
    logins = configuration.settings.platform.registries
    assert logins["registry.example.org:5000"] == RegistryLogin("bob", Secret(HIDDEN))
    assert (logins["docker.io"].user, logins["docker.io"].password.reveal()) == ("alice", HIDDEN)
    shown = show(configuration)
    assert HIDDEN not in f"{configuration!r}{json.dumps(shown)}"
    assert shown["settings"]["registries.docker.io"] == {
        "value": "alice, password hidden (from env:HUB)",
        "source": str(tmp_path / "config.toml"),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("registries = 1", "must be a table, written as [registries.NAME]", id="a number"),
        pytest.param("[registries]\na = 1", '[registries."a"] is left out: it must be a table', id="no table"),
        pytest.param("[registries.a]\nuser = 'bob'", "is left out: password is missing", id="no password"),
        pytest.param(f"[registries.a]\npassword = '{HIDDEN}'", "is left out: user is missing", id="no user"),
        pytest.param(f"[registries.a]\n{LOGIN}token = '{HIDDEN}'", 'unknown key "token"', id="unknown key"),
        pytest.param("[registries.a]\nuser = 1\npassword = 'x'", "user must be text", id="user is a number"),
        pytest.param(f"[registries.a]\nuser = 'b'\npassword = ['{HIDDEN}']", "password must be text", id="list"),
        pytest.param(f"[registries.'https://a.b/v2']\n{LOGIN}", "its name must be a host", id="address of a page"),
        pytest.param(f"[registries.'bob:{HIDDEN}@a.b']\n{LOGIN}", "[registries.number 1]", id="login in the name"),
        pytest.param(
            f"[registries.'docker.io']\n{LOGIN}[registries.'index.docker.io']\n{LOGIN}", "same registry", id="twice"
        ),
        pytest.param("[registries.a]\nuser = 'b'\npassword = 'env:NONE'", "variable is not set", id="not there"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    assert why in the_problem(read(tmp_path, text))


def test_a_password_in_a_file_for_everybody_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[registries.a]\n{LOGIN}")
    path.chmod(0o644)
    assert "holds a password, and other users may read it" in the_problem(load(path, {}))
