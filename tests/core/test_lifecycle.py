"""Every rule of the watchdog, in tables: what is seen, and what the watch becomes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.jobs.job import JOB_ID, Checkpoint, Fate, JobSeen, JobStarted, JobState, QueueSeen
from remote_sandbox_mcp.core.jobs.lifecycle import (
    announcements,
    decide,
    question,
    resume_now,
    resume_refused,
    resumed,
    take_back,
    why_not_resumable,
)
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType, NoContact, Policy, Resume, Status, Watch
from remote_sandbox_mcp.core.texts.text import span

NOW = 1_000_000.0
JOB = "job-0123456789abcdef"
RESUMING = Policy(auto_resume=True, resume_command="again", max_resume_attempts=2)
PLAIN = Policy()


def watch(policy: Policy = PLAIN, **more: Any) -> Watch:
    return replace(Watch(id=7, sandbox="gpu1", session="train", job_id=JOB, policy=policy, created=NOW - 9.5), **more)


def seen(state: JobState, **more: Any) -> JobSeen:
    return JobSeen(state=state, **{"job_id": JOB, "session": "train", "seconds": 7380.0, **more})


RUNNING, GONE, MISSING = seen(JobState.RUNNING), seen(JobState.GONE), seen(JobState.MISSING, job_id="")
ENDED = seen(JobState.ENDED, exit_code=0, ending="exited")
PENDING = seen(JobState.PENDING, seconds=200, queue=QueueSeen(number="12", reason="Priority", partition="gpu"))
CUT, UNCONFIGURED = NoContact("no route to host"), NoContact("no sandbox is named 'gpu1'", config=True)
STARTED = JobStarted(job_id=f"{JOB}-r1", session="train", log_file="/l", cwd="/", via="tmux")
STATES = {
    "new": watch(),
    "running": watch(last_state="running"),
    "unreachable": watch(failures=5, alerted=True, last_state="unreachable"),
    "interrupted": watch(RESUMING, interrupted_at=NOW - 10_000, last_state="interrupted"),
    "resuming": watch(RESUMING, interrupted_at=NOW - 10_000, last_state="resuming", resume_attempts=1),
    "used up": watch(RESUMING, interrupted_at=NOW - 10_000, last_state="interrupted", resume_attempts=2),
    "not ours": watch(RESUMING, job_id=""),
}
SIGHTS = {
    "running": RUNNING, "pending": PENDING, "ended": ENDED, "gone": GONE, "missing": MISSING, "cut": CUT,
    "unconfigured": UNCONFIGURED,
}  # fmt: skip


def types(decision: Decision) -> list[str]:
    return [event.type.value for event in decision.events]


def play(first: Watch, *sights: JobSeen | NoContact, step: float = 300.0) -> list[Decision]:
    """One look after another; the watch of each decision is the next one's."""
    decisions = [Decision(first)]
    for number, sight in enumerate(sights):
        decisions.append(decide(decisions[-1].watch, sight, NOW + number * step))
    return decisions[1:]


# What ends, ends


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("end", "says"),
    [
        (ENDED, "train on gpu1 succeeded with exit code 0 after 2 h 3 min"),
        (
            seen(JobState.ENDED, exit_code=1, ending="exited", seconds=5),
            "train on gpu1 failed with exit code 1 after 5 s",
        ),
        (seen(JobState.ENDED, exit_code=143, signal="SIGTERM", ending="stopped"), "was stopped .* 143 .SIGTERM. after"),
        (seen(JobState.ENDED, job_id="", foreign=True), "it has ended, and its exit code is not known"),
        (
            seen(JobState.ENDED, exit_code=137, ending="out_of_memory", fate=Fate.OUT_OF_MEMORY),
            "failed with exit code 137 after 2 h 3 min: it used more memory than it was given$",
        ),
        (
            seen(JobState.ENDED, ending="cancelled", fate=Fate.CANCELLED, reason="it was cancelled by root"),
            "train on gpu1 was stopped after 2 h 3 min: it was cancelled by root$",
        ),
    ],
    ids=["0", "1", "stopped", "not ours", "out of memory", "cancelled"],
)
def test_a_job_that_ended_completes_its_watch_and_is_never_resumed(state: str, end: JobSeen, says: str) -> None:
    decision = decide(STATES[state], end, NOW)
    after, (event,) = decision.watch, decision.events
    assert decision.resume is None
    assert (after.status, after.last_exit_code) == (Status.COMPLETED, end.exit_code)
    assert event.payload["failed"] == (after.last_state == "failed") == ("failed with" in event.summary)
    assert event.type is EventType.COMPLETED
    expected = {"exit_code": end.exit_code, "signal": end.signal, "ending": end.ending}
    assert {name: event.payload[name] for name in expected} == expected
    assert re.search(says, event.summary)
    assert after.last_summary == event.summary


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED, Status.EXHAUSTED])
def test_a_watch_that_is_over_never_changes(status: Status, sight: str) -> None:
    over = watch(RESUMING, status=status)
    assert decide(over, SIGHTS[sight], NOW) == Decision(over)
    for outcome in (STARTED, "no such folder"):
        assert resumed(over, outcome, NOW) == Decision(over)
    assert take_back(over, NOW) == Decision(over)


