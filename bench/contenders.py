"""Everybody who runs commands on SSH machines, ready and warm: ours, OpenSSH, the published peer, those from npm."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tests.support.sshd import Sshd

from . import rivals
from .client import Server, succeeded
from .far import Distance, line
from .measure import Times
from .mux import Mux, mux
from .report import Row
from .stage import Stage, entry

OURS, SSH, PEER = "ours", "ssh, ControlMaster", "0.7.6"
# So many sessions does a stock sshd allow on one connection.
MAX_SESSIONS = 10


class Contender(Protocol):
    """Runs commands on machines, by their names."""

    def run(self, machine: str, command: str) -> None: ...

    def at_once(self, machines: Sequence[str], command: str) -> None: ...

    def on_all(self, machines: Sequence[str], command: str) -> None: ...


@dataclass(frozen=True)
class Tool:
    """Our server, or the peer's; only ours runs a command on several machines in one call."""

    server: Server
    runs_on_all: bool

    def run(self, machine: str, command: str) -> None:
        succeeded(self.server.call("exec_bash", command=command, sandbox_name=machine))

    def at_once(self, machines: Sequence[str], command: str) -> None:
        self.server.calls_at_once("exec_bash", [{"command": command, "sandbox_name": it} for it in machines])

    def on_all(self, machines: Sequence[str], command: str) -> None:
        if not self.runs_on_all:
            return self.at_once(machines, command)
        said = self.server.call("exec_bash", command=command, sandbox_names=[*machines])
        for row in said["results"]:
            succeeded(row)


@dataclass(frozen=True)
class Shared:
    """OpenSSH, with one master connection for each machine."""

    masters: Mapping[str, Mux]

    def run(self, machine: str, command: str) -> None:
        self.masters[machine].run(command)

    def at_once(self, machines: Sequence[str], command: str) -> None:
        self._spread(machines, command, MAX_SESSIONS)

    def on_all(self, machines: Sequence[str], command: str) -> None:
        self._spread(machines, command, len(machines))

    def _spread(self, machines: Sequence[str], command: str, most: int) -> None:
        with ThreadPoolExecutor(most) as pool:
            list(pool.map(lambda machine: self.run(machine, command), machines))


@contextmanager
def contenders(
    stage: Stage, machines: Sequence[Sshd], distance: Distance, only: Collection[str] | None = None
) -> Iterator[dict[str, Contender]]:
    """Ours and the others, or `only` those of them, by name; each has run a command on each machine."""

    def wanted(name: str) -> bool:
        return only is None or name in only

    with ExitStack() as stack:
        ports = {sshd.name: stack.enter_context(line(sshd.port, distance)) for sshd in machines}
        entries = [entry(sshd, ports[sshd.name]) for sshd in machines]
        found: dict[str, Contender] = {OURS: Tool(stack.enter_context(stage.ours(entries)), True)}
        if wanted(SSH):
            masters = {it.name: stack.enter_context(mux(it, stage.folder, ports[it.name])) for it in machines}
            found[SSH] = Shared(masters)
        if stage.peer and wanted(PEER):
            found[PEER] = Tool(stack.enter_context(stage.server(stage.peer.command, stage.environment(entries))), False)
        for rival in stage.rivals:
            if wanted(rival.name):
                server = stack.enter_context(stage.server(rival.command, stage.rival_environment(rival, entries)))
                found[rival.name] = rivals.Tool(rival, server)
        for contender in found.values():
            contender.on_all([*ports], "true")
        yield found


def compared(
    subject: str, name: str, times: Mapping[str, Times], *, at: float, axis: str, unit: str = "ms", group: str = ""
) -> Iterator[Row]:
    """A row against each of the others; `at` is its place on the axis of the plot."""
    ours, *others = ({"ms": it.p50_ms, "s": it.p50}[unit] for it in times.values())
    first, *names = times
    for who, other in zip(names, others, strict=True):
        detail = {"at": at, "axis": axis, "who": first, "group": group, "spread_ms": times[who].spread_ms}
        detail["ours_spread_ms"] = times[first].spread_ms
        yield Row(subject, name, ours, unit=unit, baseline=other, against=who, detail=detail)
