"""A job's log in `top`, without a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remote_sandbox_mcp.cli.top_log import LogPane
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.commands.session_handle import Sessions
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.service import JobService, Wanted
from remote_sandbox_mcp.services.tasks import Tasks
from tests.support.fakes.sandbox import FakeSandbox


async def test_the_end_of_a_log_is_shown_however_much_was_printed_just_before_it() -> None:
    fake = FakeSandbox(name="box")

    async def opened() -> Any:
        return fake

    fleet = Fleet([Member("box", lambda: fake.description, opened)])
    service = JobService(fleet, Settings(), None)
    job_id = (await service.start(Wanted(command="train", session="train"))).started.job_id
    fake.jobs.print(job_id, b"begun\n")
    app: Any = SimpleNamespace(tasks=Tasks(fleet, service, lambda: Sessions({})))
    pane = LogPane(app, {"tmux_session": "train", "sandbox": "box"})

    def seen() -> str:
        return "\n".join(line.plain.rstrip() for line in pane.draw(6, 80))

    def print_and_end() -> None:
        if "begun" in seen():
            fake.jobs.print(job_id, "äöü\n".encode() * 300_000 + b"the last line\n")
            fake.jobs.end(job_id, 3)

    await pane.follow(print_and_end)
    shown = seen().splitlines()
    assert shown[:5] == [" train on box: failed with exit code 3", "äöü", "äöü", "äöü", "the last line"]
    await service.close()
