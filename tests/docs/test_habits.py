"""The map for coding agents names what exists, and the hooks of pre-commit are the checks of `make lint`."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.doc_pages import ROOT

AGENTS, CONTRIBUTING, MAKEFILE, HOOKS = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("AGENTS.md", "CONTRIBUTING.md", "Makefile", ".pre-commit-config.yaml")
)
# A map: what is longer is for CONTRIBUTING.md.
LONGEST_MAP = 80
LINT = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
PLACES = sorted(set(re.findall(r"`((?:src|tests|docs|examples|scripts)/[^`\s]*|[\w.-]+\.(?:md|toml|txt))`", AGENTS)))
GOALS = sorted(set(re.findall(r"(?:`|^)make ([a-z]+)", AGENTS + CONTRIBUTING, re.M)))


def test_the_map_is_short() -> None:
    assert len(AGENTS.splitlines()) <= LONGEST_MAP


@pytest.mark.parametrize("place", PLACES)
def test_the_map_names_places_that_exist(place: str) -> None:
    assert (ROOT / place).exists()


@pytest.mark.parametrize("goal", GOALS)
def test_every_goal_of_make_that_is_named_exists(goal: str) -> None:
    assert re.search(rf"^{goal}:", MAKEFILE, re.M)


def test_the_hooks_are_the_checks_of_lint() -> None:
    assert LINT
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in LINT.group(1).splitlines() if "\t@" not in line]
    *others, scripts = re.findall(r"^ +entry: (.+)$", HOOKS, re.M)
    assert others == commands[:-1]
    assert commands[-1].endswith(f"xargs -0 {scripts}")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
def test_the_hook_for_scripts_reads_the_files_that_lint_reads() -> None:
    assert LINT
    words = re.search(r"git ls-files -z (.*?) \|", LINT.group(1))
    pattern = re.search(r"^ +files: (.+)$", HOOKS, re.M)
    assert words
    assert pattern
    linted = files(f"git ls-files {words.group(1)}")
    assert linted == [file for file in files("git ls-files") if re.search(pattern.group(1), file)]


def test_the_hooks_download_nothing() -> None:
    assert re.findall(r"^ *- repo: (.+)$", HOOKS, re.M) == ["local"]
    assert set(re.findall(r"^ +language: (.+)$", HOOKS, re.M)) == {"system"}


def files(command: str) -> list[str]:
    listed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(listed.stdout.split())
