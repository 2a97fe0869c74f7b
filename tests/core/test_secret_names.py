"""Which names look like those of secrets, and that rules about them never send what a .gitignore leaves out."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.ignore import Ignore
from remote_sandbox_mcp.core.secret_names import is_secret_name
from remote_sandbox_mcp.core.workspace import Rules, left_out_lines

SECRETS = {
    "settings": (".env", ".env.prod", ".env-prod", ".env_prod", "prod.env", ".envrc", "terraform.tfvars"),
    "keys": ("server.pem", "server.key", "id_rsa", "id_ed25519.pub", "id_foo", "a.ppk", "AuthKey.p8"),
    "logins": (".netrc", ".npmrc", ".pgpass", ".git-credentials", ".vault-token", "kubeconfig", "dev.kubeconfig"),
    "credentials": ("credentials", "credentials-prod", "credentials_old.txt", "aws_credentials", "credentials.csv"),
    "of services": ("gcpcredentials-1.json", "service-account-x.json", "secrets.yaml", "secrets.py", "x.tfstate.1"),
    "in another case": ("KEY.PEM", "ID_RSA", ".ENV", "Credentials", "Secrets.yaml", "Prod.Env"),
    "copies of editors": (".env~", "#.env#", ".#.env", ".env.swp", ".server.pem.swp", ".id_rsa.swp", "server.pem~"),
    "copies of people": ("server.key.bak", ".env.old", "id_rsa.orig", "SERVER.KEY.BAK~"),
}
ORDINARY = {
    "source code": (
        "id_map.py",
        "credentials.py",
        "Credentials.java",
        "credentials_test.go",
        "Secrets.swift",
        "key.py",
    ),
    "examples": (".env.example", ".env.sample", ".env.template", ".env-example", "example.env"),
    "other words": ("environment.yml", ".environment", "identity", "id_list.txt", "credential.html", "keys.md"),
    "no names": ("~", "#", "##", ".#", ".swp", "..swp", "a~", ".bak", ""),
}


@pytest.mark.parametrize("names", SECRETS.values(), ids=SECRETS)
def test_names_of_secrets_are_known(names: tuple[str, ...]) -> None:
    assert [name for name in names if not is_secret_name(name.encode())] == []


@pytest.mark.parametrize("names", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_names_are_not_taken_for_secrets(names: tuple[str, ...]) -> None:
    assert [name for name in names if is_secret_name(name.encode())] == []


# A line of a .gitignore, what the workspace includes; a path, whether it is a folder, and whether it is left out.
LEFT_OUT: dict[str, tuple[str, tuple[str, ...], str, bool, bool]] = {
    "a secret": ("", (), "a/.env", False, True),
    "a secret that is included": ("", (".env.test",), ".env.test", False, False),
    "an included name does not send others": ("", (".env.test",), ".env", False, True),
    "an example": ("", (), ".env.sample", False, False),
    "an example that the project ignores": (".env*", (), ".env.sample", False, True),
    "source code that the project ignores": ("credentials.py", (), "credentials.py", False, True),
    "a folder of secrets": ("", (), "credentials", True, True),
    "a folder with a name like a key": ("", (), "id_cards", True, False),
}


@pytest.mark.parametrize("row", LEFT_OUT.values(), ids=LEFT_OUT)
def test_the_rule_about_secrets_leaves_out_more_and_never_less(
    row: tuple[str, tuple[str, ...], str, bool, bool],
) -> None:
    line, includes, path, is_dir, is_out = row
    ignore = Ignore([each.encode() for each in left_out_lines(Rules(includes=includes))])
    ignore.add(b"", [line.encode()])
    assert ignore.leaves_out_below(path.encode(), is_dir) == is_out
