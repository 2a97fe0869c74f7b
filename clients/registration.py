"""`setup` with the real Claude Code and Codex: these list the server that it added, and not after `setup undo`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from clients import coding_agents, places, serving

LIST_S = 120
NAME = "remote-sandbox"


def problems(folder: Path) -> Iterator[str]:
    home = folder / "home"
    home.mkdir(parents=True)
    env = coding_agents.environment(home)
    try:
        yield from _done([serving.COMMAND, "setup", "--clients", "claude-code,codex"], env)
        yield from _listed(env, is_there=True)
        yield from _done([serving.COMMAND, "setup", "undo"], env)
        yield from _listed(env, is_there=False)
    finally:
        # Claude Code starts the servers that it lists, and with ours its hub.
        _run([serving.COMMAND, "hub", "stop"], env)


def _done(words: list[str], env: dict[str, str]) -> Iterator[str]:
    done = _run(words, env)
    if done.returncode:
        yield f"{' '.join(words[1:])} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}"


def _listed(env: dict[str, str], *, is_there: bool) -> Iterator[str]:
    for client in ("claude", "codex"):
        done = _run([places.program(client), "mcp", "list"], env)
        if (NAME in done.stdout) != is_there:
            yield f"{client} mcp list {'lacks' if is_there else 'still has'} {NAME}: {done.stdout.strip()[-300:]}"


def _run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=env, cwd=env["HOME"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_S,
        check=False,
    )  # fmt: skip
