"""What was written down of a job, for where its machine cannot be asked or knows it no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import SandboxError, UnknownSandbox
from ..core.job import JobLook, JobSeen, JobState
from ..core.watch import Watch

if TYPE_CHECKING:
    from ..store.jobs import JobRecord

# A watch's last state as that of its job; of any other nothing is known.
STATES = {"running": JobState.RUNNING, "completed": JobState.ENDED, "interrupted": JobState.GONE}
STATES |= {"resuming": JobState.GONE, "exhausted": JobState.GONE}


@dataclass(frozen=True)
class Target:
    """A job that is asked for: where it is, how it is asked for there, and what is written down of it."""

    sandbox: str
    look: JobLook
    record: JobRecord | None = None
    watch: Watch | None = None

    def recall(self, why: SandboxError | str) -> JobSeen | None:
        """An end that was seen; and of a watch whose machine cannot be used here, whatever was seen last."""
        if self.record is not None and self.record.ended:
            return recorded(self.record, str(why))
        is_over = self.watch is not None and self.watch.last_state == "completed"
        if self.watch is not None and (is_over or isinstance(why, UnknownSandbox)):
            return watched(self.watch, str(why))
        return None


def recorded(record: JobRecord, why: str) -> JobSeen:
    """A job that has ended, as its row says."""
    return JobSeen(
        state=JobState.ENDED,
        job_id=record.job_id,
        session=record.session,
        log_file=record.log_file,
        cwd=record.cwd,
        command=record.command,
        via=record.via,
        exit_code=record.exit_code,
        signal=record.signal,
        started=record.created,
        seconds=max(0.0, record.ended - record.created),
        recalled=why,
        recalled_at=record.ended,
    )


def watched(watch: Watch, why: str) -> JobSeen:
    """A watched job as the watchdog saw it last."""
    state = STATES.get(watch.last_state, JobState.MISSING)
    return JobSeen(
        state=state,
        job_id=watch.job_id,
        session=watch.session,
        log_file=watch.log_file,
        cwd=watch.cwd,
        command=watch.command,
        exit_code=watch.last_exit_code,
        reason="" if state in (JobState.RUNNING, JobState.ENDED) else watch.last_summary or watch.last_state,
        started=watch.created,
        seconds=max(0.0, watch.checked - watch.created),
        log=watch.last_log_tail.encode("utf-8", "surrogateescape"),
        recalled=why,
        recalled_at=watch.checked or watch.updated,
    )
