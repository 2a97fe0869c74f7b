"""`import`: take over what remote-sandbox-mcp 0.x has left, shown first and once; and give it back."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..config import paths
from ..config.original import MACHINES
from ..config.services import is_json
from ..core.errors import SandboxError
from ..core.jobs.watch import Status
from ..services.setup import config_file, takeover
from ..services.setup.takeover import Takeover
from ..services.setup.undo import Undone
from ..services.watchdog import ensure, original
from . import asker
from .render import Page, print_json
from .verb import add_json

NOTHING = "Nothing is left to take over: remote-sandbox-mcp 0.x was not used here, or all of it is taken."


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "import",
        description="Takes over what remote-sandbox-mcp 0.x has left in the state folder: machines (their secrets go "
        "to the keyring), watches and transfers under their numbers. It shows all of it first, and asks; it ends the "
        "old watchdog before ours watches anything. Without a terminal, --yes says yes.",
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing, and take all")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only show")
    parser.add_argument("--undo", action="store_true", help="give back what was taken over")
    add_json(parser)


async def run(options: argparse.Namespace) -> int:
    """Raises SandboxError."""
    if options.undo:
        given = takeover.give_back(paths.state_folder(), is_dry=options.dry_run)
        return show_undone(given, as_json=options.json, nothing="Nothing was taken over that could be given back.")
    page = Page.silent() if options.json else Page()
    taking = Taking(options.config, page, is_yes=options.yes, is_dry=options.dry_run)
    await taking.run()
    if options.json:
        print_json(taking.fields())
    return 0 if taking.is_done or options.dry_run else 1


def show_undone(results: Sequence[Undone], *, as_json: bool, nothing: str) -> int:
    """Tell what was undone; returns the exit code."""
    if as_json:
        print_json(
            [{"what": it.change.what, "path": it.change.path, "done": it.is_done, "said": it.said} for it in results]
        )
    else:
        page = Page()
        page.rows((page.mark("ok" if it.is_done else "warning"), it.said) for it in results)
        page.print(*([] if results else [nothing]))
    return 0 if all(it.is_done for it in results) else 1


class Taking:
    """One import: what was found, and what came of it."""

    def __init__(self, config: Path | None, page: Page, *, is_yes: bool, is_dry: bool = False) -> None:
        # The list of machines itself may be named, in the place of our own configuration.
        self._own = config if is_json(config) else (config or paths.config_file()).with_name(MACHINES)
        self._config = None if is_json(config) else config
        self._page = page
        self._is_yes = is_yes
        self._is_dry = is_dry
        self._found = self._look()
        self._watchdog = original.find(self._found.database)
        self.is_done = self._found.is_empty and not self._watchdog.agent
        self.removed: list[str] = []
        self.problems = [*self._found.problems]

    def _look(self) -> Takeover:
        """Raises ConfigError."""
        return takeover.look(config_file.read(self._config), self._own)

    async def run(self) -> None:
        """Raises SandboxError."""
        page = self._page
        if self.is_done:
            page.print(NOTHING)
            page.problems(self.problems)
            return
        page.heading("From remote-sandbox-mcp 0.x", str(self._found.state))
        page.rows((page.mark("ok" if row[0] else "warning"), f"{row[1]} {row[2]}", row[3]) for row in self._rows())
        page.problems(self.problems)
        if self._is_dry or not self._agrees("Take this over?"):
            page.print("Nothing was changed. To take it over without a question: remote-sandbox-mcp import --yes")
            return
        await self._take()
        page.problems([problem for problem in self.problems if problem not in self._found.problems])
        if self.is_done:
            page.print("Taken over. To give it back: remote-sandbox-mcp import --undo")

    def _agrees(self, question: str) -> bool:
        is_asked = sys.stdin.isatty() and self._page.is_terminal
        return self._is_yes or (is_asked and asker.agrees(question))

    def _rows(self) -> Iterator[tuple[bool, str, str, str]]:
        """Whether it is taken, its kind and name, and what becomes of it."""
        for machine in self._found.machines:
            kept = "".join(f", with its {secret.key}" for secret in machine.secrets)
            yield not machine.why_not, "machine", machine.name, machine.why_not or f"{machine.address}{kept}"
        for it in self._found.watches:
            how = "is watched from now on" if it.watch.status is Status.ACTIVE else f"is kept ({it.watch.last_state})"
            yield True, "watch", str(it.watch.id), f"{it.watch.session} on {it.watch.sandbox} {how}"
        for row in self._found.transfers:
            yield True, "transfer", str(row["id"]), f"{row['local_path']} to {row['sandbox_name']} is kept"
        if str(self._watchdog):
            yield True, "watchdog", "of 0.x", f"{self._watchdog}, is ended first"

    async def _take(self) -> None:
        """Raises SandboxError."""
        found = self._found
        self.problems += await asyncio.to_thread(takeover.take_machines, found, self._config)
        is_readable = found.has_database or not found.database.exists()
        if why := await self._end_watchdog() if found.has_database else "":
            self.problems.append(f"The watches were not taken over: {why}.")
        elif found.has_database:
            # Once more: the old watchdog may have gone on until now.
            found = self._look()
            await asyncio.to_thread(takeover.take_watches, found)
            is_watched = any(it.watch.status is Status.ACTIVE for it in found.watches)
            trouble = await ensure.ensure_running(found.state, self._config) if is_watched else ""
            self.problems += [trouble] if trouble else []
        self.is_done = is_readable and not why
        # Where it still runs, the old watchdog needs the file.
        for file in () if why else found.lists:
            if self._agrees(f"Remove {file}, which has passwords in plain text?"):
                self._remove(file)

    async def _end_watchdog(self) -> str:
        """Returns why watches cannot be taken over; empty where they can."""
        state, agent = self._found.state, self._watchdog.agent
        text = agent.read_text() if agent else ""
        try:
            await original.end(self._watchdog, self._found.database)
        except SandboxError as problem:
            return str(problem).rstrip(".")
        if agent:
            takeover.note_removed(state, agent, text)
        return original.why_not(self._found.database, self._found.heartbeat, self._watchdog)

    def _remove(self, file: Path) -> None:
        try:
            takeover.remove_list(self._found.state, file, self._config)
            self.removed.append(str(file))
        except SandboxError as problem:
            self.problems.append(str(problem))

    def fields(self) -> dict[str, Any]:
        """For programs; no secret is in it."""
        rows = [{"kind": kind, "name": name, "taken": ok, "said": said} for ok, kind, name, said in self._rows()]
        return {"done": self.is_done, "found": rows, "removed": self.removed, "problems": self.problems}
