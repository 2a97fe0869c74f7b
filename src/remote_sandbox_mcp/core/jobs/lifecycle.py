"""Every rule of the watchdog, pure: from a watch and what was seen of its job to the new watch and its effects."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..task import Outcome, TaskState, end_outcome, job_outcome
from ..texts.text import harmless, last_line, span
from .job import JobQuery, JobSeen, JobStarted, JobState, NextResume, next_attempt
from .log import without_exit_line
from .queue import fate_text, pending_text, queue_text
from .watch import Decision, Event, EventType, NoContact, Resume, Status, Watch

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3600.0
LONGEST_TAIL = 16_000
LONGEST_CHECKPOINT = 16_000
LONGEST_REASON = 500
# How long before the end of a job's time that is told: at most, and as a part of the time.
WARNING_S, WARNING_PART = 900.0, 0.1
# While a job's GPUs seem to be idle it is looked at more often: a look sees only the last second of their use.
IDLE_LOOK_S = 60.0


def question(watch: Watch) -> JobQuery:
    """Build the question about the job. After an interruption a person may have restarted the session as a new job."""
    policy = watch.policy
    anew = bool(watch.interrupted_at and watch.job_id)
    return JobQuery(
        job_id="" if anew else watch.job_id,
        session=watch.session,
        # When looking for a restarted session, its log does not matter. A session that is not ours is known only by its
        # log.
        log_file="" if anew else watch.log_file,
        lines=policy.log_lines,
        most_bytes=LONGEST_TAIL,
        checkpoint_path=policy.checkpoint_path,
        checkpoint_command=policy.checkpoint_command,
        cwd=watch.cwd,
        usage=policy.alerts.gpu_idle_s > 0,
    )


def ask_checkpoint(look: JobQuery, watch: Watch | None) -> JobQuery:
    """The question about a watched job, with its checkpoint."""
    if watch is None:
        return look
    path, command = watch.policy.checkpoint_path, watch.policy.checkpoint_command
    return replace(look, checkpoint_path=path, checkpoint_command=command, cwd=watch.cwd)


def announcements(watch: Watch, event: Event) -> tuple[str, ...]:
    """The channels on which an event is announced."""
    policy = watch.policy
    return (
        "file",
        *(("desktop",) if policy.notify_local else ()),
        *(("webhook",) if policy.webhook_url else ()),
        *(f"hook:{name}" for name in dict.fromkeys(policy.hooks)),
    )


def shown(job_id: str, state: JobState) -> str:
    """A look at a job, as its watch keeps it for its session."""
    return f"{state.value} {job_id}"


def told_by(watch: Watch, event: Event) -> str:
    """The look at a job that tells its session the same as this event; no look tells what only a spell of time does."""
    state = {
        EventType.COMPLETED: JobState.ENDED,
        EventType.INTERRUPTED: JobState.GONE,
        EventType.EXHAUSTED: JobState.GONE,
        EventType.RESUME_STARTED: JobState.RUNNING,
    }.get(event.type)
    return shown(watch.job_id, state) if state else "-"


def decide(watch: Watch, seen: JobSeen | NoContact, now: float) -> Decision:
    """The decision that follows from a look at the job, or from a failure to look."""
    if watch.status is not Status.ACTIVE:
        return Decision(watch)
    if isinstance(seen, NoContact):
        return _unseen(watch, seen, "config_missing" if seen.config else "unreachable", now)
    if seen.state is JobState.MISSING:
        reason = f"nothing is known of the job there ({seen.reason or 'perhaps its home folder is not mounted'})"
        return _unseen(watch, NoContact(reason), "unknown", now)
    met = _met(watch, seen, now)
    if seen.state is JobState.ENDED:
        return _ended(met, seen)
    return _gone(met, seen, now) if seen.is_over else _alive(watch, met, seen, now)


def why_not_resumable(watch: Watch, seen: JobSeen) -> str:
    """Explain why a job cannot be resumed now although somebody asks for it; empty if it can."""
    if seen.state is JobState.RUNNING:
        return f"{_who(watch)} still runs, for {span(seen.seconds)}; to begin it again, stop it first"
    if seen.state is JobState.PENDING:
        return f"{_who(watch)} is in the queue and starts by itself; to begin it again, stop it first"
    if seen.state is JobState.MISSING:
        reason = _short(seen.reason) or "perhaps its home folder is not mounted"
        return f"{_who(watch)} is not known there, so it may run or not ({reason}); start it as a new job"
    if seen.foreign and seen.queue:
        return f"how {_who(watch)} was submitted is not known, so it cannot be submitted again; start it as a new job"
    return ""


def resume_now(watch: Watch, asked_by: str, now: float) -> Decision:
    """Resume a job because somebody asks for it: also after its end, and after the last of the policy's attempts."""
    return _attempt(replace(watch, status=Status.ACTIVE), now, asked_by, watch.status)


