"""What the subjects share: real machines, servers on them, the peer if it can be had."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sysconfig import get_path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from tests.support.sshd import HOST, Fleet, Sshd

from .client import Server
from .peer import Peer

if TYPE_CHECKING:
    from .rivals import Rival

OURS = [f"{get_path('scripts')}/remote-sandbox-mcp"]
# One process that does everything.
ALONE = [*OURS, "--no-hub"]
# What servers may see of the person who runs this.
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME")

Entry = dict[str, Any]


@dataclass
class Stage:
    """Set up once for all subjects; `folder` and the fleet go away with it."""

    folder: Path
    fleet: Fleet
    peer: Peer | None
    quick: bool = False
    # In sync subjects rsync takes our place: a trial of the bench itself.
    stand_in: bool = False
    # MCP servers of others for SSH machines.
    rivals: Sequence[Rival] = ()
    _machines: list[Sshd] = field(default_factory=list)

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def machines(self, count: int) -> list[Sshd]:
        """So many stock machines; they stay for the subjects that follow."""
        while len(self._machines) < count:
            self._machines.append(self.fleet.machine(f"bench{len(self._machines) + 1}"))
        return self._machines[:count]

    def machine(self) -> Sshd:
        return self.machines(1)[0]

    def environment(self, entries: Iterable[Entry], *, local: bool = False) -> dict[str, str]:
        """A server's whole environment, with a home of its own; the local sandbox only where it is the subject."""
        home = Path(mkdtemp(prefix="home-", dir=self.folder))
        if not local:
            settings = home / "config/remote-sandbox-mcp/config.toml"
            settings.parent.mkdir(parents=True)
            # Files of measured syncs lie in memory, which agents may not write to unless its operator says so.
            settings.write_text('[local]\nenabled = false\n[server]\nallow_hidden = ["/dev/shm"]\n')
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        folders = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}
        # A hub that nobody uses is to end soon.
        given = {"REMOTE_SANDBOX_LIST": json.dumps(list(entries)), "REMOTE_SANDBOX_HUB_IDLE_S": "2"}
        return kept | folders | given

    def rival_environment(self, rival: Rival, entries: Sequence[Entry]) -> dict[str, str]:
        home = Path(mkdtemp(prefix="home-", dir=self.folder))
        return rival.environment(home, entries, {name: os.environ[name] for name in KEPT if name in os.environ})

    @contextmanager
    def ours(self, entries: Iterable[Entry], *, local: bool = False) -> Iterator[Server]:
        with self.server(OURS, self.environment(entries, local=local)) as server:
            yield server

    def server(self, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        return Server(command, environment, self.folder / "servers.log")

    @contextmanager
    def peers(self, entries: Iterable[Entry]) -> Iterator[Server | None]:
        """The peer's server, or None where there is no peer."""
        if self.peer is None:
            yield None
            return
        with self.server(self.peer.command, self.environment(entries)) as server:
            yield server


def entry(sshd: Sshd, port: int = 0) -> Entry:
    """A machine as both programs take it in REMOTE_SANDBOX_LIST; `port` is that of a line to it."""
    login = {"user": sshd.user, "key_file": sshd.key_file}
    return {"name": sshd.name, "host": HOST, "port": port or sshd.port, **login}
