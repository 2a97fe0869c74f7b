"""What the tests of background jobs share: a machine's user, jobs on a pipe, and things that go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, Jobs, JobSeen, JobStarted, JobState, JobWait
from remote_sandbox_mcp.far.outpost.place import machine_name, node_name
from tests.support.pipe import PipeMachine, as_user, pipe_machine
from tests.support.root import run_as_root
from tests.support.sshd import Sshd
from tests.support.waiting import eventually

FOREVER = "echo begun; while :; do sleep 0.1; done"


@asynccontextmanager
async def jobs_on(user: Sshd) -> AsyncIterator[tuple[PipeMachine, OutpostSandbox]]:
    """The user's machine over a pipe; afterwards nothing runs there and nothing lies about."""
    async with pipe_machine(user) as machine:
        sandbox = machine.sandbox()
        try:
            yield machine, sandbox
        finally:
            await sandbox.close()
    clean(user)


def clean(user: Sshd) -> None:
    user.reset()
    run_as_root("find", str(user.home), "-mindepth", "1", "-not", "-path", f"{user.home}/.ssh*", "-delete")
    run_as_root("rm", "-rf", f"/tmp/remote-sandbox-{user.uid}", f"/tmp/tmux-{user.uid}")


def shell(user: Sshd, script: str) -> str:
    """What a script prints that the machine's user runs at home; a failure is printed, too."""
    argv = as_user(user, ["sh", "-c", f"cd; {script}"])
    return subprocess.run(argv, check=False, capture_output=True, text=True).stdout


def sessions(user: Sshd) -> list[str]:
    return shell(user, "tmux -u list-sessions -F '#{session_name}' 2>/dev/null").split()


def order(script: str, session: str = "train", **fields: Any) -> JobOrder:
    return JobOrder(session=session, script=script, **fields)


async def begin(jobs: Jobs, script: str = FOREVER, session: str = "train", **fields: Any) -> JobStarted:
    return await jobs.start(order(script, session, **fields))


async def look(jobs: Jobs, job_id: str, **fields: Any) -> JobSeen:
    (seen,) = await jobs.inspect([JobQuery(job_id=job_id, **fields)])
    return seen


async def not_running(jobs: Jobs, job_id: str) -> JobSeen:
    return await eventually(lambda: look(jobs, job_id), lambda seen: not seen.is_running, "the job's end")


async def run(jobs: Jobs, script: str, session: str = "train", **fields: Any) -> JobSeen:
    """Start a job and see it to its end."""
    started = await begin(jobs, script, session, **fields)
    waited = await jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=15))
    assert waited.why == "ended", waited
    assert waited.seen.state is JobState.ENDED, waited
    return waited.seen


async def has_printed(jobs: Jobs, job_id: str, text: bytes = b"begun\n") -> JobSeen:
    return await eventually(lambda: look(jobs, job_id), lambda seen: text in seen.log, "the job's output")


def folder_of(user: Sshd, job_id: str) -> Path:
    return user.home / ".local/state/remote-sandbox/jobs" / f"{node_name()}-{machine_name()}" / job_id


def record(user: Sshd, job_id: str, name: str = "begun") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder_of(user, job_id) / name).read_text())
    return found


def job_folders(user: Sshd) -> list[str]:
    folder = folder_of(user, "x").parent
    return sorted(name for name in os.listdir(folder) if name != "by-session") if folder.exists() else []


async def in_thread(user: Sshd, script: str) -> str:
    return await asyncio.to_thread(shell, user, script)
