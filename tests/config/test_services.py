from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config import services as own_platform
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Platform
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.core.serving import Http, Logging
from tests.support.config_reading import HIDDEN, read, the_problem

FULL = f"""
[server]
allowed_roots = ["/data", "~/work/"]
[opensandbox]
server_url = "https://box.example.com/sandboxes/"
api_key = "{HIDDEN}"
use_server_proxy = true
default_image = "python:3.12"
default_timeout = 90
max_concurrent_sandboxes = 7
auto_cleanup = false
cleanup_after_minutes = 0.5
pool = {{ "python:3.12" = 2 }}
[disposable]
provider = "embedded"
[http]
api_key = "env:KEY"
host = "0.0.0.0"
port = 3333
allowed_hosts = ["MCP.example.com", "[::1]:3333"]
allowed_origins = ["https://app.example.com/"]
[logging]
level = "warn"
file = "/var/log/rsm.log"
max_size_mb = 2.5
"""

SEED: dict[str, Any] = {
    "server": {"name": "opensandbox", "version": "0.1.0", "description": "any"},
    "opensandbox": {
        "server_url": "http://localhost:8080",
        "default_image": "nvda-vision:latest",
        "default_timeout": 600,
        "max_concurrent_sandboxes": 4,
        "auto_cleanup": True,
        "cleanup_after_minutes": 31,
    },
    "logging": {"level": "INFO", "file": "mcp-server.log", "max_size_mb": 10},
}


def put(folder: Path, document: object = SEED) -> Path:
    path = folder / "config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_everything_may_be_said_in_config_toml(tmp_path: Path, clean_environment: Path) -> None:
    configuration = read(tmp_path, FULL, KEY="k")
    assert configuration.problems == ()
    said = configuration.settings
    assert said.platform == Platform(
        server_url="https://box.example.com/sandboxes", api_key=Secret(HIDDEN), use_server_proxy=True
    )
    assert said.rules == DisposableRules(
        provider="embedded", default_image="python:3.12", default_timeout_s=90, max_concurrent=7, auto_cleanup=False,
        cleanup_after_minutes=0.5, pool={"python:3.12": 2},
    )  # fmt: skip
    assert said.http.api_key
    assert said.http.api_key.reveal() == "k"
    assert (said.http.host, said.http.port) == ("0.0.0.0", 3333)
    assert said.http.allowed_hosts == ("mcp.example.com", "[::1]:3333")
    assert said.http.allowed_origins == ("https://app.example.com",)
    assert said.logging == Logging(level="WARNING", file="/var/log/rsm.log", max_size_mb=2.5)
    assert said.allowed_roots == ("/data", str(clean_environment / "work"))
    assert HIDDEN not in f"{configuration!r}{json.dumps(show(configuration))}"


def test_nothing_said_is_no_platform_and_the_published_defaults() -> None:
    said = load(environ={}).settings
    assert (said.platform, said.rules, said.http, said.logging) == (Platform(), DisposableRules(), Http(), Logging())
    assert (
        DisposableRules().default_timeout_s,
        DisposableRules().max_concurrent,
        DisposableRules().cleanup_after_minutes,
    ) == (600, 5, 30)


@pytest.mark.parametrize("where", ["given", "beside"])
def test_the_published_config_json_is_found(tmp_path: Path, where: str) -> None:
    path = put(tmp_path)
    if where == "beside":
        (tmp_path / "config.toml").touch()
    configuration = load({"given": path, "beside": tmp_path / "config.toml"}[where], {})
    assert configuration.problems == ()
    said = configuration.settings
    assert said.platform == Platform(server_url="http://localhost:8080")
    assert said.rules == DisposableRules(default_image="nvda-vision:latest", max_concurrent=4, cleanup_after_minutes=31)
    assert said.logging == Logging(level="INFO", file=str(path.parent / "mcp-server.log"), max_size_mb=10)
    assert configuration.sources["opensandbox.server_url"] == str(path)
    assert configuration.file == {"given": str(path), "beside": str(tmp_path / "config.toml")}[where]