# Trouble on the line

ALERT = ["ssh_unreachable"]


@pytest.mark.parametrize(
    ("sights", "events"),
    [
        ([CUT], [[]]),
        ([CUT, CUT, CUT], [[], ALERT, []]),
        ([CUT, RUNNING, CUT, RUNNING], [[], [], [], []]),
        ([CUT, CUT, RUNNING, RUNNING], [[], ALERT, ["running_restored"], []]),
        ([CUT, CUT, RUNNING, CUT, CUT], [[], ALERT, ["running_restored"], [], ALERT]),
        ([MISSING, MISSING, MISSING, RUNNING], [[], ALERT, [], ["running_restored"]]),
        ([CUT, MISSING, CUT], [[], ALERT, []]),
        ([UNCONFIGURED, UNCONFIGURED, RUNNING], [["config_missing"], [], ["running_restored"]]),
        ([UNCONFIGURED, CUT, CUT], [["config_missing"], [], []]),
        ([CUT, CUT, ENDED], [[], ALERT, ["completed"]]),
        ([CUT, CUT, GONE, RUNNING], [[], ALERT, ["interrupted"], ["running_restored"]]),
        ([PENDING, PENDING, RUNNING, ENDED], [[], [], [], ["completed"]]),
        ([CUT, CUT, PENDING, RUNNING], [[], ALERT, ["running_restored"], []]),
        ([GONE, PENDING, RUNNING], [["interrupted"], ["running_restored"], []]),
        ([GONE, CUT, CUT, GONE], [["interrupted"], [], ALERT, []]),
    ],
    ids=lambda value: " ".join(name for name, sight in SIGHTS.items() for one in value if one is sight)[:40] or None,
)
def test_trouble_is_announced_once_and_its_end_once(sights: list[JobSeen | NoContact], events: list[list[str]]) -> None:
    decisions = play(watch(), *sights)
    assert [types(decision) for decision in decisions] == events
    assert all(decision.resume is None for decision in decisions)


@pytest.mark.parametrize(
    ("sight", "state", "reason"),
    [
        (CUT, "unreachable", "no route to host"),
        (MISSING, "unknown", "nothing is known of the job there .perhaps its home folder is not mounted"),
        (UNCONFIGURED, "config_missing", "no sandbox is named 'gpu1'"),
    ],
    ids=["cut", "missing", "unconfigured"],
)
def test_trouble_is_announced_with_its_reason(sight: JobSeen | NoContact, state: str, reason: str) -> None:
    last = play(watch(RESUMING), sight, sight, step=0)[-1]
    assert (last.watch.last_state, last.watch.failures, last.watch.alerted) == (state, 2, True)
    assert last.watch.due == NOW + 300
    assert reason.split(" .")[0] in last.watch.last_error
    assert last.watch.last_error in last.watch.last_summary
    assert last.resume is None


@pytest.mark.parametrize("needed", [1, 2, 5])
def test_as_many_failures_as_asked_for_make_an_alert(needed: int) -> None:
    told = [types(one) for one in play(watch(Policy(alert_after_failures=needed)), *[CUT] * 6)]
    assert told == [ALERT if number == needed else [] for number in range(1, 7)]


def test_a_job_that_runs_again_clears_the_failures() -> None:
    before = watch(failures=3, alerted=True, interrupted_at=5.0, last_error="no route")
    after = decide(before, RUNNING, NOW).watch
    assert (after.failures, after.alerted, after.interrupted_at, after.last_error) == (0, False, 0.0, "")
    assert (after.last_state, after.checked, after.due) == ("running", NOW, NOW + 300)


