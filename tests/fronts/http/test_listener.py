from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config.secrets import key_in
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.core.serving import Http
from remote_sandbox_mcp.fronts.http.listener import LOOPBACK_NAMES, agree

KEY = Secret("k" * 20)
MAKES = (
    "import sys; from pathlib import Path; from remote_sandbox_mcp.config.secrets import key_in; sys.stdin.read();"
    "print(key_in(Path(sys.argv[1])))"
)


def test_without_a_key_of_the_operators_one_is_made_and_kept(tmp_path: Path) -> None:
    first, again = agree(Http(), tmp_path), agree(Http(), tmp_path)
    assert first == again
    assert first.kept_in == tmp_path / "http.key"
    assert stat.S_IMODE(first.kept_in.stat().st_mode) == 0o600
    assert first.key
    assert len(first.key.reveal()) > 40
    assert first.hosts == LOOPBACK_NAMES
    assert [file.name for file in tmp_path.iterdir()] == ["http.key"]


def test_a_key_of_the_operators_is_used(tmp_path: Path) -> None:
    terms = agree(Http(api_key=KEY, allowed_hosts=("a",), allowed_origins=("https://b",), port=4), tmp_path)
    assert (terms.key, terms.kept_in, terms.port) == (KEY, None, 4)
    assert (terms.hosts, terms.origins) == ((*LOOPBACK_NAMES, "a"), ("https://b",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_on_this_machine_it_may_do_without(tmp_path: Path, host: str) -> None:
    terms = agree(Http(host=host, api_key=KEY), tmp_path, without_key=True)
    assert (terms.key, terms.kept_in) == (None, None)
    assert not list(tmp_path.iterdir())


NAMED: dict[str, Any] = {"api_key": KEY, "allowed_hosts": ("mcp.example.com",)}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
@pytest.mark.parametrize(
    ("given", "without_key", "told"),
    [
        pytest.param({}, False, "set a key of your own", id="neither"),
        pytest.param({"allowed_hosts": ("a",)}, False, "set a key of your own", id="no key"),
        pytest.param({"api_key": KEY}, False, "under which names it is called", id="no names"),
        pytest.param(NAMED, True, "--no-auth is for this machine alone", id="no auth"),
    ],
)
def test_strangers_are_not_let_in_by_accident(
    tmp_path: Path, host: str, given: dict[str, Any], without_key: bool, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        agree(Http(host=host, **given), tmp_path, without_key=without_key)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_beyond_this_machine_only_the_names_that_were_given_count(tmp_path: Path) -> None:
    assert agree(Http(host="0.0.0.0", **NAMED), tmp_path).hosts == ("mcp.example.com",)


def test_an_empty_key_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        agree(Http(api_key=Secret(" ")), tmp_path)


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        pytest.param(b"abc\n", 0o644, "may be read by other users", id="open to others"),
        pytest.param(b"\n", 0o600, "holds no key", id="empty"),
        pytest.param(b"\xff", 0o600, "not plain text", id="no plain text"),
    ],
)
def test_a_key_that_cannot_be_trusted_is_not_used(tmp_path: Path, content: bytes, mode: int, told: str) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=told):
        key_in(tmp_path / "key")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        key_in(tmp_path / "no" / "key")


def test_all_who_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-c", MAKES, str(tmp_path / "key")]
    makers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
    for maker in makers:
        assert maker.stdin
        maker.stdin.close()
        maker.stdin = None
    found = {maker.communicate(timeout=30)[0] for maker in makers}
    assert found == {(tmp_path / "key").read_bytes()}
    assert [file.name for file in tmp_path.iterdir()] == ["key"]