def test_the_environment_beats_config_toml_and_that_beats_config_json(tmp_path: Path) -> None:
    put(tmp_path)
    text = "[opensandbox]\nserver_url = 'toml:1'\ndefault_image = 'toml'\n[logging]\nlevel = 'ERROR'\n"
    configuration = read(tmp_path, text, OPENSANDBOX_SERVER="http://environ:2")
    said = configuration.settings
    assert (said.platform.server_url, said.rules.default_image) == ("http://environ:2", "toml")
    assert (said.rules.max_concurrent, said.logging.level) == (4, "ERROR")
    shown = show(configuration)["settings"]
    assert shown["opensandbox.server_url"] == {"value": "http://environ:2", "source": "OPENSANDBOX_SERVER"}
    assert shown["opensandbox.default_image"]["source"] == str(tmp_path / "config.toml")
    assert shown["opensandbox.max_concurrent_sandboxes"]["source"] == str(tmp_path / "config.json")
    assert shown["opensandbox.auto_cleanup"]["source"] == str(tmp_path / "config.json")


def test_all_variables_count(clean_environment: Path) -> None:
    configuration = load(
        environ={
            "OPEN_SANDBOX_DOMAIN": "box:9000",
            "OPEN_SANDBOX_API_KEY": HIDDEN,
            "OPENSANDBOX_DEFAULT_IMAGE": "debian",
            "OPENSANDBOX_DEFAULT_TIMEOUT": "77",
            "MCP_LOG_LEVEL": "debug",
            "REMOTE_SANDBOX_API_KEY": HIDDEN,
            "REMOTE_SANDBOX_ALLOWED_ROOTS": "/data:~/work",
        }
    )
    assert configuration.problems == ()
    said = configuration.settings
    assert said == Settings(
        allowed_roots=("/data", str(clean_environment / "work")),
        platform=Platform(server_url="http://box:9000", api_key=Secret(HIDDEN)),
        rules=DisposableRules(default_image="debian", default_timeout_s=77),
        http=Http(api_key=Secret(HIDDEN)),
        logging=Logging(level="DEBUG"),
    )
    assert HIDDEN not in f"{configuration!r}{json.dumps(show(configuration))}"


@pytest.mark.parametrize(
    ("domain", "url"),
    [
        pytest.param("localhost:8080", "http://localhost:8080", id="host and port"),
        pytest.param("https://box.example.com/", "https://box.example.com", id="with its scheme"),
        pytest.param("[::1]:8080", "http://[::1]:8080", id="IPv6"),
    ],
)
def test_a_server_is_named_with_or_without_its_scheme(domain: str, url: str) -> None:
    for variable in ("OPEN_SANDBOX_DOMAIN", "OPENSANDBOX_SERVER"):
        assert load(environ={variable: domain}).settings.platform.server_url == url
    assert load(environ={"OPENSANDBOX_SERVER": domain, "OPEN_SANDBOX_DOMAIN": "x"}).settings.platform.server_url == url


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("opensandbox = 1", "written as [opensandbox]", id="no table"),
        pytest.param(f"[opensandbox]\nserver_url = 'http://u:{HIDDEN}@h'", "without user, password", id="password"),
        pytest.param("[opensandbox]\nserver_url = 'ftp://h'", "must be an address", id="scheme"),
        pytest.param("[opensandbox]\nserver_url = 'http://h/?a=b'", "must be an address", id="query"),
        pytest.param("[opensandbox]\nserverurl = 'h'", 'the nearest right key is "server_url"', id="unknown key"),
        pytest.param("[opensandbox]\ndefault_timeout = 0", "seconds above 0", id="no time"),
        pytest.param("[opensandbox]\nmax_concurrent_sandboxes = 0", "whole number above 0", id="none at once"),
        pytest.param("[opensandbox]\ncleanup_after_minutes = -1", "number above 0", id="minutes"),
        pytest.param("[opensandbox]\nauto_cleanup = 'maybe'", "true or false", id="flag"),
        pytest.param("[opensandbox]\npool = 3", "a table of images", id="pool is a number"),
        pytest.param("[opensandbox]\npool = { a = 'b' }", "pool must be a whole number", id="pool of words"),
        pytest.param("[opensandbox]\napi_key = 'env:NOT_SET'", "not set", id="key that is not there"),
        pytest.param("[disposable]\nprovider = 'docker'", "one of embedded, opensandbox", id="provider"),
        pytest.param("[disposable]\nprovider = 'opensandbox'", "platform up", id="provider without a server"),
        pytest.param("[http]\nport = 70000", "1 to 65535", id="port"),
        pytest.param("[http]\nallowed_hosts = ['*']", "allowed_hosts must be host names", id="any host"),
        pytest.param("[http]\nallowed_hosts = ['https://a']", "allowed_hosts must be host names", id="address"),
        pytest.param("[http]\nallowed_origins = ['*']", "allowed_origins must be origins", id="any origin"),
        pytest.param("[http]\nallowed_origins = ['null']", "allowed_origins must be origins", id="no origin"),
        pytest.param("[logging]\nlevel = 'loud'", "one of DEBUG, INFO", id="level"),
        pytest.param("[logging]\nmax_size_mb = 0", "max_size_mb must be a number above 0", id="size"),
        pytest.param("[server]\nallowed_roots = ['work']", "whole paths", id="relative root"),
    ],
)
def test_a_mistake_is_told_and_the_rest_holds(tmp_path: Path, text: str, told: str) -> None:
    configuration = read(tmp_path, f"{text}\n[local]\nname = 'here'\n")
    assert told in the_problem(configuration)
    assert configuration.local
    assert configuration.local.name == "here"
    assert configuration.settings.platform.server_url == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("{", "not valid JSON (line 1, column 2)", id="no JSON"),
        pytest.param("[1]", "must be a JSON object", id="a list"),
        pytest.param('{"opensandbox": 1}', "written as [opensandbox]", id="no table"),
        pytest.param('{"opensandbx": {}}', 'the nearest right key is "opensandbox"', id="unknown part"),
        pytest.param('{"server": {"nam": "x"}}', 'the nearest right key is "name"', id="unknown key"),
        pytest.param(f'{{"opensandbox": {{"api_key": "{HIDDEN}"}}}}', "holds a key, and other users", id="open key"),
    ],
)
def test_a_mistake_in_config_json_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = put(tmp_path, text)
    path.chmod(0o644)
    assert told in the_problem(load(path, {}))