# What is kept of it


def test_a_running_job_is_summarized_in_one_sentence() -> None:
    after = decide(watch(), seen(JobState.RUNNING, log=b"epoch 1\n\x1b[1mepoch 2\x1b[0m\n\n"), NOW).watch
    assert after.last_summary == "train on gpu1: running for 2 h 3 min, last line: epoch 2"
    assert after.last_log_tail == "epoch 1\nepoch 2\n\n"


def test_a_pending_job_is_summarized_with_its_reason_and_since_when() -> None:
    after = decide(watch(), PENDING, NOW).watch
    assert after.last_summary == ("train on gpu1: pending: Priority; submitted 3 min ago; job 12 in partition gpu")
    assert (after.status, after.last_state, after.due) == (Status.ACTIVE, "pending", NOW + 300)


def test_what_a_queue_says_is_made_harmless() -> None:
    hostile = QueueSeen(number="1\n2", reason="\x1b[31m" + "x" * 2000, partition="\u202e", start=1e300)
    summary = decide(watch(), replace(PENDING, queue=hostile), NOW).watch.last_summary
    assert not any(ord(char) < 32 or char == "\u202e" for char in summary)
    assert len(summary) < 600


def test_without_a_new_log_the_last_one_is_kept() -> None:
    assert decide(watch(last_log_tail="epoch 1"), seen(JobState.GONE, log=b""), NOW).watch.last_log_tail == "epoch 1"


@pytest.mark.parametrize(
    ("form", "checkpoint", "kept", "problem"),
    [
        ("text", Checkpoint(text=b"step 7\x07"), "step 7␇", ""),
        ("text", None, "old", ""),
        ("text", Checkpoint(problem="no such file"), "old", "unable to read the checkpoint: no such file"),
        ("json", Checkpoint(text=b'{"step": 7,\n "loss": NaN}'), '{"step":7,"loss":"NaN"}', ""),
        ("json", Checkpoint(text='{"名": "値"}'.encode()), '{"名":"値"}', ""),
        ("json", Checkpoint(text=b'{"step": 7'), "old", "the checkpoint is not valid JSON"),
        ("json", Checkpoint(text=b""), "old", "the checkpoint is not valid JSON"),
        ("json", Checkpoint(text=b"[1e999]"), "old", "the checkpoint is not valid JSON"),
        ("json", Checkpoint(text=b"[" * 100_000), "old", "the checkpoint is not valid JSON"),
        ("json", Checkpoint(text=b"[" + b"1," * 20_000 + b"1]"), "old", "the checkpoint is too long"),
    ],
    ids=["text", "none", "unreadable", "nan", "unicode", "cut", "empty", "infinite", "deep", "long"],
)
def test_the_newest_readable_checkpoint_is_kept(form: str, checkpoint: Checkpoint, kept: str, problem: str) -> None:
    before = watch(Policy(checkpoint_format=form), last_checkpoint="old")
    after = decide(before, seen(JobState.RUNNING, checkpoint=checkpoint), NOW).watch
    assert after.last_checkpoint == kept
    assert after.last_error.startswith(problem)
    assert bool(after.last_error) == bool(problem)


@given(st.binary(max_size=300), st.binary(max_size=300), st.sampled_from(["text", "json"]))
def test_texts_from_a_machine_are_bounded_and_harmless(log: bytes, text: bytes, form: str) -> None:
    sight = seen(JobState.RUNNING, log=log * 200, checkpoint=Checkpoint(text=text * 200))
    after = decide(watch(Policy(checkpoint_format=form)), sight, NOW).watch
    for kept in (after.last_log_tail, after.last_checkpoint, after.last_summary, after.last_error):
        assert len(kept) <= 16_000
        assert not any(ord(char) < 32 and char not in "\n\t" for char in kept)
    assert "\n" not in after.last_summary


# Interrupted, and resumed


