"""A port of a sandbox: a byte stream to it, its address on this computer, and an app behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from ..check import in_range, text_argument
from ..errors import BadArgument, SandboxError
from ..jobs.cards import CardRequest

LONGEST_WAIT_S = 3600.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r?\n)")


class PortClosed(SandboxError):
    """Port of the sandbox where nothing accepts connections."""

    code = "port_closed"


class Stream(Protocol):
    """A byte stream in both directions. `read` and `drain` raise Unreachable where it was cut."""

    async def read(self, most: int = 65536) -> bytes:
        """The next bytes; b"" after the other side's last."""

    def write(self, data: bytes) -> None:
        """Send without waiting; call `drain` after each large piece."""

    async def drain(self) -> None:
        """Wait until all that was written has left."""

    def write_eof(self) -> None:
        """End the writing; reading goes on."""

    def close(self) -> None:
        """End it at once, both ways; what was not drained may be lost."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A port of a sandbox that can be reached on this computer, and only from here."""

    sandbox: str
    port: int
    local_port: int
    # Whether something answered there when it was opened.
    answers: bool = True
    # How many connections there are now, and have been.
    connections: int = 0
    served: int = 0
    # Why the last connection that failed did.
    trouble: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.local_port}/"


@dataclass(frozen=True)
class Health:
    """Answer of an app to a health check: the status of HTTP (0: none), and after how long.

    Without a path to ask, `ok` says that the port accepts connections.
    """

    ok: bool = False
    status: int = 0
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class DeployOrder:
    """An app as a caller wants it. Raises BadArgument for values that make no sense."""

    sandbox: str
    command: str
    port: int
    health_path: str = ""
    timeout_s: float = 60.0
    cwd: str = ""
    # Empty: a name is made up.
    session: str = ""
    # GPUs for itself, and machines of which the best is taken; empty for `sandbox`.
    cards: CardRequest | None = None
    places: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        text_argument("command", self.command)
        check_port("port", self.port)
        in_range("timeout", self.timeout_s, 1, LONGEST_WAIT_S)
        if self.health_path:
            check_path(self.health_path)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An app that was started.

    `status`: running, unhealthy (it runs, but does not answer well), failed (it ended), stopped (on purpose), unknown
    (it was not asked).
    """

    sandbox: str
    port: int
    status: str
    # Where a person on this computer opens it; empty where it failed, or before a port was forwarded.
    url: str = ""
    health: Health = Health()
    # The session of the job, by which it can be looked at, waited for and stopped.
    task: str = ""
    job_id: str = field(default="", repr=False)
    command: str = ""
    # As it was ordered.
    cwd: str = ""
    health_path: str = ""
    log_file: str = ""
    # The end of the job's log.
    log: str = ""
    exit_code: int | None = None
    # Why it is not running, or what its starter should know.
    problem: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    # UUIDs of the cards that it has leased.
    cards: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status in ("failed", "stopped")


def check_port(name: str, port: int) -> int:
    """Raises BadArgument."""
    if not 1 <= port <= 65535:
        raise BadArgument(f"{name} is {port}, but a port is a number from 1 to 65535")
    return port


def check_path(path: str) -> str:
    """A path as it may stand in a request of HTTP. Raises BadArgument."""
    if not re.fullmatch(r"/[!-~]*", path):
        raise BadArgument(f"health_path is {path[:80]!r}, but must begin with / and hold no spaces; encode them as %20")
    return path


def request_text(path: str, port: int) -> bytes:
    """An HTTP request after whose answer the server closes the connection."""
    lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Accept: */*", "Connection: close", "", "")
    return "\r\n".join(lines).encode("ascii")


def read_status(answer: bytes) -> int | None:
    """The status of an answer, None while its first line is not complete, 0 where it is no HTTP."""
    if found := _STATUS_LINE.match(answer):
        return int(found[1])
    complete = b"\n" in answer or len(answer) > 4096 or not b"HTTP/1.".startswith(answer[:7])
    return 0 if complete else None


def is_well(status: int) -> bool:
    """Whether this HTTP status means healthy: success or a redirect."""
    return 200 <= status < 400