def resumed(watch: Watch, outcome: JobStarted | str, now: float, *, asked_by: str = "") -> Decision:
    """The decision that follows from an attempt to resume: `outcome` is the job that began, or why none did."""
    if watch.status is not Status.ACTIVE:
        return Decision(watch)
    rest = f", asked for by {asked_by}" if asked_by else f" of {watch.policy.max_resume_attempts}"
    attempt = f"attempt {watch.resume_attempts}{rest}"
    if isinstance(outcome, JobStarted):
        # A cluster's queue has it now, and starts it when there is room.
        how, state = ("submitted", "pending") if outcome.is_queued else ("started", "running")
        after = replace(
            _well(watch), job_id=outcome.job_id, last_state=state, last_error="", last_exit_code=None,
            last_summary=f"{_who(watch)} was {how} again ({attempt})", due=now + watch.policy.interval_s,
        )  # fmt: skip
        payload = {"job_id": outcome.job_id, "attempt": watch.resume_attempts, "via": outcome.via}
        payload |= {"asked_by": asked_by} if asked_by else {}
        return Decision(after, (_event(EventType.RESUME_STARTED, after, payload),))
    reason = _short(outcome)
    summary = f"{_who(watch)} could not be started again ({attempt}): {reason}"
    # The pause before the next attempt begins now.
    after = replace(watch, last_state="interrupted", last_summary=summary, last_error=reason, interrupted_at=now)
    failed = _event(EventType.RESUME_FAILED, after, {"attempt": watch.resume_attempts, "reason": reason})
    later = _await_resume(after, {"reason": reason}, now)
    return replace(later, events=(failed, *later.events))


def resume_refused(watch: Watch, resume: Resume, reason: str, now: float) -> Decision:
    """An attempt that somebody asked for and the machine refused does not count, and leaves the watch as it was."""
    if watch.status is not Status.ACTIVE:
        return Decision(watch)
    reason = _short(reason)
    summary = f"{_who(watch)} could not be started again, as {resume.asked_by} asked: {reason}"
    before = "interrupted" if resume.before is Status.ACTIVE else resume.before.value
    if resume.before is Status.COMPLETED:
        before = _end_word(end_outcome(watch.last_exit_code).state)
    after = replace(
        watch, status=resume.before, resume_attempts=max(0, watch.resume_attempts - 1), last_state=before,
        last_summary=summary, last_error=reason, due=now,
    )  # fmt: skip
    payload = {"attempt": watch.resume_attempts, "reason": reason, "asked_by": resume.asked_by}
    return Decision(after, (_event(EventType.RESUME_FAILED, after, payload),))


def take_back(watch: Watch, now: float) -> Decision:
    """Undo an attempt that the machine refused because the job still runs, or has ended: it does not count."""
    if watch.status is not Status.ACTIVE:
        return Decision(watch)
    attempts = max(0, watch.resume_attempts - 1)
    return Decision(replace(watch, resume_attempts=attempts, last_state="interrupted", due=now))


def _met(watch: Watch, seen: JobSeen, now: float) -> Watch:
    """The watch after contact with its machine, with the log, checkpoint and job that it reported."""
    checkpoint, problem = _checkpoint(watch, seen)
    tail = harmless(seen.log)[-LONGEST_TAIL:]
    return replace(
        watch,
        # A person may have started the session again: as a job of ours, or as a session of their own.
        job_id="" if seen.foreign else seen.job_id or watch.job_id,
        last_log_tail=tail or watch.last_log_tail,
        last_checkpoint=checkpoint,
        last_error=problem,
        failures=0,
        checked=now,
        due=now + watch.policy.interval_s,
    )


