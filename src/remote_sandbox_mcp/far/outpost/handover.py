"""Connects to a port inside the sandbox's network and passes the socket to the server, which then uses it directly."""

import array
import socket

from ...core.orders import HandOutSocketOrder
from .files import WORKERS
from .output import Listener
from .place import Refused
from .wire import END, json_frame

INSIDE = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
CONNECT_S = 10.0


def hand_out_socket(order: "HandOutSocketOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Connect, and send the socket over the Unix socket `door`, before the answer: the server looks there after it."""
    inside = connect_inside(int(order["port"]))
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, int(order["door"]))
    descriptors = array.array("i", [inside.fileno()])
    door.sendmsg([str(order["token"]).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    listener.send(json_frame(END, request, {}))


def connect_inside(port: int) -> socket.socket:
    reason = ""
    for family, host in INSIDE:
        try:
            inside = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            # This kernel lacks the address family, such as IPv6.
            continue
        inside.settimeout(CONNECT_S)
        try:
            inside.connect((host, port))
            return inside
        except OSError as problem:
            inside.close()
            reason = reason or problem.strerror or "no answer in %d s" % CONNECT_S
    raise Refused("closed", reason or "there is no network")


WORKERS["hand_out_socket"] = hand_out_socket
