"""`hub`: the process that serves all MCP clients of this user: status, stop, restart, log."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..config.paths import NO_HUB
from ..core.texts.text import harmless
from ..local.processes.locks import holder
from ..local.processes.process import started
from ..services.hub_contact.asking import ask_hub, call_hub, hubs, leave_transfers, process_of
from ..services.hub_contact.place import HubPlace, NoHub
from ..services.watchdog.service import until
from .render import Page, ago, is_read, one_line, print_json, size, write
from .verb import add_json, complain, say

# Exit code of `status` and `log` where there is no hub, and of a failure.
NOT_RUNNING = FAILED = 1
# A hub ends within two seconds of being told to; its clients start another at once.
ENDING_S, BACK_S = 8.0, 10.0
LOGGED, FOLLOW_S = 50, 0.3
# Only this much of the end of a log is read.
LOG_TAIL = 1 << 20
AGAIN = "The watchdog's service starts it again; to end it for good: remote-sandbox-mcp watchdog remove"
NONE_OF_OURS = "No hub for this version and environment runs."
NONE = "No hub runs. The next client starts one."


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "hub",
        description="One process, the hub, serves all MCP clients of a user; the first client starts it. It ends when "
        "it has had nothing to do for ten minutes. Without an action, shows its status.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    status = actions.add_parser(
        "status", help="show its status; exit code 1 if none runs for this version and environment"
    )
    stop = actions.add_parser("stop", help="stop it; connected clients start another")
    stop.add_argument("--all", action="store_true", help="also stop hubs of other versions and environments")
    restart = actions.add_parser("restart", help="stop it and start another in its place")
    log = actions.add_parser("log", help="print the end of its log")
    log.add_argument("-n", "--lines", type=int, default=LOGGED, metavar="N", help=f"how many lines (default: {LOGGED})")
    log.add_argument("-f", "--follow", action="store_true", help="follow the log until Ctrl-C")
    add_json(parser, status, stop, restart)
    add_json(log, help="for programs: one JSON object, with -f one on each line")


async def run(options: argparse.Namespace) -> int:
    actions = {"status": _status, "stop": _stop, "restart": _restart, "log": _log}
    return await actions[options.action or "status"](options)


# Status


async def _status(options: argparse.Namespace) -> int:
    hubs = await asyncio.to_thread(all_facts)
    if options.json:
        own = next((each for each in hubs if each["own"]), {"running": False})
        print_json(own | {"others": [each for each in hubs if not each["own"]]})
    else:
        _show(hubs)
    return 0 if any(each["own"] for each in hubs) else NOT_RUNNING


def all_facts() -> list[dict[str, Any]]:
    """Every running hub of this state folder; the one for this environment comes first."""
    return [facts for place in hubs() if (facts := facts_of(place))]


def facts_of(place: HubPlace) -> dict[str, Any] | None:
    """A hub's own report, or that it does not answer; None where it does not run."""
    found = process_of(place)
    if found is None:
        return None
    own = {"running": True, "own": place.name == HubPlace(os.environ).name, "socket": place.socket, "pid": found.pid}
    try:
        return own | {"answers": True} | ask_hub(place, "status")
    except (OSError, NoHub, ValueError) as problem:
        return own | {"answers": False, "problem": getattr(problem, "strerror", None) or str(problem), "log": place.log}


def _show(hubs: Sequence[dict[str, Any]]) -> None:
    page = Page()
    if not hubs:
        unused = f"No hub runs, and none is started from here: {NO_HUB} is set."
        page.print(unused if os.environ.get(NO_HUB) else NONE)
    elif not hubs[0]["own"]:
        page.print(NONE_OF_OURS, "")
    for number, facts in enumerate(hubs):
        if number:
            page.print("")
        page.facts(_rows(facts))


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    name = "hub" if facts["own"] else "another hub"
    if not facts["answers"]:
        yield name, f"process {facts['pid']} does not answer ({facts['problem']}); to end it: kill -9 {facts['pid']}"
        yield "log", str(facts["log"])
        return
    since = f"for {ago(time.time() - facts['began'])}"
    yield name, f"runs as process {facts['pid']}, {since}, version {facts['version']}"
    if facts.get("memory"):
        yield "memory", size(facts["memory"])
    yield from _sessions(facts)
    yield "connected", ", ".join(facts.get("connected", ())) or "no machine"
    for served in facts.get("http", ()):
        if served.get("page"):
            yield "page", f"{served['page']} (process {served['process']}); dashboard opens it"
    yield from _needed(facts)
    yield "socket", str(facts["socket"])
    yield "log", str(facts["log"])


