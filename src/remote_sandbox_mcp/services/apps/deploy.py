"""Deployed apps: each is a background job whose port answers, with an address on this computer; and whether it does."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ...core.errors import BadArgument, ConnectError, LostContact, SandboxError, Unreachable, Unsupported
from ...core.jobs.job import JobQuery, JobSeen, JobStarted
from ...core.progress import Beat, Progress, silent
from ...core.sandboxes.port import (
    Deployment,
    DeployOrder,
    Health,
    PortClosed,
    Stream,
    is_well,
    read_status,
    request_text,
)
from ...core.sandboxes.sandbox import Sandbox
from ...core.task import TaskState, job_outcome
from ...core.texts.text import last_line
from ...local.waiting import Chores, within
from ..fleet import unforeseen
from .forwards import Forwards, Get

LIST_S = 10.0
SAME = "it runs already, so nothing was started"

# Start: starts an order's command as a background job. Endpoint: a platform's own URL of a port, or None.
Start = Callable[[DeployOrder], Awaitable[JobStarted]]
Endpoint = Callable[[str, int], Awaitable["str | None"]]
# Records of apps, so that other processes know them, also after a restart. Recall: those that were not seen to end,
# newest first. Note: records the end of one.
Recall = Callable[[], Awaitable[Sequence[Deployment]]]
Note = Callable[[str, JobSeen], Awaitable[None]]


class Deployments:
    """All deployed apps, of this process or another. The job belongs to its sandbox and ends with it."""

    def __init__(
        self, get: Get, start: Start, forwards: Forwards, endpoint: Endpoint, recall: Recall, note: Note
    ) -> None:
        self._get = get
        self._start = start
        self._forwards = forwards
        self._endpoint = endpoint
        self._recall = recall
        self._note = note
        # By sandbox and port: a port has one app at a time.
        self._deployed: dict[tuple[str, int], Deployment] = {}
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        # Sandboxes whose ports can only be reached by a platform's own address.
        self._without_way: set[str] = set()
        # Best effort: a sandbox that cannot be reached now keeps the job, which its list shows.
        self._chores = Chores("stopping an app")

    async def deploy(self, order: DeployOrder, progress: Progress = silent) -> Deployment:
        """Start an app, and wait until it answers, it ends, or the time is over.

        One that runs already, by the same command at the same port, is waited for and given its address instead.
        Raises BadArgument, with nothing started, where something else has the port; and what starting raises.
        Cancelling this call stops the app if this call has started it.
        """
        key, sandbox = (order.sandbox, order.port), await self._get(order.sandbox)
        ask = functools.partial(self._ask, sandbox, order.sandbox, order.port)
        async with self._turns.setdefault(key, asyncio.Lock()):
            if not (running := await self._same(order)):
                check_free(order, await ask("", ANSWER_S))
            started = as_started(running) if running else await self._start(order)
            # Recorded now, so that a second order for it while it starts does not start another.
            self._deployed[key] = running or deployment_of(order, started)
        wait = Wait(sandbox, order, started, ask, progress)
        try:
            seen = await wait.until_it_answers()
        except asyncio.CancelledError:
            if not running:
                self._deployed.pop(key, None)
                # Best effort: if the sandbox cannot be reached now, the job goes on and is listed.
                self._chores.start(self._stop(sandbox, started.job_id))
            raise
        except ConnectError as problem:
            # Say that it was started: "unreachable" alone would make the caller start it again.
            raise LostContact.while_starting(order.sandbox, started.session, str(problem)) from None
        deployed = self._deployed[key] = await self._describe(wait, seen)
        return deployed

    async def find(self, names: Sequence[str], order: DeployOrder) -> str:
        """The one of these sandboxes that has the ordered app already; empty where none does."""
        await self._remember()
        spellings, keys = spellings_of(order.command), [(name, order.port) for name in names]
        known = (self._deployed[key] for key in keys if key in self._deployed)
        return next((it.sandbox for it in known if not it.is_over and it.command in spellings), "")

    async def _same(self, order: DeployOrder) -> Deployment | None:
        """The ordered app, if it runs already. Raises BadArgument where another app has the port."""
        await self._remember()
        before = self._deployed.get((order.sandbox, order.port))
        now = await self._refresh_now(before) if before else None
        if now is None or now.is_over:
            return None
        if now.cwd != order.cwd or now.command not in spellings_of(order.command):
            at = f" at {now.url}" if now.url else ""
            raise BadArgument(
                f"{order.sandbox}: port {order.port} has another app, which runs as the task {now.task}{at}, "
                "so nothing was started; stop it with stop_background_task, or choose another port"
            )
        return now

    async def _ask(self, sandbox: Sandbox, name: str, port: int, path: str, seconds: float) -> Health | None:
        """Ask the port through the sandbox, or by the platform's address where that is the only way."""
        try:
            return await check_health(sandbox, port, path, seconds=seconds)
        except Unsupported:
            self._without_way.add(name)
            url = await self._endpoint(name, port)
            if url is None:
                raise
        return await check_url(url, path, seconds=seconds)

    async def _stop(self, sandbox: Sandbox, job_id: str) -> None:
        seen = await sandbox.jobs.stop(JobQuery(job_id=job_id))
        if seen.is_over:
            await self._note(job_id, seen)

    async def close(self) -> None:
        """Apps go on as jobs; wait for those that are being stopped."""
        await self._chores.settle(LIST_S)

    async def _describe(self, wait: Wait, seen: JobSeen) -> Deployment:
        order = wait.order
        deployed = replace(
            deployment_of(order, wait.started),
            health=wait.health,
            log=seen.log.decode("utf-8", "replace"),
            exit_code=seen.exit_code,
            seconds=time.monotonic() - wait.begun,
        )
        if has_ended(seen, wait.health):
            await self._note(deployed.job_id, seen)
            return replace(deployed, status=status_after(seen), problem=how_it_ended(seen))
        status = "running" if wait.health.ok else "unhealthy"
        # An app that is still starting gets an address, too: it may only need longer.
        try:
            url = await self._address(order.sandbox, order.port)
        except SandboxError as problem:
            return replace(deployed, status=status, problem=f"it has no address on this machine: {problem}")
        return replace(deployed, status=status, url=url, problem=wait.health.problem)

    async def _address(self, sandbox_name: str, port: int) -> str:
        """A forwarded port; a platform's own address only where ports cannot be forwarded.

        The platform's agent keeps a connection open for every request, long after its answer: after some
        thousands, the sandbox becomes unusable.
        """
        try:
            return (await self._forwards.open(sandbox_name, port)).url
        except Unsupported:
            url = await self._endpoint(sandbox_name, port)
            if url is None:
                raise
            return url

    async def _address_now(self, sandbox_name: str, port: int) -> str:
        """Return the app's current address; a list opens no new forward."""
        if opened := self._forwards.find(sandbox_name, port):
            return opened.url
        return await self._endpoint(sandbox_name, port) or "" if sandbox_name in self._without_way else ""

    async def list(self, sandbox_name: str = "") -> Sequence[Deployment]:
        """All deployed apps in their current state; one that does not answer soon has status unknown."""
        await self._remember()
        before = [deployed for (name, _), deployed in self._deployed.items() if sandbox_name in ("", name)]
        seen = await asyncio.gather(*map(self._refresh, before), return_exceptions=True)
        return [_with_state(deployed, now) for deployed, now in zip(before, seen, strict=True)]

    async def _remember(self) -> None:
        """Add recorded apps that this process does not know, or that replaced one that it saw end."""
        for written in await self._recall():
            key = (written.sandbox, written.port)
            before = self._deployed.get(key)
            if before is None or (before.is_over and before.job_id != written.job_id):
                self._deployed[key] = written

    async def _refresh(self, deployed: Deployment) -> Deployment:
        try:
            return await within(self._refresh_now(deployed), LIST_S)
        except (SandboxError, asyncio.TimeoutError) as problem:
            why = str(problem) or f"{deployed.sandbox} did not answer in {LIST_S:g} s"
            return replace(deployed, status="unknown", problem=why)

    async def _refresh_now(self, deployed: Deployment) -> Deployment:
        sandbox = await self._get(deployed.sandbox)
        asked = self._ask(sandbox, deployed.sandbox, deployed.port, deployed.health_path, ANSWER_S)
        health = await asked or silence(deployed.port)
        (seen,) = await sandbox.jobs.inspect([JobQuery(job_id=deployed.job_id, lines=LOG_LINES)])
        now = replace(
            deployed, health=health, log=seen.log.decode("utf-8", "replace"), exit_code=seen.exit_code, problem="",
            command=seen.command or deployed.command,
        )  # fmt: skip
        if has_ended(seen, health):
            now = replace(now, status=status_after(seen), url="", problem=how_it_ended(seen))
            if not deployed.is_over:
                await self._note(deployed.job_id, seen)
        else:
            url = await self._address_now(deployed.sandbox, deployed.port)
            now = replace(now, status="running" if health.ok else "unhealthy", url=url, problem=health.problem)
        # Unless it was deployed again, or forgotten, meanwhile.
        if self._deployed.get((now.sandbox, now.port)) is deployed:
            self._deployed[now.sandbox, now.port] = now
        return now

    async def forget(self, sandbox_name: str) -> None:
        """Forget all apps of a sandbox that is gone, and close its forwards."""
        for key in [key for key in self._deployed if key[0] == sandbox_name]:
            del self._deployed[key]
        await self._forwards.close(sandbox_name)


