"""Which names look like those of secrets, and that rules about them never send what a .gitignore leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.sync import secret_names
from remote_sandbox_mcp.core.sync.ignore import Ignore, is_secret_path
from remote_sandbox_mcp.core.sync.secret_names import is_secret_name
from remote_sandbox_mcp.core.workspaces.workspace import Rules, left_out_lines

SECRETS = {
    "settings": (".env", ".env.prod", ".env-prod", ".env_prod", "prod.env", ".envrc", "terraform.tfvars"),
    "keys": ("server.pem", "server.key", "id_rsa", "id_ed25519", "id_foo", "a.ppk", "AuthKey.p8", "secring.gpg"),
    "of machines": ("office.ovpn", "wg0.conf", "http.keytab", "krb5cc_1000", "sops.agekey"),
    "vaults": ("vault.kdbx", "old.kdb", "wallet.dat", ".vault_pass", "Login Data", "cookies.sqlite", "logins.json"),
    "histories": (".bash_history", ".zsh_history", ".psql_history", ".node_repl_history", "fish_history"),
    "of agents": (".mcp.json", ".claude.json", ".credentials.json", "claude_desktop_config.json", "oauth_creds.json"),
    "of clouds": ("rclone.conf", ".boto", ".s3cfg", ".passwd-s3fs", ".databrickscfg", ".terraformrc", "kaggle.json"),
    "of databases": (".my.cnf", ".mylogin.cnf", ".pgpass", ".authinfo.gpg", ".Xauthority", "credentials.tfrc.json"),
    "of accounts": (
        *("client_secret_1.json", "my-service-account.json", "serviceAccountKey.json", "token.json", ".dev.vars"),
        *("application_default_credentials.json", "x-firebase-adminsdk-1.json", "local.settings.json"),
    ),
    "logins": (".netrc", ".npmrc", ".pgpass", ".git-credentials", ".vault-token", "kubeconfig", "dev.kubeconfig"),
    "credentials": ("credentials", "credentials-prod", "credentials_old.txt", "aws_credentials", "credentials.csv"),
    "of services": ("gcpcredentials-1.json", "service-account-x.json", "secrets.yaml", "secrets.py", "x.tfstate.1"),
    "in another case": ("KEY.PEM", "ID_RSA", ".ENV", "Credentials", "Secrets.yaml", "Prod.Env"),
    "copies of editors": (".env~", "#.env#", ".#.env", ".env.swp", ".server.pem.swp", ".id_rsa.swp", "server.pem~"),
    "copies of people": ("server.key.bak", ".env.old", "id_rsa.orig", "SERVER.KEY.BAK~", ".mcp.json.old"),
}
ENDINGS = (b"", *secret_names.SECRET_ENDINGS, *secret_names.SECRET_COPY_ENDINGS, b".json", b".pub", b".tfstate.1")
ORDINARY = {
    "source code": (
        "id_map.py",
        "credentials.py",
        "Credentials.java",
        "credentials_test.go",
        "Secrets.swift",
        "key.py",
    ),
    "examples": (
        *(".env.example", ".env.sample", ".env.template", ".env-example", "example.env", ".env.local.example"),
        *("secrets.yaml.example", "credentials.json.dist", "terraform.tfvars.sample"),
    ),
    "public keys": ("id_rsa.pub", "id_ed25519.pub", "host.pub", "cacert.pem", "roots.pem"),
    "other words": ("environment.yml", ".environment", "identity", "id_list.txt", "credential.html", "keys.md"),
    "names in other folders": ("config", "config.json", "auth.json", "settings.xml", "token", "hosts.yml", "mcp.json"),
    "of tools": (
        ".gitignore",
        ".gitconfig",
        ".editorconfig",
        "package.json",
        "tokenizer.json",
        "bash_history",
        "x.gpg",
    ),
    "no names": ("~", "#", "##", ".#", ".swp", "..swp", "a~", ".bak", ""),
}


@pytest.mark.parametrize("names", SECRETS.values(), ids=SECRETS)
def test_names_of_secrets_are_known(names: tuple[str, ...]) -> None:
    assert [name for name in names if not is_secret_name(name.encode())] == []


@pytest.mark.parametrize("names", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_names_are_not_taken_for_secrets(names: tuple[str, ...]) -> None:
    assert [name for name in names if is_secret_name(name.encode())] == []


# Paths, and whether they are those of secrets.
PLACES = {
    ".docker/config.json": True,
    "a/b/.docker/config.json": True,
    ".DOCKER/Config.json": True,
    ".docker/config.json.bak": True,
    ".docker/Dockerfile": False,
    "docker/config.json": False,
    ".docker/x/config.json": False,
    ".kube/config": True,
    "kube/config": False,
    ".config/gh/hosts.yml": True,
    ".config/gcloud/x": True,
    "src/gcloud/x": False,
    ".codex/auth.json": True,
    "run/containers/auth.json": True,
    "src/auth.json": False,
    ".m2/settings.xml": True,
    ".gradle/gradle.properties": True,
    "gradle.properties": False,
    ".cache/huggingface/token": True,
    ".cargo/credentials.toml": True,
    ".cargo/config.toml": False,
    ".claude/.credentials.json": True,
    ".claude/settings.json": False,
    ".cursor/mcp.json": True,
    ".streamlit/secrets.toml": True,
    ".ssh/known_hosts": True,
    ".SSH/x": True,
    ".ssh.bak/x": True,
    "a/.aws/config": True,
    ".gnupg/trustdb.gpg": True,
    ".azure/x/y": True,
    ".env/bin/python": True,
    "credentials/prod.json": True,
    "my_credentials/code.py": False,
    "id_cards/x.png": False,
    "keys.key/x": True,
}


@pytest.mark.parametrize(("path", "is_secret"), PLACES.items(), ids=PLACES)
def test_the_folder_around_a_name_counts(path: str, is_secret: bool) -> None:
    assert is_secret_path(path.encode()) == is_secret


@given(st.one_of(st.binary(max_size=12), st.sampled_from(sorted(secret_names.SECRET_NAMES))), st.sampled_from(ENDINGS))
def test_the_quick_look_at_letters_changes_no_answer(name: bytes, ending: bytes) -> None:
    def at_length(name: bytes) -> bool:
        is_code = name.startswith(b"secrets.") and secret_names.SECRET_EXAMPLE.search(name) is None
        return is_code or secret_names.is_copy_of(name.lower(), secret_names.is_listed_secret)

    assert is_secret_name(name + ending) == at_length(name + ending)


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
    "a folder of keys": ("", (), "a/.ssh", True, True),
    "a folder of keys that is included": ("", (".ssh/",), ".ssh", True, False),
    "an ordinary name in a place of secrets": ("", (), ".docker/config.json", False, True),
}


@pytest.mark.parametrize("row", LEFT_OUT.values(), ids=LEFT_OUT)
def test_the_rule_about_secrets_leaves_out_more_and_never_less(
    row: tuple[str, tuple[str, ...], str, bool, bool],
) -> None:
    line, includes, path, is_dir, is_out = row
    ignore = Ignore([each.encode() for each in left_out_lines(Rules(includes=includes))])
    ignore.add(b"", line.encode())
    assert ignore.leaves_out_below(path.encode(), is_dir) == is_out
