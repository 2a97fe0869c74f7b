"""Words are completed in real shells, with names of the configuration and of the records."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from remote_sandbox_mcp.cli.main import VERBS
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.disposables import DisposableRows, Kept, Owner
from remote_sandbox_mcp.local.store.jobs import JobRecord, JobRecords
from tests.cli.conftest import COMMAND, DEADLINE_S, Cli, nobody

BASH = """\
source <("{command}" completion bash)
COMP_LINE={line!r} COMP_POINT=${{#COMP_LINE}}
COMP_LINE="$COMP_LINE"
_remote_sandbox_mcp
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def known(cli: Cli) -> Cli:
    """Two machines that cannot be reached, a job and a disposable sandbox."""
    cli.machines = [nobody("gpu1"), nobody("gpu2")]
    database = Database(paths.state_folder() / STATE_FILE)
    JobRecords(database).add(JobRecord(job_id="job-00000001", sandbox="gpu1", session="train-7"))
    made = Disposable(id="sb-0123456789ab", provider="embedded", key="k", name="box", created=1.0)
    DisposableRows(database).add_ready(Kept(disposable=made, timeout_s=600.0, owner=Owner(1, "1")))
    database.close()
    return cli


def words(found: str) -> set[str]:
    return {line.partition("\t")[0] for line in found.splitlines()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["jo"], {"jobs"}),
        (["jobs", "lo"], {"logs"}),
        (["jobs", "logs", "t"], {"train-7"}),
        (["jobs", "logs", "--fo"], {"--follow"}),
        (["exec", "--sandbox", "gpu"], {"gpu1", "gpu2"}),
        (["exec", "--sandbox=gpu1"], {"--sandbox=gpu1"}),
        (["exec", "--", "gp"], set()),
        (["exec", "ls", "gp"], set()),
        (["push", "g"], {":files"}),
        (["push", "a", "gpu"], {"gpu1:", "gpu2:"}),
        (["delete", "sb-"], {"sb-0123456789ab"}),
        (["delete", "x", "sb-"], {"sb-0123456789ab"}),
        (["forward", "gpu2"], {"gpu2"}),
        (["jobs", "--state", "e"], {"ended"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["no-such-verb", "x"], set()),
        (["--config", ""], {":files"}),
    ],
    ids=lambda words: " ".join(words if isinstance(words, list) else sorted(words)),
)
def test_words_that_fit_are_told(known: Cli, line: list[str], expected: set[str]) -> None:
    assert words(known("__complete", *line).stdout) == expected


def test_all_verbs_are_told_and_no_database_is_made(cli: Cli) -> None:
    assert words(cli("__complete", "").stdout) == set(VERBS)
    assert cli("__complete", "jobs", "logs", "").stdout == ""
    assert not (paths.state_path() / STATE_FILE).exists()


def in_bash(cli: Cli, line: str) -> set[str]:
    script = BASH.format(command=COMMAND, line=f"{COMMAND} {line}")
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=cli.env, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return set(done.stdout.split())


def test_bash_completes(known: Cli) -> None:
    assert in_bash(known, "exec --sandbox gp") == {"gpu1", "gpu2"}
    # bash has begun a new word after the colon or the equal sign.
    assert in_bash(known, "exec --sandbox=gpu1") == {"gpu1"}


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes(known: Cli) -> None:
    env = known.env | {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}
    script = "remote-sandbox-mcp completion fish | source; complete -C 'remote-sandbox-mcp jobs logs t'"
    done = subprocess.run(
        ["fish", "-N", "-c", script], env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == "train-7\tstarting on gpu1\n"


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes(known: Cli) -> None:
    env = known.env | {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "> "}
    terminal, inside = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], env=env, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    )
    os.close(inside)
    try:
        setup = "autoload -Uz compinit; compinit -u -D; source <(remote-sandbox-mcp completion zsh); echo rea''dy\n"
        os.write(terminal, setup.encode())
        heard(terminal, b"ready")
        os.write(terminal, b"echo done; remote-sandbox-mcp jobs logs tra\t")
        heard(terminal, b"train-7")
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def heard(terminal: int, what: bytes) -> None:
    """Read until that was printed."""
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    while what not in seen:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], seen
        seen += os.read(terminal, 65536)
