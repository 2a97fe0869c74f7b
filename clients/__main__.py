"""`python -m clients`: every tool, called well and badly, through every client; exit 1 where an answer is not right."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from clients import accessibility, calls, coding_agents, places, registration, serving
from clients.calls import Call

HERE = Path(__file__).parent
CALL_S = 300
Server = dict[str, Any]
Told = list[dict[str, Any]]
Driver = Callable[[Server, list[Call], Path], Told]


def node(version: str) -> Driver:
    def drive(server: Server, made: list[Call], folder: Path) -> Told:
        # Modules are looked for from where a script lies.
        script = places.FOLDER / "sdk.mjs"
        script.write_text((HERE / "sdk.mjs").read_text())
        return _lines([places.program("node"), str(script), version], server, made, folder)

    return drive


def library(script: str) -> Driver:
    def drive(server: Server, made: list[Call], folder: Path) -> Told:
        return _lines([places.library_python(), str(HERE / script)], server, made, folder)

    return drive


def _lines(words: list[str], server: Server, made: list[Call], folder: Path) -> Told:
    files = folder / "server.json", folder / "calls.json"
    files[0].write_text(json.dumps(server))
    files[1].write_text(json.dumps(calls.as_plain(made)))
    done = subprocess.run([*words, *map(str, files)], capture_output=True, text=True, timeout=CALL_S, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(told) < len(made):
        told.append({"tool": made[len(told)].tool, "thrown": done.stderr.strip()[-400:] or "no answer"})
    return told


def inspector(era: str) -> Driver:
    def drive(server: Server, made: list[Call], folder: Path) -> Told:
        return [_inspect(era, server, call, folder) for call in made]

    return drive


def _inspect(era: str, server: Server, call: Call, folder: Path) -> dict[str, Any]:
    words = ["--method", "tools/call", "--tool-name", call.tool, "--tool-args-json", json.dumps(call.arguments)]
    done = _inspector(folder, *_target(server), *words, "--protocol-era", era, "--format", "json", "--quiet")
    try:
        answer = json.loads(done.stdout)
        answer = answer.get("result", answer)
        texts = [part["text"] for part in answer["content"] if part["type"] == "text"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"tool": call.tool, "thrown": (done.stderr or done.stdout).strip()[-400:]}
    return {"tool": call.tool, "is_error": bool(answer.get("isError")), "text": "\n".join(texts)}


def _target(server: Server) -> list[str]:
    headers = [word for name, value in server["headers"].items() for word in ("--header", f"{name}: {value}")]
    return ["--server-url", server["url"], "--transport", "http", *headers]


def _inspector(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(folder), "PATH": f"{places.FOLDER}/node_modules/.bin:{os.environ['PATH']}"}
    command = [places.program("mcp-inspector"), "--cli", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=CALL_S, check=False)


DRIVERS: dict[str, Driver] = {
    "TypeScript SDK 1.x": node("1"),
    "TypeScript SDK 2.x": node("2"),
    "OpenAI Agents SDK": library("openai_agents.py"),
    "LangChain adapters": library("langchain_adapter.py"),
    "Inspector, legacy era": inspector("legacy"),
    "Inspector, modern era": inspector("modern"),
}
OVER_HTTP_ONLY = ("Inspector, legacy era", "Inspector, modern era")


def problems(made: list[Call], told: Told) -> Iterator[str]:
    """What is wrong with the answers: thrown, the wrong kind, or a text that does not say what it should."""
    for call, answer in zip(made, told, strict=False):
        kind = "bad" if call.is_bad else "good"
        if "thrown" in answer:
            yield f"{call.tool} ({kind} call): the client threw: {answer['thrown']}"
        elif answer["is_error"] not in (call.is_bad, None):
            ended = "failed" if answer["is_error"] else "did not fail"
            yield f"{call.tool} ({kind} call): {ended}: {answer['text'][:300]}"
        elif not answer["text"].strip() or call.says not in answer["text"]:
            yield f"{call.tool} ({kind} call): the text does not say {call.says or 'anything'}: {answer['text'][:300]}"


def drive_all(folder: Path, only: str) -> Iterator[tuple[str, list[str]]]:
    project = folder / "project"
    project.mkdir()
    (project / "file").write_text("text")
    with serving.over_http(folder / "http-home") as http:
        for number, (name, driver) in enumerate(DRIVERS.items()):
            for way in ("http",) if name in OVER_HTTP_ONLY else ("stdio", "http"):
                title = f"{name} over {way}"
                if only not in title:
                    continue
                server = http if way == "http" else serving.over_stdio(folder / f"home-{number}")
                made = [*calls.good(project, f"client-{number}-{way}"), *calls.bad()]
                yield title, list(problems(made, driver(server, made, folder)))
        for title, check in (
            ("Inspector, strict schemas", _strict),
            ("Inspector, apps", _apps),
        ):
            if only in title:
                yield title, list(check(http, folder))
    checks: dict[str, Callable[[Path], Iterable[str]]] = {
        "mcporter": _mcporter,
        **{f"{agent.name} in a workspace": _in_a_workspace(agent) for agent in coding_agents.AGENTS},
        "axe on the page": accessibility.problems,
        "setup": lambda folder: registration.problems(folder / "setup"),
        "plugins and bundle, by their own tools": _plugins,
        "conformance suite": _conformance,
    }
    for title, look in checks.items():
        if only in title:
            yield title, list(look(folder))


def _in_a_workspace(agent: coding_agents.Agent) -> Callable[[Path], Iterable[str]]:
    return lambda folder: coding_agents.problems(agent, folder / agent.name.replace(" ", "-"))


def _strict(server: Server, folder: Path) -> Iterator[str]:
    done = _inspector(folder, *_target(server), "--method", "tools/list", "--strict", "--quiet")
    if done.returncode:
        yield f"the tool list is not portable: {done.stderr.strip()[-600:]}"


def _apps(server: Server, folder: Path) -> Iterator[str]:
    """The tools whose results are shown as cards, and the document that shows them."""
    done = _inspector(folder, *_target(server), "--method", "tools/list", "--app-info", "--advertise-apps", "--quiet")
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {row["toolName"] for row in told if row["hasApp"]}
    if found != {"list_sandboxes", "check_background_task"}:
        yield f"tools with an app: {sorted(found) or (done.stdout + done.stderr).strip()[-400:]}"
    words = ("--method", "resources/read", "--uri", "ui://remote-sandbox/cards.html", "--format", "json", "--quiet")
    done = _inspector(folder, *_target(server), *words)
    if "text/html;profile=mcp-app" not in done.stdout or "ui/initialize" not in done.stdout:
        yield f"the document of the cards: {(done.stdout + done.stderr).strip()[-400:]}"


def _plugins(folder: Path) -> Iterator[str]:
    """Validators of the clients accept what is for them, and Codex installs the plugin with its skill."""
    root = HERE.parent
    env = {**os.environ, "HOME": str(folder), "CODEX_HOME": str(folder / "codex")}
    (folder / "codex").mkdir()
    for words in (
        ("claude", "plugin", "validate", str(root / "plugin")),
        ("claude", "plugin", "validate", str(root)),
        ("mcpb", "validate", str(root / "packaging/mcpb.json")),
        ("codex", "plugin", "marketplace", "add", str(root)),
        ("codex", "plugin", "add", "remote-sandbox@remote-sandbox"),
    ):
        command = [places.program(words[0]), *words[1:]]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=CALL_S, check=False)
        if done.returncode:
            yield f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-300:]}"
    if not any((folder / "codex/plugins").rglob("skills/remote-sandbox/SKILL.md")):
        yield "Codex installed the plugin without its skill"


def _mcporter(folder: Path) -> Iterator[str]:
    config = folder / "mcporter.json"
    config.write_text(json.dumps({"mcpServers": {"ours": serving.over_stdio(folder / "mcporter-home")}}))
    env = {**os.environ, "HOME": str(folder), "PATH": f"{places.FOLDER}/node_modules/.bin:{os.environ['PATH']}"}
    for words, says in (
        (("list", "ours", "--schema"), "exec_bash"),
        (("call", "ours.exec_bash", "command=echo from-mcporter", "sandbox_name=local"), "from-mcporter"),
        (("call", "ours.exec_bash", "command=hostname", "sandbox_name=no-such-place"), "no-such-place"),
    ):
        command = [places.program("mcporter"), "--config", str(config), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=CALL_S, check=False)
        if says not in done.stdout + done.stderr:
            yield f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-300:]}"


def _conformance(folder: Path) -> Iterator[str]:
    with serving.over_http(folder / "conformance-home", key=False) as server:
        command = [places.program("conformance"), "server", "--url", server["url"]]
        env = {**os.environ, "PATH": f"{places.FOLDER}/node_modules/.bin:{os.environ['PATH']}"}
        done = subprocess.run(
            [*command, "--expected-failures", str(HERE / "conformance.yml")],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
    if done.returncode:
        yield (done.stdout + done.stderr).strip()[-1500:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("--only", default="", help="a part of a client's name")
    wanted = parser.parse_args()
    try:
        places.install()
    except places.NoClients as problem:
        print(f"left out: {problem}", file=sys.stderr)
        return 0
    bad = 0
    with tempfile.TemporaryDirectory(prefix="clients-") as name:
        begun = time.monotonic()
        for title, found in drive_all(Path(name), wanted.only):
            print(f"{'ok ' if not found else 'BAD'} {title}  {time.monotonic() - begun:.0f} s", flush=True)
            for problem in found:
                print(f"      {problem}")
            bad += len(found)
            begun = time.monotonic()
    print(f"{bad} answers are not right" if bad else "every client gets the whole answer")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
