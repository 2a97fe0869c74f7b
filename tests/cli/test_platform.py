"""`platform up | down | status` with the real server on a real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.services.platform_server.life import PlatformFolder
from tests.cli.conftest import Cli
from tests.support.engine import Engine
from tests.support.means import require_program
from tests.support.platform import IMAGE, Platform, free_port
from tests.support.sshd import wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture
def place(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlatformFolder]:
    """Where the platform of a test is; none outlives it."""
    place = PlatformFolder(clean_environment / "remote-sandbox-mcp")
    yield place
    found = holder(place.lock)
    if found and found.is_alive():
        os.killpg(found.pid, signal.SIGKILL)
        wait_until(lambda: not holder(place.lock), what="the platform to be gone")


@pytest.fixture
def on_engine(engine: Engine, place: PlatformFolder, monkeypatch: pytest.MonkeyPatch) -> PlatformFolder:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    return place


def status_of(url: str, key: str = "") -> int:
    headers = {"OPEN-SANDBOX-API-KEY": key} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/sandboxes", headers=headers), timeout=5
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_where_none_runs_that_is_told(cli: Cli, place: PlatformFolder) -> None:
    told = cli("platform", "status")
    assert (told.code, told.stdout.split(), told.stderr) == (1, ["platform", "does", "not", "run"], "")
    assert cli("platform", "status", "--json").json == {
        "running": False,
        "folder": str(place.folder),
        "log_file": str(place.log),
    }
    ended = cli("platform", "down")
    assert (ended.code, ended.stdout) == (0, "The platform does not run.\n")
    # To look is not to make.
    assert not place.folder.exists()


def test_without_an_engine_one_sentence_says_so(cli: Cli, place: PlatformFolder) -> None:
    require_program("docker")
    told = cli("platform", "up", DOCKER_HOST="unix:///nowhere/socket")
    assert (told.code, told.stdout) == (2, "")
    (sentence,) = told.stderr.splitlines()
    assert sentence.startswith("remote-sandbox-mcp: the Docker engine does not answer: ")
    assert holder(place.lock) is None


def test_it_is_started_found_killed_started_again_once_and_ended(cli: Cli, on_engine: PlatformFolder) -> None:
    started = cli("platform", "up", SECRET_OF_THE_USER="hunter2")
    found = holder(on_engine.lock)
    assert found
    url, key = on_engine.recorded_url(), on_engine.key.read_text().strip()
    assert (started.code, started.stderr) == (0, "")
    assert started.stdout == f"The platform runs at {url}, as process {found.pid}.\n"
    # Its key is asked for, and everything of it is the owner's alone.
    assert (status_of(url), status_of(url, "wrong"), status_of(url, key)) == (401, 401, 200)
    assert {file.stat().st_mode & 0o077 for file in (on_engine.folder, *on_engine.folder.iterdir())} == {0}
    # Our configuration finds it by itself, and shows no key.
    platform = load().settings.platform
    assert platform.server_url == url
    assert platform.api_key
    assert platform.api_key.reveal() == key
    assert url in cli("config", "show").stdout
    # It knows nothing of the user's environment and has no key among its words.
    assert b"hunter2" not in Path(f"/proc/{found.pid}/environ").read_bytes()
    assert key.encode() not in Path(f"/proc/{found.pid}/cmdline").read_bytes()
    stands = cli("platform", "status", "--json")
    assert stands.code == 0
    assert stands.json == {
        "running": True,
        "answers": True,
        "pid": found.pid,
        "url": url,
        "sandboxes": 0,
        "folder": str(on_engine.folder),
        "log_file": str(on_engine.log),
    }
    # A second start is none.
    assert cli("platform", "up").stdout == started.stdout
    # After it was killed it is started as the same one; of two who do so at once one does.
    os.killpg(found.pid, signal.SIGKILL)
    wait_until(lambda: not holder(on_engine.lock), what="it to be gone")
    assert cli("platform", "status").code == 1
    both = [cli.start("platform", "up", "--json") for _ in range(2)]
    told = [json.loads(process.communicate(timeout=100)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    found = holder(on_engine.lock)
    assert found
    assert [(each["pid"], each["url"]) for each in told] == [(found.pid, url)] * 2
    assert on_engine.key.read_text().strip() == key
    ended = cli("platform", "down")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "The platform has ended.\n", "")
    assert holder(on_engine.lock) is None
    assert load().settings.platform.server_url == ""
    assert all(key not in said for said in cli.said)


def test_a_port_may_be_chosen_one_that_is_taken_is_told_and_a_configured_server_stays_in_use(
    cli: Cli, on_engine: PlatformFolder
) -> None:
    port = free_port()
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            wait_until(lambda: _is_taken(port), what="the port to be taken")
            told = cli("platform", "up", "--port", str(port))
        finally:
            other.kill()
    assert (told.code, told.stdout) == (2, "")
    assert f"port {port} is taken by another program" in told.stderr
    assert holder(on_engine.lock) is None
    told = cli("platform", "up", "--port", str(port), "--json", OPENSANDBOX_SERVER="http://other:8080")
    assert (told.code, told.json["url"]) == (0, f"http://127.0.0.1:{port}")
    assert "names another server, http://other:8080, so that one is used" in told.stderr
    assert cli("platform", "down", "--json").json["running"] is False


def _is_taken(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
    except OSError:
        return False
    return True


def test_one_that_ends_at_once_is_told_with_its_last_words(
    cli: Cli, place: PlatformFolder, tmp_path: Path, engine: Engine
) -> None:
    # An engine that answers the docker command, and whose address the server cannot use.
    fake = tmp_path / "docker"
    fake.write_text('#!/bin/sh\n[ "$1" = context ] && echo unix:///nowhere/socket || echo 29\n')
    fake.chmod(0o755)
    told = cli("platform", "up", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (told.code, told.stdout) == (2, "")
    (sentence,) = told.stderr.splitlines()
    assert "the platform has ended at once: " in sentence
    assert str(place.printed) in sentence
    assert holder(place.lock) is None


@pytest.mark.xdist_group("platform")
async def test_what_it_leaves_in_the_engine_is_told_and_known_again(
    cli: Cli, place: PlatformFolder, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the platform that all tests share, only the engine and its images are wanted.
    assert platform.containers() == []
    monkeypatch.setenv("DOCKER_HOST", platform.engine.socket)
    assert cli("platform", "up", "--execd-image", platform.execd).code == 0
    named = load().settings.platform
    assert named.api_key
    connection = ConnectionConfig(
        domain=named.server_url.removeprefix("http://"), protocol="http", api_key=named.api_key.reveal()
    )
    sandbox = await Sandbox.create(IMAGE, timeout=timedelta(minutes=5), connection_config=connection)
    try:
        ports = platform.engine.docker("port", platform.container_of(sandbox.id)).stdout.split("\n")
        assert all("-> 127.0.0.1:" in line for line in ports if line)
        await sandbox.close()
        ended = cli("platform", "down")
        first, then = ended.stdout.splitlines()[1:]
        assert first == f"1 sandbox is left in the Docker engine: {sandbox.id}."
        assert "until the platform is up again" in then
        assert cli("platform", "up", "--execd-image", platform.execd, "--json").json["sandbox_ids"] == [sandbox.id]
        cli("platform", "down")
    finally:
        platform.engine.docker("rm", "--force", "--volumes", platform.container_of(sandbox.id))
