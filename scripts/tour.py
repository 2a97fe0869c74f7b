"""`make tour`: the real server on the embedded sandbox, called as an agent would."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.cli.render import Page, command_path, styled
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.errors import Unsupported
from remote_sandbox_mcp.local.processes.process import module_words

# A call waits only two seconds for its command, so that the chapter about long commands is short.
CONFIG = "[server]\npatience_s = 2\n"
BURST, BURST_SLEEP_S = 20, 0.5
# Of a longer output, only the last lines are shown.
MOST_LINES = 5
ANSWER_S = 15.0
TICKS = "for i in $(seq 600); do echo tick $i; sleep 0.5; done"
# An address that is reserved for documentation, so that no machine gets this connection.
CONNECT = "timeout 2 bash -c 'echo > /dev/tcp/192.0.2.1/53'"
Answer = dict[str, Any]
Chapter = Callable[[], Awaitable[bool]]


class Tour:
    """The chapters; each makes calls, shows them, and returns whether all went as announced.

    `is_walled` says whether the embedded sandbox can run here; without it, the chapters that need it are left out.
    """

    def __init__(self, client: Any, page: Page, is_walled: bool) -> None:
        self._client = client
        self._page = page
        self._is_walled = is_walled

    @property
    def chapters(self) -> dict[str, Chapter]:
        if not self._is_walled:
            return {
                "What your agent can do": self.tools,
                "Without a place to run, a call is answered with what to do": self.nowhere,
            }
        return {
            "Which sandboxes are there?": self.look,
            "Run a command": self.run,
            "A command that hangs is ended, and what it printed is kept": self.time_out,
            "Write, edit, read and search files": self.files,
            "It is isolated: no network, and nothing of your home": self.isolation,
            f"{BURST} commands at once take as long as one": self.burst,
            "A mistake is answered with what to do": self.mistake,
            "A long command is handed over, asked after, and stopped": self.hand_over,
        }

    async def look(self) -> bool:
        answer = await self.call("list_sandboxes")
        return bool(answer["sandboxes"][0]["connection_alive"])

    async def nowhere(self) -> bool:
        answer = await self.call("exec_bash", command="hostname")
        return answer.get("code") == Unsupported.code

    async def tools(self) -> bool:
        listed = (await self._client.list_tools()).tools
        for tool in listed:
            first, _, _ = (tool.description or "").partition(". ")
            self._page.rows([(" ", styled((tool.name, "cyan"), (f"  {first}", "dim")))])
        return bool(listed)

    async def run(self) -> bool:
        answer = await self.call("exec_bash", command="whoami; pwd; uname -sr")
        return bool(answer["exit_code"] == 0)

    async def time_out(self) -> bool:
        answer = await self.call("exec_bash", command="echo begun; sleep 60", timeout_s=1)
        return bool(answer["timed_out"]) and "begun" in answer["stdout"]

    async def files(self) -> bool:
        path = "demo/fruit.txt"
        await self.call("write_remote_file", remote_path=path, content="apples\npears\n")
        await self.call("edit_remote_file", remote_path=path, old_text="pears", new_text="plums")
        read = await self.call("read_remote_file", remote_path=path)
        found = await self.call("search_remote_files", remote_path="demo", pattern="pl.ms")
        return read["content"] == "apples\nplums\n" and len(found["matches"]) == 1

    async def isolation(self) -> bool:
        network = await self.call("exec_bash", command=CONNECT)
        home = await self.call("exec_bash", command=f"ls {quote(str(Path.home()))}")
        return bool(network["exit_code"] and home["exit_code"])

    async def burst(self) -> bool:
        begun = time.monotonic()
        calls = [self.ask("exec_bash", {"command": f"sleep {BURST_SLEEP_S}; echo {n}"}) for n in range(BURST)]
        answers = await asyncio.gather(*calls)
        seconds = time.monotonic() - begun
        right = [answer.get("stdout") == f"{n}\n" for n, answer in enumerate(answers)]
        self._show_call("exec_bash", {"command": f"sleep {BURST_SLEEP_S}; echo N"}, times=BURST)
        self._show([f"{sum(right)} right answers"], seconds)
        return all(right) and seconds < BURST * BURST_SLEEP_S / 2

    async def mistake(self) -> bool:
        answer = await self.call("exec_bash", command="hostname", sandbox_name="locl")
        return answer.get("code") == "unknown_sandbox"

    async def hand_over(self) -> bool:
        begun = await self.call("exec_bash", command=TICKS, timeout_s=600)
        handle = begun["tmux_session"]
        asked = await self.call("check_background_task", tmux_session=handle, last_n_lines=2)
        ended = await self.call("stop_background_task", tmux_session=handle)
        return bool(begun["running"] and asked["running"] and ended["stopped"])

    async def ask(self, tool: str, arguments: dict[str, Any]) -> Answer:
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            from remote_sandbox_mcp.fronts.mcp.results import about_error

            # An agent reads the text of an error.
            return {"error": result.content[0].text, **about_error(result)}
        return dict(result.structured_content or {})

    async def call(self, tool: str, **arguments: Any) -> Answer:
        self._show_call(tool, arguments)
        begun = time.monotonic()
        answer = await self.ask(tool, arguments)
        self._show(_lines(answer), time.monotonic() - begun)
        return answer

    def _show_call(self, tool: str, arguments: dict[str, Any], times: int = 1) -> None:
        shown = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
        many = f"  × {times}" if times > 1 else ""
        self._page.rows([(">", styled((tool, "cyan"), (f"({shown})", ""), (many, "bold")))])

    def _show(self, lines: Sequence[str], seconds: float) -> None:
        first, *more = lines
        self._page.rows([(" ", styled((first, "green"), (f"  {_duration(seconds)}", "dim")))])
        self._page.rows((" ", styled((line, "dim"))) for line in more)


def _lines(answer: Answer) -> list[str]:
    """Short values on one line; texts of several lines and lists below."""
    short, long = [], []
    for key, value in answer.items():
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            long += [", ".join(f"{name}: {_short(part)}" for name, part in item.items()) for item in value]
        elif isinstance(value, str) and "\n" in value.rstrip("\n"):
            long += value.rstrip("\n").split("\n")[-MOST_LINES:]
        else:
            short.append(f"{key}: {_short(value)}")
    return [", ".join(short) or "→", *long]


def _short(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


async def guide(page: Page) -> int:
    """The whole tour; returns 1 where a chapter did not go as announced."""
    from remote_sandbox_mcp.backends.bubblewrap import local

    page.print(
        styled(("A tour of remote-sandbox-mcp", "bold")), "The real server, called over MCP as your agent would."
    )
    reason = await local.why_not()
    if reason:
        page.print("The embedded sandbox cannot run here, so this is a part of the tour only:", f"  {reason}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="remote-sandbox-tour-") as folder:
        bad = await _visit(page, Path(folder), is_walled=not reason)
    return _sum_up(page, bad, time.monotonic() - begun, is_whole=not reason)


async def _visit(page: Page, folder: Path, is_walled: bool) -> list[str]:
    """Titles of the chapters that did not go as announced."""
    from mcp import Client, StdioServerParameters

    config = folder / "config.toml"
    config.write_text(CONFIG)
    # Nothing of the user's is read or written: neither configuration, nor state, nor environment.
    environment = {"REMOTE_SANDBOX_MCP_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder)}
    python, *words = module_words("remote_sandbox_mcp.server")
    # Without a hub, which would go on for a while and write into the folder while that is removed.
    words += ["--no-hub", "--config", str(config)]
    server = StdioServerParameters(command=python, args=words, env=environment)
    bad = []
    async with Client(server, read_timeout_seconds=ANSWER_S) as client:
        for number, (title, chapter) in enumerate(Tour(client, page, is_walled).chapters.items(), 1):
            page.heading(f"{number}. {title}")
            if not await chapter():
                bad.append(title)
                page.problems(["this did not go as it should"])
    return bad


def _sum_up(page: Page, bad: list[str], seconds: float, is_whole: bool) -> int:
    if bad:
        page.print("", styled((f"{len(bad)} chapters did not go as they should: {'; '.join(bad)}", "red bold")))
        return 1
    told = "All as it should be" if is_whole else "Nothing can run on this computer; the rest is as it should be"
    page.print(
        "", styled((f"{told}, in {seconds:.1f} s. ", "green bold" if is_whole else "bold"), ("How to go on:", ""))
    )
    page.print(*_go_on())
    return 0


def _go_on() -> tuple[str, str]:
    path = os.path.relpath(command_path()) if os.sep in command_path() else command_path()
    return (
        f"  {path}         how to add it to Claude Code or Codex",
        f"  {path} doctor  what it finds on your SSH machines",
    )


def main() -> int:
    try:
        return asyncio.run(guide(Page()))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