def _sessions(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not (clients := facts.get("clients", ())):
        yield "sessions", "none"
    for number, client in enumerate(clients):
        name = one_line(client["client"]) or "a client that has called nothing yet"
        since = ago(time.time() - client["since"])
        yield "" if number else "sessions", f"{name} in {one_line(client['folder'])}, for {since}"


def _needed(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """List the reasons that keep the hub running, and how long it stays without them."""
    needs = [*facts.get("needs", ()), *(["it is the watchdog's service"] if facts.get("lives_on") else [])]
    for number, need in enumerate(needs):
        yield "" if number else "stays because", need
    if not facts.get("lives_on"):
        yield "ends", f"after {ago(facts['idle_s'])} without {'that and ' if needs else ''}clients"


# Stop and restart


async def _stop(options: argparse.Namespace) -> int:
    found = await asyncio.to_thread(all_facts)
    hubs = found if options.all else [facts for facts in found if facts["own"]]
    ended = [await _end(facts, options.json) for facts in hubs]
    left = len(found) - len(hubs)
    if options.json:
        print_json({"ended": [facts["pid"] for facts, ok in zip(hubs, ended, strict=True) if ok], "others": left})
    elif not hubs:
        say(NONE if not left else f"No hub for this environment runs, but {left} other: hub stop --all ends all.")
    return 0 if all(ended) and (hubs or not left) else FAILED


async def _end(facts: dict[str, Any], quiet: bool) -> bool:
    """Stop a hub, after printing what ends with it; returns whether it has ended."""
    if not quiet:
        say(*_consequences(facts))
    try:
        await asyncio.to_thread(_ask_to_stop, facts)
    except OSError as problem:
        complain(f"unable to end the hub, process {facts['pid']}: {problem.strerror or problem}")
        return False
    if not await _gone(facts):
        complain(f"the hub, process {facts['pid']}, does not end; run: kill -9 {facts['pid']}")
        return False
    if not quiet:
        say(f"The hub, process {facts['pid']}, has ended.")
    return True


def _consequences(facts: dict[str, Any]) -> list[str]:
    lines = [f"Ends with it, or waits for the next hub: {need}." for need in facts.get("needs", ())]
    if clients := facts.get("clients"):
        is_one = len(clients) == 1
        lines.append(f"{len(clients)} client{' is' if is_one else 's are'} connected, and will start another at once.")
    return [*lines, *([AGAIN] if facts.get("lives_on") else [])]


def _ask_to_stop(facts: dict[str, Any]) -> None:
    """Ask a hub to stop or, if it does not answer, signal it. Raises OSError."""
    place = HubPlace(os.environ, Path(facts["socket"]).stem)
    try:
        ask_hub(place, "stop")
    except (OSError, NoHub, ValueError):
        os.kill(facts["pid"], signal.SIGTERM)


async def _gone(facts: dict[str, Any]) -> bool:
    lock = Path(HubPlace(os.environ, Path(facts["socket"]).stem).lock)

    def is_gone() -> bool:
        # Its threads may hold the lock for a moment after the process has ended: the next hub could not start.
        found = holder(lock)
        return (found is None or found.pid != facts["pid"]) and not started(facts["pid"])

    # Another process may get its pid, but not within seconds.
    return await until(is_gone, ENDING_S)


async def _restart(options: argparse.Namespace) -> int:
    if not (found := [facts for facts in await asyncio.to_thread(all_facts) if facts["own"]]):
        return _not_restarted(NONE, NOT_RUNNING, options.json)
    if not await _end(found[0], options.json):
        return _not_restarted(f"process {found[0]['pid']} does not end", FAILED, options.json)
    # A service manager starts the hub again by itself.
    if found[0].get("lives_on"):
        # Wait for a service to be restarted, which takes some seconds; if it is not by then, there is none.
        await until(lambda: process_of(HubPlace(os.environ)) is not None, BACK_S)
    facts = await asyncio.to_thread(_start_again, found[0], options.config)
    if options.json:
        print_json(facts)
    elif facts["pid"]:
        say(f"Another runs as process {facts['pid']}.")
    if facts.get("trouble"):
        complain(str(facts["trouble"]))
    return 0 if facts["pid"] and not facts.get("trouble") else FAILED


def _not_restarted(why: str, code: int, as_json: bool) -> int:
    if as_json:
        print_json({"pid": 0, "trouble": why})
    elif code == NOT_RUNNING:
        say(why)
    return code


def _start_again(before: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """The hub that clients have started meanwhile, or a new one.

    It continues what the previous one watched, and transfers of the configuration in use here.
    """
    try:
        taken = leave_transfers(config, BACK_S)
        if before.get("watching") and not taken.get("trouble"):
            return call_hub("watch", BACK_S, config=before.get("watch_config", ""))
        return taken
    except (OSError, NoHub, ValueError) as problem:
        return {"pid": 0, "trouble": f"no hub could be started: {problem}"}


# Log


async def _log(options: argparse.Namespace) -> int:
    found = await asyncio.to_thread(all_facts)
    # The log of the last hub stays after its end.
    file = Path(found[0]["log"] if found else HubPlace(os.environ).log)
    show = _print_lines if options.json else _print
    try:
        end, position = _read_end(file, max(0, options.lines))
    except OSError as error:
        return _unread(f"unable to read {file}: {error.strerror}", options.json)
    if options.json and not options.follow:
        print_json({"log_file": str(file), "log": harmless(end).splitlines()})
        return 0
    show(end)
    while options.follow and is_read():
        await asyncio.sleep(FOLLOW_S)
        position = _print_new(file, *position, show)
    return 0


def _unread(why: str, as_json: bool) -> int:
    if as_json:
        print_json({"error": why, "code": "file"})
    else:
        complain(why)
    return NOT_RUNNING


def _read_end(file: Path, lines: int) -> tuple[bytes, tuple[int, int]]:
    """The last lines; and which file it was, and how far it was read. Raises OSError."""
    with file.open("rb") as opened:
        found = os.fstat(opened.fileno())
        opened.seek(max(0, found.st_size - LOG_TAIL))
        data = opened.read()
        end = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
        return end, (found.st_ino, opened.tell())


def _print_new(file: Path, inode: int, read: int, show: Callable[[bytes], None]) -> tuple[int, int]:
    """Print what was added since; all of it if the file was replaced."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            is_same = found.st_ino == inode and found.st_size >= read
            opened.seek(read if is_same else 0)
            show(opened.read(LOG_TAIL))
            return found.st_ino, opened.tell()
    except OSError:
        # The file is being replaced.
        return inode, read


def _print_lines(data: bytes) -> None:
    """For a program that follows it."""
    write("".join(f"{json.dumps({'line': line})}\n" for line in harmless(data).splitlines()))


def _print(data: bytes) -> None:
    if data:
        write(harmless(data))
