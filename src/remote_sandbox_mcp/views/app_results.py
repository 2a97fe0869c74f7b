"""Test reports, deployed apps, forwarded ports and disposable sandboxes as tool results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core.commands.command import Running
from ..core.sandboxes.disposable import Disposable, Limits
from ..core.sandboxes.port import Deployment, Forward
from ..core.suites.suite import TestFailure, TestReport
from ..core.texts.text import clip
from .results import lean, plain_text, sentence

if TYPE_CHECKING:
    from ..local.store.jobs import RunRecord


LOG_CHARS = 6000


def report_fields(report: TestReport, log_chars: int = LOG_CHARS) -> dict[str, Any]:
    """A test report. Counts are always there, but mean something only without a problem."""
    fields: dict[str, Any] = {name: getattr(report, name) for name in ("passed", "failed", "skipped", "errors")}
    fields |= {"duration": round(report.duration, 3), "exit_code": report.exit_code}
    fields |= lean(problem=sentence(report.problem), failures=[failure_fields(it) for it in report.failures])
    fields |= lean(failures_left_out=report.failures_left_out or None, coverage=report.coverage, runner=report.runner)
    fields |= lean(command=plain_text(report.command), complete=None if report.complete else "no")
    fields |= lean(slowest=[{"id": plain_text(it.id), "seconds": round(it.seconds, 3)} for it in report.slowest])
    fields |= lean(log=clip(report.log, log_chars).text, log_file=plain_text(report.log.file))
    fields |= lean(stderr=clip(report.stderr, log_chars).text, counted_from=plain_text(report.source))
    return fields | lean(
        other_runners=[plain_text(name) for name in report.others],
        notes=[plain_text(report.lent)] if report.lent else [],
    )


def failure_fields(failure: TestFailure) -> dict[str, Any]:
    fields = lean(id=plain_text(failure.id), message=plain_text(failure.message), file=plain_text(failure.file))
    return fields | lean(line=failure.line or None)


def report_text(report: TestReport) -> str:
    counts = f"{report.passed} passed, {report.failed} failed, {report.errors} errors, {report.skipped} skipped"
    others = plain_text(", ".join(report.others))
    lines = [report.problem and f"problem: {sentence(report.problem)}", counts]
    return "\n".join(filter(None, [*lines, others and f"also found, but not started: {others}"]))


def running_fields(running: Running) -> dict[str, Any]:
    """The result for a test suite that outlasts the call."""
    return {"running": True, "tmux_session": running.run_id} | lean(log=clip(running.stdout, LOG_CHARS).text)


def deployed_fields(deployed: Deployment) -> dict[str, Any]:
    health = deployed.health
    fields: dict[str, Any] = {"status": deployed.status, "sandbox": deployed.sandbox}
    fields |= lean(gpus=list(deployed.cards), url=deployed.url)
    fields["health"] = {"ok": health.ok} | lean(status=health.status or None, problem=sentence(health.problem))
    fields |= lean(
        task=deployed.task, log=plain_text(deployed.log).rstrip("\n"), log_file=plain_text(deployed.log_file)
    )
    fields |= lean(exit_code=deployed.exit_code, problem=sentence(deployed.problem))
    return fields | lean(notes=[sentence(note) for note in deployed.notes])


def app_fields(deployed: Sequence[Deployment], sandbox: str) -> list[dict[str, Any]]:
    """Return the fields of list_sandboxes for the apps of a sandbox."""
    return [_app(it) for it in deployed if it.sandbox == sandbox]


def _app(deployed: Deployment) -> dict[str, Any]:
    fields: dict[str, Any] = {"port": deployed.port, "status": deployed.status}
    fields |= lean(url=deployed.url, task=deployed.task, problem=sentence(deployed.problem))
    # It outlived the process that forwarded its port; a list opens no new forward.
    unopened = deployed.status in ("running", "unhealthy") and not deployed.url
    return fields | lean(notes=["forward_port gives it an address"] if unopened else [])


def forward_fields(forward: Forward) -> dict[str, Any]:
    fields = {"status": "open", "url": forward.url, "port": forward.port, "local_port": forward.local_port}
    notes = [] if forward.answers else ["nothing listens on that port yet; the address works as soon as something does"]
    return fields | lean(notes=notes)


def disposable_fields(made: Disposable) -> dict[str, Any]:
    """A disposable sandbox, as create_sandbox and the status resource show it."""
    fields: dict[str, Any] = {"sandbox_id": made.id, "status": made.status} | lean(reason=sentence(made.reason))
    fields |= lean(
        created_at=timestamp(made.created), expires_at=timestamp(made.expires), name=made.name, image=made.image
    )
    fields |= {"provider": made.kind, "network": made.network} | lean(on=made.machine)
    return fields | lean(limits=limit_fields(made.limits), notes=[sentence(note) for note in made.notes])


def limit_fields(limits: Limits) -> dict[str, Any]:
    values = {name: getattr(limits, name) or None for name in ("cpu", "memory_mb", "processes", "disk_mb", "gpus")}
    return lean(**values, cards=list(limits.cards), told=[sentence(text) for text in limits.told])


def listed_fields(made: Disposable) -> dict[str, Any]:
    """Return the fields of list_sandboxes for a container beyond those of every sandbox."""
    return lean(
        id=made.id, image=made.image, status=made.status, reason=sentence(made.reason),
        created_at=timestamp(made.created), expires_at=timestamp(made.expires),
    )  # fmt: skip


def dated(**times: float) -> dict[str, Any]:
    """Times as fields, each in seconds (name_ts) and as a date (name_at); one that never was is left out."""
    return {
        key: value
        for name, seconds in times.items()
        if seconds
        for key, value in ((f"{name}_ts", round(seconds, 3)), (f"{name}_at", moment(seconds)))
    }


def timestamp(seconds: float) -> str:
    """A time as people and programs read it; nothing for never."""
    return moment(seconds) if seconds else ""


def moment(seconds: float) -> str:
    """ISO 8601; years beyond four digits, which a file system may report, become the nearest valid one."""
    return _moment(int(min(max(seconds, -62135596800.0), 253402300799.0)))


# Files of one folder often come from the same seconds.
@functools.lru_cache(256)
def _moment(second: int) -> str:
    return f"{(datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat()}Z"


def log_text(records: Sequence[RunRecord]) -> str:
    """The last commands of a sandbox, oldest first."""
    parts = [
        f"[{timestamp(record.created)}] {record.outcome or record.state} after {record.seconds:.1f} s\n"
        f"$ {record.command}\n{record.tail}".rstrip()
        for record in records
    ]
    return "\n\n".join(parts) or "nothing was run here lately"
