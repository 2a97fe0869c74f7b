"""Sends one event on one channel: desktop notice, event file, webhook or hook. Raises Unsent with the reason."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from ...core.errors import BadArgument, ConfigError
from ...core.jobs.watch import Event, Unsent, Watch
from ...core.permission import Notify, allow_hook, allow_webhook, read_address
from ..files import write_private
from ..processes.programs import find_helper
from ..store.subscriptions import CHANNEL, Subscriptions
from . import messages, program

LIMIT_S = 10.0
SESSION = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS")

# The text is passed as an argument: inside the script's source, a log line could run as code.
_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")
# notify-send interprets backslashes, and notification servers interpret markup.
_MARKUP = str.maketrans("<>&\\", "‹›＆＼")
MOST_FILES = 1000
_NAME = re.compile(r"([0-9]+)-[a-z_]+\.json")
HOOK = "hook:"


async def show(watch: Watch, event: Event, environ: Mapping[str, str], platform: str = sys.platform) -> None:
    """Show a notice. Raises Unsent."""
    # Begins with a word of ours, so that no text can be read as an option.
    title = f"Job {messages.title(watch, event)}"
    if platform == "darwin":
        words = ["osascript", *(part for line in _SCRIPT for part in ("-e", line)), title, messages.body(event)]
    else:
        if not any(map(environ.get, SESSION)):
            raise Unsent("nobody is logged in to a desktop here, so no notice can be shown")
        words = ["notify-send", "--app-name=remote-sandbox-mcp", "--", plain(title), plain(messages.body(event))]
    if not (found := find_helper(words[0])):
        raise Unsent(f"{words[0]} is not installed here, so no notice can be shown")
    await program.run_program(words[0], [found, *words[1:]], program.clean_environment(environ), LIMIT_S)


def plain(text: str) -> str:
    """A text that neither notify-send nor a notification server interprets."""
    return text.translate(_MARKUP)


def keep(folder: Path, watch: Watch, event: Event) -> Path:
    """Write an event's file, whole or not at all. Raises Unsent."""
    path = folder / f"{event.id}-{event.type.value}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, f"{messages.encode(messages.as_json(watch, event))}\n", is_synced=True)
        _prune(folder)
    except OSError as error:
        raise Unsent(f"unable to write {path}: {error.strerror or error}", passing=True) from None
    return path


def _prune(folder: Path) -> None:
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    # By age, not by number: with a new database, numbers begin again.
    for entry in sorted(found, key=_age)[: max(0, len(found) - MOST_FILES)]:
        Path(entry.path).unlink(missing_ok=True)


def _age(entry: os.DirEntry[str]) -> tuple[int, int]:
    number = int(entry.name.partition("-")[0])
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns, number
    except FileNotFoundError:
        return 0, number


class Announcer:
    """Sends what the operator allows; permissions are checked again at every event, not only when the watch is made."""

    def __init__(self, notify: Notify, state_folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._notify = notify
        self._events = state_folder / "events"
        self._subscriptions = Subscriptions(state_folder)
        self._environ = environ

    async def announce(self, channel: str, watch: Watch, event: Event) -> None:
        """Announce an event on "file", "desktop", "webhook" or "hook:NAME". Raises Unsent."""
        try:
            await self._send(channel, watch, event)
        except (BadArgument, ConfigError) as problem:
            raise Unsent(str(problem)) from None

    async def _send(self, channel: str, watch: Watch, event: Event) -> None:
        if channel == "file":
            await asyncio.to_thread(keep, self._events, watch, event)
        elif channel == "desktop":
            await self._show(watch, event)
        elif channel == "webhook":
            await self._post(watch, event)
        elif channel.startswith(HOOK):
            await self._run(channel.removeprefix(HOOK), watch, event)
        elif channel.startswith(CHANNEL):
            await self._send_to(int(channel.removeprefix(CHANNEL), 16), watch, event)
        else:
            raise Unsent(f"there is no way to announce events that is called {channel[:40]!r}")

    async def _show(self, watch: Watch, event: Event) -> None:
        if not self._notify.desktop:
            raise Unsent("desktop notices are turned off: desktop = false under [notify] in config.toml")
        await show(watch, event, self._environ)

    async def _post(self, watch: Watch, event: Event) -> None:
        # Imported late: the HTTP library is large, and most watches never need it.
        from . import webhook

        secret = self._notify.webhook_secret
        key = await asyncio.to_thread(secret.reveal) if secret else ""
        url = allow_webhook(watch.policy.webhook_url, self._notify.webhooks)
        await webhook.post(url, self._notify.webhook_format, key, watch, event)

    async def _send_to(self, number: int, watch: Watch, event: Event) -> None:
        from . import webhook

        to = await asyncio.to_thread(self._subscriptions.get, number)
        if to is None or not self._notify.mcp_events:
            raise Unsent("its subscription has ended")
        address = read_address(allow_webhook(to.url, self._notify.webhooks))
        reply = await webhook.send(address, webhook.pack_subscribed(to, watch, event))
        if reply.status == 410:
            await asyncio.to_thread(self._subscriptions.drop, number)
        webhook.judge(address, "json", reply)

    async def _run(self, name: str, watch: Watch, event: Event) -> None:
        allowed = self._notify.hooks[allow_hook(name, self._notify.hooks)]
        path = await asyncio.to_thread(keep, self._events, watch, event)
        await program.run_hook(name, allowed, path, watch, event, self._environ)
