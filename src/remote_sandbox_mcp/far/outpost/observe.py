"""Answers what became of a run, from its folder: any outpost of this user can, not only the one that started it."""

import os
import signal
import time
from typing import Any

from ...core.orders import ObserveOrder, RunAnswer, RunBeat
from .family import strike
from .output import Listener
from .place import ELSEWHERE, STOP_MARK, boot_id, find_run, is_elsewhere, is_locked, read_record, set_mode, to_text
from .wire import BEAT, END, ERR, ERR_TAIL, OUT, OUT_TAIL, frame, json_frame

# How often a waiting request shows that it lives; and how long a run that is being started may lack its folder.
OBSERVE_BEAT_S = 2.0
START_S = 2.0


def observe(order: "ObserveOrder", request: int, listener: Listener, begun: bool = False) -> None:
    """Answer what became of a run, waiting for its end up to `wait` seconds; with `stop`, end it first.

    If an outpost knows that the run has `begun`, the folder is waited for: its keeper may not have named it yet.
    """
    folder = await_folder(str(order["id"]), START_S if begun else 0.0)
    if folder is None:
        missing: "RunAnswer" = {"state": "missing", "reason": "it is not known on this machine"}
        listener.send(json_frame(END, request, missing))
        return
    start, end = read_record(folder)
    if not end and is_elsewhere(start):
        # Locks and pids of another machine mean nothing here.
        missing = {"state": "missing", "reason": ELSEWHERE % start.get("host", "which is not known")}
        listener.send(json_frame(END, request, missing))
        return
    if order.get("stop"):
        stop_run(folder)
    deadline = time.monotonic() + float(order.get("wait", 0))
    beaten = time.monotonic()
    while is_locked(folder) and time.monotonic() < deadline and listener.fd >= 0:
        time.sleep(0.02)
        if time.monotonic() - beaten > OBSERVE_BEAT_S:
            beaten = time.monotonic()
            listener.send(json_frame(BEAT, request, live_state(folder)))
    send_state(folder, order, request, listener)


def await_folder(run_id: str, seconds: float) -> "bytes | None":
    """A run's folder, waiting for its keeper to name it; None if there is none after that time."""
    deadline = time.monotonic() + seconds
    folder = find_run(run_id)
    while folder is None and time.monotonic() < deadline:
        time.sleep(0.005)
        folder = find_run(run_id)
    return folder


def stop_run(folder: bytes) -> None:
    """Set the run's stop mark, then wake its keeper, which looks for the mark."""
    # The keeper may be at its next run when the signal comes: that one has no mark, so it goes on.
    start = read_record(folder)[0]
    if start and is_locked(folder):
        set_mode(os.path.join(folder, b"run"), 0o600 | STOP_MARK)
        strike([int(start["pid"])], signal.SIGTERM)


def live_state(folder: bytes) -> "RunBeat":
    names = [os.path.join(folder, name) for name in (b"out", b"err")]
    sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in names]
    tail = read_part(names[0] if sizes[0] else names[1], max(0, max(sizes) - 400), 400)
    return {"bytes": sum(sizes), "line": tail.decode("utf-8", "replace")}


def send_state(folder: bytes, order: "ObserveOrder", request: int, listener: Listener) -> None:
    running = is_locked(folder)
    start, end = read_record(folder)
    state: "dict[str, Any]" = {} if running else dict(end)
    if not state:
        state = {"state": "running" if running else "lost", "folder": to_text(folder)}
        state["seconds"] = round(time.time() - float(start.get("started", time.time())), 3)
        restarted = start.get("boot") != boot_id()
        state["reason"] = "the machine was restarted" if restarted else "the process that kept it was killed"
    keep = int(order["keep"])
    for name, head_kind, tail_kind in ((b"out", OUT, OUT_TAIL), (b"err", ERR, ERR_TAIL)):
        path = os.path.join(folder, name)
        size = os.path.getsize(path) if os.path.exists(path) else 0
        total = int(state.setdefault(to_text(name), size))
        head = read_part(path, 0, min(keep, size))
        rest = min(keep, total - len(head))
        tail = read_part(path + b".tail", 0, keep) if total > size else read_part(path, size - rest, rest)
        listener.send(frame(head_kind, request, head) + frame(tail_kind, request, tail[max(0, len(tail) - rest) :]))
    listener.send(json_frame(END, request, state))


def read_part(path: bytes, offset: int, length: int) -> bytes:
    if length <= 0:
        return b""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return b""
