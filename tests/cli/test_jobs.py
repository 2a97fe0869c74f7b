from __future__ import annotations

import re

import pytest

from tests.cli.conftest import DEADLINE_S, Cli
from tests.support.sshd import Sshd


@pytest.fixture
def waits(cli: Cli, good: Sshd) -> str:
    """A job that goes on until a file is there, and then ends with 7."""
    (good.home / "go-on").unlink(missing_ok=True)
    command = "echo begun; until [ -e go-on ]; do sleep 0.05; done; echo done; exit 7"
    begun = cli("jobs", "start", "--name", "waits", "--", command)
    assert (begun.code, begun.stdout) == (0, "waits\n")
    assert "it runs on shared; to follow it: remote-sandbox-mcp jobs logs -f waits" in begun.stderr
    return "waits"


def test_a_job_is_started_listed_followed_and_waited_for(cli: Cli, good: Sshd, waits: str) -> None:
    header, *rows = cli("jobs").stdout.splitlines()
    # The machine is shared, and may have jobs of other tests.
    (row,) = [each for each in rows if each.startswith("waits ")]
    assert header.split() == ["name", "on", "state", "for", "command"]
    assert row.split()[:3] == ["waits", "shared", "running"]
    assert "waits" not in cli("jobs", "--state", "ended").stdout
    patience = cli("jobs", "wait", waits, "--timeout", "0.2")
    assert (patience.code, patience.stderr) == (
        124,
        "remote-sandbox-mcp: waits still runs after 0.2 s; it goes on\n",
    )

    following = cli.start("jobs", "logs", "-f", waits)
    assert following.stdout.readline() == b"begun\n"
    (good.home / "go-on").touch()
    assert following.communicate(DEADLINE_S) == (
        b"done\n",
        b"remote-sandbox-mcp: waits failed with exit code 7\n",
    )
    waited = cli("jobs", "wait", waits)
    assert (waited.code, waited.stderr) == (7, "remote-sandbox-mcp: waits failed with exit code 7\n")
    assert cli("jobs", "list", "--json").json["tasks"][0]["exit_code"] == 7
    assert cli("jobs", "logs", waits, "-n", "1").stdout == "done\n"


def test_a_followed_log_is_shown_whole_however_fast_it_grew(cli: Cli, good: Sshd) -> None:
    (good.home / "go-on").unlink(missing_ok=True)
    # 2.1 MB in lines of seven bytes: wherever a piece of it ends, a character is cut sooner or later.
    command = "echo begun; until [ -e go-on ]; do sleep 0.05; done; yes äöü | head -n 300000; echo the end; exit 3"
    cli("jobs", "start", "--name", "fast", "--", command)
    following = cli.start("jobs", "logs", "-f", "fast")
    assert following.stdout.readline() == b"begun\n"
    (good.home / "go-on").touch()
    shown, said = following.communicate(DEADLINE_S)
    assert shown.decode() == "äöü\n" * 300_000 + "the end\n"
    assert said == b"remote-sandbox-mcp: fast failed with exit code 3\n"

    lines = cli("jobs", "logs", "fast", "-n", "50000")
    assert (lines.stdout, lines.stderr) == ("äöü\n" * 49_999 + "the end\n", "")
    most = cli("jobs", "logs", "fast", "-n", "250000")
    assert set(most.stdout.splitlines()) == {"äöü", "the end"}
    assert most.stderr.startswith("remote-sandbox-mcp: these are only the last 1.05 MB of the log; the page ")


def test_nothing_is_said_of_the_end_of_a_job_that_runs_on_without_its_reader(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "talks-on", "--", "while echo a line; do sleep 0.05; done")
    following = cli.start("jobs", "logs", "-f", "talks-on")
    assert following.stdout.readline() == b"a line\n"
    following.stdout.close()
    assert following.communicate(DEADLINE_S) == (b"", b"")
    cli("jobs", "stop", "talks-on")


def test_a_card_of_a_job_has_its_numbers(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "learns", "--", "for n in 1 2 3 4; do echo step $n/10 loss=$((9 - n)); done")
    cli("jobs", "wait", "learns")
    assert re.search(r"numbers +loss 5 \(min 5\) falling\n", cli("jobs", "show", "learns").stdout)


