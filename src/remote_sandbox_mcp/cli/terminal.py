"""The user's own terminal, taken over for a while and given back however that ends; and the names of its keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator

from . import streams

# Other screen, hidden cursor; and back.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
ONE_READ = 1 << 14
BEHIND_S = 0.05


def is_at_hand() -> bool:
    """Whether a person sits at both ends: what is typed and what is shown."""
    return streams.stdin().isatty() and streams.stdout().isatty()


def size() -> tuple[int, int]:
    """Rows and columns."""
    with contextlib.suppress(OSError):
        found = os.get_terminal_size(streams.stdout().fileno())
        if found.lines and found.columns:
            return found.lines, found.columns
    return 24, 80


@contextlib.contextmanager
def taken_over(*, whole_screen: bool) -> Iterator[None]:
    """Every key comes as it is typed and is not shown. With `whole_screen`, what was there before comes back."""
    fd = streams.stdin().fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        if whole_screen:
            # Output keeps its newlines, and Ctrl-C is a key like the others.
            mode = termios.tcgetattr(fd)
            mode[1] = before[1]
            termios.tcsetattr(fd, termios.TCSADRAIN, mode)
            show(ENTER)
        yield
    finally:
        if whole_screen:
            show(LEAVE)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def show(text: str | bytes) -> None:
    """Write all of it, also where the terminal takes only a part at a time."""
    data, out = text if isinstance(text, bytes) else text.encode("utf-8", "replace"), streams.stdout()
    with contextlib.suppress(OSError):
        if isinstance(out, streams.QueuedOutput):
            # A terminal that was stopped by Ctrl-S must not stop the hub.
            return out.put(data)
        while data:
            try:
                data = data[os.write(streams.stdout().fileno(), data) :]
            except BlockingIOError:
                import select

                select.select([], [streams.stdout().fileno()], [], 1.0)


def is_behind() -> bool:
    """Whether the terminal takes less than it is shown."""
    out = streams.stdout()
    return isinstance(out, streams.QueuedOutput) and out.is_behind


async def keep_up() -> None:
    """Wait until the terminal has shown most of what it was given."""
    # Not in a thread: a stopped terminal would hold one of the few that all verbs share.
    while is_behind():  # noqa: ASYNC110
        await asyncio.sleep(BEHIND_S)


@contextlib.asynccontextmanager
async def heard(typed: Callable[[bytes], None], resized: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `typed` with each key (b"" when the terminal is gone), and `resized` when the window changes."""
    loop, fd = asyncio.get_running_loop(), streams.stdin().fileno()

    def read() -> None:
        try:
            data = os.read(fd, ONE_READ)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(fd)
        typed(data)

    loop.add_reader(fd, read)
    caller = streams.caller()
    caller.on_signal(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        caller.off_signal(signal.SIGWINCH)


def ended_by_signals() -> contextlib.AbstractAsyncContextManager[list[int]]:
    """Cancels the caller when the process is told to end, so that the terminal is given back; says by what."""
    task = asyncio.current_task()
    assert task is not None
    return streams.stopped_by_signals(task, SIGNALS)


_SEQUENCES = {
    **{"[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down"},
    **{"[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end"},
}
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "ctrl-c", "\x1b": "esc"}
# A whole sequence, or one character; sequences that have no name here are still one key.
_KEY = re.compile(r"\x1b(?P<sequence>\[[0-9;?]*[ -/]*[@-~]|O[@-~])|(?P<character>.)", re.DOTALL)


def keys_of(typed: bytes) -> list[str]:
    """The keys in what was typed; those without a name or a visible character are left out."""
    found = []
    for key in _KEY.finditer(typed.decode("utf-8", "replace")):
        character = key["character"] or ""
        visible = character if character.isprintable() else ""
        found.append(_SEQUENCES.get(key["sequence"], "") if key["sequence"] else _NAMES.get(character, visible))
    return [key for key in found if key]