def _unseen(watch: Watch, trouble: NoContact, state: str, now: float) -> Decision:
    reason, failures = _short(trouble.reason), watch.failures + 1
    is_announced = not watch.alerted and (trouble.config or failures >= watch.policy.alert_after_failures)
    if trouble.config:
        summary = f"{_who(watch)} cannot be looked after, as its sandbox is not configured: {reason}"
    else:
        times = "once" if failures == 1 else f"{failures} times"
        summary = f"{_who(watch)} could not be looked at ({times} in a row): {reason}"
    after = replace(
        watch, failures=failures, alerted=watch.alerted or is_announced, last_state=state, last_summary=summary,
        last_error=reason, checked=now, due=now + watch.policy.interval_s,
    )  # fmt: skip
    kind = EventType.CONFIG_MISSING if trouble.config else EventType.SSH_UNREACHABLE
    event = _event(kind, after, {"reason": reason, "failures": failures})
    return Decision(after, (event,) if is_announced else ())


def _alive(before: Watch, met: Watch, seen: JobSeen, now: float) -> Decision:
    """Note that the job runs or waits in a queue; it is announced only where it was thought lost."""
    after = replace(_well(met), last_state=seen.state.value, last_summary=_summary(met, seen, now))
    decision = _burning(after, seen, now)
    if not (before.alerted or before.interrupted_at):
        return decision
    announced = replace(after, last_summary=_restored(before, seen, now))
    payload = {
        "seconds": round(seen.seconds, 3), "after": "interrupted" if before.interrupted_at else "no contact",
        "state": seen.state.value,
    }  # fmt: skip
    restored = _event(EventType.RUNNING_RESTORED, announced, payload)
    return replace(decision, events=(restored, *decision.events))


def _burning(watch: Watch, seen: JobSeen, now: float) -> Decision:
    """Tell of a running job that wastes what it holds, once for each spell, and have one stopped whose time is over."""
    if seen.state is not JobState.RUNNING:
        return Decision(replace(watch, idle_since=0.0, told=""))
    alerts = watch.policy.alerts
    idle = seen.usage is not None and seen.usage.is_gpu_idle and alerts.gpu_idle_s > 0
    # If the clock was put back since then, the spell begins now.
    since = min(watch.idle_since or now, now) if idle else 0.0
    left = alerts.run_for_s - seen.seconds
    warning = min(WARNING_S, alerts.run_for_s * WARNING_PART)
    spells = (
        (EventType.GPU_IDLE, alerts.gpu_idle_s, now - since if idle else 0.0),
        (EventType.SILENT, alerts.silent_s, seen.silent_s),
        (EventType.LEASE_OVER, alerts.run_for_s - warning, seen.seconds),
    )
    on = [kind for kind, limit, length in spells if limit > 0 and length >= limit]
    new = [kind for kind in on if kind.value not in watch.told.split()]
    nearest = min((limit - length for _, limit, length in spells if limit > 0 and length < limit), default=math.inf)
    soon = (nearest, left if alerts.stop and left > 0 else math.inf, IDLE_LOOK_S if idle else math.inf)
    due = max(now + SHORTEST_PAUSE_S, min(watch.due, now + min(soon)))
    after = replace(watch, idle_since=since, told=" ".join(kind.value for kind in on), due=due)
    events = tuple(_alert(kind, after, seen, now) for kind in new)
    return Decision(after, events, stop=alerts.stop and 0 < alerts.run_for_s <= seen.seconds)


def _alert(kind: EventType, watch: Watch, seen: JobSeen, now: float) -> Event:
    alerts, who = watch.policy.alerts, _who(watch)
    payload: dict[str, Any] = {"seconds": round(seen.seconds, 3)}
    if kind is EventType.GPU_IDLE:
        held = dict(sorted(seen.usage.gpus.items())) if seen.usage else {}
        payload |= {
            "gpus": {str(index): megabytes for index, megabytes in held.items()},
            "idle_s": now - watch.idle_since,
        }
        cards = f"GPU {', '.join(map(str, held))}"
        summary = f"{who} holds {cards} and has not used it for {span(now - watch.idle_since)}"
    elif kind is EventType.SILENT:
        line = last_line(seen.log)
        payload |= {"silent_s": round(seen.silent_s, 3), "last_line": line}
        summary = f"{who} has printed nothing for {span(seen.silent_s)}" + (f", last line: {line}" if line else "")
    else:
        left, then = alerts.run_for_s - seen.seconds, "is stopped then" if alerts.stop else "goes on then"
        payload |= {"run_for_s": alerts.run_for_s, "left_s": round(left, 3), "stop": alerts.stop}
        time = f"its time of {span(alerts.run_for_s)} " + (f"ends in {span(left)}" if left > 0 else "is over")
        summary = f"{who} has been running for {span(seen.seconds)}; {time}, and it {then}"
    return _event(kind, replace(watch, last_summary=summary), payload)


