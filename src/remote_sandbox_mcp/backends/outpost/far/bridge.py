"""A lane's own line to another machine: what it sends goes there directly, what is answered there comes back to us."""

import os
import subprocess

from .wire import FORWARDED, frame, write_all


class Bridge:
    """A process that leads to another lane: ssh, as this machine has it configured."""

    def __init__(self, argv: "list[str]", program: bytes) -> None:
        null = open(os.devnull, "wb")
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=null, bufsize=0)
        null.close()
        assert self.process.stdin
        assert self.process.stdout
        self.into, self.out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.send(program)

    def send(self, data: bytes) -> None:
        try:
            write_all(self.into, data)
        except BrokenPipeError:
            # Its end is read from its output, and told.
            pass

    def pass_back(self) -> bool:
        """What came from there, as it came; False when nothing will come any more, which is told by nothing."""
        data = os.read(self.out, 1 << 16)
        write_all(1, frame(FORWARDED, 0, data))
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
