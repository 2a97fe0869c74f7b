"""The real cargo, which the embedded sandbox cannot see where rustup keeps it in a home."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.suites.suite import TestReport
from remote_sandbox_mcp.services.suites.service import run_tests
from tests.support.fakes.sandbox import Answer, FakeSandbox

CARGO = shutil.which("cargo") or ""
LIBRARY = """pub fn add(a: i32, b: i32) -> i32 { a + b }

#[test]
fn adds() { assert_eq!(add(1, 2), 3); }

#[test]
fn fails() { assert_eq!(add(1, 2), 4); }

#[test]
#[ignore]
fn waits() {}
"""


def here(command: Command) -> Answer:
    """Run it on this machine, as whoever runs the tests."""
    home = Path(CARGO).parents[1]
    env = os.environ | {
        "CARGO_HOME": str(home),
        "RUSTUP_HOME": str(home.parent / ".rustup"),
        "CARGO_NET_OFFLINE": "true",
    }
    done = subprocess.run(
        ["bash", "-c", command.script], cwd=command.cwd or "/", env=env, capture_output=True, check=False
    )
    return Answer(done.stdout, done.stderr, done.returncode)


async def cargo(folder: Path, library: str) -> TestReport:
    (folder / "src").mkdir()
    (folder / "Cargo.toml").write_text('[package]\nname = "sums"\nversion = "0.1.0"\nedition = "2021"\n')
    (folder / "src" / "lib.rs").write_text(library)
    report = await run_tests(FakeSandbox(here), path=str(folder))
    assert isinstance(report, TestReport)
    assert (report.runner, report.command) == ("cargo", "cargo test --no-fail-fast")
    return report


@pytest.mark.skipif(not CARGO, reason="cargo is not installed")
async def test_cargo_is_found_and_run(tmp_path: Path) -> None:
    report = await cargo(tmp_path, LIBRARY)
    assert (report.passed, report.failed, report.skipped) == (1, 1, 1)
    (failure,) = report.failures
    assert (failure.id, failure.file, failure.line) == ("fails", "src/lib.rs", 7)
    assert (report.complete, report.problem, report.exit_code) == (True, "", 101)


@pytest.mark.skipif(not CARGO, reason="cargo is not installed")
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param("fn x( {", "sums could not be compiled", id="does not compile"),
        pytest.param("#[test]\nfn gone() { std::process::abort(); }", "SIGABRT", id="aborts"),
    ],
)
async def test_a_package_that_breaks_is_told(tmp_path: Path, more: str, problem: str) -> None:
    report = await cargo(tmp_path, LIBRARY + more)
    assert problem in report.problem
    assert not report.complete
