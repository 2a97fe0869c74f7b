"""A watch over a job: its policy, state and events; and the checks of a caller's wishes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from .. import check
from ..errors import NOT_PERMITTED, BadArgument
from .alerts import NO_ALERTS, Alerts, read_alerts

FORMATS = ("text", "json")
PLAN_KEYS = ("resume_command", "cwd", "env", "checkpoint_path", "checkpoint_command", "checkpoint_format")
# 0.x has these in its plans; here they are the job's own.
OF_JOB = ("launch_command", "tmux_session")
LEAST_INTERVAL_S, LONGEST_S = 1.0, 7 * 86400.0
MOST_ATTEMPTS = 100
LONGEST_METADATA = 64 << 10


class Status(str, Enum):
    """State of a watch. Only an active one is looked after."""

    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"


class EventType(str, Enum):
    """Kinds of events of a watched job."""

    SSH_UNREACHABLE = "ssh_unreachable"
    RUNNING_RESTORED = "running_restored"
    INTERRUPTED = "interrupted"
    RESUME_STARTED = "resume_started"
    RESUME_FAILED = "resume_failed"
    COMPLETED = "completed"
    CONFIG_MISSING = "config_missing"
    EXHAUSTED = "exhausted"
    GPU_IDLE = "gpu_idle"
    SILENT = "silent"
    LEASE_OVER = "lease_over"


# Told to the session that started the job; the others say only that a machine could not be asked for a while.
WAKING = frozenset(EventType) - {EventType.SSH_UNREACHABLE, EventType.RUNNING_RESTORED, EventType.CONFIG_MISSING}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Policy of a watch; fixed when it is made, but for a resume command that somebody gives later."""

    interval_s: float = 300.0
    alert_after_failures: int = 2
    auto_resume: bool = False
    resume_delay_s: float = 300.0
    max_resume_attempts: int = 1
    resume_command: str = ""
    resume_cwd: str = ""
    # Not shown: variables are where people keep tokens.
    resume_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint_path: str = ""
    checkpoint_command: str = ""
    checkpoint_format: str = "text"
    log_lines: int = 80
    notify_local: bool = True
    webhook_url: str = ""
    # Names of the operator's hooks.
    hooks: tuple[str, ...] = ()
    alerts: Alerts = NO_ALERTS


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A watch as its row says. Times are seconds since the epoch, 0 for not yet; `version` counts its changes."""

    id: int = 0
    version: int = 0
    run_id: str = ""
    name: str = ""
    sandbox: str
    session: str
    log_file: str = ""
    cwd: str = ""
    command: str = ""
    # The job that is looked after now; a resume has an id of its own. Empty for a session that is not ours.
    job_id: str = ""
    policy: Policy = Policy()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.ACTIVE
    # starting, pending, running, unreachable, config_missing, unknown, interrupted, resuming, completed, exhausted,
    # cancelled
    last_state: str = "starting"
    last_summary: str = ""
    last_error: str = ""
    last_exit_code: int | None = None
    last_log_tail: str = ""
    last_checkpoint: str = ""
    failures: int = 0
    # Whether the current trouble has been announced.
    alerted: bool = False
    interrupted_at: float = 0.0
    resume_attempts: int = 0
    created: float = 0.0
    updated: float = 0.0
    checked: float = 0.0
    due: float = 0.0
    # Since when its GPUs have been idle; and which alerts were told, as words, until what they say is over.
    idle_since: float = 0.0
    told: str = ""
    # Client and local folder of the session that began it; and where that session can be told of its events: what it
    # has in common with its successors, and its own name, pid and birth.
    client: str = ""
    folder: str = ""
    home: str = ""
    seat: str = ""
    # Configuration under which it was begun; others do not see its commands. Empty for rows of earlier versions.
    configuration: str = ""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Event of a watched job; it is announced once."""

    type: EventType
    summary: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0
    watch_id: int = 0
    created: float = 0.0


