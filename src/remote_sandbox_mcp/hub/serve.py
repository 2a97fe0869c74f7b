"""The hub's process: who may talk to it, when it ends, and what it tells of itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from typing import Any

from .. import __version__
from .hello import ASK, SERVE, read
from .place import NoHub, Place, check_peer

log = logging.getLogger(__name__)

# Without clients, watches, transfers and forwards it stays for so long.
IDLE_S, LOOK_EVERY_S = 600.0, 2.0
IDLE_VARIABLE = "REMOTE_SANDBOX_HUB_IDLE_S"
HELLO_S = 10.0
LONGEST_LINE = 256 << 20
# For rows and files that are being written when it is told to end.
FAREWELL_S = 1.5


def serve(lock: int, listener: int) -> int:
    """Serve all clients of this user until there is nothing left to do; the process ends here."""
    # The collector finds nothing in a start that only makes things which stay.
    gc.disable()
    sock = socket.socket(fileno=listener)
    os.set_inheritable(lock, False)
    os.set_inheritable(listener, False)
    asyncio.run(Hub(Place(os.environ), lock, sock).run())
    return 0


class Hub:
    """Listens, and gives each front a conversation."""

    def __init__(self, place: Place, lock: int, listener: socket.socket) -> None:
        from ..tasks.process import sign

        self._place = place
        self._listener = listener
        self._began = time.time()
        self._stopped = asyncio.Event()
        self._lines: set[asyncio.Task[None]] = set()
        self._served = 0
        self._idle_since = time.monotonic()
        self._idle_s = float(os.environ.get(IDLE_VARIABLE) or IDLE_S)
        sign(lock)
        # Made once the first front is heard: it waits for no more than it needs.
        from .houses import Houses

        self._houses = Houses(self._idle_s)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        begin_log(self._place)
        log.info("hub %s began as process %d", __version__, os.getpid())
        server = await asyncio.start_unix_server(self._accepted, sock=self._listener, limit=LONGEST_LINE)
        looking = asyncio.ensure_future(self._look_whether_needed())
        preparing = asyncio.ensure_future(asyncio.to_thread(load_everything))
        await self._stopped.wait()
        looking.cancel()
        preparing.cancel()
        self._withdraw()
        server.close()
        await self._houses.leave(FAREWELL_S)
        log.info("hub ended as process %d", os.getpid())
        sys.stderr.flush()
        # Commands in progress are not given up: their fronts ask another hub what became of them.
        os._exit(0)

    # Lines

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            await self._greet(reader, writer)
        except (ConnectionError, asyncio.TimeoutError, ValueError) as problem:
            log.info("a line ended: %s", problem)
        except Exception:
            log.exception("a conversation failed")
        finally:
            self._lines.discard(task)
            self._idle_since = time.monotonic()
            with contextlib.suppress(OSError):
                writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line: socket.socket = writer.get_extra_info("socket")
        try:
            front = check_peer(line)
        except NoHub as problem:
            log.warning("a caller was refused: %s", problem)
            return
        said = read(await asyncio.wait_for(reader.readline(), HELLO_S) or b"{}")
        if said.get("hello") == ASK:
            writer.write(json.dumps(self._answer(str(said.get("question")))).encode() + b"\n")
            await writer.drain()
        elif said.get("hello") == SERVE:
            from .conversation import converse

            self._served += 1
            await converse(self._houses, said, front, reader, writer)

    def _answer(self, question: str) -> dict[str, Any]:
        """What a person or a front asks of the hub itself."""
        if question == "alive":
            return {"pid": os.getpid()}
        if question == "stop":
            self._stopped.set()
            return {"pid": os.getpid(), "stopping": True}
        return {
            "pid": os.getpid(),
            "version": __version__,
            "began": self._began,
            "served": self._served,
            "idle_s": self._idle_s,
            "log": self._place.log,
            **self._houses.facts(),
        }

    # The end

    async def _look_whether_needed(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, self._idle_s / 4))
            if not self._is_in_place():
                log.info("the socket was taken away")
                self._stopped.set()
            if self._lines or await self._houses.is_busy():
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > self._idle_s:
                log.info("nothing to do")
                self._stopped.set()

    def _is_in_place(self) -> bool:
        """Whether the socket that fronts find is this hub's."""
        return os.path.exists(self._place.lock) and os.path.exists(self._place.socket)

    def _withdraw(self) -> None:
        """Who comes now starts another hub; who has just come sees the line end, and does so too."""
        with contextlib.suppress(OSError):
            os.unlink(self._place.socket)


def begin_log(place: Place) -> None:
    """A file of the owner's, which does not grow for ever; what is printed goes there, too."""
    from pathlib import Path

    from ..mcp_server.logs import OwnLogs
    from ..watchdog.log import OURS, OwnLog

    handler = OwnLog(Path(place.log))
    logging.root.addHandler(OwnLogs(handler))
    logging.root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(logging.WARNING)
    log.setLevel(logging.INFO)


def load_everything() -> None:
    """All modules that a call may need: nothing is loaded in the middle of one, and a cache may be cleaned under us."""
    import importlib
    import pkgutil

    import remote_sandbox_mcp

    skipped = ("__main__", ".far", ".testing", ".cli")
    for found in pkgutil.walk_packages(remote_sandbox_mcp.__path__, "remote_sandbox_mcp."):
        if not any(part in found.name for part in skipped):
            importlib.import_module(found.name)
    gc.freeze()
    gc.enable()
