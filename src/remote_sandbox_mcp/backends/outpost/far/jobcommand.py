"""A job's command, in its own process: as exec would have started it."""

import os
import signal

from .place import to_bytes

MYPY = False
if MYPY:
    from typing import Any

# One argument may hold 128 KiB on Linux; a longer script is read from its file.
SHORT_SCRIPT = 100000
FROM_PANE = (b"TMUX", b"TMUX_PANE", b"TERM", b"COLORTERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION")


def become_command(folder: bytes, order: "dict[str, Any]", via: str, gate: int, out: int, trouble: int) -> None:
    """Wait to be let go, then be the shell. Its input is the pane, or nothing."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        if os.read(gate, 2) != b"go":
            os._exit(127)
        if via != "tmux":
            os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(to_bytes(str(order["cwd"])))
        argv = job_arguments(folder, order)
        os.execvpe(argv[0], argv, job_environment(folder, via))
    except OSError as problem:
        os.write(trouble, b"%d" % (problem.errno or 22))
    finally:
        os._exit(127)


def job_arguments(folder: bytes, order: "dict[str, Any]") -> "list[bytes]":
    path = os.path.join(folder, b"command")
    with open(path, "rb") as file:
        script = file.read()
    return [to_bytes(word) for word in order["shell"]] + (
        [script] if len(script) <= SHORT_SCRIPT else [b'. "$0"', path]
    )


def job_environment(folder: bytes, via: str) -> "dict[bytes, bytes]":
    """As the outpost had it, because that of tmux is another; but the pane is the pane's own."""
    with open(os.path.join(folder, b"environ"), "rb") as file:
        pairs = [line.partition(b"=") for line in file.read().split(b"\0") if line]
    environment = {name: value for name, _, value in pairs}
    if via == "tmux":
        environment.update((name, os.environb[name]) for name in FROM_PANE if name in os.environb)
    return environment
