from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Maker, entry
from tests.support.sshd import Sshd, wait_until


@pytest.fixture(params=[True, False], ids=["python", "plain shell"])
def machine(request: pytest.FixtureRequest, cli: Cli, made: Maker) -> Sshd:
    sshd = made("used" if request.param else "used-plainly", python=request.param)
    cli.machines = [entry(sshd)]
    return sshd


def clean(cli: Cli, *words: str) -> tuple[set[str], set[str]]:
    """The jobs that were removed, and those that were kept."""
    outcome = cli("clean", *words, "--json")
    assert outcome.code == 0, outcome.stderr
    (row,) = outcome.json["sandboxes"]

    def jobs(which: str) -> set[str]:
        found: list[dict[str, Any]] = row[which]
        return {it["path"] for it in found if it["kind"] == "job"}

    return jobs("removed"), jobs("kept")


def records(machine: Sshd) -> set[str]:
    """Folders of jobs, wherever this machine has them."""
    places = [machine.home / ".local/state/remote-sandbox", Path(f"/tmp/remote-sandbox-{machine.uid}")]
    return {str(path) for place in places for path in place.rglob("job-*") if path.is_dir()}


def test_what_has_ended_is_removed_and_what_runs_goes_on(cli: Cli, machine: Sshd) -> None:
    assert cli("jobs", "start", "--name", "short", "--", "true").code == 0
    assert cli("jobs", "wait", "short").code == 0
    (short,) = records(machine)
    assert cli("jobs", "start", "--name", "long", "--", "until [ -e go-on ]; do sleep 0.05; done; exit 7").code == 0
    long = records(machine) - {short}
    assert len(long) == 1

    assert clean(cli, machine.name, "--dry-run") == ({short}, long)
    assert records(machine) == {short, *long}
    assert clean(cli, machine.name) == ({short}, long)
    assert records(machine) == long
    shown = cli("clean", machine.name).stdout
    assert "kept, because they run or have no record of their end: 1 job" in shown

    (machine.home / "go-on").touch()
    assert cli("jobs", "wait", "long").code == 7
    assert clean(cli, machine.name) == (long, set())
    assert records(machine) == set()
    assert cli("exec", "--sandbox", machine.name, "--", "echo", "works").stdout == "works\n"


def test_only_folders_of_ours_are_removed(cli: Cli, made: Maker) -> None:
    machine = made("used")
    cli.machines = [entry(machine)]
    script = (
        "mkdir -p .local/share precious/job-0123456789 .local/state/remote-sandbox/jobs/here/mine;"
        "echo 0 >precious/job-0123456789/end; ln -s ~/precious .local/share/remote-sandbox;"
        "ln -s ~/precious/job-0123456789 .local/state/remote-sandbox/jobs/here/job-0123456789"
    )
    assert cli("exec", "--sandbox", machine.name, "--", script).code == 0
    assert clean(cli, machine.name) == (set(), set())
    assert (machine.home / "precious/job-0123456789/end").exists()
    assert (machine.home / ".local/share/remote-sandbox").is_symlink()
    assert (machine.home / ".local/state/remote-sandbox/jobs/here/mine").is_dir()


def test_records_of_commands_are_removed_once_they_have_ended(cli: Cli, machine: Sshd) -> None:
    base = Path(f"/tmp/remote-sandbox-{machine.uid}")
    running = cli.start(
        "exec", "--sandbox", machine.name, "--", "touch begun; until [ -e end-it ]; do sleep 0.05; done"
    )
    wait_until((machine.home / "begun").exists, what="the command")
    assert cli("clean", machine.name).code == 0
    assert [*base.glob("run-*")]
    (machine.home / "end-it").touch()
    assert running.communicate(60) == (b"", b"")


def test_a_machine_that_cannot_be_reached_does_not_keep_the_others(cli: Cli, good: Sshd) -> None:
    cli.machines.append(entry(good, name="gone", port=1))
    outcome = cli("clean", "gone", good.name, "--json")
    assert outcome.code == 255
    gone, cleaned = outcome.json["sandboxes"]
    assert (gone["sandbox"], "error" in gone, cleaned["sandbox"]) == ("gone", True, good.name)