def _with_state(deployed: Deployment, now: Deployment | BaseException) -> Deployment:
    """Turn an unexpected exception into a problem of that one app, so that all others are listed."""
    if isinstance(now, Deployment):
        return now
    problem = unforeseen(now, f"looking at port {deployed.port} of {deployed.sandbox}")
    return replace(deployed, status="unknown", problem=problem)


def check_free(order: DeployOrder, answer: Health | None) -> None:
    """Raises BadArgument where something already answers on the port."""
    if answer is not None:
        raise BadArgument(
            f"{order.sandbox}: something listens on port {order.port} already, so nothing was started; "
            "stop it, or choose another port"
        )


def deployment_of(order: DeployOrder, started: JobStarted) -> Deployment:
    """An app right after its start."""
    return Deployment(
        sandbox=order.sandbox, port=order.port, status="unhealthy", health=silence(order.port), task=started.session,
        job_id=started.job_id, command=order.command, cwd=order.cwd, health_path=order.health_path,
        log_file=started.log_file, notes=started.notes, cards=started.cards,
    )  # fmt: skip


def spellings_of(command: str) -> tuple[str, ...]:
    """A command as it was ordered, as our record of it shows it, and as its machine does."""
    from ...local.store.keeping import Keeper

    return command, Keeper().command(command), command[:LONGEST_SHOWN]


