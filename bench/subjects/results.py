"""A session's first result over distance: from the start of the program until a first command has run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from tests.support.sshd import HOST, Sshd

from ..client import Message, Server, succeeded
from ..contenders import OURS, compared
from ..far import Distance, line
from ..measure import Contestant, in_turns, timed
from ..mux import spawn_and_wait
from ..report import Row, Target
from ..rivals import check
from ..stage import OURS as PROGRAM
from ..stage import Entry, Stage, entry

ROUND_TRIPS_MS = (0, 20, 100)
AXIS = "round trip, ms"
WARM, SSH = "ours, warm hub", "ssh, new connection"
TRUE = {"name": "exec_bash", "arguments": {"command": "true"}}


def rows(stage: Stage) -> Iterator[Row]:
    yield _importing(stage)
    sshd = stage.machine()
    for round_trip_ms in ROUND_TRIPS_MS:
        with line(sshd.port, Distance("", round_trip_ms)) as port:
            warm = stage.environment([entry(sshd, port)])
            # A session that stays: the hub lives, and the machine is connected.
            with stage.server(PROGRAM, warm) as stays:
                succeeded(stays.call("exec_bash", command="true"))
                racing = _contestants(stage, sshd, port, warm)
                in_turns(racing, rounds=1)
                times = in_turns(racing, rounds=stage.rounds(7, 2))
        at, name = round_trip_ms, f"start until the first result at {round_trip_ms} ms"
        cold = {who: taken for who, taken in times.items() if who != WARM}
        yield from compared("results", f"{name}, no hub yet", cold, at=at, axis=AXIS)
        yield from compared("results", f"{name}, warm hub", {WARM: times[WARM], SSH: times[SSH]}, at=at, axis=AXIS)


def _importing(stage: Stage) -> Row:
    words = {"python": "pass", "ours": "from remote_sandbox_mcp import Sandboxes"}
    racing = {it: timed(partial(spawn_and_wait, [sys.executable, "-c", script])) for it, script in words.items()}
    in_turns(racing, rounds=1)
    times = in_turns(racing, rounds=stage.rounds(20, 5))
    added, python = times["ours"].p50_ms - times["python"].p50_ms, times["python"].p50_ms
    name = "`from remote_sandbox_mcp import Sandboxes`, on top of Python itself"
    return Row("results", name, added, target=Target(60), note=f"Python itself takes {python:.0f} ms")


def _contestants(stage: Stage, sshd: Sshd, port: int, warm: Mapping[str, str]) -> dict[str, Contestant]:
    machines: list[Entry] = [entry(sshd, port)]
    cold = stage.environment(machines)
    there = replace(sshd, port=port).client("true", "-o", f"HostKeyAlias=[{HOST}]:{sshd.port}")
    found = {
        OURS: _session(stage, PROGRAM, lambda: _without_hub(cold), TRUE, _ran),
        WARM: _session(stage, PROGRAM, lambda: warm, TRUE, _ran),
        SSH: timed(lambda: spawn_and_wait(there)),
    }
    if stage.peer:
        environ = stage.environment(machines)
        found["0.7.6"] = _session(stage, stage.peer.command, lambda: environ, TRUE, _ran)
    for rival in stage.rivals:
        given = stage.rival_environment(rival, machines)
        found[rival.name] = _session(stage, rival.command, _same(given), rival.call(sshd.name, "true"), check)
    return found


def _same(environ: Mapping[str, str]) -> Callable[[], Mapping[str, str]]:
    return lambda: environ


def _without_hub(environ: Mapping[str, str]) -> Mapping[str, str]:
    """With what earlier starts remember, but a hub of its own: its name depends on this variable."""
    return {**environ, "NO_PROXY": f"{uuid4().hex}.example.org"}


def _ran(result: Message) -> None:
    """Ours says it in structured content, and the peer as text alone."""
    said: Message = result.get("structuredContent") or json.loads(result["content"][0]["text"])
    succeeded(said)


def _session(
    stage: Stage,
    command: Sequence[str],
    environ: Callable[[], Mapping[str, str]],
    call: Message,
    judge: Callable[[Message], None],
) -> Contestant:
    def session() -> float:
        server: Server = stage.server(command, environ())

        def first() -> None:
            server.start()
            server.request("tools/list", {})
            judge(server.request("tools/call", call))

        try:
            return timed(first)()
        finally:
            server.end()

    return session
