"""Files for installers: unit, registry entry, manifests, plugins and skill agree with the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from remote_sandbox_mcp import __version__
from tests.support.doc_pages import ROOT

SKILL = ROOT / "plugin/skills/remote-sandbox"
PACKAGING = ROOT / "packaging"


def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_registry_accepts_the_entry() -> None:
    jsonschema.Draft7Validator(read("packaging/server.schema.json")).validate(read("server.json"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(read("packaging/server.schema.json")).validate({"name": "without a namespace"})


@pytest.mark.parametrize(
    "path",
    ["server.json", "packaging/mcpb.json", "plugin/.claude-plugin/plugin.json", "plugin/.codex-plugin/plugin.json"],
)
def test_every_version_is_that_of_the_program(path: str) -> None:
    assert read(path)["version"] == __version__


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "remote-sandbox-mcp.service"
    text = (PACKAGING / unit.name).read_text()
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", re.sub(r"Documentation=.*\n", "", text)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_the_skill_names_tools_that_there_are_and_files_that_it_has() -> None:
    tools = {*read("tests/fronts/mcp/tools.json")}
    text = "".join(file.read_text(encoding="utf-8") for file in [SKILL / "SKILL.md", *SKILL.glob("references/*.md")])
    called = {*re.findall(r"`(\w+_\w+)\(", text)} | {name for name in re.findall(r"`(\w+)`", text) if name in tools}
    assert len(called) > 15
    assert called <= tools
    named = {*re.findall(r"\]\((references/[\w-]+\.md)\)", (SKILL / "SKILL.md").read_text())}
    assert named == {str(file.relative_to(SKILL)) for file in SKILL.glob("references/*.md")}
    assert (ROOT / "skills/remote-sandbox/SKILL.md").exists() or not (ROOT / ".git").exists()