@pytest.mark.parametrize(
    ("sight", "says"),
    [
        (GONE, "train on gpu1 was interrupted: it no longer runs and left no exit status"),
        (seen(JobState.GONE, rebooted=True), "train on gpu1 was interrupted: its machine was restarted"),
        (seen(JobState.GONE, reason="keeper killed"), "it no longer runs and left no exit status (keeper killed)"),
        (seen(JobState.GONE, fate=Fate.TIME_LIMIT), "train on gpu1 was interrupted: its time limit was reached"),
        (seen(JobState.GONE, fate=Fate.PREEMPTED), "it was preempted: another job needed its place"),
        (seen(JobState.GONE, fate=Fate.NODE_FAILED, reason="n1 failed"), "was interrupted: n1 failed"),
        (seen(JobState.GONE, fate=Fate.REQUEUED), "the queue put it back after it had begun"),
    ],
    ids=["gone", "rebooted", "reason", "time limit", "preempted", "node failed", "requeued"],
)
def test_an_interruption_is_announced_once(sight: JobSeen, says: str) -> None:
    first, second, third = play(watch(last_checkpoint="step 7"), sight, sight, sight)
    (event,) = first.events
    assert event.type is EventType.INTERRUPTED
    assert says in event.summary
    assert (event.payload["rebooted"], event.payload["checkpoint"]) == (sight.rebooted, "step 7")
    assert event.payload.get("fate", "") == (sight.fate.value if sight.fate else "")
    assert (second.events, third.events) == ((), ())
    assert third.watch.interrupted_at == NOW
    assert (third.watch.status, third.watch.last_state, third.resume) == (Status.ACTIVE, "interrupted", None)


@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(resume_command="again"), Policy(auto_resume=True), replace(RESUMING, max_resume_attempts=0)],
    ids=["off", "not automatic", "no command", "no attempt"],
)
def test_without_auto_resume_it_waits_for_a_person(policy: Policy) -> None:
    decisions = play(watch(policy), *[GONE] * 5, RUNNING, step=10_000)
    assert [types(one) for one in decisions] == [["interrupted"], [], [], [], [], ["running_restored"]]
    assert all(one.resume is None and one.watch.status is Status.ACTIVE for one in decisions)


@pytest.mark.parametrize(
    ("again", "job_id"),
    [(seen(JobState.RUNNING, job_id="job-another-one"), "job-another-one"),
     (seen(JobState.RUNNING, job_id="", foreign=True), "")],
    ids=["as a job", "by hand"],
)  # fmt: skip
def test_a_session_that_a_person_started_again_is_looked_after(again: JobSeen, job_id: str) -> None:
    gone = decide(watch(), GONE, NOW).watch
    assert (question(watch()).job_id, question(gone).job_id, question(gone).session) == (JOB, "", "train")
    found = decide(gone, again, NOW + 300)
    assert types(found) == ["running_restored"]
    assert found.events[0].summary == "train on gpu1 is running again, for 2 h 3 min"
    assert (found.watch.job_id, question(found.watch).job_id) == (job_id, job_id)


@pytest.mark.parametrize(
    ("delay", "attempts", "wait"),
    [(300, 0, 300), (300, 1, 600), (300, 2, 1200), (300, 4, 3600), (300, 99, 3600), (0, 3, 0), (7200, 1, 7200)],
)
def test_a_resume_waits_longer_after_each_attempt(delay: float, attempts: int, wait: float) -> None:
    policy = replace(RESUMING, resume_delay_s=delay, max_resume_attempts=100, interval_s=10_000)
    gone = decide(watch(policy, resume_attempts=attempts), GONE, NOW)
    assert types(gone) == ["interrupted"]
    if wait:
        assert (gone.resume, gone.watch.due) == (None, NOW + wait)
        assert decide(gone.watch, GONE, NOW + wait - 1).resume is None
        gone = decide(gone.watch, GONE, NOW + wait)
        assert gone.events == ()
    assert gone.resume == Resume(f"{JOB}-r{attempts + 1}", JOB)
    assert (gone.watch.resume_attempts, gone.watch.last_state) == (attempts + 1, "resuming")


def test_a_look_comes_sooner_where_a_resume_is_due_sooner() -> None:
    for interval, due in ((300, NOW + 200), (100, NOW + 100)):
        policy = replace(RESUMING, interval_s=interval, resume_delay_s=200)
        assert decide(watch(policy), GONE, NOW).watch.due == due


def test_a_foreign_session_is_resumed_under_an_id_made_from_its_watch() -> None:
    policy = replace(RESUMING, resume_delay_s=0)
    decision = decide(watch(policy, job_id=""), seen(JobState.GONE, job_id="", foreign=True), NOW)
    assert decision.resume == Resume(f"job-watch-00000007-{int((NOW - 9.5) * 1000):x}-r1", "")
    assert JOB_ID.match(decision.resume.job_id)


