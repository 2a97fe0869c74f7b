"""GPU memory of an interpreter, asked in the background: no call waits for NVIDIA's tool."""

import os
import shutil
import subprocess

from .interpreter import Interpreter

MYPY = False
if MYPY:
    from typing import Any

    from .calls import CodeCall

# Between two questions while code runs; an answer that takes longer than the second is not waited for.
PAUSE_S, LONGEST_S = 5.0, 10.0
QUESTION = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
MEBIBYTE = 1 << 20


class GpuMemory:
    """The newest answer. The tool runs at most once in PAUSE_S, and only for code that has loaded NVIDIA's driver."""

    def __init__(self) -> None:
        self.tool = shutil.which("nvidia-smi")
        self.asking: "subprocess.Popen[bytes] | None" = None
        self.asked = 0.0
        self.uses: "dict[int, bool]" = {}
        self.taken: "dict[int, int]" = {}

    def tick(self, now: float, interpreter: Interpreter, is_running: bool) -> None:
        """Ask, where code runs and it is time to; take an answer that has come."""
        if self.tool is None:
            return
        if self.asking is not None:
            self.take(now)
        elif is_running and now >= self.asked + PAUSE_S:
            self.asked = now
            if interpreter.uses_gpu():
                self.ask()

    def ask(self) -> None:
        assert self.tool
        try:
            null = subprocess.DEVNULL
            self.asking = subprocess.Popen([self.tool] + QUESTION, stdin=null, stdout=subprocess.PIPE, stderr=null)
            assert self.asking.stdout
            os.set_blocking(self.asking.stdout.fileno(), False)
        except OSError:
            self.tool = None

    def take(self, now: float) -> None:
        assert self.asking
        assert self.asking.stdout
        try:
            text = os.read(self.asking.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            if now < self.asked + LONGEST_S:
                return
            self.asking.kill()
            text = b""
        self.taken = read_answer(text)
        self.asking.stdout.close()
        self.asking = None

    def ended(self, pid: int) -> None:
        """The supervisor has collected this child."""
        if self.asking is not None and self.asking.pid == pid:
            self.asking.returncode = 0

    def usage(self, call: "CodeCall", interpreter: Interpreter) -> "dict[str, Any]":
        """Bytes of GPU memory: from PyTorch itself, which knows at once, else as the tool has seen it last."""
        parts = [part.partition(":")[2] for part in str(call.facts.get("torch", "")).split()]
        if parts and all(part.isdigit() and len(part) < 16 for part in parts):
            return {"gpu": sum(map(int, parts))}
        taken = self.taken.get(interpreter.pid, 0)
        return {"gpu": taken} if taken else {}


def read_answer(text: bytes) -> "dict[int, int]":
    """Rows of pid and MiB; a process may use several GPUs."""
    taken: "dict[int, int]" = {}
    for row in text.decode("ascii", "replace").splitlines():
        pid, _, used = row.partition(",")
        if pid.strip().isdigit() and used.strip().isdigit():
            taken[int(pid)] = taken.get(int(pid), 0) + int(used) * MEBIBYTE
    return taken