def test_one_that_was_given_and_is_not_there_is_told(tmp_path: Path) -> None:
    assert "is not there" in the_problem(load(tmp_path / "other.json", {}))


@pytest.mark.parametrize("volume", ["/", "/srv/../etc", "x/.."])
def test_volumes_that_would_allow_everything_are_told(tmp_path: Path, volume: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[opensandbox]\nvolumes = ["{volume}"]')
    assert "volumes" in the_problem(load(path, {}))


def test_volumes_count_for_a_platform_of_our_own(held_lock: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[opensandbox]\nvolumes = ["datasets", "/srv/data/"]')
    platform = load(path).settings.platform
    assert (platform.server_url, platform.volumes) == ("http://127.0.0.1:4321", ("datasets", "/srv/data"))


@pytest.fixture
def held_lock(clean_environment: Path) -> Iterator[Path]:
    """The folder of a platform that runs, as its lock shows."""
    folder = clean_environment / "remote-sandbox-mcp" / own_platform.FOLDER
    folder.mkdir(parents=True)
    (folder / own_platform.URL_FILE).write_text("http://127.0.0.1:4321\n")
    (folder / own_platform.KEY_FILE).write_text(HIDDEN)
    (folder / own_platform.KEY_FILE).chmod(0o600)
    with (folder / own_platform.LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def test_a_platform_of_ours_that_runs_is_found(held_lock: Path) -> None:
    configuration = load()
    platform = configuration.settings.platform
    assert (platform.server_url, configuration.problems) == ("http://127.0.0.1:4321", ())
    assert platform.api_key
    assert platform.api_key.reveal() == HIDDEN
    shown = show(configuration)["settings"]
    assert shown["opensandbox.server_url"] == {"value": "http://127.0.0.1:4321", "source": "platform up"}
    assert HIDDEN not in f"{configuration!r}{json.dumps(shown)}"


def test_one_that_was_named_comes_first(held_lock: Path) -> None:
    environ = {**os.environ, "OPENSANDBOX_SERVER": "http://other:1"}
    assert load(environ=environ).settings.platform == Platform(server_url="http://other:1")


def test_one_that_has_ended_is_not_used(held_lock: Path) -> None:
    (held_lock / own_platform.LOCK_FILE).unlink()
    (held_lock / own_platform.LOCK_FILE).touch()
    assert load().settings.platform == Platform()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*SEED["opensandbox"], *SEED["logging"], "pool", "api_key", "use_server_proxy"])


@settings(max_examples=40, deadline=None)
@given(document=st.dictionaries(st.sampled_from(["server", "opensandbox", "logging"]), st.dictionaries(KEYS, JSON)))
def test_whatever_config_json_holds_loading_does_not_fail(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(document))
    configuration = load(path, {})
    assert all(problem.endswith(".") and "\n" not in problem for problem in configuration.problems)
    json.dumps(show(configuration))
