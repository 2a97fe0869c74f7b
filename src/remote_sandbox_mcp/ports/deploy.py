"""Deployed apps: each is a background job whose port was seen to answer, and has an address on this machine."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ..core.errors import BadArgument, SandboxError, Unreachable, Unsupported
from ..core.job import JobLook, JobSeen, JobStarted
from ..core.output import last_line
from ..core.port import Deployment, DeployOrder, Health
from ..core.progress import Beat, Progress, silent
from ..core.sandbox import Sandbox
from .forwards import Forwards, Get
from .health import ANSWER_S, check_health, check_url

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
LOG_LINES = 30
LIST_S = 10.0

# Starts the command of an order as a background job; the URL of a port where a platform has one of its own, or None.
Start = Callable[[DeployOrder], Awaitable[JobStarted]]
Endpoint = Callable[[str, int], Awaitable["str | None"]]
# Asks for a path, for so many seconds; None where nothing listens.
Ask = Callable[[str, float], Awaitable["Health | None"]]


async def no_endpoint(sandbox_name: str, port: int) -> str | None:
    """For sandboxes whose ports are forwarded."""
    return None


class Deployments:
    """Every app that this server has deployed. The job belongs to its sandbox, and ends with it."""

    def __init__(self, get: Get, start: Start, forwards: Forwards, endpoint: Endpoint = no_endpoint) -> None:
        self._get = get
        self._start = start
        self._forwards = forwards
        self._endpoint = endpoint
        # By sandbox and port: a port has one app at a time.
        self._known: dict[tuple[str, int], Deployment] = {}
        self._chores: set[asyncio.Task[JobSeen]] = set()

    async def deploy(self, order: DeployOrder, progress: Progress = silent) -> Deployment:
        """Start an app, and wait until it answers, it ends, or the time is over.

        Raises BadArgument, with nothing started, where something else has the port already; and what starting raises.
        Cancelling this call stops the app.
        """
        sandbox = await self._get(order.sandbox)
        ask = functools.partial(self._ask, sandbox, order.sandbox, order.port)
        if await ask("", ANSWER_S) is not None:
            raise BadArgument(
                f"{order.sandbox}: something listens on port {order.port} already, so nothing was started; "
                "stop it, or choose another port"
            )
        wait = _Wait(sandbox, order, await self._start(order), ask, progress)
        try:
            seen = await wait.until_it_answers()
        except asyncio.CancelledError:
            self._stop_later(sandbox, wait.started)
            raise
        deployed = await self._describe(wait, seen)
        self._known[order.sandbox, order.port] = deployed
        return deployed

    async def _ask(self, sandbox: Sandbox, name: str, port: int, path: str, seconds: float) -> Health | None:
        """Through the sandbox itself, or the platform's address where that has no way to its ports."""
        try:
            return await check_health(sandbox, port, path, seconds=seconds)
        except Unsupported:
            url = await self._endpoint(name, port)
            if url is None:
                raise
        return await check_url(url, path, seconds=seconds)

    def _stop_later(self, sandbox: Sandbox, started: JobStarted) -> None:
        chore = asyncio.ensure_future(sandbox.jobs.stop(JobLook(job_id=started.job_id)))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
        # Best effort: a sandbox that cannot be reached now keeps the job, which its list shows.
        chore.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def close(self) -> None:
        """Apps go on as the jobs that they are; what was to be stopped is given its time."""
        if self._chores:
            await asyncio.wait(self._chores, timeout=LIST_S)

    async def _describe(self, wait: _Wait, seen: JobSeen) -> Deployment:
        order, started = wait.order, wait.started
        deployed = Deployment(
            sandbox=order.sandbox,
            port=order.port,
            status="failed",
            health=wait.health,
            task=started.session,
            job_id=started.job_id,
            command=order.command,
            health_path=order.health_path,
            log_file=started.log_file,
            log=seen.log.decode("utf-8", "replace"),
            exit_code=seen.exit_code,
            notes=started.notes,
            started=seen.started or time.time(),
            seconds=time.monotonic() - wait.begun,
        )
        if has_failed(seen, wait.health):
            return replace(deployed, problem=how_it_ended(seen))
        status = "running" if wait.health.ok else "unhealthy"
        # An app that is still starting gets its address, too: it may only need longer.
        try:
            url = await self._address(order.sandbox, order.port)
        except SandboxError as problem:
            return replace(deployed, status=status, problem=f"it has no address on this machine: {problem}")
        return replace(deployed, status=status, url=url, problem=wait.health.problem)

    async def _address(self, sandbox_name: str, port: int) -> str:
        url = await self._endpoint(sandbox_name, port)
        return url if url is not None else (await self._forwards.open(sandbox_name, port)).url

    async def list(self, sandbox_name: str = "") -> Sequence[Deployment]:
        """What was deployed, as it is now; what does not answer soon is told as it was."""
        known = [deployed for (name, _), deployed in self._known.items() if sandbox_name in ("", name)]
        return await asyncio.gather(*(self._look(deployed) for deployed in known))

    async def _look(self, deployed: Deployment) -> Deployment:
        try:
            return await asyncio.wait_for(self._look_now(deployed), LIST_S)
        except (SandboxError, asyncio.TimeoutError) as problem:
            why = str(problem) or f"{deployed.sandbox} did not answer in {LIST_S:g} s"
            return replace(deployed, problem=why)

    async def _look_now(self, deployed: Deployment) -> Deployment:
        sandbox = await self._get(deployed.sandbox)
        asked = self._ask(sandbox, deployed.sandbox, deployed.port, deployed.health_path, ANSWER_S)
        health = await asked or silence(deployed.port)
        (seen,) = await sandbox.jobs.look([JobLook(job_id=deployed.job_id, lines=LOG_LINES)])
        now = replace(
            deployed, health=health, log=seen.log.decode("utf-8", "replace"), exit_code=seen.exit_code, problem=""
        )
        if has_failed(seen, health):
            return replace(now, status="failed", url="", problem=how_it_ended(seen))
        return replace(now, status="running" if health.ok else "unhealthy", problem=health.problem)

    async def forget(self, sandbox_name: str) -> None:
        """The sandbox is gone, and all that was deployed there with it."""
        for key in [key for key in self._known if key[0] == sandbox_name]:
            del self._known[key]
        await self._forwards.close(sandbox_name)


@dataclass(eq=False)
class _Wait:
    """Waits for an app that was just started."""

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
        """What is seen of the job when it answers well, when it has ended, or when the time is over."""
        pause = FIRST_PAUSE_S
        while True:
            self.health = await self._ask()
            seen = await self._look()
            if self.health.ok or not seen.is_running or time.monotonic() >= self.until:
                return seen
            self._report(seen)
            await asyncio.sleep(min(pause, max(0.0, self.until - time.monotonic())))
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    async def _ask(self) -> Health:
        left = max(0.5, min(ANSWER_S, self.until - time.monotonic()))
        try:
            health = await self.ask(self.order.health_path, left)
        except Unreachable as problem:
            # A line that was cut is opened again by the next attempt; the app knows nothing of it.
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
    """A command that ends well may have left a daemon behind, which answers."""
    return not seen.is_running and not (health.ok and seen.exit_code == 0)


def how_it_ended(seen: JobSeen) -> str:
    """Why an app does not run."""
    if seen.exit_code is None:
        return f"the app is gone: {seen.reason or 'nothing is known of its end'}"
    how = f"was stopped by {seen.signal}" if seen.signal else f"ended with exit code {seen.exit_code}"
    return f"the app {how}; its log says why"
