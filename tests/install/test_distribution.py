"""The files for a package index: whether the source archive can be tested, and what the metadata says."""

from __future__ import annotations

import email
import email.policy
import os
import re
import subprocess
import sys
import zipfile
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.install.test_setup import ROOT, SETUP_S, UV, copy_project, run

pytestmark = [pytest.mark.xdist_group("distribution"), pytest.mark.timeout(SETUP_S)]
# For the place where the project is developed, not for those who unpack it.
LEFT_OUT = re.compile(r"\.ci/|\.git/")
# Quick ones, of which some read pages, scripts and programs from the tree.
TESTS = ("tests/core/test_checkup.py", "tests/docs/test_commands.py", "tests/support/test_system_packages.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    project = copy_project(folder / "project")
    run(UV, "build", "--quiet", "--no-config", "--python", sys.executable, "--out-dir", folder / "dist", project)
    return folder


def metadata(built: Path) -> EmailMessage:
    (wheel,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [it for it in archive.namelist() if it.endswith(".dist-info/METADATA")]
        found = email.message_from_bytes(archive.read(name), policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def test_the_source_archive_has_all_files_and_its_tests_pass_in_it(built: Path) -> None:
    (file,) = (built / "dist").glob("*.tar.gz")
    (built / "unpacked").mkdir()
    run("tar", "-xzf", file, "-C", built / "unpacked")
    (tree,) = (built / "unpacked").iterdir()
    project = built / "project"
    names = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    unpacked = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {name for name in names - unpacked if not LEFT_OUT.match(name)} == set()
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", *TESTS]
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metadata_has_addresses_classifiers_and_a_description(built: Path) -> None:
    found = metadata(built)
    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    assert {*urls} == {"Homepage", "Documentation", "Changelog", "Issues"}
    classifiers = found.get_all("Classifier", [])
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)} <= {*classifiers}
    assert found["Description-Content-Type"] == "text/markdown"


def test_links_of_the_readme_are_absolute_on_an_index_and_lead_to_files_here(built: Path) -> None:
    found = metadata(built)
    base = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))["Homepage"] + "/"
    targets = re.findall(r"\]\(([^)\s]+)\)", found.get_content())
    assert len(targets) > 20
    assert [it for it in targets if not it.startswith(("https://", "#"))] == []
    for target in targets:
        if target.startswith(base):
            assert (ROOT / target.removeprefix(base).partition("#")[0]).exists(), target