def test_a_clock_that_is_set_back_does_not_delay_a_resume() -> None:
    gone = decide(watch(RESUMING), GONE, NOW).watch
    back = decide(gone, GONE, NOW - 100_000)
    assert (back.resume, back.watch.due) == (None, NOW - 100_000 + 300)
    assert decide(back.watch, GONE, NOW - 100_000 + 300).resume


@pytest.mark.parametrize("sight", ["missing", "cut", "unconfigured", "running", "pending", "ended"])
def test_only_a_job_that_is_gone_is_resumed(sight: str) -> None:
    assert decide(STATES["interrupted"], SIGHTS[sight], NOW).resume is None


def test_a_successful_resume_is_announced_and_watched() -> None:
    decision = resumed(STATES["resuming"], STARTED, NOW)
    after, (event,) = decision.watch, decision.events
    assert (event.type, event.summary) == (
        EventType.RESUME_STARTED, "train on gpu1 was started again (attempt 1 of 2)"
    )  # fmt: skip
    assert (after.job_id, after.interrupted_at, after.last_state) == (f"{JOB}-r1", 0.0, "running")
    assert types(decide(after, RUNNING, NOW + 300)) == []
    assert decide(after, RUNNING, NOW + 3000).watch.resume_attempts == 1


def test_a_job_that_is_submitted_again_counts_as_started_and_waits_in_the_queue() -> None:
    decision = resumed(STATES["resuming"], replace(STARTED, via="slurm"), NOW)
    assert types(decision) == ["resume_started"]
    assert decision.events[0].summary == "train on gpu1 was submitted again (attempt 1 of 2)"
    assert decision.watch.last_state == "pending"
    waiting = decide(decision.watch, replace(PENDING, job_id=f"{JOB}-r1"), NOW + 300)
    assert (waiting.events, waiting.resume, waiting.watch.resume_attempts) == ((), None, 1)


def test_what_the_cluster_ends_again_and_again_is_not_kept_waiting_longer_each_time() -> None:
    policy = replace(RESUMING, max_resume_attempts=9)
    limit = seen(JobState.GONE, fate=Fate.TIME_LIMIT)
    before = watch(policy, resume_attempts=5)
    assert decide(decide(before, limit, NOW).watch, limit, NOW + 300).resume
    assert not decide(decide(before, GONE, NOW).watch, GONE, NOW + 300).resume


def test_a_failed_resume_is_announced_and_retried_later() -> None:
    decision = resumed(STATES["resuming"], "no such folder", NOW)
    after, (event,) = decision.watch, decision.events
    assert event.type is EventType.RESUME_FAILED
    assert event.summary == "train on gpu1 could not be started again (attempt 1 of 2): no such folder"
    assert (after.job_id, after.resume_attempts, after.last_state) == (JOB, 1, "interrupted")
    assert decide(after, GONE, NOW + 599).resume is None
    assert decide(after, GONE, NOW + 600).resume == Resume(f"{JOB}-r2", JOB)


def test_the_last_failed_resume_ends_the_watch() -> None:
    decision = resumed(replace(STATES["resuming"], resume_attempts=2), "no such folder", NOW)
    assert types(decision) == ["resume_failed", "exhausted"]
    assert (decision.watch.status, decision.watch.last_state) == (Status.EXHAUSTED, "exhausted")


def test_a_job_that_is_gone_after_the_last_attempt_is_given_up() -> None:
    decision = decide(watch(RESUMING, resume_attempts=2, last_checkpoint="step 7"), GONE, NOW)
    (event,) = decision.events
    assert (event.type, decision.watch.status, decision.resume) == (EventType.EXHAUSTED, Status.EXHAUSTED, None)
    assert "train on gpu1 is interrupted and is not started again, after 2 of 2 attempts: " in event.summary
    assert (event.payload["attempts"], event.payload["checkpoint"]) == (2, "step 7")


def test_a_refused_attempt_does_not_count() -> None:
    decision = take_back(STATES["resuming"], NOW)
    assert (decision.events, decision.watch.resume_attempts, decision.watch.due) == ((), 0, NOW)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("attempts", [0, 2])
