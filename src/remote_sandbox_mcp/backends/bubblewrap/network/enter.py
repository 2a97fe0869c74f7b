"""Started before bubblewrap: makes the network namespace, leaves a carrier for it outside, and becomes bubblewrap.

Arguments: the settings as JSON (reach, hosts, private_ranges, slirp, user), then the command line to become.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import kernel

# The usual ones of slirp4netns.
ADDRESS, MASK, GATEWAY, NAMESERVER, MTU = "10.0.2.100", "255.255.255.0", "10.0.2.2", "10.0.2.3", 65520
CARD = "tap0"
PROXY_PORT = 3128
WAITING = 128
READY = b"ready"
Serve = Callable[[int, dict[str, Any], socket.socket, int], None]
READY_S = 8.0
OUTSIDE = "outside"


def main(arguments: list[str]) -> None:
    settings, command = json.loads(arguments[0]), arguments[1:]
    near, far = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        near.close()
        carry(settings, far, parent)
    far.close()
    try:
        kernel.leave_network()
        kernel.bring_up("lo")
        inside = make_inside(settings)
        socket.send_fds(near, [b"take"], [inside])
        near.settimeout(READY_S)
        said = b"".join(iter(lambda: near.recv(4096), b""))
    except OSError as problem:
        said = f"{problem.strerror or 'no answer from its carrier'} {problem.filename or ''}".strip().encode()
    if said != READY:
        sys.exit(f"no network of its own: {said.decode('utf-8', 'replace') or 'its carrier has ended'}")
    # Python ignores SIGPIPE, and bubblewrap's commands would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(command[0], command)


def make_inside(settings: dict[str, Any]) -> int:
    """Make the carrier's part of the namespace: a network card, or a listener on its loopback."""
    if settings["reach"] == OUTSIDE:
        return kernel.make_card(CARD, ADDRESS, MASK, GATEWAY, MTU)
    listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=WAITING)
    return listener.detach()


def carry(settings: dict[str, Any], far: socket.socket, parent: int) -> NoReturn:
    """The process that stays in the host's network; it ends with its parent, which has become bubblewrap by then."""
    try:
        line = close_all_but(far)
        # Imported before it becomes a user that may not read our Python's folders.
        serve = load(settings)
        if settings["user"]:
            kernel.become(settings["user"])
        kernel.set_no_new_privileges()
        _, descriptors, _, _ = socket.recv_fds(line, 16, 1)
        if descriptors:
            # Python 3.10 and 3.11 leave it inheritable, whatever flag they are given.
            os.set_inheritable(descriptors[0], False)
            serve(descriptors[0], settings, line, parent)
    except OSError as problem:
        with contextlib.suppress(OSError):
            line.sendall(str(problem).encode())
    finally:
        os._exit(0)


def close_all_but(far: socket.socket) -> socket.socket:
    """Close everything else: the sandbox's connection and filter must not stay open here."""
    kept = os.dup2(far.detach(), 3, inheritable=False)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.close(nothing)
    return socket.socket(fileno=kept)


def load(settings: dict[str, Any]) -> Serve:
    """Imported in this process only: the one that becomes bubblewrap does not wait for it."""
    if settings["reach"] == OUTSIDE:
        from .frames import carry_frames

        return carry_frames
    from .proxy import serve_proxy

    return serve_proxy
