"""Place of the hub: where it listens, which peers are trusted, and how the first process that needs it starts it.

Every front loads this first, so it imports almost nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Mapping

from ... import __file__ as PACKAGE
from ... import __version__
from ...config import paths

# Variables that matter to a process besides its configuration: fronts that differ in these do not share a hub.
LIVED_BY = frozenset(
    {
        *("HOME", "REMOTE_SANDBOX_MCP_HOME", "PYTHONPATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "DOCKER_HOST"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"),
    }
)
# A longer path does not fit into a socket address.
LONGEST_ADDRESS = 100
BACKLOG = 256
# How long to wait for another front that is starting the hub, which takes milliseconds.
STARTING_S, POLL_EVERY_S = 5.0, 0.005
LOG_FILE = "hub.log"


class NoHub(Exception):
    """There is no hub and none can be started; the reason is for a log."""


class HubPlace:
    """Folder, socket and lock of one hub. Raises NoHub where other users could access them.

    `name` is that of another hub of the same state folder.
    """

    def __init__(self, environ: Mapping[str, str], name: str = "") -> None:
        self.state = paths.state_text(environ)
        self.folder = os.path.join(self.state, "hub")
        self.name = name or _name(environ)
        self.lock = os.path.join(self.folder, f"{self.name}.lock")
        self.socket = os.path.join(self.folder, f"{self.name}.sock")
        self.log = os.path.join(self.folder, LOG_FILE)

    def make(self) -> None:
        """Make the folder, private to its owner. Raises NoHub."""
        try:
            os.makedirs(self.state, 0o700, exist_ok=True)
            os.makedirs(self.folder, 0o700, exist_ok=True)
        except OSError as error:
            raise NoHub(f"unable to make {self.folder}: {error.strerror}") from None
        self.check()

    def check(self) -> None:
        """Raises NoHub."""
        try:
            found = os.lstat(self.folder)
        except OSError as error:
            raise NoHub(f"unable to look at {self.folder}: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise NoHub(f"{self.folder} is not a folder of this user's alone")

    def connect(self) -> socket.socket:
        """Connect to the hub. Raises NoHub where it belongs to another user, OSError where none listens."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With a timeout, a suspended hub with a full backlog is noticed at once; without one we would block.
        line.settimeout(STARTING_S)
        try:
            with _address(self.folder, self.socket) as address:
                line.connect(address)
            check_peer(line)
        except BaseException:
            line.close()
            raise
        return line

    def listen(self) -> socket.socket:
        """Listen in the hub's place, replacing a dead hub's socket. Only for the process that holds the lock."""
        self._remove_leftovers()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh = os.path.join(self.folder, f"{self.name}.{os.getpid()}")
        try:
            with _address(self.folder, fresh) as address:
                listener.bind(address)
            os.chmod(fresh, 0o600)
            listener.listen(BACKLOG)
            os.replace(fresh, self.socket)
        except OSError as error:
            listener.close()
            raise NoHub(f"unable to listen at {self.socket}: {error.strerror}") from None
        return listener

    def take_lock(self) -> int:
        """A descriptor that holds the lock; -1 where another process has it. Raises NoHub."""
        try:
            return _take(self.lock)
        except OSError as error:
            raise NoHub(f"unable to open {self.lock}: {error.strerror}") from None

    def _remove_leftovers(self) -> None:
        """Remove sockets of killed hubs: of our own name, and of names whose lock is free."""
        try:
            for file in os.listdir(self.folder):
                path, name = os.path.join(self.folder, file), file.partition(".")[0]
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    continue
                lock = _take(os.path.join(self.folder, f"{name}.lock")) if name != self.name else -1
                if lock >= 0 or name == self.name:
                    os.unlink(path)
                if lock >= 0:
                    os.close(lock)
        except OSError:
            # Another process removes them at the same time, or they cannot be removed; they do no harm.
            return


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def start_hub(place: HubPlace, lock: int, listener: int) -> None:
    """Import what starts a hub only here, because most find one. Raises NoHub."""
    from .starting import start

    start(place, lock, listener)


def connect(place: HubPlace) -> socket.socket:
    """A connection to the hub if one runs. Raises NoHub, OSError."""
    place.check()
    return place.connect()


def reach(place: HubPlace, start: Callable[[HubPlace, int, int], None] = start_hub) -> tuple[socket.socket, bool]:
    """A connection to the hub, and whether it was just started. Raises NoHub.

    Of several processes that find none, one gets the lock and starts it; the hub inherits lock and listening socket.
    """
    place.make()
    deadline, is_new = time.monotonic() + STARTING_S, False
    while True:
        try:
            return place.connect(), is_new
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET):
                raise NoHub(f"unable to connect to {place.socket}: {error.strerror}") from None
        is_new = True
        if (lock := place.take_lock()) >= 0:
            try:
                with place.listen() as listener:
                    start(place, lock, listener.fileno())
            finally:
                os.close(lock)
        elif time.monotonic() > deadline:
            raise NoHub("a hub holds its lock, but does not listen")
        else:
            time.sleep(POLL_EVERY_S)


def _take(lock: str) -> int:
    """A descriptor that holds the lock; -1 where another process has it. Raises OSError."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def check_peer(line: socket.socket) -> int:
    """Pid of the process at the other end. Raises NoHub where it belongs to another user."""
    pid, uid = _peer(line)
    if uid != os.getuid():
        raise NoHub(f"the process at the other end belongs to another user ({uid})")
    return pid


def _peer(line: socket.socket) -> tuple[int, int]:
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    # macOS: SOL_LOCAL with LOCAL_PEERCRED gives the user, with LOCAL_PEERPID the process.
    _, uid = struct.unpack("2I", line.getsockopt(0, 0x001, 76)[:8])
    (pid,) = struct.unpack("i", line.getsockopt(0, 0x002, 4))
    return pid, uid


def _name(environ: Mapping[str, str]) -> str:
    """Name of the hub for this environment: fronts of the same program, files and variables share one."""
    try:
        # hashlib would load OpenSSL, a quarter of a front's start-up time.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    given = [f"{name}={environ[name]}" for name in sorted(LIVED_BY) if name in environ]
    package = os.path.dirname(os.path.abspath(PACKAGE))
    # One interpreter may have several names.
    parts = [__version__, os.path.realpath(sys.executable), sys.prefix, package, str(_written(package)), *given]
    return str(blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest())


def _written(package: str) -> float:
    """Return when the program was installed: after an update, another hub is used."""
    return os.stat(os.path.join(package, "__init__.py")).st_mtime


class _address:
    """A path as a socket address; a long one goes through a descriptor of its folder, where that is possible."""

    def __init__(self, folder: str, path: str) -> None:
        self._folder, self._path, self._fd = folder, path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= LONGEST_ADDRESS:
            return self._path
        if sys.platform != "linux":
            raise NoHub(f"the path {self._path} is too long for a socket; set REMOTE_SANDBOX_MCP_HOME to a shorter one")
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{os.path.basename(self._path)}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