def as_started(running: Deployment) -> JobStarted:
    """The job of an app that runs already."""
    return JobStarted(
        job_id=running.job_id, session=running.task, log_file=running.log_file, cwd=running.cwd, via="", recovered=True,
        notes=(SAME,),
    )  # fmt: skip


# Time for one answer; an app that does not answer is asked again.
ANSWER_S = 10.0
# A proxy's answers for an app that does not listen.
BEHIND_NOTHING = (502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
LOG_LINES = 30
# Characters of its command that a machine keeps for its list of jobs.
LONGEST_SHOWN = 2000


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
    """Check an app by a platform's own address, whose proxy may answer in the app's place."""
    import httpx2

    begun = time.monotonic()
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=seconds) as client:
            answer = await client.head(url) if not path else await client.get(url.rstrip("/") + path)
    except httpx2.TimeoutException:
        return Health(seconds=time.monotonic() - begun, problem=f"no answer in {seconds:.0f} s")
    except httpx2.HTTPError:
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
        if not (data := await stream.read()):
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
            seen = await self._refresh()
            if self.health.ok or seen.is_over or time.monotonic() >= self.until:
                return seen
            line = last_line(seen.log) or self.health.problem
            self.progress(Beat(time.monotonic() - self.begun, seen.log_size, line))
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

    async def _refresh(self) -> JobSeen:
        (seen,) = await self.sandbox.jobs.inspect([JobQuery(job_id=self.started.job_id, lines=LOG_LINES)])
        return seen


def silence(port: int) -> Health:
    return Health(problem=f"nothing accepts connections at port {port}")


def has_ended(seen: JobSeen, health: Health) -> bool:
    """Whether it has ended: a command that exited with success may have left a daemon that answers."""
    return seen.is_over and not (health.ok and seen.exit_code == 0)


def status_after(seen: JobSeen) -> str:
    """The status of an app that has ended: one that was stopped on purpose has not failed."""
    return "stopped" if job_outcome(seen).state is TaskState.STOPPED else "failed"


def how_it_ended(seen: JobSeen) -> str:
    """Explain why an app does not run."""
    if status_after(seen) == "stopped":
        return "the app was stopped; deploy_app starts it again"
    if seen.exit_code is None:
        return f"the app is gone: {seen.reason or 'nothing is known of its end'}"
    how = f"was stopped by {seen.signal}" if seen.signal else f"ended with exit code {seen.exit_code}"
    return f"the app {how}; its log says why"
