from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, at_a_terminal
from tests.support.sshd import Sshd


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program, data and a secret."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "a.py").write_text("print('one')\n")
    (folder / "src/b.txt").write_text("b\n")
    (folder / ".env").write_text("TOKEN=1\n")
    (folder / "big.bin").write_bytes(b"\0" * 1000)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def there(good: Sshd, tmp_path: Path) -> Path:
    """A folder on the machine that no other test has used."""
    return good.home / f"there-{tmp_path.name}"


@pytest.fixture
def linked(cli: Cli, project: Path, there: Path) -> Iterator[Path]:
    done = cli("link", f"shared:{there.name}", "--exclude", "*.bin")
    assert (done.code, done.stderr) == (0, "")
    yield project
    os.chdir(project)
    cli("unlink")


def shell(sshd: Sshd, command: str) -> None:
    """What a person does on the machine."""
    subprocess.run(sshd.client(command), check=True, capture_output=True, timeout=10)


def test_a_link_is_shown_before_it_is_made_and_is_listed_until_it_is_ended(
    cli: Cli, project: Path, there: Path
) -> None:
    place = f"shared:{there.name}"
    planned = cli("link", place, "--dry-run")
    assert (planned.code, there.exists()) == (0, False)
    first, *notes = planned.stdout.splitlines()
    assert first == f"Would send 3 files (1.01 KB) of {project} to shared:{there}"
    assert notes[0].startswith("not sent, because the name is that of a secret: .env;")
    assert cli("link", place, "--dry-run", "--json", "--include", ".env").json["files"] == 4
    made = cli("link", place, "--exclude", "*.bin")
    assert made.stdout.splitlines()[0] == f"Linked {project} = shared:{there}"
    assert sorted(path.name for path in there.iterdir()) == ["a.py", "src"]
    again = cli("link", place)
    assert (again.code, (there / "big.bin").exists()) == (0, False)
    listed = cli("workspaces")
    assert (listed.code, "in step" in listed.stdout, str(project) in listed.stdout) == (0, True, True)
    assert [each["status"] for each in cli("workspaces", "--json").json["workspaces"]] == ["in step"]
    ended = cli("unlink", str(project / "src"))
    assert ended.stdout == f"Unlinked {project} = shared:{there}; both sides keep their files.\n"
    assert cli("workspaces").stdout.startswith("No folder is linked; ")
    assert ((project / "a.py").exists(), (there / "a.py").exists()) == (True, True)
    assert cli("unlink").code == 2


@pytest.mark.parametrize(("typed", "is_made"), [(b"y\n", True), (b"n\n", False)], ids=["yes", "no"])
def test_a_person_at_a_terminal_is_asked(cli: Cli, project: Path, there: Path, typed: bytes, is_made: bool) -> None:
    seen = at_a_terminal(cli, "link", f"shared:{there.name}", typed=typed)
    assert "3 files (1.01 KB)" in seen
    assert "Link it? [y/N]" in seen
    assert (there.exists(), "nothing was done" in seen) == (is_made, not is_made)
    if is_made:
        cli("unlink")


def test_a_command_in_a_linked_folder_runs_there_with_what_changed(cli: Cli, linked: Path, there: Path) -> None:
    (linked / "a.py").write_text("print('two')\n")
    done = cli("exec", "--", "sh", "-c", "pwd; python3 a.py; echo x >made.txt; exit 3")
    assert (done.code, done.stdout) == (3, f"{there}\ntwo\n")
    assert done.stderr == "remote-sandbox-mcp: workspace: sent a.py (13 bytes); came back: made.txt (2 bytes)\n"
    assert (linked / "made.txt").read_text() == "x\n"
    os.chdir(linked / "src")
    quiet = cli("exec", "pwd; cat b.txt")
    assert (quiet.stdout, quiet.stderr) == (f"{there}/src\nb\n", "")
    (linked / "a.py").write_text("three\n")
    assert cli("exec", "--json", "--cwd", ".", "cat a.py").json == {
        "exit_code": 0,
        "stdout": "three\n",
        "workspace": "sent a.py (6 bytes)",
    }
    os.chdir("/")
    assert cli("exec", "pwd").stdout == f"{there.parent}\n"


def test_nothing_runs_where_what_changed_cannot_be_sent(cli: Cli, linked: Path, good: Sshd, there: Path) -> None:
    linked.rename(linked.with_name("moved"))
    linked.mkdir()
    os.chdir(linked)
    refused = cli("exec", "touch ran")
    linked.rmdir()
    linked.with_name("moved").rename(linked)
    assert (refused.code, refused.stdout, (there / "ran").exists()) == (2, "", False)
    assert refused.stderr.startswith("remote-sandbox-mcp: nothing was done on shared, because what changed in ")


