"""Makes a release: python scripts/release.py VERSION (or `make release VERSION=1.1.0`). CONTRIBUTING.md says more.

Sets the version wherever it is written, dates the changelog, runs all checks, makes the packages, and commits and tags
all of it. Nothing is published; if anything fails, the tree is as it was.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Files in which the version is written, and how.
PLACES = {
    "src/remote_sandbox_mcp/__init__.py": '__version__ = "{}"',
    "plugin/.claude-plugin/plugin.json": '"version": "{}"',
    "plugin/.codex-plugin/plugin.json": '"version": "{}"',
    "packaging/mcpb.json": '"version": "{}"',
    "server.json": '"version": "{}"',
}
CHANGELOG = "CHANGELOG.md"
CHECKS = (("make", "check"), ("make", "docs"), ("make", "packages"))


def main() -> int:
    (wanted,) = sys.argv[1:] or [""]
    before = version()
    if problem := refusal(wanted, before):
        print(f"no release was made: {problem}", file=sys.stderr)
        return 2
    files = [*PLACES, CHANGELOG]
    try:
        prepare(ROOT, before, wanted, datetime.now(timezone.utc).strftime("%Y-%m-%d"))
        for words in CHECKS:
            subprocess.run(words, cwd=ROOT, check=True)
        git("commit", "--quiet", "--message", f"Release {wanted}\n\nWhat is new is in the changelog.", *files)
    except BaseException:
        git("checkout", "--", *files)
        raise
    git("tag", "--annotate", f"v{wanted}", "--message", f"Version {wanted}")
    print(
        f"version {wanted} is committed and tagged, and its files are in dist; publish them, and push the tag v{wanted}"
    )
    return 0


def refusal(wanted: str, before: str) -> str:
    """Why there is no such release; "" where there is nothing against it."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", wanted):
        return "say which version, as in: make release VERSION=1.1.0"
    if numbers(wanted) <= numbers(before):
        return f"version {wanted} is not newer than {before}"
    if git("status", "--porcelain"):
        return "the tree has changes that are not committed"
    return "" if unreleased(ROOT).strip() else f"{CHANGELOG} has nothing under Unreleased"


def prepare(root: Path, before: str, wanted: str, day: str) -> None:
    """Write the version and date the changelog."""
    for name, form in PLACES.items():
        file = root / name
        text = file.read_text(encoding="utf-8")
        if form.format(before) not in text:
            raise SystemExit(f"{name} does not have version {before}")
        text = text.replace(form.format(before), form.format(wanted)).replace(f"-{before}.mcpb", f"-{wanted}.mcpb")
        file.write_text(text, encoding="utf-8")
    changes = root / CHANGELOG
    text = changes.read_text(encoding="utf-8")
    changes.write_text(text.replace("## Unreleased\n", f"## Unreleased\n\n## {wanted} - {day}\n", 1), encoding="utf-8")


def unreleased(root: Path) -> str:
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    return text.partition("## Unreleased\n")[2].partition("\n## ")[0]


def version() -> str:
    found = re.search(
        r'__version__ = "(.+)"', (ROOT / "src/remote_sandbox_mcp/__init__.py").read_text(encoding="utf-8")
    )
    assert found
    return found[1]


def numbers(text: str) -> tuple[int, ...]:
    """Sorts a candidate before its release."""
    main, _, candidate = text.partition("rc")
    return (*map(int, main.split(".")), int(candidate or 1 << 20))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
