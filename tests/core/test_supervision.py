"""What may be asked of a watch: made into a policy, or refused in one sentence before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.jobs.watch import (
    Allowed,
    WatchOrder,
    facts,
    make_policy,
    permitted,
    read_object,
    read_plan,
)


def refuse(_: str) -> str:
    raise BadArgument("not allowed")


EVERYTHING = Allowed(lambda url: url, lambda name: name)
NOTHING = Allowed(refuse, refuse)


def test_nothing_is_resumed_unless_that_is_asked_for() -> None:
    policy = make_policy(WatchOrder(), "/work", NOTHING)
    assert not policy.auto_resume
    assert (policy.interval_s, policy.alert_after_failures, policy.resume_delay_s) == (300, 2, 300)
    assert (policy.webhook_url, policy.hooks) == ("", ())


def test_a_resumed_job_starts_where_the_job_did_unless_its_plan_says_otherwise() -> None:
    order = WatchOrder(resume_command="go on", auto_resume=True)
    assert make_policy(order, "/work", NOTHING).resume_cwd == "/work"
    planned = replace(order, resume_plan_json='{"cwd": "/other", "env": {"STEP": "7"}}')
    policy = make_policy(planned, "/work", NOTHING)
    assert (policy.resume_command, policy.resume_cwd, policy.resume_env) == ("go on", "/other", {"STEP": "7"})


def test_a_plan_gives_what_the_arguments_leave_out() -> None:
    plan = '{"resume_command": "sh again.sh", "checkpoint_path": "~/run.json", "checkpoint_format": "json"}'
    policy = make_policy(WatchOrder(resume_plan_json=plan, auto_resume=True), "", NOTHING)
    assert policy.resume_command == "sh again.sh"
    assert (policy.checkpoint_path, policy.checkpoint_format) == ("~/run.json", "json")
    assert make_policy(WatchOrder(resume_plan_json='{"checkpoint_command": "show"}'), "", NOTHING).checkpoint_command


def test_a_plan_may_have_more_than_is_used() -> None:
    """0.7.6: a structured plan, with at least resume_command and the checkpoint; its own plans have two more keys."""
    plan = {"resume_cmd": "x", "steps": [1, 2], "launch_command": "a", "tmux_session": "t", "resume_command": "b"}
    order = WatchOrder(resume_plan_json=json.dumps(plan))
    assert read_plan(order.resume_plan_json).more == {"resume_cmd": "x", "steps": [1, 2]}
    assert permitted(order, NOTHING)[1] == (
        "what is not used of resume_plan_json is kept in metadata: resume_cmd, steps",
    )
    assert facts({"a": 1}, {"steps": [1]}) == {"a": 1, "resume_plan": {"steps": [1]}}
    assert facts({"resume_plan": 2}, {"steps": [1]}) == {"resume_plan": 2}


def test_arguments_go_before_the_plan() -> None:
    plan = '{"resume_command": "b", "checkpoint_path": "b"}'
    policy = make_policy(WatchOrder(resume_plan_json=plan, resume_command="a", checkpoint_path="a"), "", NOTHING)
    assert (policy.resume_command, policy.checkpoint_path) == ("a", "a")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"auto_resume": True}, "auto_resume needs something to resume with", id="nothing to resume with"),
        pytest.param({"auto_resume": True, "resume_command": "  "}, "auto_resume needs", id="blank resume command"),
        pytest.param({"resume_plan_json": "{"}, "resume_plan_json is not valid JSON", id="broken plan"),
        pytest.param({"resume_plan_json": "[" * 60_000}, "resume_plan_json is not valid JSON", id="deep plan"),
        pytest.param({"resume_plan_json": "[]"}, "must be a JSON object", id="plan is a list"),
        pytest.param({"resume_plan_json": '{"cwd": 7}'}, "cwd must be a text", id="plan of wrong type"),
        pytest.param({"resume_plan_json": '{"env": {"A": 1}}'}, "env must be an object of texts", id="env of numbers"),
        pytest.param({"resume_plan_json": '{"env": {"A=B": "1"}}'}, "is no name for a variable", id="odd variable"),
        pytest.param({"resume_plan_json": '{"cwd": "a\\u0000"}'}, "NUL", id="NUL in the plan"),
        pytest.param({"resume_plan_json": '{"checkpoint_format": "xml"}'}, "must be text or json", id="plan's format"),
        pytest.param({"checkpoint_format": "xml"}, "must be text or json", id="format"),
        pytest.param({"resume_command": "a\0b"}, "NUL", id="NUL"),
        pytest.param({"interval_s": 0}, "interval_s is 0", id="no interval"),
        pytest.param({"interval_s": float("nan")}, "interval_s", id="interval is no number"),
        pytest.param({"resume_delay_s": -1}, "resume_delay_s is -1", id="negative delay"),
        pytest.param({"alert_after_failures": 0}, "alert_after_failures is 0", id="alert at once"),
        pytest.param(
            {"auto_resume": True, "resume_command": "x", "max_resume_attempts": 0},
            "max_resume_attempts is 0",
            id="no attempts",
        ),
        pytest.param({"log_lines": 0}, "max_log_lines", id="no lines"),
        pytest.param({"webhook_url": "https://example.com"}, "not allowed", id="webhook"),
        pytest.param({"event_command": "rm -rf ~"}, "not allowed", id="event command"),
        pytest.param({"codex_command": "codex exec"}, "not allowed", id="codex command"),
        pytest.param({"codex_wakeup": True}, "not allowed", id="codex wakeup"),
    ],
)
def test_a_policy_that_would_fail_later_is_refused_now(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgument) as refused:
        make_policy(WatchOrder(**fields), "", NOTHING)
    assert says in str(refused.value)


def test_allowed_hooks_are_kept_without_duplicates() -> None:
    order = WatchOrder(webhook_url="https://a/b", event_command="tell", codex_command="tell", codex_wakeup=True)
    policy = make_policy(order, "", EVERYTHING)
    assert (policy.webhook_url, policy.hooks) == ("https://a/b", ("tell",))
    assert make_policy(WatchOrder(codex_wakeup=True), "", EVERYTHING).hooks == ("codex",)


def test_a_policy_does_not_show_its_variables() -> None:
    order = WatchOrder(resume_command="x", resume_plan_json='{"env": {"TOKEN": "hunter2"}}')
    assert "hunter2" not in repr(make_policy(order, "", NOTHING))


def test_no_text_is_an_empty_object() -> None:
    assert read_object("metadata_json", " ") == {}
    assert read_plan("").resume_command == ""


def test_values_that_are_too_long_are_refused() -> None:
    with pytest.raises(BadArgument, match="at most"):
        read_object("metadata_json", '{"a": "' + "x" * 70_000 + '"}')
