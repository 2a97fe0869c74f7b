"""What container_looks.sh is asked about jobs, and what it answers, as values."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ...core.foreign import to_number, to_whole, understood
from ...core.job import JOB_ID, Checkpoint, JobLook, JobSeen, JobState, JobUsage
from ..outpost.far.place import to_text
from .shell import Answer

MOST_LOG = 4 << 20
SESSION = re.compile(r"[\w,][\w@%+=,-]{0,59}\Z")
REASONS = {
    "restarted": "the container was restarted",
    "orphaned": "its keeper was killed; its processes live",
    "killed": "its keeper was killed",
    "never": "it was never begun",
    "foreign": "its log has no exit code",
}
UNKNOWN = "nothing is known of it in this container"


def look_values(looks: Sequence[JobLook]) -> dict[str, str]:
    """What has to be known of each."""
    values = {"looks": str(len(looks))}
    for number, look in enumerate(looks):
        asked = {
            # What is no name leads to no job, and to no other file.
            "id": look.job_id if JOB_ID.match(look.job_id) else "none" if look.job_id else "",
            "session": look.session if SESSION.match(look.session) else "",
            "log": look.log_file,
            "cursor": "" if look.cursor is None else str(max(0, look.cursor)),
            "lines": str(max(0, look.lines)),
            "most": str(min(max(0, look.most_bytes), MOST_LOG)),
            "path": look.checkpoint_path,
            "command": "" if look.checkpoint_path else look.checkpoint_command,
            "cwd": look.cwd,
            "usage": "yes" if look.usage else "",
        }
        values |= {f"{number}_{name}": value for name, value in asked.items() if value}
    return values


def read_jobs(answer: Answer, looks: Sequence[JobLook]) -> list[JobSeen]:
    """Raises BrokenRules: what a container prints may be anything."""
    with understood("a container"):
        uptime, epoch = answer.numbers("clock")
        return [_read_job(answer.part(str(number)), look, uptime, epoch) for number, look in enumerate(looks)]


def _read_job(job: Answer, look: JobLook, uptime: float, epoch: float) -> JobSeen:
    state, why = JobState(job.text("state") or "missing"), job.text("why")
    log, size, started = job.data("data"), job.number("size"), float(job.number("ordered"))
    ending, code, ended, *living = job.text("end").split() or ("", "", uptime)
    grown, begun, is_stopped = job.number("grown"), job.numbers("begun"), ending == "stopped"
    return JobSeen(
        state=state,
        job_id=job.text("id") or (look.job_id if state is JobState.MISSING else ""),
        session=to_text(job.data("session")) or look.session,
        log_file=to_text(job.data("log") or job.data("foreign")),
        cwd=to_text(job.data("cwd")),
        command=to_text(job.data("command")),
        via="detached" if begun else "",
        exit_code=to_whole(int(code)) if ending else None,
        signal=_signal(int(code)) if is_stopped else "",
        ending=ending,
        reason=UNKNOWN if state is JobState.MISSING else REASONS.get(why, why),
        rebooted=why == "restarted",
        started=started,
        seconds=round(max(0.0, to_number(float(ended)) - begun[0]), 2) if begun else 0.0,
        log=log,
        log_size=size,
        cursor=job.number("start") + len(log) if job.has("start") else size,
        silent_s=max(0.0, epoch - max(grown, started)) if grown or started else 0.0,
        checkpoint=_checkpoint(job),
        usage=_usage(job),
        survivors=tuple(to_whole(int(word)) for word in living) if is_stopped else (),
        foreign=job.has("foreign"),
    )


def _signal(code: int) -> str:
    """A shell tells no signal but by this number, which a command may have as its own: known where we stopped it."""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


def _checkpoint(job: Answer) -> Checkpoint | None:
    if job.has("trouble"):
        return Checkpoint(problem=job.data("trouble").decode("utf-8", "replace").strip())
    if job.has("saved"):
        return Checkpoint(text=job.data("checkpoint"), mtime=float(job.number("saved")))
    return None


def _usage(job: Answer) -> JobUsage | None:
    if not job.has("usage"):
        return None
    processes, pages, ticks, page = job.numbers("usage")
    return JobUsage(processes=int(processes), memory_mb=round(pages * page / 1048576, 1), cpu_s=round(ticks / 100, 2))
