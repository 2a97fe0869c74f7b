from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Logging is one for the whole process, so each test has a process of its own.
SCRIPT = """
import json, logging, sys
from remote_sandbox_mcp.core.serving import Logging
from remote_sandbox_mcp.fronts.mcp import logs
told = logs.begin(Logging(**json.loads(sys.argv[1])))
lines = json.loads(sys.argv[2])
for name, level, text in lines:
    logging.getLogger(name).log(getattr(logging, level), "%s", text)
print(json.dumps([told, "logging.handlers" in sys.modules, len(logging.root.handlers)]))
"""
OURS, THEIRS = "remote_sandbox_mcp.any", "asyncssh"
LINES = [(name, level, f"{name} {level}") for name in (OURS, THEIRS) for level in ("DEBUG", "INFO", "WARNING", "ERROR")]


def run(lines: list[tuple[str, str, str]] = LINES, **wanted: object) -> tuple[list[object], list[str]]:
    """What was said of the file and of what was loaded, and what came on standard error."""
    words = [sys.executable, "-c", SCRIPT, json.dumps(wanted), json.dumps(lines)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    (said,) = done.stdout.splitlines()
    return json.loads(said), done.stderr.splitlines()


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        pytest.param("DEBUG", 4, 2, id="all of ours"),
        pytest.param("INFO", 3, 2, id="information"),
        pytest.param("WARNING", 2, 2, id="troubles"),
        pytest.param("ERROR", 1, 1, id="errors"),
        pytest.param("CRITICAL", 0, 0, id="nothing"),
    ],
)
def test_the_level_is_for_our_words_and_libraries_tell_their_troubles(level: str, ours: int, theirs: int) -> None:
    said, stderr = run(level=level)
    assert said == ["", False, 1]
    assert sum(OURS in line for line in stderr) == ours
    assert sum(THEIRS in line for line in stderr) == theirs
    assert all(line.startswith("remote-sandbox-mcp: ") for line in stderr)


def test_by_default_troubles_go_to_standard_error() -> None:
    _, stderr = run()
    assert stderr[0] == f"remote-sandbox-mcp: WARNING: {OURS} WARNING"


def test_a_file_takes_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "server.log"
    said, stderr = run(level="INFO", file=str(file))
    assert (said, stderr) == (["", True, 1], [])
    written = file.read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in written[:2]] == [f"INFO {OURS} INFO", f"WARNING {OURS} WARNING"]
    assert len(written) == 5
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_it_is_rotated_into_three_files_of_the_owners(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.touch(mode=0o644)
    file.chmod(0o644)
    run([(OURS, "INFO", "x" * 1000)] * 100, level="INFO", file=str(file), max_size_mb=0.01)
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["server.log", "server.log.1", "server.log.2"]
    assert all(each.stat().st_size <= 0.01 * (1 << 20) for each in files)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


def test_words_of_machines_do_no_harm_in_the_file(tmp_path: Path) -> None:
    run([(OURS, "ERROR", "\x1b[2Jgone")], file=str(tmp_path / "log"))
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_secrets_are_hidden_in_the_file(tmp_path: Path) -> None:
    run([(OURS, "ERROR", "unable to run: mysql -psesame")], file=str(tmp_path / "log"))
    assert "unable to run: mysql -p[hidden]" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("file", "why"), [("/proc/no/log", "No such file or directory"), ("/proc", "Is a directory")])
def test_a_file_that_cannot_be_written_is_told_and_standard_error_takes_its_place(file: str, why: str) -> None:
    said, stderr = run(file=file)
    assert said[0] == f"unable to log into {file}: {why}; the log is on standard error"
    assert len(stderr) == 4


def test_the_sdk_adds_no_log_of_its_own() -> None:
    script = SCRIPT.replace(
        "print(",
        "from mcp.server.mcpserver import MCPServer\nMCPServer('x', log_level='DEBUG')\nprint(",
    )
    done = subprocess.run([sys.executable, "-c", script, "{}", "[]"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[2] == 1