def test_what_a_person_asks_for_is_resumed_whatever_the_policy_says(status: Status, attempts: int) -> None:
    before = watch(replace(RESUMING, auto_resume=False), status=status, resume_attempts=attempts)
    wanted = resume_now(before, "ann", NOW)
    assert wanted.resume == Resume(f"{JOB}-r{attempts + 1}", JOB, "ann", status)
    assert (wanted.watch.status, wanted.watch.resume_attempts) == (Status.ACTIVE, attempts + 1)
    (event,) = resumed(wanted.watch, STARTED, NOW, asked_by="ann").events
    assert event.summary == f"train on gpu1 was started again (attempt {attempts + 1}, asked for by ann)"
    refused = resume_refused(wanted.watch, wanted.resume, "no such folder", NOW)
    assert (refused.watch.status, refused.watch.resume_attempts) == (status, attempts)
    assert types(refused) == ["resume_failed"]
    assert refused.events[0].payload["asked_by"] == "ann"


@pytest.mark.parametrize(
    ("sight", "says"),
    [
        pytest.param(RUNNING, "still runs, for 2 h 3 min", id="running"),
        pytest.param(PENDING, "is in the queue and starts by itself", id="pending"),
        pytest.param(MISSING, "is not known there, so it may run or not (perhaps its home", id="missing"),
        pytest.param(seen(JobState.GONE, foreign=True, queue=PENDING.queue), "how train on gpu1 was", id="foreign"),
        pytest.param(GONE, "", id="gone"),
        pytest.param(ENDED, "", id="ended"),
    ],
)
def test_what_cannot_be_resumed_says_why(sight: JobSeen, says: str) -> None:
    why = why_not_resumable(watch(), sight)
    assert says in why
    assert bool(says) == bool(why)


def test_the_life_of_a_watch() -> None:
    policy = replace(RESUMING, max_resume_attempts=1, resume_delay_s=200)
    first, gone, ready = play(watch(policy), RUNNING, GONE, GONE)
    assert ready.resume
    going = resumed(ready.watch, replace(STARTED, job_id=ready.resume.job_id), NOW + 700).watch
    over = decide(going, seen(JobState.GONE, job_id=going.job_id), NOW + 1000)
    assert [types(one) for one in (first, gone, ready, over)] == [[], ["interrupted"], [], ["exhausted"]]


# When, and to whom


@pytest.mark.parametrize(
    ("policy", "channels"),
    [
        (Policy(), ("file", "desktop")),
        (Policy(notify_local=False), ("file",)),
        (Policy(webhook_url="https://x", hooks=("codex", "mail", "codex")),
         ("file", "desktop", "webhook", "hook:codex", "hook:mail")),
    ],
    ids=["plain", "quiet", "all"],
)  # fmt: skip
def test_an_event_is_announced_on_the_channels_of_the_policy(policy: Policy, channels: tuple[str, ...]) -> None:
    assert announcements(watch(policy), Event(type=EventType.COMPLETED, summary="")) == channels


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("state", STATES)
def test_every_decision_has_its_watch_and_time_and_can_be_stored(state: str, sight: str) -> None:
    decision = decide(STATES[state], SIGHTS[sight], NOW)
    assert decision.watch.last_summary.startswith("train on gpu1")
    assert decision.watch.checked == NOW
    assert NOW < decision.watch.due <= NOW + decision.watch.policy.interval_s
    for event in decision.events:
        assert event.summary.startswith("train on gpu1")
        assert event.watch_id == 7
        json.dumps(event.payload)


def test_a_watch_asks_for_what_its_policy_names() -> None:
    policy = Policy(log_lines=12, checkpoint_path="c.json", checkpoint_command="tail x")
    asked = question(watch(policy, log_file="/l", cwd="/w"))
    assert (asked.lines, asked.checkpoint_path, asked.checkpoint_command) == (12, "c.json", "tail x")
    assert (asked.job_id, asked.session, asked.log_file, asked.cwd) == (JOB, "train", "/l", "/w")


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, (JOB, "/l")),
        ({"interrupted_at": NOW}, ("", "")),
        ({"job_id": ""}, ("", "/l")),
        ({"job_id": "", "interrupted_at": NOW}, ("", "/l")),
    ],
    ids=["ours", "ours, interrupted", "not ours", "not ours, interrupted"],
)
def test_an_interrupted_job_is_looked_up_by_its_session(more: dict[str, Any], asked: tuple[str, str]) -> None:
    found = question(watch(log_file="/l", **more))
    assert (found.job_id, found.log_file) == asked


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (90_000, "1 d 1 h")],
)
def test_a_duration_is_shown_in_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text