def _summary(watch: Watch, seen: JobSeen, now: float) -> str:
    if seen.state is JobState.PENDING:
        parts = (pending_text(seen.queue, now), f"submitted {span(seen.seconds)} ago", queue_text(seen, now))
        return f"{_who(watch)}: {_harmless('; '.join(filter(None, parts)))}"
    line = last_line(seen.log)
    return f"{_who(watch)}: running for {span(seen.seconds)}" + (f", last line: {line}" if line else "")


def _restored(before: Watch, seen: JobSeen, now: float) -> str:
    if seen.state is JobState.PENDING:
        how = "is in the queue again" if before.interrupted_at else "can be seen again"
        return f"{_who(before)} {how}, and is {_harmless(pending_text(seen.queue, now))}"
    how = "is running again, for" if before.interrupted_at else "can be seen again, and has been running for"
    return f"{_who(before)} {how} {span(seen.seconds)}"


def _ended(met: Watch, seen: JobSeen) -> Decision:
    outcome = job_outcome(replace(seen, reason=_harmless(seen.reason)))
    summary = outcome.sentence(_who(met), 0.0, span(seen.seconds))
    after = replace(
        _well(met), status=Status.COMPLETED, last_state=_end_word(outcome.state), last_summary=summary,
        last_exit_code=seen.exit_code,
    )  # fmt: skip
    payload = {
        "exit_code": seen.exit_code, "signal": seen.signal, "ending": seen.ending, "outcome": outcome.state.value,
        "failed": outcome.failed, "seconds": round(seen.seconds, 3), **_fate(seen),
        "last_line": last_line(without_exit_line(seen.log, seen.exit_code)),
    }  # fmt: skip
    return Decision(after, (_event(EventType.COMPLETED, after, payload),))


def _end_word(state: TaskState) -> str:
    """The last state of a watch whose job has ended: "completed" is never said of one that failed."""
    return state.value if state in (TaskState.FAILED, TaskState.STOPPED) else Status.COMPLETED.value


def _fate(seen: JobSeen) -> Mapping[str, Any]:
    """Return the cluster's verdict on the job, for an event's payload."""
    return {"fate": seen.fate.value} if seen.fate else {}


def _gone(met: Watch, seen: JobSeen, now: float) -> Decision:
    why = "its machine was restarted" if seen.rebooted else "it no longer runs and left no exit status"
    reason = _short(fate_text(seen) or (f"{why} ({seen.reason})" if seen.reason else why))
    payload = {"reason": reason, "rebooted": seen.rebooted, "checkpoint": met.last_checkpoint, **_fate(seen)}
    first = not met.interrupted_at
    # If the clock was put back since the interruption, counting from that time would wait for ever.
    since = now if first else min(met.interrupted_at, now)
    after = replace(
        met, alerted=False, last_state="interrupted", last_error=reason, interrupted_at=since, idle_since=0.0, told=""
    )
    outcome = Outcome(TaskState.INTERRUPTED, reason=reason, resume=next_resume(after, has_fate="fate" in payload))
    after = replace(after, last_summary=outcome.sentence(_who(met), now))
    rest = _await_resume(after, payload, now)
    # If no attempt is left, one event says both that it was interrupted and that it is over.
    if first and rest.watch.status is Status.ACTIVE:
        return replace(rest, events=(_event(EventType.INTERRUPTED, after, payload),))
    return rest


def _await_resume(watch: Watch, payload: Mapping[str, Any], now: float) -> Decision:
    """Decide about an interrupted job: do nothing, wait, try again, or give up for good."""
    policy = watch.policy
    later = now + policy.interval_s
    if not _resumes_by_itself(watch):
        return Decision(replace(watch, due=later))
    resume = next_resume(watch, has_fate="fate" in payload)
    if resume is None:
        return _exhausted(watch, payload)
    if now < resume.at:
        return Decision(replace(watch, due=min(later, resume.at)))
    return _attempt(watch, now)


