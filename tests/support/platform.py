"""An OpenSandbox platform of the tests' own: the real server over a real engine, with nothing of it left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from remote_sandbox_mcp.core.sandboxes import disposable
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.support.engine import CACHE, START_S, Engine, made_image
from tests.support.ports import free_block
from tests.support.ports import free_port as free_port
from tests.support.root import as_root
from tests.support.sshd import wait_until

IMAGE, WITHOUT_PYTHON, AS_ROOT, EXECD = "sandbox:test", "sandbox:without-python", "sandbox:as-root", "execd:test"
OFFICIAL = "opensandbox/execd"
# Names an execd that the platform's makers published: a file that `docker save` wrote, or an image of the machine's own
# engine, or one that can be pulled.
EXECD_VARIABLE = "RSMCP_TEST_EXECD_IMAGE"
AGENT = Path(__file__).parent / "execd"
USER = "agent"
API_KEY = "key-of-the-test-platform"
# Ports are published by a process of the engine's, so that the machine's packet filter is left alone.
NETWORK = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
# For execd alone, and for nobody who looks for a Python in the usual places.
HIDE_PYTHON = (
    "mkdir /opt/aside && cp /usr/bin/python3.11 /opt/aside/python3 && rm -f /usr/bin/python3* /usr/bin/py3* "
    "/usr/bin/pdb3* && useradd --create-home --shell=/bin/bash agent"
)


class Platform:
    """Engine, images and server, from start to stop."""

    def __init__(self, disk_mb: int = 0) -> None:
        self.bridge = Bridge()
        self.engine = Engine((*NETWORK, f"--bridge={self.bridge.name}"), disk_mb)
        self.folder = Path(tempfile.mkdtemp(prefix="platform-", dir="/tmp"))
        self.port = free_port()
        self._ports = free_block()
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Platform:
        try:
            self.bridge.make()
            self.engine.start()
            self._furnish()
            self.start_server()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, port: int = 0, *, use_server_proxy: bool = False, key: str = API_KEY) -> disposable.Platform:
        """As an operator would configure it; `port` may be that of a line in between."""
        return disposable.Platform(
            server_url=f"http://127.0.0.1:{port or self.port}",
            api_key=Secret(key) if key else None,
            use_server_proxy=use_server_proxy,
            request_timeout_s=15,
            ready_timeout_s=30,
            volumes=(str(self.folder / "shared"),),
        )

    def containers(self, *filters: str) -> list[str]:
        """The ids of all containers, running or not."""
        words = [f"--filter={one}" for one in filters]
        return self.engine.docker("ps", "--all", "--quiet", "--no-trunc", *words).stdout.split()

    def container_of(self, key: str) -> str:
        """The container of a sandbox, by the server's id for it."""
        (found,) = self.containers(f"label=opensandbox.io/id={key}")
        return found

    def volumes(self) -> list[str]:
        return self.engine.docker("volume", "ls", "--quiet").stdout.split()

    def _furnish(self) -> None:
        self.engine.import_image(made_image("sandbox"), AS_ROOT)
        self._derive(IMAGE, "useradd", "--create-home", "--shell=/bin/bash", USER, change=f"USER {USER}")
        self._derive(WITHOUT_PYTHON, "sh", "-c", HIDE_PYTHON, change=f"USER {USER}")
        self.execd = official_execd(self.engine) or EXECD
        if self.execd == EXECD:
            self._derive(EXECD, "true", files={"execd.py": "/execd", "bootstrap.sh": "/bootstrap.sh"})

    def _derive(self, name: str, *words: str, files: dict[str, str] | None = None, change: str = "") -> None:
        maker = f"maker-{name.replace(':', '-')}"
        self.engine.docker("run", "--network=none", f"--name={maker}", AS_ROOT, *words)
        for file, place in (files or {}).items():
            self.engine.docker("cp", str(AGENT / file), f"{maker}:{place}")
        self.engine.docker("commit", *([f"--change={change}"] if change else []), maker, name)
        self.engine.docker("rm", maker)

    # The server

    def start_server(self) -> None:
        config = self.folder / "sandbox.toml"
        config.write_text(self._config())
        program = Path(sys.executable).with_name("opensandbox-server")
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "DOCKER_HOST": self.engine.socket}
        given = [f"{name}={value}" for name, value in environment.items()]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [*as_root(), "env", *given, str(program), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait_until(self._answers, what=f"the server; see {self.folder}/log", seconds=START_S)

    def stop_server(self) -> None:
        server, self._server = self._server, None
        if server and server.poll() is None:
            # By its own id alone: some versions of kill take the id of a group for everything that there is.
            subprocess.run([*as_root(), "kill", f"-{signal.SIGTERM.value}", str(server.pid)], check=False)
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                subprocess.run([*as_root(), "kill", f"-{signal.SIGKILL.value}", str(server.pid)], check=False)
                server.wait(10)

    def _answers(self) -> bool:
        if self._server is None or self._server.poll() is not None:
            raise RuntimeError(f"opensandbox-server ended: {(self.folder / 'log').read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def _config(self) -> str:
        low = self._ports
        sections: dict[str, dict[str, object]] = {
            "server": {"host": "127.0.0.1", "port": self.port, "api_key": API_KEY},
            "log": {"level": "WARNING"},
            "runtime": {"type": "docker", "execd_image": self.execd},
            "docker": {
                "network_mode": "bridge",
                "publish_host": "127.0.0.1",
                "port_range_min": low,
                "port_range_max": low + 400,
            },
            "storage": {"allowed_host_paths": [str(self.folder / "shared")]},
            "store": {"type": "sqlite", "path": str(self.folder / "store.db")},
        }
        rows = [
            (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in of.items()))
            for name, of in sections.items()
        ]
        return "\n".join(line for row in rows for line in row) + "\n"

    def stop(self) -> None:
        self.stop_server()
        try:
            found = self.containers() if (self.engine.folder / "pid").exists() else []
            if found:
                self.engine.docker("rm", "--force", "--volumes", *found, check=False)
        finally:
            self.engine.stop()
            self.bridge.remove()
            subprocess.run([*as_root(), "rm", "-rf", str(self.folder)], check=False)


def official_execd(engine: Engine) -> str:
    """The image of an execd that the platform's makers published, brought into an engine of ours; empty without one.

    It is what the variable names, or a file execd*.tar beside the images that the tests keep. Raises EngineProblem for
    one that was named and cannot be had.
    """
    wanted = os.environ.get(EXECD_VARIABLE, "")
    kept = sorted(CACHE.glob("execd*.tar"))
    if wanted and not Path(wanted).is_file():
        return engine.fetch_image(wanted)
    if wanted or kept:
        return engine.load_image(Path(wanted) if wanted else kept[-1])
    named = engine.docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", OFFICIAL).stdout.split()
    return named[0] if named else ""


class Bridge:
    """A network interface for one engine's containers."""

    def __init__(self) -> None:
        # By chance: a worker may have two at once, and another worker some more.
        self.name = f"osb{secrets.token_hex(4)}"
        self.address = f"10.{random.randint(64, 250)}.{random.randint(1, 250)}.1/24"
        # Without one of its own it has that of one of its containers: with that one it goes, and the others send their
        # answers to where nobody is until they ask again, seconds later.
        self.hardware_address = f"02:{secrets.token_bytes(5).hex(':')}"

    def make(self) -> None:
        for words in (
            ("link", "add", self.name, "address", self.hardware_address, "type", "bridge"),
            ("addr", "add", self.address, "dev", self.name),
            ("link", "set", self.name, "up"),
        ):
            subprocess.run([*as_root(), "ip", *words], check=True, capture_output=True)

    def remove(self) -> None:
        subprocess.run([*as_root(), "ip", "link", "del", self.name], check=False, capture_output=True)
