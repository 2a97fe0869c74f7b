"""A registry of the tests' own: Debian's docker-registry on the loopback, with one login, and nothing left of it."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import bcrypt

from tests.support.engine import Engine
from tests.support.platform import free_port
from tests.support.root import as_root
from tests.support.sshd import wait_until

USER, PASSWORD = "fetcher", "only-for-the-registry"
START_S = 20
CONFIG, MANIFEST, LAYER = (
    f"application/vnd.docker.{kind}"
    for kind in ("container.image.v1+json", "distribution.manifest.v2+json", "image.rootfs.diff.tar")
)


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
        """Hold an engine's image under a name.

        Its layers are stored as they are: an engine would compress them first, which takes seconds of processor time.
        """
        path, _, tag = name.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder, "image.tar")
            engine.docker("save", f"--output={saved}", image)
            with tarfile.open(saved) as tar:
                (listed,) = json.loads(_member(tar, "manifest.json"))
                config = self._store(path, CONFIG, _member(tar, listed["Config"]))
                layers = [self._store(path, LAYER, _member(tar, layer)) for layer in listed["Layers"]]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        self._ask("PUT", f"/v2/{path}/manifests/{tag}", json.dumps(manifest).encode(), MANIFEST)
        return f"{self.host}/{name}"

    def _store(self, path: str, kind: str, data: bytes) -> dict[str, object]:
        """Store a part of an image; gives what its manifest says of it."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = self._ask("POST", f"/v2/{path}/blobs/uploads/")["Location"].partition(self.host)[2]
        self._ask("PUT", f"{place}&digest={digest}", data)
        return {"mediaType": kind, "size": len(data), "digest": digest}

    def _ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream") -> Message:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": kind}
        request = urllib.request.Request(f"http://{self.host}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            told: Message = answer.headers
            return told

    def stop(self) -> None:
        process, self._process = self._process, None
        if process:
            process.terminate()
            process.wait(START_S)
        subprocess.run([*as_root(), "rm", "-rf", str(self.folder)], check=False)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    found = tar.extractfile(name)
    assert found, name
    return found.read()
