"""The Sandbox protocol: one handle over machines, containers and the embedded sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..commands.command import Command, Completed, Observation, Running
from ..jobs.job import Jobs
from ..progress import Progress, silent
from ..sync.transfer import Lane
from .files import FileSlice, Found, Listing, Search, Span, Written
from .port import Stream


@dataclass(frozen=True)
class Capabilities:
    """Differences between sandboxes, as data: decisions read this, and not the sandbox's kind."""

    # Runs and jobs go on when the line to it is cut.
    survives_disconnect: bool = False
    # A stop reaches all that a command has started, and not its process group alone.
    kills_trees: bool = False
    # Something beyond it can be reached from inside.
    network: bool = True
    # The way to it is the platform that is configured: the watchdog needs its address and key, too.
    through_platform: bool = False
    # Why a command cannot be run as root by sudo, as the end of a sentence; empty where it can.
    why_not_root: str = "as_root is for SSH machines whose table in config.toml has `sudo`"
    # It is on the user's own computer, where agents run only what has no better place.
    is_this_computer: bool = False
    # The machine on which it is a container, and through which it is reached; empty for all others.
    on_machine: str = ""


@dataclass(frozen=True)
class Description:
    """Description of a sandbox, as far as it is possible without asking it."""

    name: str
    kind: str
    host: str = ""
    port: int = 0
    user: str = ""
    capabilities: Capabilities = Capabilities()
    # The version of the Python that runs our outpost in it; known when it is open, empty where it has none.
    python: str = ""
    # What the operator lets be written in it, in words; empty where there is no such rule.
    writable: str = ""
    # What holds that; known when it is open.
    walls: str = ""


class Sandbox(Protocol):
    """A place to run commands and keep files.

    Every method opens the sandbox if it is not open, and raises ConnectError, with nothing done, if that fails.
    All methods may be called at once, any number of times.
    """

    @property
    def description(self) -> Description: ...

    @property
    def is_open(self) -> bool:
        """Whether a live connection exists now; sends nothing."""

    @property
    def connection(self) -> object | None:
        """The live connection, which is another object after each reconnection; None without one. Sends nothing."""

    @property
    def jobs(self) -> Jobs:
        """Background jobs of the sandbox; every method raises Unsupported where there can be none."""

    async def open(self) -> None:
        """Open it, or check that it is open: on return the far side has answered. Raises ConnectError."""

    async def close(self) -> None:
        """Close the connection. Runs go on where `survives_disconnect`."""

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        """Run to the end, or until `patience_s` is over (the run goes on and can be observed).

        The command's own timeout ends its whole tree: TERM, two seconds, KILL. Cancelling this call stops the run.
        After a cut we reconnect and return the true result; the command never starts twice. A cut that comes before
        the end of a streamed input stops the run, because the rest could not be given to it (LostContact).
        A command for another `user` runs as that one if the sandbox's own user is root, or sudo allows it there.
        Raises NotStarted, or LostContact where the outcome cannot be learned in time.
        """

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        """Return the state of a run, whichever process started it."""

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        """End a run's whole tree and say what became of it."""

    def forget(self, run_id: str) -> None:
        """Drop an ended run's folder on the machine, because its result is known. Best effort, does not wait."""

    async def read(self, path: str, span: Span) -> FileSlice:
        """Read a part of a regular file. Raises FileProblem."""

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        """Put a file in place at once (temporary name, rename), keeping its mode; follows no symlink at `path`.

        With `expected`, refuses (FileProblem, reason "stale") a file whose version is another; "" expects no file.
        Without `force`, refuses (reason "read_only") a file whose owner may not write it, also as root.
        """

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        """List a folder; the far side sends at most `limit` entries."""

    async def search(self, search: Search) -> Found:
        """Find files by name and lines by pattern; the far side sends at most `search.limit` matches."""

    async def open_lane(self) -> Lane:
        """A further connection for moving files; several are faster over a long distance. Raises ConnectError.

        Raises Unsupported where no further one can be had; a caller that has some already goes on with those.
        """

    async def connect(self, port: int) -> Stream:
        """A byte stream to a TCP port on the sandbox's own loopback, as its commands see it. Any number at once.

        Raises PortClosed where nothing listens there, ConnectError, and Unsupported where ports cannot be reached.
        """
