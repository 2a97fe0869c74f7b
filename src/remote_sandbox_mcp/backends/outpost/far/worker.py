"""A worker's minute: one piece of file work, answered whatever happens."""

import errno
import signal

from .files import Refused, list_entries, read, search, write
from .output import Listener
from .wire import FAIL, json_frame

MYPY = False
if MYPY:
    from typing import Any

WORKER_S = 60
WORKERS = {"read": read, "write": write, "list": list_entries, "search": search}


def give_up(*_: object) -> None:
    """A worker told to end still removes what it has not put in place."""
    raise SystemExit


def answer(work: "Any", order: "dict[str, Any]", raw: bytes, request: int, listener: Listener) -> None:
    """Do the work, within a minute, and tell why where it cannot be done."""
    signal.signal(signal.SIGTERM, give_up)
    signal.alarm(WORKER_S)
    try:
        work(order, raw, request, listener)
    except Refused as refusal:
        problem = {"reason": refusal.reason, "message": str(refusal)}
        listener.send(json_frame(FAIL, request, problem))
    except (OSError, ValueError) as trouble:
        reason = errno.errorcode.get(getattr(trouble, "errno", 0) or 0, "EINVAL")
        reason = "fork" if reason == "EAGAIN" else reason
        message = getattr(trouble, "strerror", "") or str(trouble)
        about = order.get("path", order["verb"])
        listener.send(json_frame(FAIL, request, {"reason": reason, "message": "%s: %s" % (about, message)}))
