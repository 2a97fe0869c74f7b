"""Checks whether a deployed app answers on its port, and watches its job while it starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..core.errors import Unreachable
from ..core.job import JobLook, JobSeen, JobStarted
from ..core.port import DeployOrder, Health, PortClosed, Stream, is_well, read_status, request_text
from ..core.progress import Beat, Progress
from ..core.sandbox import Sandbox
from ..core.text import last_line
from ..waiting import within

# Time for one answer; an app that does not answer is asked again.
ANSWER_S = 10.0
# A proxy's answers for an app that does not listen.
BEHIND_NOTHING = (502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
LOG_LINES = 30


async def check_health(sandbox: Sandbox, port: int, path: str = "", *, seconds: float = ANSWER_S) -> Health | None:
    """The port's health; None where nothing accepts connections. Raises ConnectError or Unsupported."""
    begun = time.monotonic()
    try:
        stream = await sandbox.connect(port)
    except PortClosed:
        return None
    try:
        status = await within(ask(stream, port, path), seconds) if path else 0
    except (asyncio.TimeoutError, TimeoutError):
        return Health(seconds=time.monotonic() - begun, problem=f"no answer to GET {path} in {seconds:.0f} s")
    except Unreachable as problem:
        return Health(seconds=time.monotonic() - begun, problem=str(problem))
    finally:
        stream.close()
    return judge(status, path, time.monotonic() - begun)


def judge(status: int, path: str, seconds: float) -> Health:
    if not path or is_well(status):
        return Health(True, status, seconds)
    problem = f"GET {path} answers {status}" if status else f"the answer to GET {path} is no HTTP"
    return Health(False, status, seconds, problem)


async def check_url(url: str, path: str = "", *, seconds: float = ANSWER_S) -> Health | None:
    """The same by a platform's own address, whose proxy may answer in the app's place."""
    import httpx

    begun = time.monotonic()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=seconds) as client:
            answer = await client.head(url) if not path else await client.get(url.rstrip("/") + path)
    except httpx.TimeoutException:
        return Health(seconds=time.monotonic() - begun, problem=f"no answer in {seconds:.0f} s")
    except httpx.HTTPError:
        return None
    if answer.status_code in BEHIND_NOTHING:
        return None
    return judge(answer.status_code, path, time.monotonic() - begun)


async def ask(stream: Stream, port: int, path: str) -> int:
    """HTTP status of the answer; 0 where it is not HTTP. Raises Unreachable where it is cut off."""
    stream.write(request_text(path, port))
    await stream.drain()
    heard = b""
    while (status := read_status(heard)) is None:
        data = await stream.read()
        if not data:
            raise Unreachable(f"the app closed the connection without an answer to GET {path}")
        heard += data
    return status


# Asks for a path within so many seconds; None where nothing listens.
Ask = Callable[[str, float], Awaitable["Health | None"]]


@dataclass(eq=False)
class Wait:
    """Waits for an app after its start."""

    sandbox: Sandbox
    order: DeployOrder
    started: JobStarted
    ask: Ask
    progress: Progress

    def __post_init__(self) -> None:
        self.health = silence(self.order.port)
        self.begun = time.monotonic()
        self.until = self.begun + self.order.timeout_s

    async def until_it_answers(self) -> JobSeen:
        """The job's state when the app is healthy, when it has ended, or when the time is over."""
        pause = FIRST_PAUSE_S
        while True:
            self.health = await self._ask()
            seen = await self._look()
            if self.health.ok or seen.is_over or time.monotonic() >= self.until:
                return seen
            self._report(seen)
            await asyncio.sleep(min(pause, max(0.0, self.until - time.monotonic())))
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    async def _ask(self) -> Health:
        left = max(0.5, min(ANSWER_S, self.until - time.monotonic()))
        try:
            health = await self.ask(self.order.health_path, left)
        except Unreachable as problem:
            # A cut connection is reopened by the next attempt; the app is not affected.
            return Health(problem=str(problem))
        return health or silence(self.order.port)

    async def _look(self) -> JobSeen:
        (seen,) = await self.sandbox.jobs.look([JobLook(job_id=self.started.job_id, lines=LOG_LINES)])
        return seen

    def _report(self, seen: JobSeen) -> None:
        line = last_line(seen.log) or self.health.problem
        self.progress(Beat(time.monotonic() - self.begun, seen.log_size, line))


def silence(port: int) -> Health:
    return Health(problem=f"nothing accepts connections at port {port}")


def has_failed(seen: JobSeen, health: Health) -> bool:
    """Whether it has failed: a command that exited with success may have left a daemon that answers."""
    return seen.is_over and not (health.ok and seen.exit_code == 0)


def how_it_ended(seen: JobSeen) -> str:
    """Why an app does not run."""
    if seen.exit_code is None:
        return f"the app is gone: {seen.reason or 'nothing is known of its end'}"
    how = f"was stopped by {seen.signal}" if seen.signal else f"ended with exit code {seen.exit_code}"
    return f"the app {how}; its log says why"