@dataclass(frozen=True)
class Resume:
    """Start the watch's job again, under this id, if the job `instead_of` is gone without having ended.

    One that somebody asked for starts also after that job's end; `before` is the watch's status to go back to if it is
    refused.
    """

    job_id: str
    instead_of: str
    asked_by: str = ""
    before: Status = Status.ACTIVE


@dataclass(frozen=True)
class NoContact:
    """The machine could not be asked; `config`: because the sandbox is not configured (any more)."""

    reason: str
    config: bool = False


@dataclass(frozen=True)
class Decision:
    """The new watch, its events, and perhaps a resume. Every event is announced as the policy says.

    `stop`: the job's time is over, and it is to be stopped.
    """

    watch: Watch
    events: tuple[Event, ...] = ()
    resume: Resume | None = None
    stop: bool = False


class Unsent(Exception):
    """A notification that failed; `passing`: a later attempt may succeed."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


@dataclass(frozen=True, kw_only=True)
class WatchOrder:
    """Order to watch a job, as the caller gave it."""

    run_id: str = ""
    name: str = ""
    resume_command: str = ""
    resume_plan_json: str = ""
    checkpoint_path: str = ""
    checkpoint_command: str = ""
    checkpoint_format: str = "text"
    interval_s: float = 300
    alert_after_failures: int = 2
    resume_delay_s: float = 300
    notify_local: bool = True
    webhook_url: str = ""
    event_command: str = ""
    auto_resume: bool = False
    max_resume_attempts: int = 1
    metadata_json: str = ""
    codex_wakeup: bool = False
    codex_command: str = ""
    log_lines: int = 80
    alerts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Allowed:
    """Permissions of the operator's configuration for a watch; each function raises BadArgument for anything else."""

    webhook: Callable[[str], str]
    hook: Callable[[str], str]


@dataclass(frozen=True)
class ResumePlan:
    """A resume plan: what to run again, and where its progress is; `more` is what the caller keeps in it."""

    resume_command: str = ""
    cwd: str = ""
    env: Mapping[str, str] | None = None
    checkpoint_path: str = ""
    checkpoint_command: str = ""
    checkpoint_format: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


def make_policy(order: WatchOrder, cwd: str, allowed: Allowed, usual: Alerts = NO_ALERTS) -> Policy:
    """The policy of a watch. Raises BadArgument now for what would fail later, when no caller is there to read it.

    `usual`: the operator's alerts, for those that the caller leaves out.
    """
    plan = read_plan(order.resume_plan_json)
    resume_command = order.resume_command or plan.resume_command
    check_figures(order)
    for name in ("resume_command", "checkpoint_path", "checkpoint_command", "run_id", "name"):
        check.text_argument(name, getattr(order, name), required=False)
    if order.auto_resume and not resume_command.strip():
        raise BadArgument("auto_resume needs something to resume with: give resume_command, or set auto_resume=false")
    return Policy(
        interval_s=order.interval_s,
        alert_after_failures=order.alert_after_failures,
        auto_resume=order.auto_resume,
        resume_delay_s=order.resume_delay_s,
        max_resume_attempts=order.max_resume_attempts,
        resume_command=resume_command,
        resume_cwd=plan.cwd or cwd,
        resume_env=plan.env or {},
        checkpoint_path=order.checkpoint_path or plan.checkpoint_path,
        checkpoint_command=order.checkpoint_command or plan.checkpoint_command,
        checkpoint_format=checkpoint_format(order, plan),
        log_lines=order.log_lines,
        notify_local=order.notify_local,
        webhook_url=allowed.webhook(order.webhook_url) if order.webhook_url else "",
        hooks=wanted_hooks(order, allowed),
        alerts=read_alerts(order.alerts, usual),
    )


