"""`--json` and exit codes over all verbs: one document on standard output, also of a failure, and its code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.cli.main import parser
from tests.cli.conftest import Cli, nobody
from tests.support.sshd import Sshd, free_port


def all_parsers(top: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every verb and action, by its words."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield " ".join((*words, name)), inner
                yield from all_parsers(inner, *words, name)


def test_every_verb_and_action_takes_json() -> None:
    without = [words for words, each in all_parsers(parser()) if "--json" not in each._option_string_actions]
    assert without == []


@pytest.fixture
def dead(cli: Cli) -> None:
    """The only machine, and nothing listens on its port."""
    cli.machines = [nobody("dead", port=free_port())]


MISTAKES = [
    *(
        "doctor nowhere",
        "exec --sandbox nowhere -- true",
        "jobs list --sandbox nowhere",
        "jobs start",
        "jobs resume run-0123456789abcdef",
    ),
    *("jobs attach none", "sessions --sandbox nowhere", "sessions close none:none", "push /nowhere nowhere:x"),
    *("pull dead:x", "transfers show none", "link nowhere:x", "unlink /", "create --on nowhere", "delete sb-none"),
    *(
        "forward nowhere 80",
        "forward dead 0",
        "login dead",
        "hosts forget nowhere",
        "config allow /nowhere",
        "top --sort x",
    ),
    *("completion tcsh", "events -n x", "calls --nonsense", "jobs resume --nonsense x", "nonsense"),
]


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_document_and_2(cli: Cli, words: str) -> None:
    outcome = cli("--json", *words.split())
    assert (outcome.code, set(outcome.json) >= {"error", "code"} or set(outcome.json) >= {"problems"}) == (2, True)


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize(
    "words",
    ["exec -- true", "jobs start -- true", "jobs stop x", "jobs wait x", "jobs resume x", "forward dead 80",
     "push /etc/hostname dead:x", "pull dead:x /tmp/none-such"],
)  # fmt: skip
def test_a_machine_that_cannot_be_reached_is_one_document_and_255(cli: Cli, words: str) -> None:
    verb, *rest = words.split()
    outcome = cli(
        verb, *(["--json"] if verb != "jobs" else []), *rest[:1], *(["--json"] if verb == "jobs" else []), *rest[1:]
    )
    assert (outcome.code, outcome.json["connection_error"]) == (255, True)


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        *[
            (words, 0)
            for words in ("sandboxes", "top", "jobs", "sessions", "transfers", "workspaces", "hosts", "config")
        ],
        *[(words, 0) for words in ("config path", "config deny /nowhere", "completion bash")],
        *[(words, 1) for words in ("doctor dead", "hub", "hub restart", "hub log", "watchdog", "platform status")],
    ],
    ids=str,
)
def test_what_there_is_to_say_is_one_document(cli: Cli, words: str, code: int) -> None:
    outcome = cli(*words.split(), "--json")
    assert (outcome.code, type(outcome.json)) == (code, dict)


def test_a_job_is_told_as_json_from_its_log_to_its_end(cli: Cli, good: Sshd) -> None:
    assert (
        cli("jobs", "start", "--json", "--name", "json", "--", "echo one; sleep 1; exit 3").json["status"] == "started"
    )
    followed = [json.loads(line) for line in cli("jobs", "logs", "-f", "json", "--json").stdout.splitlines()]
    assert "".join(line.get("log", "") for line in followed) == "one\nEXIT_CODE=3\n"
    assert (followed[-1]["running"], followed[-1]["exit_code"]) == (False, 3)
    assert cli("jobs", "logs", "json", "--json").json["log_tail"] == "one\nEXIT_CODE=3"
    assert (cli("jobs", "wait", "json", "--json").code, cli("jobs", "stop", "json", "--json").code) == (3, 0)
    for action in ("show", "logs", "stop", "wait"):
        unknown = cli("jobs", action, "no-such-job", "--json")
        assert (unknown.code, unknown.json["code"]) == (2, "unknown_task")


def test_a_timeout_is_one_document_and_124(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "slow", "--", "sleep 100")
    waited = cli("jobs", "wait", "slow", "--timeout", "0.1", "--json")
    assert (waited.code, waited.json["running"]) == (124, True)


def test_a_project_is_accepted_and_denied_as_json(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / ".remote-sandbox.toml"
    file.write_text('sandbox = "gpu1"\n')
    (accepted,) = cli("config", "allow", str(file), "--yes", "--json").json["accepted"]
    assert (accepted["path"], accepted["settings"]["sandbox"]) == (str(file), "gpu1")
    assert cli("config", "deny", str(file), "--json").json == {"denied": [{"path": str(file), "was_accepted": True}]}
