"""Test reports, deployments and forwarded ports as tool results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.command import Running
from ..core.output import clip
from ..core.port import Deployment, Forward
from ..core.test_report import TestFailure, TestReport
from .results import lean, plain_text, sentence

LOG_CHARS = 6000


def report_fields(report: TestReport, log_chars: int = LOG_CHARS) -> dict[str, Any]:
    """Counts are always there; they mean something only where no problem is told."""
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
    """A suite that outlasts the call."""
    return {"running": True, "tmux_session": running.run_id} | lean(log=clip(running.stdout, LOG_CHARS).text)


def deployed_fields(deployed: Deployment) -> dict[str, Any]:
    health = deployed.health
    fields: dict[str, Any] = {"status": deployed.status} | lean(url=deployed.url)
    fields["health"] = {"ok": health.ok} | lean(status=health.status or None, problem=sentence(health.problem))
    fields |= lean(
        task=deployed.task, log=plain_text(deployed.log).rstrip("\n"), log_file=plain_text(deployed.log_file)
    )
    fields |= lean(exit_code=deployed.exit_code, problem=sentence(deployed.problem))
    return fields | lean(notes=[sentence(note) for note in deployed.notes])


def app_fields(deployed: Sequence[Deployment], sandbox: str) -> list[dict[str, Any]]:
    """What list_sandboxes says of the apps of a sandbox."""
    return [_app(it) for it in deployed if it.sandbox == sandbox]


def _app(deployed: Deployment) -> dict[str, Any]:
    fields: dict[str, Any] = {"port": deployed.port, "status": deployed.status}
    fields |= lean(url=deployed.url, task=deployed.task, problem=sentence(deployed.problem))
    # It outlived the server that gave it an address, which opens none unasked.
    unopened = deployed.status in ("running", "unhealthy") and not deployed.url
    return fields | lean(notes=["forward_port gives it an address"] if unopened else [])


def forward_fields(forward: Forward) -> dict[str, Any]:
    fields = {"status": "open", "url": forward.url, "port": forward.port, "local_port": forward.local_port}
    notes = [] if forward.answers else ["nothing listens on that port yet; the address works as soon as something does"]
    return fields | lean(notes=notes)
