"""The platform's server: what it needs on this machine; up, down, status; whether it answers, and its sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...config.problems import parse_toml
from ...config.schema import Configuration
from ...config.secrets import key_in
from ...config.services import FOLDER, KEY_FILE, LOCK_FILE, URL_FILE
from ...core.errors import ConfigError
from ...core.permission import is_loopback
from ...core.texts.text import last_line
from ...local.processes import process
from ...local.processes.locks import Lock, LockHolder, holder
from ...local.processes.programs import find_chosen

HOST = "127.0.0.1"
LARGEST_LOG, KEPT_LOGS = 5 << 20, 2


class PlatformFolder:
    """The files of one platform. `printed` has what the server says before it has a log: why it does not start."""

    def __init__(self, state: Path) -> None:
        self.folder = folder = state / FOLDER
        self.lock, self.key, self.url = folder / LOCK_FILE, folder / KEY_FILE, folder / URL_FILE
        self.settings, self.database = folder / "server.toml", folder / "sandboxes.db"
        self.log, self.access_log, self.printed = folder / "server.log", folder / "access.log", folder / "printed.log"

    def make(self) -> None:
        """Raises ConfigError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"unable to make the folder {self.folder}: {error.strerror}.") from error

    def recorded_url(self) -> str:
        """The server's address, now or when it last ran."""
        try:
            return self.url.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""


@dataclass(frozen=True)
class Images:
    """Images that the server uses inside each sandbox, and beside one with a restricted network."""

    execd: str = "opensandbox/execd:v1.1.0"
    egress: str = "opensandbox/egress:v1.1.7"


def render(place: PlatformFolder, port: int, key: str, images: Images, folders: Sequence[str] = ()) -> str:
    """The settings file; `folders` are those of this machine that may be mounted into sandboxes.

    Every value is written as JSON, which is also valid TOML.
    """
    sections: dict[str, dict[str, object]] = {
        "server": {"host": HOST, "port": port, "api_key": key},
        "log": {
            "level": "INFO",
            "file_enabled": True,
            "file_path": str(place.log),
            "access_file_path": str(place.access_log),
            "file_max_bytes": LARGEST_LOG,
            "file_backup_count": KEPT_LOGS,
        },
        "runtime": {"type": "docker", "execd_image": images.execd},
        # Published on this computer only: a sandbox's ports have no login of their own.
        "docker": {"network_mode": "bridge", "publish_host": HOST, "no_new_privileges": True},
        "ingress": {"mode": "direct"},
        # A filter by name alone could be bypassed by using addresses.
        "egress": {"image": images.egress, "mode": "dns+nft"},
        # Where containers run in a virtual machine, only their published ports can be reached.
        "proxy": {"resolve_internal": False},
        "storage": {"allowed_host_paths": list(folders)},
        "store": {"type": "sqlite", "path": str(place.database)},
    }
    return "\n".join(f"[{name}]\n{_lines(values)}" for name, values in sections.items())


