"""The scripts, under the shells and tools of many machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import remote_sandbox_mcp.far.suites
from remote_sandbox_mcp.core.suites.suite import Collected, SuiteFolder, parse_collected, parse_inspection
from tests.support.means import require_program

FOLDER = Path(remote_sandbox_mcp.far.suites.__file__).parent
SHELLS = [
    pytest.param(shell, id=" ".join(shell))
    for shell in (["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "ash"], ["zsh", "--emulate", "sh"])
]
TOOLS = ["cat", "find", "head", "id", "mkdir", "rm", "sed", "sh", "tr", "wc"]
RUN_ID = "run-0123456789abcdef"


class Place:
    """A project, and a folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.project, self.tmp, self.bin = folder / "my project", folder / "tmp", folder / "bin"
        for path in (self.project, self.tmp, self.bin):
            path.mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(self.tmp)}

    def run(self, shell: list[str], script: str, *words: str) -> bytes:
        argv = [require_program(shell[0]), *shell[1:], "-c", (FOLDER / script).read_text(), script, *words]
        done = subprocess.run(argv, cwd=self.project, env=self.env, capture_output=True, timeout=30, check=True)
        assert done.stderr == b""
        return done.stdout

    def look(self, shell: list[str], *plan: str) -> tuple[SuiteFolder, str]:
        return parse_inspection(self.run(shell, "inspect.sh", RUN_ID, *plan))

    def collect(self, shell: list[str], most: int = 1000, all_of_them: int = 1000) -> Collected:
        return parse_collected(self.run(shell, "collect.sh", RUN_ID, str(most), str(all_of_them)))

    def write(self, name: str, text: str, *, after_mark_s: float | None = None) -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if after_mark_s is not None:
            when = (self.tmp / f"rsmcp-tests-{RUN_ID}" / "mark").stat().st_mtime + after_mark_s
            os.utime(path, (when, when))

    def result(self, name: str, text: str) -> None:
        """As the run writes it: newer than its start for certain."""
        self.write(name, text, after_mark_s=5)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_project_is_seen(place: Place, shell: list[str]) -> None:
    for name in ("pyproject.toml", "tests/test_x.py", "tests/deep/test_y.py", "node_modules/a/x.test.js", "notes.md"):
        place.write(name, "[tool.pytest]\n@@ end")
    found, folder = place.look(shell)
    assert found.folder == str(place.project)
    assert folder == f"{place.tmp}/rsmcp-tests-{RUN_ID}"
    assert found.names == {"pyproject.toml", "tests/test_x.py", "tests/deep/test_y.py"}
    assert found.texts == {"pyproject.toml": "[tool.pytest]\n@@ end"}
    assert found.tools["python"] == "python3"
    assert found.tools.get("node", "v").startswith("v")
    assert ("node" in found.tools) == bool(shutil.which("node"))
    assert Path(folder).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("shell", SHELLS)
def test_files_that_only_pytest_runs_are_told_apart_where_it_is_missing(place: Place, shell: list[str]) -> None:
    (place.bin / "python3").symlink_to("/usr/bin/python3")
    place.env["PATH"] = f"{place.bin}:/usr/bin:/bin"
    case = "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"
    files = {
        **{"test_a.py": case, "pkg/__init__.py": "", "pkg/it's_test.py": case, "test_helpers.py": "x = 1\n"},
        **{"test_suite.py": f"{case}\ndef test_suite():\n    pass\n", "tests/test_x.py": "async def test_x(): pass\n"},
        **{"deep/er/test_y.py": "class TestY:\n    def test_y(self): pass\n", "test_z.py": f"import pytest\n{case}"},
        **{".venv/test_no.py": case, "node_modules/test_no.py": case, "own/pyvenv.cfg": "", "own/test_no.py": case},
        **{"mixed/test_m.py": f"{case}\ndef test_main_page():\n    pass\n"},
    }
    for name, text in files.items():
        place.write(name, text)
    found, _ = place.look(shell)
    assert "pytest" not in found.tools
    assert found.for_pytest == {"tests/test_x.py", "deep/er/test_y.py", "test_z.py", "mixed/test_m.py"}
    assert found.for_unittest == {"test_a.py", "pkg/it's_test.py", "test_suite.py"}
    assert "pkg/__init__.py" in found.names
    assert found.tools["home"] == place.env["HOME"]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_run_wrote_is_brought_and_its_place_removed(place: Place, shell: list[str]) -> None:
    _, folder = place.look(shell, '{"a": "it\'s"}')
    Path(folder, "report").write_text("<a>\n\n  <b/>\n</a>")
    place.result("target/surefire-reports/x.xml", "<c/>\n")
    place.result("deep/er/junit-1.xml", "@@ report\n<d/>")
    place.result("lcov.info", "LF:1\n")
    place.write("junit-old.xml", "<old/>", after_mark_s=-5)
    place.result("node_modules/junit.xml", "<not/>")
    place.result("other.xml", "<not/>")
    collected = place.collect(shell)
    assert collected.plan == '{"a": "it\'s"}'
    assert collected.report == b"<a>\n\n  <b/>\n</a>"
    assert collected.files == {
        "target/surefire-reports/x.xml": b"<c/>",
        "deep/er/junit-1.xml": b"@@ report\n<d/>",
        "lcov.info": b"LF:1",
    }
    assert (collected.cut, collected.whole) == ((), True)
    assert list(place.tmp.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_too_large_is_cut_and_told(place: Place, shell: list[str]) -> None:
    _, folder = place.look(shell)
    Path(folder, "report").write_text("r" * 300)
    for n in range(3):
        place.result(f"junit-{n}.xml", "x" * 100)
    collected = place.collect(shell, 200, 450)
    assert collected.report == b"r" * 200
    assert sorted(map(len, collected.files.values())) == [50, 100]
    assert len(collected.cut) == 3
    assert collected.whole


def test_a_run_without_a_place_has_nothing(place: Place) -> None:
    assert place.collect(["sh"]) == Collected(whole=True)


def test_a_place_is_made_once(place: Place) -> None:
    place.look(["sh"])
    with pytest.raises(subprocess.CalledProcessError):
        place.look(["sh"])


def test_old_places_are_removed_and_young_ones_stay(place: Place) -> None:
    old, young = place.tmp / "rsmcp-tests-run-old", place.tmp / "rsmcp-tests-run-young"
    for path in (old, young):
        path.mkdir()
        (path / "report").write_text("x")
    os.utime(old, (1, 1))
    place.look(["sh"])
    assert not old.exists()
    assert young.exists()


def test_names_with_lines_in_them_say_nothing_else(place: Place) -> None:
    place.write("test_\n@@ tool pytest evil\n.py", "")
    found, _ = place.look(["sh"])
    assert found.tools.get("pytest") != "evil"
    place.result("junit\n@@ report\n.xml", "<x/>")
    assert place.collect(["sh"]) == Collected(whole=True)


def test_a_machine_of_busybox_alone(place: Place) -> None:
    busybox = require_program("busybox")
    for tool in TOOLS:
        (place.bin / tool).symlink_to(busybox)
    place.env["PATH"] = str(place.bin)
    place.write("Makefile", "test:\n")
    found, _ = place.look(["busybox", "ash"])
    assert found.names == {"Makefile"}
    assert "python" not in found.tools
    place.result("junit.xml", "<x/>")
    assert place.collect(["busybox", "ash"]).files == {"junit.xml": b"<x/>"}
