"""A real terminal (tmux) in which a test types what a person would type, and reads what is shown."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.means import require_program
from tests.support.sshd import wait_until

COLUMNS, ROWS = 120, 50
# Generous: the machine may have other work.
SHOWN_S = 60.0


@dataclass
class Terminal:
    """One terminal; the command in it ends with a line that has its exit code."""

    socket: str

    def tmux(self, *arguments: str) -> str:
        words = ["tmux", "-S", self.socket, *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def shown(self) -> str:
        """All that was printed, line by line, without colours; lines that were wrapped are joined."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "0").rstrip()

    def wait(self, text: str, times: int = 1) -> None:
        """Until the text is shown so many times."""
        try:
            wait_until(lambda: self.shown().count(text) >= times, what=repr(text), seconds=SHOWN_S)
        except TimeoutError as problem:
            raise TimeoutError(f"{problem}; shown is:\n{self.shown()}") from None

    def type(self, text: str, *, after: str = "", times: int = 1) -> None:
        """Type a line and Enter, once `after` is shown."""
        if after:
            self.wait(after, times)
        if text:
            self.tmux("send-keys", "-t", "0", "-l", "--", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Keys as tmux names them: Space, Enter, Down, C-c."""
        self.tmux("send-keys", "-t", "0", *keys)

    def end(self) -> int:
        """The exit code, once there is one."""
        self.wait("ended with ")
        return int(self.shown().rpartition("ended with ")[2].split()[0])


@contextmanager
def terminal(words: Sequence[str]) -> Iterator[Terminal]:
    """A terminal with the variables of this process, in which the command is started."""
    require_program("tmux")
    # A folder of its own: tmux leaves its socket behind. Not pytest's, whose path may be too long for one.
    folder = tempfile.mkdtemp(prefix="rsmcp-tmux-", dir="/tmp")
    here = Terminal(f"{folder}/socket")
    # Afterwards it stays, so that what was shown can be read.
    script = f"trap : INT; {shlex.join(words)}; echo ended with $?; exec sleep 300"
    size = ("-x", str(COLUMNS), "-y", str(ROWS))
    here.tmux("-f", os.devnull, "new-session", "-d", *size, "sh", "-c", script)
    try:
        yield here
    finally:
        here.tmux("kill-server")
        shutil.rmtree(folder)
