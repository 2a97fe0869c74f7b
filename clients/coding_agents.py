"""Claude Code and Codex with our plugin in a workspace: what their model is told of what it runs and edits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clients import model, places, serving
from clients.model import IMAGE, Model, Step

ROOT = Path(__file__).parents[1]
RUN_S = 120
# A PNG of one pixel.
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
NOTES, BEFORE, OURS, THEIRS = "notes.txt", "said before\n", "said here\n", "said there\n"
PLUGIN_TOOLS = "mcp__plugin_remote-sandbox_remote-sandbox"
CODEX = """
model = "gpt-5.5"
model_provider = "standin"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.standin]
name = "standin"
base_url = "{address}/v1"
wire_api = "responses"
env_key = "STANDIN_KEY"
"""


@dataclass(frozen=True)
class Agent:
    """A client, and how its model runs a local command, edits a local file and calls a tool of ours."""

    name: str
    drive: Callable[[Path, Path, list[Step]], list[str]]
    shell: Callable[[str], Step]
    edit: Callable[[Path, str, str], list[Step]]
    ours: Callable[..., Step]


def environment(home: Path) -> dict[str, str]:
    """A home of its own, with our command and the clients' in the PATH."""
    found = f"{Path(serving.COMMAND).parent}:{places.FOLDER}/node_modules/.bin:{os.environ['PATH']}"
    # Nothing else: Codex passes few variables on to a server, so the state folder has to be the usual one.
    return {"HOME": str(home), "PATH": found}


def claude(home: Path, project: Path, steps: list[Step]) -> list[str]:
    """What Claude Code tells its model of each call."""
    with model.serving(steps) as served:
        env = environment(home) | {"ANTHROPIC_BASE_URL": served.address, "ANTHROPIC_API_KEY": "none"}
        words = ["claude", "-p", "go", "--plugin-dir", str(ROOT / "plugin")]
        words += ["--allowedTools", "Bash", "Read", "Edit", PLUGIN_TOOLS]
        return _drive(words, env | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}, project, served)


def codex(home: Path, project: Path, steps: list[Step]) -> list[str]:
    """What Codex tells its model of each call."""
    with model.serving(steps) as served:
        env = environment(home) | {"STANDIN_KEY": "none", "CODEX_HOME": str(home / ".codex")}
        (home / ".codex").mkdir(exist_ok=True)
        (home / ".codex" / "config.toml").write_text(CODEX.format(address=served.address))
        for words in (["marketplace", "add", str(ROOT)], ["add", "remote-sandbox@remote-sandbox"]):
            _run([places.program("codex"), "plugin", *words], env, home)
        # A person looks at new hooks once, with /hooks, before Codex runs them.
        words = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "go"]
        return _drive(words, env, project, served)


def _drive(words: list[str], env: dict[str, str], project: Path, served: Model) -> list[str]:
    done = _run([places.program(words[0]), *words[1:]], env, project)
    missing = len(served.steps) - len(served.told)
    return [*served.told, *[f"no answer: {(done.stdout + done.stderr).strip()[-600:]}"] * missing]


def _run(words: list[str], env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def _claudes_edit(path: Path, old: str, new: str) -> list[Step]:
    where = {"file_path": str(path)}
    return [Step("Read", where), Step("Edit", {**where, "old_string": old.strip(), "new_string": new.strip()})]


def _codexs_edit(path: Path, old: str, new: str) -> list[Step]:
    return [Step("apply_patch", f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}+{new}*** End Patch\n")]


AGENTS = (
    Agent(
        "Claude Code",
        claude,
        lambda command: Step("Bash", {"command": command, "description": "run it"}),
        _claudes_edit,
        lambda tool, **given: Step(f"{PLUGIN_TOOLS}__{tool}", given),
    ),
    Agent(
        "Codex",
        codex,
        lambda command: Step("exec_command", {"cmd": command}),
        _codexs_edit,
        lambda tool, **given: Step(tool, given, "mcp__remote_sandbox"),
    ),
)


def problems(agent: Agent, folder: Path) -> Iterator[str]:
    """What is wrong with a workspace in this client: local commands, edits that go along, results, a conflict."""
    home, project = folder / "home", folder / "project"
    for each in (folder, home, project, project / "src"):
        each.mkdir()
    (project / ".remote-sandbox.toml").write_text('sandbox = "local:work"\nonly_remote = true\n')
    (project / NOTES).write_text(BEFORE)
    (project / "src" / "answer.py").write_text("print(41)\n")
    env, ours = environment(home), serving.COMMAND
    try:
        for words in (["git", "init", "-q"], [ours, "config", "allow", "--yes"], [ours, "link", "--yes"]):
            done = _run(words, env, project)
            if done.returncode:
                yield f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-300:]}"
                return
        # Somebody changes a file over there, behind the back of the workspace.
        _run([ours, "exec", "--sandbox", "local", f"printf '{THEIRS}' > work/{NOTES}"], env, folder)
        steps = [
            agent.shell("echo ran > here"),
            agent.shell("git status --short"),
            *agent.edit(project / "src" / "answer.py", "print(41)\n", "print(6 * 7)\n"),
            *agent.edit(project / NOTES, BEFORE, OURS),
            agent.ours("exec_bash", command=f"printf {PICTURE} | base64 -d > plot.png"),
            agent.ours("read_remote_file", remote_path="plot.png"),
            agent.ours("exec_bash", command="python3 src/answer.py && mkdir -p results && echo kept > results/out.txt"),
        ]
        yield from _wrong(agent.drive(home, project, steps), project)
    finally:
        # It would write into a folder that is about to be removed.
        _run([ours, "hub", "stop"], env, folder)


LAST = ("42", "came back: results/out.txt")


def _wrong(told: list[str], project: Path) -> Iterator[str]:
    first = ("sent src/answer.py", f"in conflict: {NOTES}", "keep_local")
    calls = {0: ("only_remote", "exec_bash"), 1: (NOTES,), -3: first, -2: (IMAGE, "image/png"), -1: LAST}
    for call, says in ((call, part) for call, parts in calls.items() for part in parts):
        if says not in told[call]:
            yield f"call {call} does not say {says}: {told[call][:600]}"
    if (project / "here").exists():
        yield "the local command was run"
    if not (project / "results" / "out.txt").exists():
        yield "the result did not come back"
    if (project / NOTES).read_text() != OURS:
        yield "the local side of the conflict was overwritten"