def test_a_current_folder_that_was_removed_is_in_no_workspace(cli: Cli, good: Sshd, project: Path) -> None:
    """The command is started in it by a shell, as a person would."""
    gone = project / "gone"
    gone.mkdir()
    words = ["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *cli.command, "exec", "pwd"]
    done = subprocess.run(words, env=cli.env, capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stdout) == (0, f"{good.home}\n"), done.stderr


def test_conflicts_are_shown_and_decided(cli: Cli, linked: Path, good: Sshd, there: Path) -> None:
    shell(good, f"cd {there} && echo theirs | tee a.py >src/b.txt")
    for file in ("a.py", "src/b.txt"):
        (linked / file).write_text("ours is longer\n")
    shown = cli("workspaces")
    assert (shown.code, "in conflict: a.py, src/b.txt" in shown.stdout) == (1, True)
    os.chdir(linked / "src")
    decided = cli("workspaces", "--keep-local", "../a.py", "--keep-remote", "b.txt")
    assert (decided.code, "in step" in decided.stdout) == (0, True)
    assert ((there / "a.py").read_text(), (linked / "src/b.txt").read_text()) == ("ours is longer\n", "theirs\n")
    assert cli("workspaces", "--keep-remote", "../../x").code == 2


def test_what_a_machine_deletes_is_in_the_trash_and_is_restored(
    cli: Cli, linked: Path, good: Sshd, there: Path
) -> None:
    assert cli("workspaces", "trash").stdout == "Nothing is in the trash.\n"
    deleted = cli("exec", "rm -r src; echo evil >a.py")
    assert "moved to the trash, since deleted there: src/b.txt (remote-sandbox-mcp workspaces restore" in deleted.stderr
    listed = cli("workspaces", "trash", ".", "--json").json["trash"]
    assert sorted((each["path"], each["bytes"]) for each in listed) == [
        (str(linked / "a.py"), 13),
        (str(linked / "src/b.txt"), 2),
    ]
    shown = cli("workspaces", "trash").stdout
    assert str(linked / "src/b.txt") in shown
    back = cli("workspaces", "restore", "src")
    assert (back.code, back.stdout) == (0, f"Restored {linked}/src/b.txt\n")
    assert (linked / "src/b.txt").read_text() == "b\n"
    refused = cli("workspaces", "restore", "a.py")
    assert (refused.code, "add --force" in refused.stderr) == (2, True)
    assert cli("workspaces", "restore", "a.py", "--force").code == 0
    assert (linked / "a.py").read_text() == "print('one')\n"
    assert cli("workspaces", "trash", "--empty").stdout == "Deleted 5 bytes for good.\n"
    assert cli("workspaces", "trash", "--json").json == {"trash": []}
    assert cli("exec", "cat a.py src/b.txt").stdout == "print('one')\nb\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["workspaces", "restore", "a.py"], "is not in the trash"),
        (["link", "project"], "names no sandbox; write SANDBOX:FOLDER"),
        (["link", "nowhere:project"], "nowhere"),
        (["link", "shared:~"], "the home folder"),
        (["link", "shared:/etc", "."], "a folder of the operating system"),
        (["link", "shared:p", "/"], "the root of the file system"),
        (["link", "shared:p", "missing"], "is not a folder"),
        (["workspaces", "--keep-local", "a.py"], "the current folder is not linked"),
    ],
)
def test_mistakes_are_told_and_nothing_is_linked(
    cli: Cli, good: Sshd, project: Path, words: list[str], told: str
) -> None:
    failed = cli(*words)
    assert (failed.code, failed.stdout) == (2, "")
    assert told in failed.stderr
    assert cli("workspaces", "--json").json == {"workspaces": []}


def test_the_local_sandbox_each_of_whose_processes_has_a_root_of_its_own_can_be_linked(cli: Cli, project: Path) -> None:
    assert cli("link", "local:work", "--yes").code == 0
    (project / "a.py").write_text("open('made.txt', 'w').write('two')\n")
    ran = cli("exec", "--", "python3 a.py")
    assert (ran.code, ran.stderr) == (
        0,
        "remote-sandbox-mcp: workspace: sent a.py (35 bytes); came back: made.txt (3 bytes)\n",
    )
    assert (project / "made.txt").read_text() == "two"
    assert cli("unlink").code == 0


# Jobs in one


def test_a_job_runs_in_the_linked_folder_on_what_is_here_and_its_results_come_back(
    cli: Cli, linked: Path, there: Path
) -> None:
    (linked / "src/b.txt").write_text("changed\n")
    os.chdir(linked / "src")
    begun = cli("jobs", "start", "--name", f"made-{linked.parent.name}", "--", "cat b.txt > made.txt; pwd >> made.txt")
    assert (begun.code, begun.stdout) == (0, f"made-{linked.parent.name}\n")
    assert "workspace: sent src/b.txt" in begun.stderr
    waited = cli("jobs", "wait", f"made-{linked.parent.name}")
    assert waited.code == 0, waited.stderr
    assert (linked / "src/made.txt").read_text() == f"changed\n{there}/src\n"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("push", "a.py", "shard:x"), id="push"),
        pytest.param(("push", "shard:x", "x"), id="push from"),
        pytest.param(("pull", "shard:x", "x"), id="pull"),
        pytest.param(("pull", "x", "shard:x"), id="pull to"),
        pytest.param(("link", "shard:x"), id="link"),
    ],
)
def test_every_verb_refuses_an_unknown_name_before_a_colon(
    cli: Cli, good: Sshd, project: Path, words: tuple[str, ...]
) -> None:
    done = cli(*words)
    assert done.code == 2
    assert "no sandbox is named 'shard'; did you mean shared?" in done.stderr
    assert "A path with a colon is written ./shard:x" in done.stderr


@pytest.mark.parametrize("words", [("push", "a.py", "shared:x"), ("pull", "shared:x", "x")], ids=["push", "pull"])
def test_a_path_on_another_sandbox_than_the_named_one_is_refused(
    cli: Cli, good: Sshd, project: Path, words: tuple[str, ...]
) -> None:
    done = cli(*words, "--sandbox", "local")
    assert done.code == 2
    assert "shared:x names another sandbox than local" in done.stderr
