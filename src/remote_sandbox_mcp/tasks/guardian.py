"""A detached process that takes a transfer over when it is told to, or when the one that began it is gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .locks import Lock
from .process import module_words
from .records import Records

WORKER = module_words("remote_sandbox_mcp.cli.worker")


class Guardian:
    """A child in a session of its own. It holds its guard's lock from birth to death."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._disowned = False
        self.pid = child.pid

    @classmethod
    def spawn(
        cls, records: Records, task_id: str, guard: Lock, command: Sequence[str],
        *, waiting: bool, environ: Mapping[str, str] = os.environ,
    ) -> Guardian:  # fmt: skip
        """Start it, waiting or at work at once; the guard is its own from then on. Raises OSError.

        `environ` are the variables of the client whose transfer it is: they may be what its machines are known by.
        """
        words = [*command, task_id, "--state", str(records.state), "--guard", str(guard.fd)]
        # Nobody else ever has the writing end, so it closes with us, however we end.
        line = subprocess.PIPE if waiting else subprocess.DEVNULL
        try:
            with open(records.log(task_id).open(), "ab") as log:
                return cls(subprocess.Popen(
                    words, stdin=line, stdout=log, stderr=log, bufsize=0, env=dict(environ),
                    cwd="/", start_new_session=True, pass_fds=(guard.fd,),
                ))  # fmt: skip
        finally:
            guard.release()

    def tell(self, word: bytes) -> None:
        """Say the one word that it waits for; one that is gone hears nothing."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with suppress(BrokenPipeError):
                self._child.stdin.write(word)
            self._child.stdin.close()

    def is_gone(self) -> bool:
        """Whether it has ended; of one that was disowned nothing is known."""
        return not self._disowned and self._child.poll() is not None

    def disown(self) -> None:
        """Never wait for it; it lives on without us."""
        if not self.is_gone():
            self._disowned = True
            # Else it would be called a leak when this object goes.
            self._child.returncode = 0
