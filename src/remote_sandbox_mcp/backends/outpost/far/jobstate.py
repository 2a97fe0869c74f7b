"""What a background job is doing, as its folder, its lock and its processes say."""

import os
import re
import time

from .family import read_parents
from .files import Refused, open_regular
from .jobplace import find_job, newest_of, session_elsewhere
from .jobrecord import find_cookies, keeper_lives, read_begun, read_json
from .jobtools import has_tmux_session, tmux_panes
from .place import ELSEWHERE, boot_id, is_elsewhere, to_bytes, to_path, to_text

MYPY = False
if MYPY:
    from typing import Any

# Between the making of a job's folder and its keeper's lock.
BEING_STARTED_S = 20.0
PUT_AWAY_S = 0.5
LAST_LINE = re.compile(rb"(?:^|\n)EXIT_CODE=(-?[0-9]{1,10})\r?\n?\Z")
FROM_OUTSIDE = "it was told to end from outside, as at a shutdown"


class Lookout:
    """What is learned once for all jobs of a request."""

    def __init__(self) -> None:
        self.boot = boot_id()
        self.cookies: "dict[str, list[int]] | None" = None
        self.children: "dict[int, list[int]] | None" = None

    def members(self, job_id: str) -> "list[int]":
        """The processes that have a job's name in their environment."""
        if self.cookies is None:
            self.cookies = find_cookies()
        return self.cookies.get(job_id, [])

    def below(self, keeper: int) -> "list[int]":
        """The processes that descend from a keeper, or from another process that is known."""
        if keeper <= 0:
            # All processes descend from number 0.
            return []
        if self.children is None:
            self.children = {}
            for pid, parent in (read_parents() or {}).items():
                self.children.setdefault(parent, []).append(pid)
        found = list(self.children.get(keeper, []))
        for pid in found:
            found.extend(self.children.get(pid, []))
        return found


def job_state(folder: bytes, lookout: "Lookout | None" = None) -> "dict[str, Any]":
    """State, and what belongs to it. The end counts as soon as it is written, and is looked for last."""
    lookout = lookout or Lookout()
    order, begun = read_json(folder, b"order"), read_begun(folder)
    end = read_json(folder, b"end")
    if not end and is_elsewhere(order):
        # Neither its lock nor the numbers of its processes mean anything here.
        return dict(elsewhere(order), begun=begun, folder=folder)
    lives = not end and keeper_lives(folder, begun)
    if not end and not lives:
        end = read_json(folder, b"end")
    if end:
        await_last_words(folder, begun)
        known = {"state": "ended", "exit": end["exit"], "signal": end["signal"], "ending": end["ending"]}
        known.update(survivors=end["survivors"], ended=end["ended"])
    elif lives or is_being_started(folder, order, begun, lookout):
        known = {"state": "running"}
    else:
        known = without_keeper(folder, order, begun, lookout)
    known.update(order=order, begun=begun, folder=folder)
    return known


def elsewhere(order: "dict[str, Any]") -> "dict[str, Any]":
    """Of a job of another machine with the same home: it may run there, so it is neither gone nor restarted."""
    host = order.get("host") or order.get("node") or "which is not known"
    return {"state": "missing", "reason": ELSEWHERE % host, "order": order}


def await_last_words(folder: bytes, begun: "dict[str, Any]") -> None:
    """The keeper's last line in the log follows its end record at once."""
    deadline = time.monotonic() + PUT_AWAY_S
    while keeper_lives(folder, begun) and time.monotonic() < deadline:
        time.sleep(0.005)


def is_being_started(folder: bytes, order: "dict[str, Any]", begun: "dict[str, Any]", lookout: Lookout) -> bool:
    young = 0 <= time.time() - os.lstat(folder).st_mtime < BEING_STARTED_S
    return young and not begun and order.get("boot") == lookout.boot


def without_keeper(
    folder: bytes, order: "dict[str, Any]", begun: "dict[str, Any]", lookout: Lookout
) -> "dict[str, Any]":
    if begun.get("boot", order.get("boot")) != lookout.boot:
        return {"state": "gone", "rebooted": True, "reason": "the machine was restarted"}
    if begun and lookout.members(str(order["id"])):
        return {"state": "running", "reason": "its keeper was killed; its processes live"}
    interrupted = read_json(folder, b"interrupted")
    if interrupted:
        by_tmux = interrupted["by"] == "SIGHUP" and begun.get("via") == "tmux"
        return {"state": "gone", "reason": "its tmux session was killed" if by_tmux else FROM_OUTSIDE}
    return {"state": "gone", "reason": "its keeper was killed" if begun else "it was never begun"}


def wanted_job(look: "dict[str, Any]") -> "bytes | None":
    """The job that is asked for: by its id, or the newest of a session, unless another log is meant."""
    if look.get("job_id"):
        return find_job(str(look["job_id"]))
    folder = newest_of(str(look.get("session", "")))
    if folder and look.get("log_file") and "log" in read_json(folder, b"order"):
        order = read_json(folder, b"order")
        mine = to_bytes(order["log"])
        wanted = os.path.expanduser(to_bytes(str(look["log_file"])))
        named = [to_path(str(look["log_file"])), os.path.normpath(os.path.join(to_bytes(order["cwd"]), wanted))]
        if all(os.path.realpath(path) != os.path.realpath(mine) for path in named):
            return None
    return folder


def foreign_state(look: "dict[str, Any]") -> "dict[str, Any]":
    """A session that is not ours: its life is tmux's, its end the last line of its log."""
    session, log = str(look.get("session", "")), str(look.get("log_file", ""))
    known: "dict[str, Any]" = {"order": {"session": session, "log": to_text(to_path(log)) if log else ""}}
    known.update(foreign=True, begun={})
    panes, made = tmux_panes(to_bytes(session)) if session else ([], 0.0)
    if panes or (session and has_tmux_session(to_bytes(session))):
        return dict(known, state="running", panes=panes, begun={"started": made} if made else {})
    last = read_last(to_path(log)) if log else None
    other = session_elsewhere(session)
    if other and not (last and LAST_LINE.search(last)):
        return dict(known, foreign=False, **elsewhere(read_json(other, b"order")))
    if last is None:
        return dict(known, state="missing", foreign=False, reason="nothing is known of it on this machine")
    found = LAST_LINE.search(last)
    if found:
        code = int(found.group(1))
        return dict(known, state="ended", exit=code, signal="", ending="exited", survivors=[], ended=0.0)
    return dict(known, state="gone", reason="its tmux session is gone, and its log has no exit code")


def read_last(path: bytes) -> "bytes | None":
    try:
        fd, found = open_regular(path)
        with open(fd, "rb") as file:
            file.seek(max(0, found.st_size - 64))
            return file.read(64)
    except (OSError, Refused):
        return None


def find_state(look: "dict[str, Any]", lookout: Lookout) -> "dict[str, Any]":
    folder = wanted_job(look)
    if folder is not None:
        return job_state(folder, lookout)
    if look.get("job_id"):
        reason = "nothing is known of it on this machine"
        return {"state": "missing", "reason": reason, "order": {"id": look["job_id"]}, "begun": {}}
    return foreign_state(look)
