"""Checkpoints of running jobs, looked at while anybody looks: the watchdog's own looks are minutes apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..core.errors import SandboxError
from ..core.job import Checkpoint, JobLook, JobState
from ..core.sandbox import Sandbox
from ..core.watch import Watch
from ..jobs.values import Sight
from ..waiting import within

# How often a file is read, and a command is run, which may take longer; and how long all of a machine may take.
FILE_S, COMMAND_S, LOOK_S = 10.0, 30.0, 12.0
REST_AFTER_LOOK = 3.0

WatchOf = Callable[[Sight], Watch | None]


def look_of(watch: Watch) -> JobLook:
    """The question after a watched job and its checkpoint, without its log."""
    policy = watch.policy
    return JobLook(
        job_id=watch.job_id,
        session=watch.session,
        log_file=watch.log_file,
        lines=0,
        checkpoint_path=policy.checkpoint_path,
        checkpoint_command=policy.checkpoint_command,
        cwd=watch.cwd,
    )


class Checkpoints:
    """Those of one sandbox, by the ids of their watches; all that are due are asked for at once."""

    def __init__(self) -> None:
        self.found: dict[int, Checkpoint] = {}
        self._due: dict[int, float] = {}

    async def look(self, sandbox: Sandbox, sights: Sequence[Sight], watch_of: WatchOf) -> bool:
        """Returns whether any was looked at. What fails is asked for again later."""
        watches = [watch for sight in sights if (watch := self._watch(sight, watch_of))]
        self.found = {watch.id: self.found[watch.id] for watch in watches if watch.id in self.found}
        begun = time.monotonic()
        due = [watch for watch in watches if begun >= self._due.get(watch.id, 0.0)]
        if not due:
            return False
        with suppress(SandboxError, asyncio.TimeoutError):
            seen = await within(sandbox.jobs.look([look_of(watch) for watch in due]), LOOK_S)
            self.found |= {watch.id: it.checkpoint for watch, it in zip(due, seen, strict=True) if it.checkpoint}
        rest = REST_AFTER_LOOK * (time.monotonic() - begun)
        for watch in due:
            usual = COMMAND_S if watch.policy.checkpoint_command else FILE_S
            self._due[watch.id] = time.monotonic() + max(usual, rest)
        return True

    def _watch(self, sight: Sight, watch_of: WatchOf) -> Watch | None:
        """The watch of a running job that has a checkpoint."""
        watch = watch_of(sight) if sight.state == JobState.RUNNING.value else None
        has_one = watch and (watch.policy.checkpoint_path or watch.policy.checkpoint_command)
        return watch if has_one else None
