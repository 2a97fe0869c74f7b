"""Linux calls for a network namespace: create it, a card and a listener in it, and look up routes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from ....core.sandboxes.network import Address, Range, is_private

# Numbers from Linux's headers; Python has names for few of them.
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
SET_DUMPABLE, SET_DEATH_SIGNAL, NO_NEW_RIGHTS = 4, 1, 38
TUNSETIFF, TAP, WITHOUT_HEADER = 0x400454CA, 0x0002, 0x1000
SIOCADDRT, SIOCGIFFLAGS, SIOCSIFFLAGS = 0x890B, 0x8913, 0x8914
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8916, 0x891C, 0x8922
UP, ROUTE_UP, ROUTE_BY_GATEWAY = 0x1, 0x1, 0x2
TUN = "/dev/net/tun"

GET_ROUTE, REQUEST, DESTINATION, NEW_ROUTE, UNICAST = 26, 1, 1, 24, 1
HEADER, ROUTE, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")


def _libc_call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def leave_network() -> None:
    """Enter a new network namespace, inside a new user namespace where that is required."""
    # Root needs no user namespace. Another user keeps its id in the user namespace, and loses all rights in it when the
    # next program is started.
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            _libc_call("unshare", NEW_NETWORK)
            return
    enter_user_namespace(os.geteuid(), os.getegid(), NEW_NETWORK)


def enter_user_namespace(user: int, group: int, further: int = 0) -> None:
    """Enter a new user namespace, in which only `user` is mapped."""
    mine, ours = os.geteuid(), os.getegid()
    # After a change of user, a process may not write its own files in /proc without this.
    _libc_call("prctl", SET_DUMPABLE, 1, 0, 0, 0)
    _libc_call("unshare", NEW_USER | further)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {mine} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {ours} 1")


def become(user: int) -> None:
    """Become another user for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def set_no_new_privileges() -> None:
    """No program started from here on can gain privileges."""
    _libc_call("prctl", NO_NEW_RIGHTS, 1, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    _libc_call("prctl", SET_DEATH_SIGNAL, signal_number, 0, 0, 0)


def bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("16sH14x", interface.encode(), 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(asking, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), flags | UP))


def make_card(interface: str, address: str, mask: str, gateway: str, mtu: int) -> int:
    """A network card in this namespace, whose frames go through the descriptor; the default route is the gateway."""
    card = os.open(TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH14x", interface.encode(), TAP | WITHOUT_HEADER))
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for request, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, mask)):
            fcntl.ioctl(asking, request, struct.pack("16s16s", interface.encode(), _socket_address(text)))
        fcntl.ioctl(asking, SIOCSIFMTU, struct.pack("16si12x", interface.encode(), mtu))
        bring_up(interface)
        anywhere, flags = _socket_address("0.0.0.0"), ROUTE_UP | ROUTE_BY_GATEWAY
        route = struct.pack("L16s16s16sH110x", 0, anywhere, _socket_address(gateway), anywhere, flags)
        fcntl.ioctl(asking, SIOCADDRT, route)
    return card


def _socket_address(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


class Routes:
    """Looks up routes in the network namespace in which this was made."""

    def __init__(self) -> None:
        self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._asking.settimeout(2.0)

    def close(self) -> None:
        self._asking.close()

    def may_reach(self, address: Address, excepted: Iterable[Range]) -> bool:
        """Whether a sandbox may go there: to what is public and on another machine, or in an excepted range."""
        if any(address in allowed for allowed in excepted):
            return True
        try:
            return not is_private(address) and self.leads_away(address.packed)
        except OSError:
            # The kernel cannot say where it leads.
            return False

    def leads_away(self, packed: bytes) -> bool:
        """Whether an address is on another machine: not local, not a multicast, and reachable."""
        family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        wanted = ATTRIBUTE.pack(ATTRIBUTE.size + len(packed), DESTINATION) + packed
        body = ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0) + wanted
        self._asking.send(HEADER.pack(HEADER.size + len(body), GET_ROUTE, REQUEST, 0, 0) + body)
        answer = self._asking.recv(1 << 16)
        if HEADER.unpack_from(answer)[1] != NEW_ROUTE:
            return False
        return bool(ROUTE.unpack_from(answer, HEADER.size)[7] == UNICAST)


def end_of(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None on kernels that have none (before 5.3)."""
    try:
        return os.pidfd_open(process)
    except OSError:
        return None


def lives(parent: int) -> bool:
    """Whether our parent process still lives."""
    return os.getppid() == parent
