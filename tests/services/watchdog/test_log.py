from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.watchdog.daemon import KEPT, OwnLog

PRINTS = """
import logging, os, pathlib, sys
from remote_sandbox_mcp.services.watchdog.daemon import OwnLog
handler = OwnLog(pathlib.Path(sys.argv[1]) / "watchdog.log", largest=1000)
logging.basicConfig(level=logging.INFO, handlers=[handler])
for number in range(100):
    logging.info("line %d %s", number, "x" * 50)
os.write(2, b"printed last\\n")
"""


@pytest.fixture
def record() -> logging.LogRecord:
    return logging.LogRecord("any", logging.INFO, "", 0, "\x1b[2Jodd\x00 \udcff text", None, None)


def test_it_is_rotated_and_what_is_printed_follows(tmp_path: Path) -> None:
    file = tmp_path / "watchdog.log"
    with file.open("ab") as printed:
        subprocess.run([sys.executable, "-c", PRINTS, str(tmp_path)], stdout=printed, stderr=printed, check=True)
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["watchdog.log", *(f"watchdog.log.{n + 1}" for n in range(KEPT))]
    assert all(each.stat().st_size <= 1100 for each in files)
    assert file.read_text().endswith("line 99 " + "x" * 50 + "\nprinted last\n")


def test_every_file_is_the_owners_alone(tmp_path: Path, record: logging.LogRecord) -> None:
    log = OwnLog(tmp_path / "log", largest=10)
    for _ in range(3):
        log.emit(record)
    log.close()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_nothing_in_it_moves_a_terminal(tmp_path: Path, record: logging.LogRecord) -> None:
    log = OwnLog(tmp_path / "log")
    log.emit(record)
    log.close()
    assert (tmp_path / "log").read_text().endswith(" INFO odd␀ ��� text\n")


def test_a_disk_that_is_full_ends_nothing(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "watchdog.log")
    words = [sys.executable, "-c", PRINTS.replace("largest=1000", "largest=10**9"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == "printed last\n"
