"""A terminal of a given size in a tmux server of the test's own: keys go in, and the screen can be read."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE_S = 30.0


class TmuxScreen:
    """One window with one program; ends with `close`, and everything in it."""

    def __init__(self, folder: Path, command: Sequence[str], env: Mapping[str, str], rows: int = 24, columns: int = 80):
        self._socket = folder / f"tmux-{id(self)}"
        line = shlex.join(["env", "-u", "TMUX", *(f"{name}={value}" for name, value in env.items()), *command])
        # The exit code stays to be read after the program has ended.
        line = f"{line}; code=$?; echo; echo ended with $code; exec sleep 1000"
        self._call("new-session", "-d", "-s", "it", "-x", str(columns), "-y", str(rows), "sh", "-c", line)

    def _call(self, *words: str) -> str:
        argv = ["tmux", "-u", "-f", "/dev/null", "-S", str(self._socket), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout

    @property
    def text(self) -> str:
        return self._call("capture-pane", "-p", "-t", "it")

    def press(self, *keys: str) -> None:
        """Keys by their tmux names."""
        self._call("send-keys", "-t", "it", *keys)

    def type(self, text: str) -> None:
        self._call("send-keys", "-t", "it", "-l", text)

    def resize(self, rows: int, columns: int) -> None:
        self._call("resize-window", "-t", "it", "-x", str(columns), "-y", str(rows))

    def shows(self, *texts: str, gone: str = "") -> str:
        """The screen once it shows all of them, and not what is to be gone."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            seen = self.text
            if all(text in seen for text in texts) and not (gone and gone in seen):
                return seen
            assert time.monotonic() < deadline, f"waited for {texts}, without {gone!r}; the screen is:\n{seen}"
            time.sleep(0.05)

    def presses(self, key: str, *, until: str) -> None:
        """Press a key again and again until the screen shows this: what it tells may take a moment to be true."""
        deadline = time.monotonic() + DEADLINE_S
        while until not in (seen := self.text):
            assert time.monotonic() < deadline, f"pressed {key} until {until!r}; the screen is:\n{seen}"
            self.press(key)
            time.sleep(0.2)

    @property
    def modes(self) -> str:
        """How the terminal was left: "1" for the other screen, and "1" for a cursor that is shown."""
        return self._call("display-message", "-p", "-t", "it", "#{alternate_on} #{cursor_flag}").strip()

    @property
    def key_modes(self) -> str:
        """How keys are sent: "1" for arrows, and "1" for the number pad, as applications want them."""
        return self._call("display-message", "-p", "-t", "it", "#{keypad_cursor_flag} #{keypad_flag}").strip()

    @property
    def pid(self) -> int:
        """The shell around the program."""
        return int(self._call("display-message", "-p", "-t", "it", "#{pane_pid}"))

    def close(self) -> None:
        self._call("kill-server")
