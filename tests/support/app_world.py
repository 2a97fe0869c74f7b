"""One sandbox and what deploys to it, for the tests of apps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobSeen, JobStarted, JobState, new_job_id
from remote_sandbox_mcp.core.progress import Beat
from remote_sandbox_mcp.core.sandboxes.port import Deployment, DeployOrder
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.apps.deploy import Deployments, Start
from remote_sandbox_mcp.services.apps.forwards import Forwards, Get

PYTHON = "/usr/bin/python3"


@dataclass
class World:
    """One sandbox, and what deploys to it."""

    sandbox: Sandbox
    deployments: Deployments
    forwards: Forwards
    get: Get
    start: Start
    beats: list[Beat] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.sandbox.description.name

    async def deploy(self, command: str, port: int, **fields: object) -> Deployment:
        order = DeployOrder(sandbox=self.name, command=command, port=port, **fields)  # type: ignore[arg-type]
        return await self.deployments.deploy(order, self.beats.append)


async def no_endpoint(name: str, port: int) -> str | None:
    """For sandboxes whose ports can be forwarded."""
    return None


class Pages:
    """A book in memory."""

    def __init__(self, *written: Deployment) -> None:
        self.written = list(written)
        self.noted: list[tuple[str, JobState]] = []

    async def recall(self) -> Sequence[Deployment]:
        return [it for it in self.written if it.job_id not in dict(self.noted)]

    async def note(self, job_id: str, seen: JobSeen) -> None:
        self.noted.append((job_id, seen.state))


@asynccontextmanager
async def deploying(sandbox: Sandbox, endpoint: str | None = None) -> AsyncIterator[World]:
    async def get(name: str) -> Sandbox:
        return sandbox

    async def start(order: DeployOrder) -> JobStarted:
        session = order.session or new_job_id().replace("job-", "app-")
        return await sandbox.jobs.start(JobOrder(session=session, script=order.command, cwd=order.cwd))

    async def address(name: str, port: int) -> str | None:
        return endpoint

    forwards, pages = Forwards(get), Pages()
    deployments = Deployments(get, start, forwards, address, pages.recall, pages.note)
    try:
        yield World(sandbox, deployments, forwards, get, start)
    finally:
        for deployed in await deployments.list():
            await sandbox.jobs.stop(JobQuery(job_id=deployed.job_id), 0)
        await deployments.close()
        await forwards.close()
        await sandbox.close()


def web_server(port: int, folder: str = "~") -> str:
    return f"cd {folder} && exec {PYTHON} -u -m http.server --bind 127.0.0.1 {port}"


async def fetch(url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.get(url)
