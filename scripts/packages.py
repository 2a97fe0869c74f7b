"""Makes everything that a release consists of, in dist: python scripts/packages.py (or `make packages`).

Wheel and source archive (built twice: the same bytes), an .mcpb bundle for Claude Desktop, server.json for the MCP
registry, a Homebrew formula, a list of all parts (CycloneDX) with their licences, a statement of what it was made from,
and the hashes of all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ROOT / ".publish" / "bin"
# What an .mcpb bundle needs besides its manifest: uv builds the program from it.
BUNDLED = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "packaging/remote-sandbox-mcp.1")
# A zip file has no time zone, and no time before 1980.
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    check_skill()
    wheel, source = build(DIST)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip((wheel, source), build(Path(again)), strict=True):
            if digest(first) != digest(second):
                print(f"{first.name} is not reproducible: two builds differ", file=sys.stderr)
                return 1
    version = version_of(wheel)
    bundle = bundled(DIST / f"remote-sandbox-mcp-{version}.mcpb")
    write_registry_entry(version, bundle)
    formula = (ROOT / "packaging/remote-sandbox-mcp.rb").read_text(encoding="utf-8")
    formula = formula.replace("@VERSION@", version).replace("@SHA256@", digest(source))
    (DIST / "remote-sandbox-mcp.rb").write_text(formula, encoding="utf-8")
    write_parts()
    write_statement([*DIST.iterdir()])
    lines = [f"{digest(file)}  {file.name}\n" for file in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive."""
    uv = Path(sys.executable).with_name("uv")
    words = [uv, "build", "--quiet", "--no-config", "--python", sys.executable, "--out-dir", folder, ROOT]
    subprocess.run(words, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "315532800"})
    (folder / ".gitignore").unlink(missing_ok=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def check_skill() -> None:
    """By the tool of its format, which needs Python 3.11."""
    if (tool := TOOLS / "agentskills").exists():
        subprocess.run([tool, "validate", ROOT / "plugin/skills/remote-sandbox"], check=True)


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def bundled(target: Path) -> Path:
    """The bundle: a zip file in which nothing depends on where and when it was made."""
    sources = (file for file in (ROOT / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    named = {"manifest.json": ROOT / "packaging/mcpb.json"} | {
        str(file.relative_to(ROOT)): file for file in sorted((*(ROOT / name for name in BUNDLED), *sources))
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in named.items():
            entry = zipfile.ZipInfo(name, LONG_AGO)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return target


def write_registry_entry(version: str, bundle: Path) -> None:
    entry = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    entry["packages"][0]["fileSha256"] = digest(bundle)
    if entry["version"] != version:
        raise SystemExit(
            f"server.json is of {entry['version']}, and the program of {version}; scripts/release.py sets it"
        )
    (DIST / "server.json").write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


def write_parts() -> None:
    """A bill of materials and a report of licences, of what requirements.txt pins."""
    words = [TOOLS / "cyclonedx-py", "requirements", "--output-reproducible", "--output-format", "JSON"]
    subprocess.run([*words, "--output-file", DIST / "sbom.cdx.json", ROOT / "requirements.txt"], check=True)
    names = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.M)
    report = [TOOLS / "pip-licenses", f"--python={sys.executable}", "--format=markdown", "--order=name", "--with-urls"]
    subprocess.run([*report, f"--output-file={DIST / 'licences.md'}", "--packages", *sorted({*names})], check=True)


def write_statement(files: Iterable[Path]) -> None:
    """An in-toto statement of provenance: which commit these files were made from. It is not signed here."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    subjects = [{"name": file.name, "digest": {"sha256": digest(file)}} for file in sorted(files)]
    inputs = [{"uri": "git+https://example.org/remote-sandbox-mcp", "digest": {"gitCommit": commit.stdout.strip()}}]
    made = {"buildType": "https://example.org/remote-sandbox-mcp/packages", "resolvedDependencies": inputs}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": made, "runDetails": {"builder": {"id": "make packages"}}},
    }
    (DIST / "provenance.intoto.json").write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
