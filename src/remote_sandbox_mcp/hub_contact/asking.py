"""Questions to hubs, from any process of their user: which there are, how they stand, and that they end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..tasks.locks import Holder, holder
from .hello import ask, read
from .place import NoHub, Place

# A hub answers in milliseconds, unless it is held up.
ANSWER_S = 3.0
LONGEST_ANSWER = 1 << 20


def hubs(environ: Mapping[str, str] = os.environ) -> list[Place]:
    """Every hub that has a socket in this state folder, whatever its version; the one for `environ` comes first."""
    own = Place(environ)
    try:
        own.check()
        names = sorted(name[:-5] for name in os.listdir(own.folder) if name.endswith(".sock"))
    except (OSError, NoHub):
        return []
    return [Place(environ, name) for name in sorted(names, key=lambda name: name != own.name)]


def process_of(place: Place) -> Holder | None:
    """The process that holds a hub's lock; None where there is none."""
    found = holder(Path(place.lock))
    return found if found and found.is_alive() else None


def ask_hub(place: Place, question: str, limit_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
    """Its answer. Raises OSError or NoHub where it does not answer, ValueError where that cannot be read."""
    with place.connect() as line:
        line.settimeout(limit_s)
        line.sendall(ask(question, **more))
        heard = b""
        while not heard.endswith(b"\n"):
            part = line.recv(1 << 16)
            if not part or len(heard) > LONGEST_ANSWER:
                raise NoHub(f"the hub at {place.socket} has hung up")
            heard += part
    return read(heard)


def hub_of(pid: int, environ: Mapping[str, str] = os.environ) -> Place | None:
    """The hub that is this process, if it is one."""
    for place in hubs(environ):
        found = process_of(place)
        if found and found.pid == pid:
            return place
    return None


def let_go_of_watchdog(pid: int) -> bool:
    """Have a hub release the watchdog's lock; False where that process is no hub, or does not answer."""
    try:
        place = hub_of(pid)
        return bool(place and ask_hub(place, "let go").get("released"))
    except (OSError, NoHub, ValueError):
        return False
