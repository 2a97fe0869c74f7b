from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Maker, at_a_terminal, entry, nobody
from tests.support.line import ThreadedLine
from tests.support.pace import at_most
from tests.support.sshd import Sshd, closed_port, wait_until

HOSTILE = b"a\x1b[31m\n\xff"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three files in two folders, one of them with a name that is no text, and something that is left out."""
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/large.bin").write_bytes(os.urandom(1_500_000))
    (folder / "note.txt").write_text("hello\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/" + HOSTILE)).write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("[core]\n")
    return folder


@pytest.fixture
def there(good: Sshd, tmp_path: Path) -> Path:
    """A folder on the machine that no other test has used."""
    return good.home / f"there-{tmp_path.name}"


def content(folder: Path) -> dict[bytes, bytes]:
    """Each file by its path, without .git."""
    root = os.fsencode(folder)
    paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names if b"/.git" not in at]
    return {os.path.relpath(path, root): Path(os.fsdecode(path)).read_bytes() for path in paths}


def make_files(sshd: Sshd, *files: Path) -> None:
    """On the machine, by its user."""
    script = "".join(f"mkdir -p '{file.parent}'; echo old >'{file}'\n" for file in files)
    subprocess.run(sshd.client(script), check=True, capture_output=True, timeout=10)


def test_a_person_s_push_sends_secrets_and_says_so(cli: Cli, tree: Path, there: Path) -> None:
    (tree / ".env").write_text("x")
    (tree / "inner/id_rsa").write_text("x")
    planned = cli("push", str(tree), there.name, "--dry-run")
    assert planned.stdout.splitlines()[-1] == "With names of secrets: .env, inner/id_rsa"
    done, again = (cli("push", str(tree), there.name) for _ in range(2))
    assert done.stdout.splitlines()[-1] == "With names of secrets: .env, inner/id_rsa"
    assert (there / ".env").exists()
    assert "secrets" not in again.stdout


def test_what_was_pushed_is_up_to_date_and_comes_back_as_it_was(
    cli: Cli, good: Sshd, tree: Path, there: Path, tmp_path: Path
) -> None:
    first, second = (cli("push", str(tree), there.name) for _ in range(2))
    planned = cli("push", str(tree), there.name, "--dry-run", "--checksum")
    assert first.code == second.code == 0
    sent, rest = first.stdout.splitlines()
    assert sent.startswith(f"Sent 3 files (1.5 MB) to shared:{there.name} in ")
    assert sent.endswith("/s")
    assert rest == "1 folder made; left out by default: .git (see --no-default-excludes)"
    assert second.stdout.startswith(f"shared:{there.name} is up to date: 3 files unchanged; ")
    assert planned.stdout.startswith("Nothing to do; 3 files unchanged; left out by default: .git")
    fetched = cli("pull", f"shared:{there}", str(tmp_path / "back"))
    assert fetched.stdout.startswith(f"Fetched 3 files (1.5 MB) to {tmp_path}/back in ")
    assert content(tmp_path / "back") == content(there) == content(tree)
    assert first.stderr == second.stderr == fetched.stderr == ""


def test_json_is_what_the_tool_returns(cli: Cli, good: Sshd, tree: Path, there: Path) -> None:
    told = cli("push", "--json", str(tree), str(there))
    fields = told.json
    assert (told.code, told.stderr) == (0, "")
    assert fields.pop("duration_s") > 0
    assert fields.pop("wire_bytes") > 1_500_000
    assert fields == {
        "mode": "inline", "synced_type": "directory", "uploaded_dirs": 1, "uploaded_files": 3, "skipped_files": 0,
        "deleted_files": 0, "deleted_dirs": 0, "bytes": 1_500_007, "excluded_by_default": [".git"],
    }  # fmt: skip


def test_a_dry_run_shows_each_action_and_does_none(cli: Cli, good: Sshd, tree: Path, there: Path) -> None:
    make_files(good, there / "note.txt", there / "extra/file")
    shown = cli("push", "--dry-run", "--delete", str(tree), str(there))
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "new                inner/",
        "new       1 bytes  a␊�",
        "size      6 bytes  note.txt",
        "new        1.5 MB  inner/large.bin",
        "delete             extra/",
        "delete             extra/file",
        "Would send 3 files (1.5 MB), make 1 folder, delete 2; 0 files unchanged; "
        "left out by default: .git (see --no-default-excludes)",
    ]
    told = cli("push", "--dry-run", "--delete", str(tree), str(there), "--json").json
    assert (told["mode"], told["would_send_files"], told["delete"]) == ("dry_run", 3, ["extra/file", "extra"])
    assert content(there) == {b"note.txt": b"old\n", b"extra/file": b"old\n"}


def test_deleting_everything_needs_a_yes(cli: Cli, good: Sshd, there: Path, tmp_path: Path) -> None:
    make_files(good, there / "one", there / "inner/two")
    (tmp_path / "empty").mkdir()
    words = ("push", "--delete", str(tmp_path / "empty"), str(there))
    refused = cli(*words)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"remote-sandbox-mcp: --delete is refused: {tmp_path}/empty is empty, so everything would be deleted; "
        "add --yes if that is really meant, or look first with --dry-run\n"
    )
    assert len(content(there)) == 2
    done = cli(*words, "--yes")
    assert (done.code, content(there)) == (0, {})
    assert done.stdout.endswith("\n2 files deleted, 1 folder deleted\n")


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 2)])
def test_at_a_terminal_the_user_is_asked(
    cli: Cli, good: Sshd, there: Path, tmp_path: Path, answer: str, left: int
) -> None:
    make_files(good, there / "one", there / "inner/two")
    (tmp_path / "empty").mkdir()
    seen = at_a_terminal(
        cli, "push", "--delete", str(tmp_path / "empty"), str(there), typed=f"{answer}\n".encode()
    )  # fmt: skip
    assert "so everything would be deleted\r\nDelete 2 files and 1 folder there? [y/N] " in seen
    assert len(content(there)) == left
    assert ("nothing was done" in seen) == bool(left)


def test_patterns_come_from_options_and_a_file(cli: Cli, good: Sshd, tree: Path, there: Path, tmp_path: Path) -> None:
    (tmp_path / "patterns").write_bytes(b"# a comment\r\n*.bin\r\n*.txt\n")
    options = ("--exclude-file", str(tmp_path / "patterns"), "--exclude", "!note.txt", "--exclude", "a*")
    assert cli("push", str(tree), str(there), *options, "--no-default-excludes").code == 0
    assert {path.name for path in there.rglob("*") if path.is_file()} == {"note.txt", "config"}


def test_problems_are_told_one_by_one_and_end_with_1(cli: Cli, good: Sshd, tree: Path, there: Path) -> None:
    make_files(good, there / "note.txt/in the way")
    plain = cli("push", str(tree), str(there))
    assert (plain.code, plain.stderr) == (
        1, "note.txt: a folder that is not empty is in the way; --delete replaces it\n"
    )  # fmt: skip
    assert plain.stdout.startswith("Sent 2 files (1.5 MB)")
    assert "1 problem" in plain.stdout


def test_files_go_from_machine_to_machine(
    cli: Cli, good: Sshd, made: Maker, tree: Path, there: Path, tmp_path: Path
) -> None:
    vault = made("vault", auth="password")
    cli.machines.append(entry(vault))
    make_files(good, there / "file", there / "inner/other")
    done = cli("push", f"shared:{there}", f"vault:{there.name}")
    assert done.stdout.startswith(f"Sent 2 files (8 bytes) to vault:{there.name} in "), done.stderr
    assert content(vault.home / there.name) == content(there)
    back = cli("pull", "--sandbox", "vault", there.name, f"shared:{there}-2")
    assert content(there.with_name(f"{there.name}-2")) == content(there), back.stderr


def test_one_that_is_stopped_leaves_the_old_file_and_goes_on_later(
    cli: Cli, good: Sshd, there: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(os.urandom(24 << 20))
    make_files(good, there / "model.bin")
    with ThreadedLine(good.port, rtt_s=0.03) as line:
        cli.machines = [entry(good, port=line.port)]
        process = cli.start("push", str(file), str(there / "model.bin"))
        wait_until(lambda: list(there.glob(".remote-sandbox-part-*")), what="the first parts to arrive")
        line.freeze()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (130, b"")
    assert stderr == b"remote-sandbox-mcp: stopped; the same command, given again, goes on from there\n"
    assert (there / "model.bin").read_text() == "old\n"
    cli.machines = [entry(good)]
    assert cli("push", str(file), str(there / "model.bin")).code == 0
    assert (there / "model.bin").read_bytes() == file.read_bytes()
    assert [path.name for path in there.iterdir()] == ["model.bin"]


def test_a_terminal_is_shown_how_far_it_is(cli: Cli, good: Sshd, there: Path, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(os.urandom(8 << 20))
    with ThreadedLine(good.port, rtt_s=0.05) as line:
        cli.machines = [entry(good, port=line.port)]
        seen = at_a_terminal(cli, "push", f"{tmp_path}/model.bin", f"{there}/")
    assert "scanning" in seen
    assert " of 8.39 MB" in seen
    assert f"Sent 1 file (8.39 MB) to shared:{there}/ in " in "".join(seen.split("\r\n")[-3:])


NAMES = "there are: shared, local. A path with a colon is written ./shard:x"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["HERE", "shard:x"], f"no sandbox is named 'shard'; did you mean shared? {NAMES}", id="name"),
        pytest.param(["HERE/missing", "x"], "/missing does not exist", id="missing"),
        pytest.param(["HERE", "x", "--exclude-file", "/no"], "exclude_file /no cannot be read", id="patterns"),
    ],
)
def test_mistakes_are_one_sentence_and_2(cli: Cli, good: Sshd, tmp_path: Path, words: list[str], sentence: str) -> None:
    outcome = cli("push", *(word.replace("HERE", str(tmp_path)) for word in words))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("remote-sandbox-mcp: ")
    assert sentence in outcome.stderr


def test_no_connection_is_255_at_once(cli: Cli, tmp_path: Path) -> None:
    with closed_port() as port:
        cli.machines = [nobody("gone", port)]
        plain, told = cli("push", str(tmp_path), "gone:x"), cli("pull", "gone:x", str(tmp_path), "--json")
    assert (plain.code, told.code) == (255, 255)
    assert "nothing listens on that port" in plain.stderr
    assert told.json["connection_error"] is True
    assert plain.seconds < at_most(5)


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    text = " ".join(cli("pull", "--help").stdout.split())
    assert "1 when some entries were not (each is named)" in text
    assert "255 without a connection, 130 after Ctrl-C" in text
