"""A notice on the user's desktop: osascript on macOS, notify-send elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

from ..core.watch import Event, Unsent, Watch
from . import messages, program

LIMIT_S = 10.0
SESSION = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS")

# The text comes as an argument: as a part of the source, a log line could be a script.
_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")
# notify-send reads backslashes as C does, and what shows its text reads markup.
_MARKUP = str.maketrans("<>&\\", "‹›＆＼")


async def show(watch: Watch, event: Event, environ: Mapping[str, str], platform: str = sys.platform) -> None:
    """Show a notice. Raises Unsent."""
    # The beginning is ours, so that no text is ever taken for an option.
    title = f"Job {messages.title(watch, event)}"
    if platform == "darwin":
        words = ["osascript", *(part for line in _SCRIPT for part in ("-e", line)), title, messages.body(event)]
    else:
        if not any(map(environ.get, SESSION)):
            raise Unsent("nobody is logged in to a desktop here, so no notice can be shown")
        words = ["notify-send", "--app-name=remote-sandbox-mcp", "--", plain(title), plain(messages.body(event))]
    found = shutil.which(words[0], path=environ.get("PATH", ""))
    if not found:
        raise Unsent(f"{words[0]} is not installed here, so no notice can be shown")
    await program.run(words[0], [found, *words[1:]], program.clean(environ), LIMIT_S)


def plain(text: str) -> str:
    """A text that nothing on its way to the screen reads as anything else."""
    return text.translate(_MARKUP)