def _lines(values: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


COMMAND = "opensandbox-server"
VERSIONS = f"{COMMAND}>=1.1,<2"
CALL_S = 20.0
# Other variables may hold secrets, or change what the server does.
KEPT = frozenset(("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"))
KEPT_PREFIXES = ("XDG_", "DOCKER_", "UV_")


def server_words(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The command that starts the server. Raises ConfigError where there is none."""
    beside = Path(sys.executable).with_name(COMMAND)
    if os.access(beside, os.X_OK):
        return (str(beside),)
    if found := find_chosen(COMMAND, environ.get("PATH")):
        return (found,)
    if found := find_chosen("uvx", environ.get("PATH")):
        return (found, "--from", VERSIONS, COMMAND)
    raise ConfigError(
        f"the command {COMMAND} is not installed; run: uv tool install {COMMAND} (or: pip install {COMMAND})."
    )


def engine_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the server, with the engine that the docker command uses. Raises ConfigError."""
    kept = {name: value for name, value in environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    _docker(kept, "version", "--format", "{{.Server.Version}}")
    # The server knows nothing of docker contexts, with which people choose between engines.
    address = kept.get("DOCKER_HOST") or _docker(kept, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    if not (address.startswith("unix://") or is_loopback(urlsplit(address).hostname or "")):
        raise ConfigError(
            f"the Docker engine is on another machine ({address}), where ports of sandboxes could not be reached; "
            "choose one on this machine (docker context use default), or run opensandbox-server over there."
        )
    return kept | {"DOCKER_HOST": address}


def _docker(environ: Mapping[str, str], *words: str) -> str:
    """Output of the docker command. Raises ConfigError."""
    if not (program := find_chosen("docker", environ.get("PATH"))):
        raise ConfigError("the command docker is not installed; install Docker Engine or Docker Desktop, then repeat.")
    try:
        done = subprocess.run(
            [program, *words], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=CALL_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"no answer in {CALL_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise ConfigError(f"the Docker engine does not answer: {why}; start it, then repeat.") from error
    if done.returncode:
        why = last_line(done.stderr).rstrip(".?") or f"docker ended with {done.returncode}"
        raise ConfigError(f"the Docker engine does not answer: {why}; start it, then repeat.")
    return done.stdout.decode("utf-8", "replace").strip()


def matching_images(words: tuple[str, ...], environ: Mapping[str, str], limit_s: float) -> Images:
    """Images that match this version of the server; only its own example configuration names them."""
    with tempfile.TemporaryDirectory() as folder:
        example = Path(folder) / "example.toml"
        try:
            subprocess.run(
                [*words, "init-config", str(example), "--example", "docker"], env=dict(environ), cwd=folder,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=True,
            )  # fmt: skip
            named = parse_toml(example.read_text(encoding="utf-8"))
            return Images(str(named["runtime"]["execd_image"]), str(named["egress"]["image"]))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            return Images()


# On its first start, uvx downloads the server.
START_S, LOADING_S = 60.0, 300.0
# The server gives its own calls five seconds at its end.
END_S, KILL_S = 8.0, 3.0
ANSWER_S = 5.0
# The address of a server in its makers' documents, and how long its answer may take.
USUAL, USUAL_S = "http://localhost:8080", 1.5
KEY_HEADER = "OPEN-SANDBOX-API-KEY"
# Further sandboxes are counted, not named.
PAGE = 200


@dataclass(frozen=True, kw_only=True)
class PlatformState:
    """State of the platform. `sandboxes` is None where the server was not asked, or does not answer."""

    running: bool
    pid: int = 0
    url: str = ""
    sandboxes: Sandboxes | None = None
    place: PlatformFolder

    @property
    def answers(self) -> bool:
        return self.sandboxes is not None


async def status(state: Path) -> PlatformState:
    place = PlatformFolder(state)
    found = holder(place.lock)
    if found is None:
        return PlatformState(running=False, place=place)
    url = place.recorded_url()
    sandboxes = await list_sandboxes(url, key_in(place.key)) if url and place.key.exists() else None
    return PlatformState(running=True, pid=found.pid, url=url, sandboxes=sandboxes, place=place)


async def up(
    state: Path, *, port: int = 0, execd_image: str = "", folders: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> PlatformState:  # fmt: skip
    """Start it, and wait until it answers; one that runs already is left as it is. Raises ConfigError.

    `folders` of this machine may be mounted into sandboxes; no others.
    """
    place = PlatformFolder(state)
    if holder(place.lock):
        return await _of_others(state)
    words = server_words(environ)
    given = await asyncio.to_thread(engine_environ, environ)
    place.make()
    try:
        lock = Lock.take(place.lock)
    except BlockingIOError:
        return await _of_others(state)
    try:
        images = await asyncio.to_thread(matching_images, words, given, LOADING_S)
        if execd_image:
            images = Images(execd_image, images.egress)
        _write_settings(place, port, images, folders)
        server = _spawn(words, given, place, lock)
    finally:
        lock.release()
    try:
        await _until_it_answers(server, place)
    except BaseException:
        _signal(server.pid, signal.SIGKILL)
        server.wait()
        raise
    return await status(state)


async def _of_others(state: Path) -> PlatformState:
    """Wait for a server that another process has started or is starting. Raises ConfigError if it never answers."""
    deadline = time.monotonic() + START_S
    while not (stands := await status(state)).answers:
        if not stands.running or time.monotonic() > deadline:
            raise ConfigError(f"the platform that another process has started does not answer; see {stands.place.log}.")
        await asyncio.sleep(0.1)
    return stands


async def down(state: Path) -> PlatformState:
    """Stop it; returns its last state with the sandboxes left behind. Raises ConfigError if it does not end."""
    before = await status(state)
    if not before.running:
        return before
    found = holder(before.place.lock)
    if found and not found.is_alive():
        raise ConfigError(
            f"the platform's process is not known, though somebody holds {before.place.lock}; find it with: "
            f"fuser {before.place.lock}"
        )
    if found:
        await _end(found, before.place)
    return before


async def _end(found: LockHolder, place: PlatformFolder) -> None:
    for number, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILL_S)):
        # Between two looks its pid may have become another process's.
        if found.is_alive():
            _signal(found.pid, number)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if holder(place.lock) is None:
                return
            await asyncio.sleep(0.05)
    raise ConfigError(f"the platform, process {found.pid}, does not end; look at {place.log}.")


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal the server and all that it started: it leads its own session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _write_settings(place: PlatformFolder, port: int, images: Images, folders: Sequence[str]) -> None:
    """Raises ConfigError."""
    chosen = _free_port(port, place.recorded_url())
    settings = render(place, chosen, key_in(place.key), images, folders)
    texts = {place.settings: settings, place.url: f"http://{HOST}:{chosen}\n"}
    try:
        for file, text in texts.items():
            file.unlink(missing_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise ConfigError(f"unable to write {error.filename or place.folder}: {error.strerror}.") from error


def _free_port(wanted: int, last_url: str) -> int:
    """The wanted port; else the last one, else any free one. Raises ConfigError."""
    for port in (wanted,) if wanted else (urlsplit(last_url).port or 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
            except OSError:
                continue
    raise ConfigError(f"port {wanted} is taken by another program; choose another with --port, or leave it out.")


def _spawn(
    words: tuple[str, ...], environ: Mapping[str, str], place: PlatformFolder, lock: Lock
) -> subprocess.Popen[bytes]:
    """Start the server detached from us, holding the lock from the start. Raises ConfigError."""
    place.printed.unlink(missing_ok=True)
    try:
        with open(os.open(place.printed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as printed:
            server = subprocess.Popen(
                [*words, "--config", str(place.settings)], env=dict(environ), cwd=place.folder, umask=0o077,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
                start_new_session=True, pass_fds=(lock.fd,),
            )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"unable to start {words[0]}: {error.strerror}.") from error
    os.pwrite(lock.fd, f"{server.pid} {process.started(server.pid)}\n".encode(), 0)
    return server


async def _until_it_answers(server: subprocess.Popen[bytes], place: PlatformFolder) -> None:
    """Wait until it answers. Raises ConfigError if it ends instead, or takes too long."""
    url, key, deadline = place.recorded_url(), key_in(place.key), time.monotonic() + START_S
    while await list_sandboxes(url, key) is None:
        if server.poll() is not None:
            raise ConfigError(f"the platform has ended at once: {_last_words(place)}; {place.printed} says more.")
        if time.monotonic() > deadline:
            raise ConfigError(f"the platform does not answer within {START_S:g} s; {place.log} may say why.")
        await asyncio.sleep(0.1)


def _last_words(place: PlatformFolder) -> str:
    try:
        return last_line(place.printed.read_bytes()) or "it said nothing"
    except OSError:
        return "it said nothing"


@dataclass(frozen=True)
class Sandboxes:
    """The sandboxes that the server has: the first ids, and the total."""

    ids: tuple[str, ...] = ()
    count: int = 0


async def list_sandboxes(url: str, key: str) -> Sandboxes | None:
    """All sandboxes that a server made on this engine; None where it does not answer properly."""
    import httpx2

    try:
        # Proxy settings of the environment are not meant for this computer.
        async with httpx2.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
            answer = await client.get(f"{url}/v1/sandboxes", params={"pageSize": PAGE}, headers={KEY_HEADER: key})
            answer.raise_for_status()
            return _read(answer.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError):
        return None


async def find_usual(configuration: Configuration) -> str:
    """The usual address of such a server, if nothing is configured and one answers there, on this computer."""
    import httpx2

    if configuration.machines or configuration.commands or configuration.settings.platform.server_url:
        return ""
    asked = f"{USUAL.replace('localhost', HOST)}/v1/sandboxes"
    try:
        async with httpx2.AsyncClient(timeout=USUAL_S, trust_env=False) as client:
            answer = await client.get(asked, params={"pageSize": 1})
            page = answer.json()
            is_one = page["code"] == "MISSING_API_KEY" if answer.status_code == 401 else "pagination" in page
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return ""
    return USUAL if is_one else ""


def _read(page: Any) -> Sandboxes:
    ids = tuple(str(item["id"]) for item in page["items"])
    return Sandboxes(ids, max(len(ids), int(page["pagination"].get("totalItems", 0))))