def test_a_job_is_stopped_and_a_mistake_is_one_sentence(cli: Cli, good: Sshd, waits: str) -> None:
    assert "running" in cli("jobs", "show", waits).stdout
    assert cli("jobs", "stop", waits, "--json").json["stopped"] is True
    unknown = cli("jobs", "logs", "no-such-job")
    assert (unknown.code, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("remote-sandbox-mcp: shared knows no task 'no-such-job': ")
    nothing = cli("jobs", "start")
    assert (nothing.code, nothing.stderr) == (
        2,
        "remote-sandbox-mcp: what is to be run? remote-sandbox-mcp jobs start -- COMMAND\n",
    )


def test_a_job_is_resumed(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "goes-on", "--resume", "exit 4", "--", "exit 3")
    assert cli("jobs", "wait", "goes-on").code == 3
    resumed = cli("jobs", "resume", "goes-on", "--json")
    assert (resumed.code, resumed.json["status"], resumed.json["tmux_session"]) == (0, "started", "goes-on")
    assert cli("jobs", "wait", "goes-on").code == 4
    event = cli("events", "-n", "1", "--json").json
    assert (event["event_type"], event["payload"]["asked_by"]) == ("resume_started", "the command line")


def test_a_job_without_a_resume_command_says_how_to_give_one(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "alone", "--", "exit 3")
    cli("jobs", "wait", "alone")
    refused = cli("jobs", "resume", "alone")
    assert (refused.code, refused.stdout, refused.stderr) == (
        2,
        "",
        "remote-sandbox-mcp: alone has no resume command; give one: "
        "remote-sandbox-mcp jobs resume alone --command COMMAND\n",
    )
    assert cli("jobs", "resume", "alone", "--command", "exit 5").stdout == "alone\n"
    assert cli("jobs", "wait", "alone").code == 5


def test_a_job_that_asks_for_gpus_waits_in_the_list_and_can_be_raised_and_stopped(cli: Cli, good: Sshd) -> None:
    asked = ("--gpus", "2", "--gpu-memory", "40g", "--on", "any", "--priority", "5", "--run-for", "8h")
    begun = cli("jobs", "start", "--name", "cards", *asked, "--", "train")
    assert (begun.code, begun.stdout) == (0, "cards\n"), begun.stderr
    reason = "shared: it has no GPU"
    assert f"it is pending: {reason}; to follow it: remote-sandbox-mcp jobs logs -f cards" in begun.stderr
    listed = cli("jobs", "--state", "pending").stdout
    (row,) = [each for each in listed.splitlines() if each.startswith("cards ")]
    assert row.split()[:3] == ["cards", "any", "pending"]
    assert f"cards: pending: {reason}" in listed
    shown = cli("jobs", "show", "cards").stdout
    assert "cards  on any" in shown
    assert f"waits    {reason}" in shown
    assert cli("jobs", "raise", "cards").stdout == "cards has priority 6 now\n"
    assert cli("jobs", "raise", "cards", "--priority", "1", "--json").json["priority"] == 1
    waited = cli("jobs", "wait", "cards", "--timeout", "0.2")
    assert waited.code == 124
    unplaced = cli("jobs", "start", "--gpus", "1", "--no-wait", "--", "train")
    assert (unplaced.code, unplaced.stdout) == (2, "")
    assert reason in unplaced.stderr
    both = cli("jobs", "start", "--on", "any", "--sandbox", "shared", "--", "train")
    assert "--on and --sandbox were both given" in both.stderr
    stopped = cli("jobs", "stop", "cards")
    assert (stopped.code, stopped.stdout) == (0, "cards was stopped: it was stopped before it started\n")
    assert cli("jobs", "raise", "cards").code == 2


def test_a_job_starts_after_another_has_ended_well(cli: Cli, good: Sshd, waits: str) -> None:
    begun = cli("jobs", "start", "--name", "later", "--after", waits, "--", "echo now")
    assert "it is pending: it starts after waits has ended" in begun.stderr
    # It ends with 7.
    (good.home / "go-on").touch()
    waited = cli("jobs", "wait", "later")
    assert "it was to start after waits, which failed with exit code 7" in waited.stderr
    cli("jobs", "start", "--name", "first", "--", "true")
    cli("jobs", "start", "--name", "second", "--after", "first", "--", "echo now")
    assert cli("jobs", "wait", "second").code == 0
    assert cli("jobs", "logs", "second").stdout == "now\n"
