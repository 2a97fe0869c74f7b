"""One event to one channel: told, or Unsent with the reason."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import BadArgument, ConfigError
from ..core.permission import Notify, allow_hook, allow_webhook
from ..core.watch import Event, Unsent, Watch
from . import desktop, file, hook

HOOK = "hook:"


class Announcer:
    """Sends what the operator allows. What was allowed when a watch was made is checked again at every event."""

    def __init__(self, notify: Notify, state_folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._notify = notify
        self._events = state_folder / "events"
        self._environ = environ

    async def announce(self, channel: str, watch: Watch, event: Event) -> None:
        """Tell of an event by "file", "desktop", "webhook" or "hook:NAME". Raises Unsent."""
        try:
            await self._send(channel, watch, event)
        except (BadArgument, ConfigError) as problem:
            raise Unsent(str(problem)) from None

    async def _send(self, channel: str, watch: Watch, event: Event) -> None:
        if channel == "file":
            await asyncio.to_thread(file.keep, self._events, watch, event)
        elif channel == "desktop":
            await self._show(watch, event)
        elif channel == "webhook":
            await self._post(watch, event)
        elif channel.startswith(HOOK):
            await self._run(channel.removeprefix(HOOK), watch, event)
        else:
            raise Unsent(f"there is no way to announce events that is called {channel[:40]!r}")

    async def _show(self, watch: Watch, event: Event) -> None:
        if not self._notify.desktop:
            raise Unsent("desktop notices are turned off: desktop = false under [notify] in config.toml")
        await desktop.show(watch, event, self._environ)

    async def _post(self, watch: Watch, event: Event) -> None:
        # The HTTP library is large, and most watches never need it.
        from . import webhook

        secret = self._notify.webhook_secret
        key = await asyncio.to_thread(secret.reveal) if secret else ""
        url = allow_webhook(watch.policy.webhook_url, self._notify.webhooks)
        await webhook.post(url, self._notify.webhook_format, key, watch, event)

    async def _run(self, name: str, watch: Watch, event: Event) -> None:
        allowed = self._notify.hooks[allow_hook(name, self._notify.hooks)]
        path = await asyncio.to_thread(file.keep, self._events, watch, event)
        await hook.run(name, allowed, path, watch, event, self._environ)
