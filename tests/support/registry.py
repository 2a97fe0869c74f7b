"""A registry of the tests' own: Debian's docker-registry on the loopback, with one login, and nothing left of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt

from tests.support.engine import Engine
from tests.support.platform import free_port
from tests.support.root import as_root
from tests.support.sshd import wait_until

USER, PASSWORD = "fetcher", "only-for-the-registry"
START_S = 20


class Registry:
    """Runs from start to stop. Engines take a registry on 127.0.0.1 without encryption."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="registry-", dir="/tmp"))
        self.host = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        program = shutil.which("docker-registry")
        if program is None:
            raise RuntimeError("there is no docker-registry on this machine; run: apt-get install docker-registry")
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        (self.folder / "logins").write_text(f"{USER}:{hashed}\n")
        (self.folder / "config.yml").write_text(json.dumps(self._config()))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "serve", str(self.folder / "config.yml")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._answers, what=f"the registry; see {self.folder}/log", seconds=START_S)

    def _config(self) -> dict[str, object]:
        """JSON is YAML, too."""
        return {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "images")}},
            "http": {"addr": self.host},
            "auth": {"htpasswd": {"realm": "tests", "path": str(self.folder / "logins")}},
        }

    def _answers(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            raise RuntimeError(f"docker-registry ended: {(self.folder / 'log').read_text()[-2000:]}")
        try:
            urllib.request.urlopen(f"http://{self.host}/v2/", timeout=2)
        except urllib.error.HTTPError as answer:
            return answer.code == 401
        except OSError:
            return False
        raise RuntimeError("the registry wants no login")

    def take(self, engine: Engine, image: str, name: str) -> str:
        """Push an engine's image; the engine itself has it no longer, under its new name."""
        there = f"{self.host}/{name}"
        client = [*as_root(), "docker", f"--config={self.folder}/client", f"--host={engine.socket}"]
        login = [*client, "login", "--username", USER, "--password-stdin", self.host]
        subprocess.run(login, input=PASSWORD.encode(), check=True, capture_output=True)
        engine.docker("tag", image, there)
        try:
            subprocess.run([*client, "push", there], check=True, capture_output=True)
        finally:
            engine.docker("rmi", there)
        return there

    def stop(self) -> None:
        process, self._process = self._process, None
        if process:
            process.terminate()
            process.wait(START_S)
        subprocess.run([*as_root(), "rm", "-rf", str(self.folder)], check=False)
