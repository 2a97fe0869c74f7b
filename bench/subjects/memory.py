"""Memory of a person's sessions: each is a client's server that has run a command on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from tests.support.sshd import wait_until

from ..client import Message, Server, succeeded
from ..host import held
from ..report import Row
from ..stage import ALONE, OURS, Stage, entry

SESSIONS = (1, 3, 10)
AXIS = "sessions"


def rows(stage: Stage) -> Iterator[Row]:
    for count in SESSIONS:
        ours, *others = (it for it in _all(stage, count))
        for who, megabytes in others:
            detail = {"at": count, "axis": AXIS, "who": ours[0], "group": ""}
            name = f"memory of {count} session{'s' * (count > 1)}"
            yield Row("memory", name, ours[1], unit="MB", baseline=megabytes, against=who, detail=detail)


def _all(stage: Stage, count: int) -> Iterator[tuple[str, float]]:
    """Programs one after the other, so that none shares libraries with another."""
    sshd = stage.machine()
    machines = [entry(sshd)]
    yield "ours", _measured(stage, OURS, stage.environment(machines), count, _exec)
    wait_until(lambda: not sshd.sessions(), what="the hub to end", seconds=30)
    yield "ours, --no-hub", _measured(stage, ALONE, stage.environment(machines), count, _exec)
    if stage.peer:
        yield "0.7.6", _measured(stage, stage.peer.command, stage.environment(machines), count, _exec)
    for rival in stage.rivals:
        call = rival.call(sshd.name, "true")
        yield (
            rival.name,
            _measured(stage, rival.command, stage.rival_environment(rival, machines), count, _calling(call)),
        )


def _exec(server: Server) -> None:
    succeeded(server.call("exec_bash", command="true"))


def _calling(call: Message) -> Callable[[Server], None]:
    def run(server: Server) -> None:
        server.request("tools/call", call)

    return run


def _measured(
    stage: Stage, command: Sequence[str], environ: Mapping[str, str], count: int, use: Callable[[Server], None]
) -> float:
    with ExitStack() as stack:
        servers = [stack.enter_context(stage.server(command, environ)) for _ in range(count)]
        for server in servers:
            server.request("tools/list", {})
            use(server)
        pids = {server.pid for server in servers} | {server.worker for server in servers}
        return sum(map(held, pids)) * 1024 / 1e6
