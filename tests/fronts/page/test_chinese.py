"""The page in Chinese: no sentence, unit or word of ours stays in English."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import remote_sandbox_mcp.fronts.page.app as page_app
from remote_sandbox_mcp.core.jobs.alerts import Alerts
from remote_sandbox_mcp.core.jobs.job import Fate, JobSeen, JobStarted, JobState, JobUsage, QueueSeen
from remote_sandbox_mcp.core.jobs.lifecycle import decide, resume_now, resume_refused, resumed
from remote_sandbox_mcp.core.jobs.queue import _STUCK, FATES
from remote_sandbox_mcp.core.jobs.watch import EventType, NoContact, Policy, Resume, Status, Watch
from remote_sandbox_mcp.core.task import TaskState
from tests.fronts.page.test_browser_modules import ask, blank_tabs
from tests.support.chromium import Tab, chromium
from tests.support.page_sentences import PAGE, TOLD_TO_OTHERS, UNASKED, reached, shown_reasons, shown_sentences, texts

if TYPE_CHECKING:
    from playwright.async_api import Browser

WATCH = Watch(
    id=1, job_id="j", sandbox="gpu1", session="train",
    policy=Policy(auto_resume=True, resume_command="x", max_resume_attempts=3, alert_after_failures=1),
)  # fmt: skip
STARTED = JobStarted(job_id="j2", session="train", log_file="", cwd="", via="tmux")
# Names of the world of these tests, of programs and of formats, which are the same in every language.
NAMES = re.compile(
    r"train|gpu\d|SIG[A-Z]+|loss|scontrol|release|QOS|remote-sandbox-mcp|dashboard|allow|PATH|JSON|Content-Type|"
    r"application/json|Priority|main|sshd|shell|GPU|CPU|GB|kB|MB|tool|arguments|NAME|path|folder|GET|words|name|before"
)


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    async with blank_tabs(browser) as opener:
        yield await opener()


def seen(state: JobState, **fields: object) -> JobSeen:
    return JobSeen(state=state, job_id="j", session="train", seconds=3725.0, **fields)  # type: ignore[arg-type]


def events() -> Iterator[tuple[EventType, str]]:
    """Every event that a watched job can have, as the watchdog words it."""
    running = seen(JobState.RUNNING, log=b"loss 0.2\n")
    queued = seen(JobState.PENDING, queue=QueueSeen(number="7", reason="Priority", partition="main"))
    lost = replace(WATCH, alerted=True)
    gone = replace(WATCH, interrupted_at=1.0)
    ends = [seen(JobState.ENDED, exit_code=0), seen(JobState.ENDED, exit_code=3)]
    ends += [
        seen(JobState.ENDED, exit_code=143, signal="SIGTERM"),
        seen(JobState.ENDED, exit_code=137, signal="SIGKILL"),
    ]
    ends += [seen(JobState.ENDED, fate=Fate.OUT_OF_MEMORY), seen(JobState.ENDED, fate=Fate.CANCELLED)]
    fates = [seen(JobState.GONE, fate=fate) for fate in (Fate.TIME_LIMIT, Fate.PREEMPTED, Fate.NODE_FAILED)]
    fates += [seen(JobState.GONE, fate=Fate.REQUEUED), seen(JobState.GONE), seen(JobState.GONE, rebooted=True)]
    over = replace(WATCH, resume_attempts=3)
    decisions = [
        *(decide(WATCH, each, 10.0) for each in (*ends, *fates)),
        *(decide(over, each, 10.0) for each in fates),
        *(decide(each, now, 10.0) for each in (lost, gone) for now in (running, queued)),
        decide(WATCH, NoContact("no answer"), 10.0),
        decide(replace(WATCH, failures=1), NoContact("no answer"), 10.0),
        decide(WATCH, NoContact("no answer", config=True), 10.0),
        decide(WATCH, seen(JobState.MISSING), 10.0),
        resumed(resume_now(WATCH, "", 10.0).watch, STARTED, 10.0),
        resumed(resume_now(WATCH, "", 10.0).watch, replace(STARTED, via="slurm"), 10.0),
        resumed(resume_now(WATCH, "gpu2", 10.0).watch, STARTED, 10.0, asked_by="gpu2"),
        resumed(resume_now(WATCH, "", 10.0).watch, "no answer", 10.0),
        resumed(resume_now(WATCH, "gpu2", 10.0).watch, "no answer", 10.0, asked_by="gpu2"),
        resume_refused(WATCH, Resume("j", "j", "gpu2", Status.ACTIVE), "no answer", 10.0),
    ]
    idle = JobUsage(gpus={0: 900.0, 1: 9.0}, busy={0: 0.0, 1: 0.0})
    for alerts, now in (
        (Alerts(gpu_idle_s=1.0), replace(running, usage=idle)),
        (Alerts(silent_s=60.0), replace(running, silent_s=200.0)),
        (Alerts(silent_s=60.0), replace(running, silent_s=200.0, log=b"")),
        *(
            (Alerts(run_for_s=7200.0, stop=stop), replace(running, seconds=s))
            for stop in (True, False)
            for s in (6900, 7300)
        ),
    ):
        watch = replace(WATCH, policy=replace(WATCH.policy, alerts=alerts), idle_since=1.0)
        decisions.append(decide(watch, now, 500.0))
    for decision in decisions:
        yield from ((event.type, event.summary) for event in decision.events)
    for state in (running, queued):
        yield EventType.COMPLETED, decide(WATCH, state, 10.0).watch.last_summary


def refusals() -> Iterator[str]:
    """Every sentence with which the page is refused something."""
    constants = {name: value for name, value in vars(page_app).items() if isinstance(value, str)}
    for file in Path(page_app.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PageRefusal":
                said = node.args[1]
                if isinstance(said, ast.Name) and said.id in constants:
                    yield constants[said.id]
                elif isinstance(said, ast.Constant):
                    yield str(said.value)
                elif isinstance(said, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in said.values)


# Options, programs and examples in errors, which are the same in every language.
CODE = re.compile(
    r"`[^`]*`|(?<!\w)~?/[\w./]+|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|\S+/\S+|\w+_\w+|\S+@\S+|(?<![\w-])--?\w+|\w+ = \w+"
)
TERMS = re.compile(
    r"\w+_\w+|--\w+|name=|\*\.name|config\.toml|doctor|python\S*|sudo|root|SFTP|AllowTcpForwarding|slurm|Slurm|UTF-8|MiB|"
    r"\btmux\b|\btext\b|\bkeys\b|\bon\b|gpu|\bnetwork|\benv|\bvolumes|\bimage|\bmemory|\bsource\b|\btarget\b|excludes|"
    r"platform up|chmod|keyring\w*( set| diagnose)?|opensandbox|OpenSandbox|OpenSSH|sshd?\b|-G|"
    r"ssh-add|sbatch|uv tool install|hub|VALUE|Match|Include|"
    r"TOML|Unicode|UTF|NUL|DNS|SSH|MaxSessions|glibc|debootstrap|base64|nvidia-smi|run-\.\.\.|sb-\.\.\.|\btar\b|\bpod\b|false|"
    r"\b(agent|content|default|diagnose|files|host|hosts|includes|jump|password|port)\b|"
    r"\b(provider|timeout|transport|user|webhooks|enabled|command)\b|"
    r"case \$- in|exec fish|esac|\botp\b|bubblewrap|slirp4netns|Landlock|Linux|Debian|Ubuntu|Fedora|RHEL|docker|podman|"
    r"StrictHostKeyChecking|sinfo|kernel\.yama|rlimit|remote-sandbox-mcp|login|ProxyCommand|config|restart|Host\b|read_only|writable|"
    r"workspaces|trash|true|\bafter\b|\bany\b|/bin/sh|sleep|commit|example\.org|a100|Python"
)


async def test_every_error_that_the_page_shows_is_told_in_chinese(tab: Tab) -> None:
    sentences = shown_sentences()
    assert len(sentences) > 300
    left = await in_english(tab, sorted(sentences), TERMS)
    assert left == [], "\n".join(left)


async def test_every_reason_that_fills_a_gap_is_told_in_chinese(tab: Tab) -> None:
    reasons = shown_reasons()
    assert len(reasons) > 150
    left = await in_english(tab, sorted(reasons), TERMS)
    assert left == [], "\n".join(left)


def test_modules_whose_errors_are_not_shown_are_modules_that_the_page_leads_to() -> None:
    names = {name.partition(".")[2] for name in reached(PAGE)}
    assert set(UNASKED) <= names
    assert [it for it in TOLD_TO_OTHERS if not any(name == it or name.startswith(f"{it}.") for name in names)] == []


async def test_a_sentence_without_a_translation_is_found(tab: Tab) -> None:
    made = texts(ast.parse('f"{name} has no translation" + (MORE if name else "; say it")', mode="eval").body, PAGE)
    assert made == ["7 has no translation; say it"]
    assert len(await in_english(tab, made, TERMS)) == 1
    assert len(await in_english(tab, ["gpu1: no translation is here; try again"], TERMS)) == 1


async def in_english(tab: Tab, sentences: list[str], names: re.Pattern[str] = NAMES) -> list[str]:
    """Those in which an English word is left when a Chinese reader sees them."""
    script = """(async ({ speak }, { SENTENCES }) => {
        speak("zh");
        m.learn(SENTENCES);
        return given.map(m.said);
    })(await import("/words.js"), await import("/sentences.js"))"""
    told = await ask(tab, "saying.js", script, sentences)
    return [f"{one} -> {other}" for one, other in zip(sentences, told, strict=True) if is_english(other, names)]


def is_english(text: str, names: re.Pattern[str] = NAMES) -> bool:
    rest = CODE.sub("", NAMES.sub("", names.sub("", text)))
    return bool(re.search(r"[A-Za-z]{2,}", rest)) or not re.search("[\u4e00-\u9fff]", text)


async def test_every_event_is_told_in_chinese(tab: Tab) -> None:
    told = list(events())
    assert {kind for kind, _ in told} == set(EventType)
    assert await in_english(tab, sorted({summary for _, summary in told})) == []


async def test_every_reason_and_refusal_is_told_in_chinese(tab: Tab) -> None:
    assert await in_english(tab, [*FATES.values(), *_STUCK.values(), *sorted(set(refusals()))]) == []


async def test_every_state_and_unit_is_chinese(tab: Tab) -> None:
    states = [state.value for state in TaskState if state is not TaskState.IDLE]
    kinds = [kind.value for kind in EventType]
    script = "(m.speak('zh'), given.map((word) => m.t(word)))"
    assert [word for word in await ask(tab, "words.js", script, [*states, *kinds]) if is_english(word)] == []
    units = "[5, 65, 3700, 90000].map(m.duration).concat(m.took(0.2), m.took(3))"
    script = f"(async (words) => (words.speak('zh'), {units}))(await import('/words.js'))"
    assert await ask(tab, "format.js", script) == [
        *("5 秒", "1 分 05 秒", "1 小时 01 分", "1 天 1 小时", "200 毫秒", "3.0 秒"),
    ]
