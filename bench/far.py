"""Lines to machines that are far away: the program in line.c, because one in Python would be what is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from .peer import CACHE
from .problems import BenchError

SOURCE = Path(__file__).with_name("line.c")


@dataclass(frozen=True)
class Distance:
    """How far away a machine is; without a rate, only the delay limits the line."""

    name: str
    round_trip_ms: int = 0
    bytes_per_s: int = 0


LOOPBACK = Distance("loopback")
RTT_20 = Distance("RTT 20", 20)
RTT_100 = Distance("RTT 100", 100)
SLOW = Distance("100 Mbit/s, RTT 20", 20, 100_000_000 // 8)


@contextmanager
def line(port: int, distance: Distance) -> Iterator[int]:
    """The port of a line to a local port; next door it is that port itself."""
    if not distance.round_trip_ms:
        yield port
        return
    argv = [str(_program()), str(port), str(distance.round_trip_ms), str(distance.bytes_per_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        yield int(process.stdout.readline())
        # Leaving closes its input, which ends it.


def _program() -> Path:
    """Compiled once for each version of its source."""
    program = CACHE / f"line-{sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        CACHE.mkdir(exist_ok=True)
        unfinished = program.with_suffix(".new")
        done = subprocess.run(["cc", "-O2", "-o", str(unfinished), str(SOURCE)], capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"unable to compile {SOURCE}: {done.stderr.strip()}")
        unfinished.rename(program)
    return program
