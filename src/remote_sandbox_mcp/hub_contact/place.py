"""Where the hub listens, who may be on the other end, and how the first who needs it starts it.

Read by every front before anything else, so it imports next to nothing.
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

from .. import __version__
from ..config import paths

# What a process of ours lives by besides its configuration: fronts for which these differ do not share a hub.
LIVED_BY = frozenset(
    {
        *("HOME", "REMOTE_SANDBOX_MCP_HOME", "PYTHONPATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "DOCKER_HOST"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"),
    }
)
# A longer name does not fit into the address of a socket.
LONGEST_ADDRESS = 100
BACKLOG = 256
# For another front that is about to start the hub; it takes milliseconds.
STARTING_S, GLANCE_S = 5.0, 0.005
LOG_FILE = "hub.log"


class NoHub(Exception):
    """There is none here and none can be started; the reason, in words for a log."""


class Place:
    """The folder, the socket and the lock of one hub. Raises NoHub where others could get at them.

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
        """Make the folder, for its owner alone. Raises NoHub."""
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
        """A line to the hub. Raises NoHub where it is another user's, OSError where none listens."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With a limit, a hub that is stopped and has many waiting for it is told at once; without, we would wait, too.
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
        """A socket that listens in its place, over whatever a dead hub has left there. Only for who holds the lock."""
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
        """A descriptor that holds the lock, or -1 where another process has it. Raises NoHub."""
        try:
            return _take(self.lock)
        except OSError as error:
            raise NoHub(f"unable to open {self.lock}: {error.strerror}") from None

    def _remove_leftovers(self) -> None:
        """Remove the sockets of hubs that were killed: of our own name, and of names whose lock no process holds."""
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
            # Another process removes them at the same time, or nothing can be removed: they are in nobody's way.
            return


def reach(place: Place, start: Callable[[Place, int, int], None]) -> tuple[socket.socket, bool]:
    """A line to the hub, and whether it has just been started. Raises NoHub.

    Of several who find none, one holds the lock and starts it; it is born with the lock and a socket that listens.
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
            time.sleep(GLANCE_S)


def _take(lock: str) -> int:
    """A descriptor that holds the lock, or -1 where another process has it. Raises OSError."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def check_peer(line: socket.socket) -> int:
    """The process at the other end. Raises NoHub where that is another user's."""
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
    """The same for all fronts that may share a hub: those of this program, with the same files and variables."""
    try:
        # hashlib would bring OpenSSL along, which is a quarter of a front.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    given = [f"{name}={environ[name]}" for name in sorted(LIVED_BY) if name in environ]
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # One interpreter has several names.
    parts = [__version__, os.path.realpath(sys.executable), sys.prefix, package, str(_written(package)), *given]
    return str(blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest())


def _written(package: str) -> float:
    """When the program was installed: a hub of the files before that is another."""
    return os.stat(os.path.join(package, "__init__.py")).st_mtime


class _address:
    """A path as the address of a socket; a long one by way of a descriptor of its folder, where that can be had."""

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