def check_figures(order: WatchOrder) -> None:
    check.in_range("interval_s", order.interval_s, LEAST_INTERVAL_S, LONGEST_S)
    check.in_range("resume_delay_s", order.resume_delay_s, 0, LONGEST_S)
    check.in_range("alert_after_failures", order.alert_after_failures, 1, 1000)
    check.in_range("max_resume_attempts", order.max_resume_attempts, 1 if order.auto_resume else 0, MOST_ATTEMPTS)
    check.in_range("max_log_lines", order.log_lines, 1, 1000)


def checkpoint_format(order: WatchOrder, plan: ResumePlan) -> str:
    wanted = plan.checkpoint_format if order.checkpoint_format == "text" and plan.checkpoint_format else ""
    form = wanted or order.checkpoint_format
    if form not in FORMATS:
        raise BadArgument(f"checkpoint_format is {form[:40]!r}, but must be text or json")
    return form


def wanted_hooks(order: WatchOrder, allowed: Allowed) -> tuple[str, ...]:
    """event_command and codex_command run on the user's computer, so they may only name what the operator allows."""
    wanted = [order.event_command, codex_hook(order)]
    return tuple(dict.fromkeys(allowed.hook(name) for name in wanted if name))


def codex_hook(order: WatchOrder) -> str:
    return order.codex_command or ("codex" if order.codex_wakeup else "")


def permitted(order: WatchOrder, allowed: Allowed) -> tuple[WatchOrder, tuple[str, ...]]:
    """The order without what the operator has not allowed, and a sentence for each of that. Raises BadArgument."""
    notes = []
    for allow, wanted, without in (
        (allowed.webhook, order.webhook_url, {"webhook_url": ""}),
        (allowed.hook, order.event_command, {"event_command": ""}),
        (allowed.hook, codex_hook(order), {"codex_command": "", "codex_wakeup": False}),
    ):
        try:
            allow(wanted) if wanted else None
        except BadArgument as problem:
            if problem.reason != NOT_PERMITTED:
                raise
            order = replace(order, **without)
            notes.append(f"{' and '.join(without)} left out: {problem}")
    if more := ", ".join(key[:40] for key in read_plan(order.resume_plan_json).more):
        notes.append(f"what is not used of resume_plan_json is kept in metadata: {more}")
    return order, tuple(notes)


def read_plan(text: str) -> ResumePlan:
    """A resume plan from its JSON. Raises BadArgument."""
    given = read_object("resume_plan_json", text)
    fields = {key: value for key, value in given.items() if key in PLAN_KEYS}
    for key, value in fields.items():
        if key == "env":
            check_variables(value)
        elif not isinstance(value, str):
            raise BadArgument(f"resume_plan_json: {key} must be a text")
        else:
            check.text_argument(f"resume_plan_json: {key}", value, required=False)
    return ResumePlan(**fields, more=beside_plan(given))


def beside_plan(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a plan that are not used here."""
    return {key: value for key, value in given.items() if key not in (*PLAN_KEYS, *OF_JOB)}


def facts(metadata: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of the caller, with the other parts of its plan."""
    return ({"resume_plan": more} if more else {}) | dict(metadata)


def check_variables(value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
        raise BadArgument('resume_plan_json: env must be an object of texts, for example {"STEP": "7"}')
    for name, item in value.items():
        if not name or "=" in name:
            raise BadArgument(f"resume_plan_json: env: {name[:40]!r} is no name for a variable")
        check.text_argument("resume_plan_json: env", name + item)


def read_object(argument: str, text: str) -> dict[str, Any]:
    """A JSON object, empty for no text. Raises BadArgument."""
    if not text.strip():
        return {}
    if len(text) > LONGEST_METADATA:
        raise BadArgument(f"{argument} has {len(text)} characters; at most {LONGEST_METADATA} are kept")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadArgument(f"{argument} is not valid JSON ({problem}); nothing was started") from None
    if not isinstance(value, dict):
        raise BadArgument(f"{argument} must be a JSON object, such as {{...}}; nothing was started")
    return value
