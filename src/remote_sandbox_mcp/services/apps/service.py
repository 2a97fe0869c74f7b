"""The verbs on apps and ports: deploy, list, forward, close."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.errors import ConfigError, UnknownSandbox, Unsupported
from ...core.jobs.job import JobSeen, JobStarted, JobState
from ...core.lazy import lazy
from ...core.progress import Progress, silent
from ...core.sandboxes.disposable import DISPOSABLE_ID
from ...core.sandboxes.port import Deployment, DeployOrder, Forward
from ..fleet import Fleet
from ..jobs.service import JobService, Wanted
from ..session import current

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord
    from ..disposable.verbs import Disposables
    from .deploy import Deployments
    from .forwards import Forwards

log = logging.getLogger(__name__)


class AppService:
    """The verbs on apps and ports; what they need is imported with the first call."""

    def __init__(
        self,
        fleet: Fleet,
        jobs: JobService,
        disposables: Disposables,
        local_ports: Sequence[str] = (),
        configuration: str = "",
    ) -> None:
        self._configuration = configuration
        self._fleet = fleet
        self._local_ports = local_ports
        self._jobs = jobs
        self._disposables = disposables
        self._noting: asyncio.Future[None] | None = None

    def needs(self) -> Sequence[str]:
        """The ports that this process forwards, as sentences."""
        # Not those of sandboxes that are gone: they lead nowhere.
        return [
            f"port {it.port} of {it.sandbox} is at 127.0.0.1:{it.local_port}"
            for it in self.forwarded()
            if it.sandbox in self._fleet.names
        ]

    async def close(self) -> None:
        if AppService._deployments.made(self):
            await self._deployments.close()
        if AppService._forwards.made(self):
            await self._forwards.close()

    async def reconfigure(self, local_ports: Sequence[str], gone: Collection[str]) -> None:
        """Use these allowed ports from now on; forwards into sandboxes that are `gone` are closed.

        Otherwise a known port could lead to another machine that has the same name now.
        """
        self._local_ports = local_ports
        if AppService._forwards.made(self):
            self._forwards.allowed = local_ports
            for name in gone:
                await self._forwards.close(name)

    @lazy
    def _forwards(self) -> Forwards:
        from .forwards import Forwards

        return Forwards(self._fleet.get, self._local_ports, self._note_forward)

    def _note_forward(self, sandbox: str, port: int, local_port: int) -> None:
        """Record it, if another process may have to continue for this client."""
        from ...local.store.sessions import KeptForward

        if current().name:
            kept = KeptForward(sandbox, port, local_port)
            rows = self._jobs.registry.forwards(self._configuration)
            # In the background, but in order: an end is never written before its beginning.
            self._noting = asyncio.ensure_future(_after(self._noting, functools.partial(rows.note, kept)))

    async def reopen(self) -> None:
        """Open the forwards again that a process of ours had open when it died."""
        if not self._jobs.registry.exists():
            return
        with contextlib.suppress(ConfigError):
            for kept in await asyncio.to_thread(self._jobs.registry.forwards(self._configuration).all):
                if kept.sandbox in self._fleet.names:
                    await self._forwards.reopen(kept.sandbox, kept.port, kept.local_port)

    @lazy
    def _deployments(self) -> Deployments:
        from .deploy import Deployments

        book = self._recall, self._note_end
        return Deployments(self._fleet.get, self._start, self._forwards, self._endpoint, *book)

    async def deploy(self, order: DeployOrder, progress: Progress = silent) -> Deployment:
        """Start an app, and wait until it answers, it ends, or the time is over."""
        if order.places:
            used = functools.partial(self._deployments.find, order=order)
            order = replace(order, sandbox=await self._jobs.waiting.one_of(order.places, order.cards, used))
        deployed = await self._deployments.deploy(order, progress)
        # The sandbox may have been deleted meanwhile.
        with contextlib.suppress(UnknownSandbox):
            member = self._fleet.member(order.sandbox)
            self._jobs.commands.add(member, order.command, deployed.status, deployed.seconds, deployed.log)
        return deployed

    async def list(self) -> Sequence[Deployment]:
        """All deployed apps, of this process or another, in their current state."""
        if not AppService._deployments.made(self) and not await self._recall():
            return ()
        return await self._deployments.list()

    def forwarded(self) -> Sequence[Forward]:
        """The ports that this process forwards."""
        return self._forwards.list() if AppService._forwards.made(self) else ()

    async def forward(self, sandbox: str, port: int, *, local_port: int = 0) -> Forward:
        """Forward a port of a sandbox to this computer."""
        return await self._forwards.open(self._fleet.member(sandbox).name, port, local_port=local_port)

    async def close_port(self, sandbox: str, port: int) -> None:
        await self._forwards.close(self._fleet.member(sandbox).name, port)

    async def forget(self, sandbox: str) -> None:
        """Forget all apps and forwards of a sandbox that is gone."""
        self._jobs.commands.forget(sandbox)
        if AppService._deployments.made(self):
            await self._deployments.forget(sandbox)
        elif AppService._forwards.made(self):
            await self._forwards.close(sandbox)

    async def _start(self, order: DeployOrder) -> JobStarted:
        # It does not wait for cards: whoever deploys it wants to look at it now.
        wanted = Wanted(
            command=order.command, session=order.session, cwd=order.cwd, sandbox=order.sandbox, app=order,
            cards=order.cards, waits=False,
        )  # fmt: skip
        return (await self._jobs.start(wanted)).started

    async def _recall(self) -> Sequence[Deployment]:
        """Recorded apps that may run in sandboxes that can be used here."""
        try:
            written = await asyncio.to_thread(self._jobs.registry.apps)
            for record in written:
                if record.sandbox not in self._fleet.names:
                    await self._let_go(record)
        except ConfigError as problem:
            # A list must not fail because of a database that cannot be read.
            log.warning("apps of earlier servers are not known: %s", problem)
            return ()
        return [as_written(record) for record in written if record.app and record.sandbox in self._fleet.names]

    async def _let_go(self, record: JobRecord) -> None:
        """Record the end of an app whose sandbox is over; other sandboxes may only be unavailable here."""
        if DISPOSABLE_ID.match(record.sandbox) and await self._disposables.is_over(record.sandbox):
            await self._note_end(record.job_id, JobSeen(state=JobState.GONE))

    async def _note_end(self, job_id: str, seen: JobSeen) -> None:
        await asyncio.to_thread(self._jobs.registry.records.note, job_id, seen)

    async def _endpoint(self, sandbox: str, port: int) -> str | None:
        """A platform's own address of a port, for sandboxes whose ports cannot be forwarded; None without one."""
        if await self._disposables.find(sandbox) is None:
            return None
        try:
            return await self._disposables.service.endpoint(sandbox, port)
        except Unsupported:
            return None


async def _after(earlier: asyncio.Future[None] | None, write: Callable[[], None]) -> None:
    """Write after the earlier write has ended."""
    if earlier is not None:
        await asyncio.wait((earlier,))
    try:
        await asyncio.to_thread(write)
    except ConfigError as problem:
        log.warning("a forwarded port could not be written down: %s", problem)


def as_written(record: JobRecord) -> Deployment:
    """An app from its record, before it was looked at."""
    assert record.app
    return Deployment(
        sandbox=record.sandbox, port=record.app.port, status="unknown", task=record.session, job_id=record.job_id,
        command=record.command, cwd=record.app.cwd, health_path=record.app.health_path, log_file=record.log_file,
    )  # fmt: skip
