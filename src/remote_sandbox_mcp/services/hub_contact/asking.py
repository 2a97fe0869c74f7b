"""Questions to hubs from any process of their user: which hubs exist, their state, and orders to them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...local.processes.locks import LockHolder, holder
from .hello import LOGIN, ask, read, say_hello
from .place import HubPlace, NoHub, current_folder, reach

# A hub answers in milliseconds, unless it is blocked.
ANSWER_S = 3.0
LONGEST_ANSWER = 1 << 20
# A login may pass several hosts, and wait for its turn.
LOGIN_S = 300.0


def hubs(environ: Mapping[str, str] = os.environ) -> list[HubPlace]:
    """Every hub that has a socket in this state folder, whatever its version; the one for `environ` comes first."""
    own = HubPlace(environ)
    try:
        own.check()
        names = sorted(name[:-5] for name in os.listdir(own.folder) if name.endswith(".sock"))
    except (OSError, NoHub):
        return []
    return [HubPlace(environ, name) for name in sorted(names, key=lambda name: name != own.name)]


def process_of(place: HubPlace) -> LockHolder | None:
    """The process that holds a hub's lock; None where there is none."""
    found = holder(Path(place.lock))
    return found if found and found.is_alive() else None


def ask_hub(place: HubPlace, question: str, limit_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
    """The hub's answer. Raises OSError or NoHub where there is none, ValueError where it cannot be read."""
    with place.connect() as line:
        return _ask(place, line, question, limit_s, more)


def call_hub(question: str, limit_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
    """Ask the hub of this environment, which is started if there is none."""
    place = HubPlace(os.environ)
    line, _ = reach(place)
    with line:
        return _ask(place, line, question, limit_s, more)


def whole(config: Path | None) -> str:
    """Absolute path of a configuration file, for a process in another folder."""
    return os.path.abspath(os.path.expanduser(config)) if config else ""


def leave_transfers(config: Path | None, limit_s: float = ANSWER_S) -> dict[str, Any]:
    """Hand the transfers of this process to the hub. Raises as ask_hub; a limit of 0 waits for no answer.

    The variables that it needs, secrets among them, are sent over the socket and stay in its memory.
    """
    return call_hub("take up", limit_s, config=whole(config), environ=dict(os.environ), folder=current_folder())


class HubLogin:
    """A person's login to a machine, which the hub makes and keeps: it asks, and the person at this end answers.

    Methods raise OSError or NoHub where there is no hub, ValueError where it cannot be understood.
    """

    def __init__(self, name: str, config: Path | None) -> None:
        self._place = HubPlace(os.environ)
        self._line, _ = reach(self._place)
        self._line.settimeout(LOGIN_S)
        self._heard = self._line.makefile("rb")
        self._line.sendall(say_hello(LOGIN, os.environ, current_folder(), name=name, config=whole(config)))

    def __enter__(self) -> HubLogin:
        return self

    def __exit__(self, *_: object) -> None:
        self._heard.close()
        self._line.close()

    def hear(self) -> dict[str, Any]:
        """The hub's next question, or how the login ended."""
        if not (line := self._heard.readline(LONGEST_ANSWER)):
            raise NoHub(f"the hub at {self._place.socket} has hung up; {self._place.log} may say why")
        return read(line)

    def answer(self, answers: list[str] | None) -> None:
        self._line.sendall(json.dumps({"answers": answers}).encode() + b"\n")


def _ask(
    place: HubPlace, line: socket.socket, question: str, limit_s: float, more: Mapping[str, Any]
) -> dict[str, Any]:
    line.settimeout(limit_s or ANSWER_S)
    heard = b""
    try:
        line.sendall(ask(question, **more))
        while limit_s and not heard.endswith(b"\n"):
            part = line.recv(1 << 16)
            if not part or len(heard) > LONGEST_ANSWER:
                raise ConnectionError
            heard += part
    except ConnectionError:
        raise NoHub(f"the hub at {place.socket} has hung up; {place.log} may say why") from None
    return read(heard or b"{}")


def hub_of(pid: int, environ: Mapping[str, str] = os.environ) -> HubPlace | None:
    """The hub that runs as this process, if it is one."""
    for place in hubs(environ):
        found = process_of(place)
        if found and found.pid == pid:
            return place
    return None


def let_go_of_watchdog(pid: int) -> bool:
    """Make a hub release the watchdog's lock; False where that process is no hub, or does not answer."""
    try:
        place = hub_of(pid)
        return bool(place and ask_hub(place, "let go").get("released"))
    except (OSError, NoHub, ValueError):
        return False
