"""The watchdog's loop with work that stands in for ours: it writes down what it does, and obeys files.

watchdog_stand_in.py STATE [PACE] [--until-idle]     exit codes as `watchdog run`; ended as the hub ends its own loop

trace           every line: the process, and open, tick or close
due             in how many seconds something is due after a tick (never, where there is no such file)
raise           a tick fails
slow            a tick lasts for ever
dead            what is open does not close
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from remote_sandbox_mcp.services.watchdog.daemon import (
    LOG_FILE,
    AlreadyWatched,
    Intervals,
    OwnLog,
    Pulse,
    Rounds,
    Supervision,
    change_fingerprint,
    file_fingerprint,
    take_lock,
)

QUICK = {"changes_s": 0.05, "settings_s": 0.3, "shortest_rest_s": 0.02, "longest_pause_s": 0.2}


@dataclass(frozen=True)
class StandIn:
    state: Path

    async def tick(self) -> float:
        self.write_down("tick")
        if self.is_told("raise"):
            raise ValueError("a \x1b[31mdefect")
        if self.is_told("slow"):
            await asyncio.sleep(60)
        due = self.state / "due"
        return time.time() + float(due.read_text()) if due.exists() else math.inf

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Supervision]:
        self.write_down("open")
        try:
            yield self
        finally:
            if self.is_told("dead"):
                await asyncio.sleep(60)
            self.write_down("close")

    def write_down(self, what: str) -> None:
        with (self.state / "trace").open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    def is_told(self, what: str) -> bool:
        return (self.state / what).exists()


async def main(state: Path, pace: Intervals, until_idle: bool) -> int:
    try:
        lock = take_lock(state)
    except AlreadyWatched as problem:
        print(problem, flush=True)
        return 3
    logging.basicConfig(level=logging.INFO, handlers=[OwnLog(state / LOG_FILE)])
    pulse, work = Pulse(state), StandIn(state)
    stamp = lambda: (change_fingerprint(state / "config.toml"), file_fingerprint(pulse.file))  # noqa: E731
    rounds = Rounds(lock, work.open, stamp, pulse, pace, until_idle)
    running = asyncio.ensure_future(rounds.run())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    logging.info("watching over %s as process %d", state, os.getpid())
    await asyncio.wait((running,))
    logging.info("ended: %s", rounds.why_ended or "told to")
    os._exit(0)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--until-idle"]
    given = Intervals(**json.loads(words[1])) if len(words) > 1 else Intervals()
    sys.exit(asyncio.run(main(Path(words[0]), given, "--until-idle" in sys.argv)))
