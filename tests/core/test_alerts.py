"""What is told of a job that runs: once for each spell, at the right time; and when its time is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.jobs.alerts import Alerts, read_alerts, read_span
from remote_sandbox_mcp.core.jobs.job import JobSeen, JobState, JobUsage
from remote_sandbox_mcp.core.jobs.lifecycle import decide, question, shown, told_by
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType, NoContact, Policy, Status, Watch

NOW, JOB = 1_000_000.0, "job-0123456789abcdef"
BUSY, IDLE = JobUsage(gpus={0: 900.0}, busy={0: 80.0}), JobUsage(gpus={0: 900.0, 1: 0.0}, busy={0: 0.0, 1: 1.0})
CUT, GONE = NoContact("no route to host"), JobSeen(state=JobState.GONE, job_id=JOB)
PENDING = JobSeen(state=JobState.PENDING, job_id=JOB)


def running(seconds: float = 100.0, **more: Any) -> JobSeen:
    return JobSeen(state=JobState.RUNNING, job_id=JOB, session="train", seconds=seconds, **more)


def watch(**alerts: Any) -> Watch:
    policy = Policy(alerts=Alerts(**alerts))
    return Watch(id=7, sandbox="gpu1", session="train", job_id=JOB, policy=policy, due=NOW)


def play(first: Watch, *sights: JobSeen | NoContact, step: float) -> list[list[str]]:
    told, now = [], NOW
    for sight in sights:
        decision = decide(first, sight, now)
        told.append([event.type.value for event in decision.events])
        first, now = decision.watch, now + step
    return told


@pytest.mark.parametrize(
    ("alerts", "sights", "told"),
    [
        pytest.param({}, [running(silent_s=9e9, usage=IDLE)] * 3, [[], [], []], id="nothing is asked for"),
        pytest.param(
            {"silent_s": 600}, [running(silent_s=s) for s in (0, 599, 600, 900, 0, 700)],
            [[], [], ["silent"], [], [], ["silent"]], id="silent: once for each spell",
        ),
        pytest.param(
            {"gpu_idle_s": 600}, [running(usage=use) for use in (IDLE, IDLE, IDLE, IDLE, BUSY, IDLE, IDLE, IDLE)],
            [[], [], ["gpu_idle"], [], [], [], [], ["gpu_idle"]], id="idle: once for each spell",
        ),
        pytest.param(
            {"gpu_idle_s": 600}, [running(usage=IDLE), CUT, running(usage=IDLE), running(usage=IDLE)],
            [[], [], ["gpu_idle"], []], id="a look that fails ends no spell",
        ),
        pytest.param(
            {"gpu_idle_s": 600}, [running(usage=use) for use in (JobUsage(), None, JobUsage(gpus={0: 1.0})) * 2],
            [[]] * 6, id="no GPU is held, or it does not tell how busy it is",
        ),
        pytest.param(
            {"run_for_s": 36_000}, [running(s) for s in (10, 35_000, 35_200, 36_100)],
            [[], [], ["lease_over"], []], id="its time: a quarter of an hour before",
        ),
        pytest.param(
            {"run_for_s": 100}, [running(s) for s in (80, 91, 99)], [[], ["lease_over"], []], id="a tenth before",
        ),
        pytest.param(
            {"silent_s": 60}, [running(silent_s=70), GONE, running(silent_s=70)],
            [["silent"], ["interrupted"], ["running_restored", "silent"]], id="an interruption ends all spells",
        ),
        pytest.param({"silent_s": 60}, [PENDING, running(silent_s=70)], [[], ["silent"]], id="nothing in a queue"),
    ],
)  # fmt: skip
def test_each_spell_is_told_once(alerts: dict[str, float], sights: list[Any], told: list[list[str]]) -> None:
    assert play(watch(**alerts), *sights, step=300) == told


@pytest.mark.parametrize(
    ("alerts", "sight", "due"),
    [
        ({"silent_s": 600}, running(silent_s=580), 20),
        ({"silent_s": 600}, running(silent_s=599.9), 1),
        ({"silent_s": 600}, running(silent_s=900), 300),
        ({"gpu_idle_s": 600}, running(usage=IDLE), 60),
        ({"gpu_idle_s": 600}, running(usage=BUSY), 300),
        ({"run_for_s": 1000}, running(890), 10),
        ({"run_for_s": 1000, "stop": True}, running(960), 40),
        ({"run_for_s": 1000}, running(960), 300),
    ],
)
def test_the_next_look_comes_when_something_may_be_over(alerts: dict[str, Any], sight: JobSeen, due: float) -> None:
    assert decide(watch(**alerts), sight, NOW).watch.due == pytest.approx(NOW + due)


@pytest.mark.parametrize(
    ("alerts", "seconds", "stops"),
    [
        ({"run_for_s": 1000, "stop": True}, 999, False),
        ({"run_for_s": 1000, "stop": True}, 1000, True),
        ({"run_for_s": 1000}, 5000, False),
        ({}, 5000, False),
    ],
)
def test_a_job_is_stopped_at_the_end_of_its_time_if_its_caller_said_so(
    alerts: dict[str, Any], seconds: float, stops: bool
) -> None:
    first = decide(watch(**alerts), running(seconds), NOW)
    # Wanted at each look until it has ended: a stop that fails is tried again.
    assert (first.stop, decide(first.watch, running(seconds), NOW).stop) == (stops, stops)
    assert decide(first.watch, JobSeen(state=JobState.ENDED, exit_code=143, ending="stopped"), NOW).stop is False


def event_of(decision: Decision) -> Event:
    (event,) = decision.events
    return event


def test_what_is_told_says_how_long_and_what_follows() -> None:
    idle = replace(watch(gpu_idle_s=600), idle_since=NOW - 700)
    told = event_of(decide(idle, running(usage=IDLE), NOW))
    assert told.summary == "train on gpu1 holds GPU 0, 1 and has not used it for 11 min"
    assert told.payload["gpus"] == {"0": 900.0, "1": 0.0}
    told = event_of(decide(watch(silent_s=60), running(silent_s=120, log=b"epoch 3\n"), NOW))
    assert told.summary == "train on gpu1 has printed nothing for 2 min, last line: epoch 3"
    told = event_of(decide(watch(run_for_s=7200, stop=True), running(6600), NOW))
    assert "its time of 2 h ends in 10 min, and it is stopped then" in told.summary
    told = event_of(decide(watch(run_for_s=7200), running(7300), NOW))
    assert "its time of 2 h is over, and it goes on then" in told.summary
    # The state that the watch shows stays that of the job.
    assert "printed nothing" not in decide(watch(silent_s=60), running(silent_s=120), NOW).watch.last_summary


def test_a_clock_that_is_put_back_begins_the_spell_again() -> None:
    ahead = replace(watch(gpu_idle_s=600), idle_since=NOW + 5000)
    decision = decide(ahead, running(usage=IDLE), NOW)
    assert (decision.watch.idle_since, decision.events) == (NOW, ())


def test_a_machine_is_asked_for_the_use_of_its_gpus_only_if_that_matters() -> None:
    assert question(watch(gpu_idle_s=1)).usage
    assert not question(watch(silent_s=1, run_for_s=1)).usage


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"quiet": "1h"}, "unknown key 'quiet'; it takes: gpu_idle, silent, run_for, stop"),
        ({"silent": "soon"}, 'silent must be a span of time such as "30m"'),
        ({"silent": True}, "silent must be a span"),
        ({"silent": ""}, "silent must be a span"),
        ({"silent": None}, "silent must be a span"),
        ({"silent": "1.2.3h"}, "silent must be a span"),
        ({"silent": "-5m"}, "silent must be a span"),
        ({"silent": "٣h"}, "silent must be a span"),
        ({"run_for": "999999d"}, "run_for"),
        ({"stop": "yes", "run_for": "8h"}, "stop must be true or false"),
        ({"stop": True}, "stop needs the time after which it is stopped"),
    ],
)
def test_alerts_that_cannot_be_meant_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        read_alerts(given)
    assert says in str(caught.value)


def test_a_caller_turns_off_what_the_operator_has_on() -> None:
    assert read_alerts({"gpu_idle": 0}, Alerts(gpu_idle_s=600)) == Alerts()
    assert read_span("x", "1d2h3m4s") == 93784


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (EventType.COMPLETED, JobState.ENDED),
        (EventType.INTERRUPTED, JobState.GONE),
        (EventType.EXHAUSTED, JobState.GONE),
        (EventType.RESUME_STARTED, JobState.RUNNING),
    ],
)
def test_a_look_tells_the_same_as_an_event_of_the_same_job(kind: EventType, state: JobState) -> None:
    event = Event(type=kind, summary="")
    assert told_by(watch(), event) == shown(JOB, state)
    assert told_by(replace(watch(), job_id="job-other"), event) != shown(JOB, state)
    for spell in (EventType.SILENT, EventType.GPU_IDLE, EventType.LEASE_OVER):
        assert told_by(watch(), Event(type=spell, summary="")) not in {shown(JOB, each) for each in JobState}


def test_a_watch_that_is_over_tells_nothing() -> None:
    over = replace(watch(silent_s=1, run_for_s=1, stop=True), status=Status.CANCELLED)
    assert decide(over, running(silent_s=50), NOW) == Decision(over)
