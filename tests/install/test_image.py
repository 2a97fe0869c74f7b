"""The container image: built on a real engine from a Debian of our own, and run as it is documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.install.test_setup import INSTALLERS, ROOT, SETUP_S, copy_project
from tests.support.engine import Container, Engine, EngineProblem, made_image
from tests.support.sshd import wait_until

pytestmark = [pytest.mark.xdist_group("image"), pytest.mark.timeout(3 * SETUP_S)]
KEY = "a-key-of-this-test"
CONFIG = '[http]\nallowed_hosts = ["mcp.example.org"]\n'
# What a client sends, from within the container, which has no network.
ASK = """
import json, sys, urllib.request
path, key, body = sys.argv[1:]
json_type, stream = "application/json", "text/event-stream"
headers = {"Host": "mcp.example.org", "Content-Type": json_type, "Accept": f"{json_type}, {stream}"}
headers |= {"Authorization": "Bearer " + key} if key else {}
asked = urllib.request.Request("http://127.0.0.1:3000" + path, body.encode() or None, headers)
try:
    with urllib.request.urlopen(asked, timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as problem:
    print(problem.code)
"""
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("image")
    project = copy_project(folder / "project")
    (project / ".venv").symlink_to(ROOT / ".venv")
    try:
        base = made_image("sandbox")
        engine = Engine()
        engine.__enter__()
    except EngineProblem as problem:
        pytest.skip(str(problem))
    try:
        engine.import_image(base, "base")
        env = os.environ | INSTALLERS | {"DOCKER": f"docker --host={engine.socket}", "DOCKER_BUILDKIT": "0"}
        env |= {"PYTHON_VERSION": f"{sys.version_info.major}.{sys.version_info.minor}"}
        words = [project / "scripts/image", "ours", "--build-arg=BASE=base"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        config = folder / "config"
        config.mkdir()
        (config / "config.toml").write_text(CONFIG)
        options = (f"--volume={config}:/config:ro", f"--env=REMOTE_SANDBOX_API_KEY={KEY}")
        yield engine.run("ours", options=options)
    finally:
        engine.stop()


def ask(served: Container, path: str, key: str = "", body: str = "") -> str:
    return served.exec("python3", "-c", ASK, path, key, body, user="1000", check=False).stdout


def health(served: Container) -> str:
    return served._engine.docker("inspect", "--format={{.State.Health.Status}}", served.name).stdout.strip()


def test_the_image_serves_as_an_ordinary_user_and_its_health_check_says_so(served: Container) -> None:
    wait_until(lambda: '"ok"' in ask(served, "/healthz", KEY), what="the server", seconds=60)
    assert ask(served, "/healthz").strip() == "401"
    assert served.exec("cat", "/proc/1/status").stdout.split("Uid:")[1].split()[0] == "1000"
    said = ask(served, "/mcp", KEY, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}))
    assert "remote-sandbox-mcp" in said
    check = served.exec(
        "python3", "/opt/remote-sandbox/healthcheck.py", user="1000", env={"REMOTE_SANDBOX_API_KEY": KEY}
    )
    assert check.returncode == 0
    assert health(served) in ("healthy", "starting")
    refused = served.exec(
        "python3", "/opt/remote-sandbox/healthcheck.py", env={"REMOTE_SANDBOX_API_KEY": "no"}, check=False
    )
    assert refused.returncode != 0
