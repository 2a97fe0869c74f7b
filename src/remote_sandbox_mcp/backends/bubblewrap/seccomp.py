"""A filter on system calls that closes what namespaces leave open: keyrings, nested namespaces, odd sockets, bpf."""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
NUMBER_AT, ABI_AT, FIRST_ARGUMENT_AT, SECOND_ARGUMENT_AT = 0, 4, 16, 24
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NEW_USER_NAMESPACE = 0x10000000
# The two modes of fallocate that free space instead of taking it.
PUNCH_HOLE, COLLAPSE_RANGE = 0x02, 0x08
# These ioctls type into a terminal, or copy its screen, as its user would.
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
# Families up to netlink are bound to the network namespace; beyond, vsock reaches the hypervisor, bluetooth the radio.
LAST_FAMILY = 16
LAST_NUMBER = 0x3FFFFFFF


@dataclass(frozen=True)
class Abi:
    """A machine's native calling convention; any other that its kernel supports is refused."""

    audit: int
    socket: int
    clone: int
    unshare: int
    add_key: int
    request_key: int
    keyctl: int
    ioctl: int
    bpf: int
    perf_event_open: int
    userfaultfd: int
    fallocate: int
    io_uring_setup: int = 425
    clone3: int = 435


# Younger architectures share one table of numbers.
GENERIC = {
    **{"socket": 198, "clone": 220, "unshare": 97, "add_key": 217, "request_key": 218, "keyctl": 219},
    **{"ioctl": 29, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "fallocate": 47},
}
ABIS = {
    "x86_64": Abi(
        0xC000003E,
        **{"socket": 41, "clone": 56, "unshare": 272, "add_key": 248, "request_key": 249, "keyctl": 250},
        **{"ioctl": 16, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "fallocate": 285},
    ),
    "aarch64": Abi(0xC00000B7, **GENERIC),
    "riscv64": Abi(0xC00000F3, **GENERIC),
}


def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def refuse(number: int, error: int) -> bytes:
    return step(EQUAL, number, 0, 1) + step(RETURN, REFUSE | error)


def refuse_if(number: int, test: int, value: int, error: int, at: int = FIRST_ARGUMENT_AT) -> bytes:
    """Refuse a call whose argument passes the test; otherwise continue with the call's number."""
    verdict = step(test, value, 0, 1) + step(RETURN, REFUSE | error) + step(LOAD, NUMBER_AT)
    return step(EQUAL, number, 0, 4) + step(LOAD, at) + verdict


def refuse_without(number: int, bits: int, error: int, at: int) -> bytes:
    """Refuse a call whose argument has none of the bits."""
    verdict = step(ANY_BIT, bits, 1, 0) + step(RETURN, REFUSE | error) + step(LOAD, NUMBER_AT)
    return step(EQUAL, number, 0, 4) + step(LOAD, at) + verdict


def assemble(abi: Abi) -> bytes:
    foreign = step(LOAD, ABI_AT) + step(EQUAL, abi.audit, 1, 0) + step(RETURN, REFUSE | errno.ENOSYS)
    # x32 has the same ABI value as x86_64 and differs in its numbers.
    x32 = step(LOAD, NUMBER_AT) + step(ABOVE, LAST_NUMBER, 0, 1) + step(RETURN, REFUSE | errno.ENOSYS)
    # Keyrings are shared by all processes of a user; the others are large parts of the kernel that no build or test
    # needs.
    whole = (abi.add_key, abi.request_key, abi.keyctl, abi.bpf, abi.perf_event_open, abi.userfaultfd)
    refused = b"".join(refuse(number, errno.EPERM) for number in whole)
    terminals = b"".join(
        refuse_if(abi.ioctl, EQUAL, request, errno.EPERM, SECOND_ARGUMENT_AT) for request in (TIOCSTI, TIOCLINUX)
    )
    # The flags of clone3 are in memory, which a filter cannot read, and io_uring opens sockets itself; with "no such
    # call" programs fall back to the older ones.
    unreadable = refuse(abi.clone3, errno.ENOSYS) + refuse(abi.io_uring_setup, errno.ENOSYS)
    nested = b"".join(
        refuse_if(number, ANY_BIT, NEW_USER_NAMESPACE, errno.EPERM) for number in (abi.clone, abi.unshare)
    )
    sockets = refuse_if(abi.socket, ABOVE, LAST_FAMILY, errno.EAFNOSUPPORT)
    # It takes the whole disk in an instant, before the watch can notice. Not all file systems support it, so programs
    # go on without it, or write zeros.
    room = refuse_without(abi.fallocate, PUNCH_HOLE | COLLAPSE_RANGE, errno.EOPNOTSUPP, SECOND_ARGUMENT_AT)
    return foreign + x32 + refused + unreadable + nested + terminals + sockets + room + step(RETURN, ALLOW)


def abi_here() -> Abi | None:
    return ABIS.get(platform.machine())


@contextmanager
def filter_file(abi: Abi) -> Iterator[int]:
    """The filter as an open file, as bubblewrap wants it."""
    fd = os.memfd_create("seccomp")
    try:
        os.write(fd, assemble(abi))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