def _resumes_by_itself(watch: Watch) -> bool:
    return bool(watch.policy.auto_resume and watch.policy.resume_command and watch.policy.max_resume_attempts > 0)


def next_resume(watch: Watch, *, has_fate: bool = False) -> NextResume | None:
    """The next attempt to resume an interrupted job; None where none is made. `has_fate`: a cluster ended the job."""
    policy, used = watch.policy, watch.resume_attempts
    if watch.status is Status.ACTIVE and watch.last_state == "resuming":
        # The attempt is being made.
        return NextResume(watch.updated, used, max(used, policy.max_resume_attempts))
    if watch.status is not Status.ACTIVE or not _resumes_by_itself(watch) or used >= policy.max_resume_attempts:
        return None
    # An interruption that the watchdog has not seen yet is noticed when it next looks.
    since = watch.interrupted_at or watch.due
    # What a cluster ended, at its time limit or for another job, did well until then: no reason to wait ever longer.
    pause = policy.resume_delay_s if has_fate else _pause(watch)
    return NextResume(since + pause, used + 1, policy.max_resume_attempts)


def _attempt(watch: Watch, now: float, asked_by: str = "", before: Status = Status.ACTIVE) -> Decision:
    attempt = watch.resume_attempts + 1
    job_id = next_attempt(watch.job_id or _own_id(watch), attempt)
    after = replace(watch, resume_attempts=attempt, last_state="resuming", due=now + watch.policy.interval_s)
    return Decision(after, resume=Resume(job_id, watch.job_id, asked_by, before))


def _exhausted(watch: Watch, payload: Mapping[str, Any]) -> Decision:
    used = f"after {watch.resume_attempts} of {watch.policy.max_resume_attempts} attempts"
    summary = f"{_who(watch)} is interrupted and is not started again, {used}: {payload['reason']}"
    after = replace(watch, status=Status.EXHAUSTED, last_state="exhausted", last_summary=summary)
    return Decision(after, (_event(EventType.EXHAUSTED, after, {**payload, "attempts": watch.resume_attempts}),))


def _pause(watch: Watch) -> float:
    """Pause before the next attempt: doubles each time up to LONGEST_PAUSE_S, and is never below resume_delay_s."""
    delay = watch.policy.resume_delay_s
    return max(delay, min(delay * 2.0 ** min(watch.resume_attempts, 32), LONGEST_PAUSE_S))


def _own_id(watch: Watch) -> str:
    """Job id for resuming a session that was not ours; with a time, because watches of two databases share numbers."""
    return f"job-watch-{watch.id:08d}-{int(watch.created * 1000):x}"


def _well(watch: Watch) -> Watch:
    return replace(watch, failures=0, alerted=False, interrupted_at=0.0)


def _checkpoint(watch: Watch, seen: JobSeen) -> tuple[str, str]:
    """The newest readable checkpoint, and why there is no newer one."""
    kept, found = watch.last_checkpoint, seen.checkpoint
    if found is None or found.problem:
        return kept, "" if found is None else f"unable to read the checkpoint: {_short(found.problem)}"
    if watch.policy.checkpoint_format != "json":
        return harmless(found.text)[-LONGEST_CHECKPOINT:], ""
    try:
        # Training losses are often NaN, which is not valid JSON.
        value = json.loads(found.text.decode("utf-8", "replace"), parse_constant=str)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return kept, f"the checkpoint is not valid JSON: {_short(str(error))}"
    if len(text) > LONGEST_CHECKPOINT:
        return kept, f"the checkpoint is too long to be kept ({len(text)} characters)"
    return text, ""


def _event(kind: EventType, watch: Watch, payload: Mapping[str, Any]) -> Event:
    return Event(type=kind, summary=watch.last_summary, payload=payload, watch_id=watch.id)


def _who(watch: Watch) -> str:
    return f"{watch.session} on {watch.sandbox}"


def _short(reason: str) -> str:
    return " ".join(reason.split())[:LONGEST_REASON]


def _harmless(text: str) -> str:
    return _short(harmless(text.encode("utf-8", "surrogateescape")))
