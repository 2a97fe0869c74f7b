"""Which sandboxes are asked for their jobs."""

from __future__ import annotations

from typing import Any

from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.service import JobService, Wanted
from tests.support.fakes.sandbox import FakeSandbox


def service_over(opened: list[str]) -> JobService:
    """The service over two hosts that only a pattern offers; `opened` gets the name of each that is opened."""

    def member(name: str) -> Member:
        sandbox = FakeSandbox(name=name)

        async def opener() -> Any:
            opened.append(name)
            return sandbox

        return Member(name, lambda: sandbox.description, opener, is_by_pattern=True)

    return JobService(Fleet([member("used"), member("unused")]), Settings(), None)


async def test_a_host_that_only_a_pattern_offers_is_asked_for_jobs_once_a_job_was_started_on_it() -> None:
    first = service_over([])
    await first.start(Wanted(command="sleep 600", session="train", sandbox="used"))
    await first.close()
    opened: list[str] = []
    later = service_over(opened)
    await later.list()
    await later.close()
    assert opened == ["used"]
