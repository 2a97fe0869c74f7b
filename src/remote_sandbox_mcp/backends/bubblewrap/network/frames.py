"""A sandbox's network card, carried by slirp4netns; frames to private networks are rejected here."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from ....core.sandboxes.network import Range, ranges
from . import kernel
from .enter import GATEWAY, MTU, NAMESERVER, READY

LONGEST = MTU + 64
CHECK_S = 1.0
START_S = 5.0
# A new address of this computer is noticed after this long at most.
CACHED_S = 5.0
MOST_CACHED = 4096
MOST_SAID = 1 << 16
ARP, VERSION_4, NO_OPTIONS = b"\x08\x06", b"\x08\x00", 0x45
ICMP, TCP, UDP = 1, 6, 17
MORE_OR_LATER, NAMES_PORT = 0x3FFF, b"\x00\x35"
PASS, DROP, REFUSE = "pass", "drop", "refuse"
OPTIONS = ("--target-type=bess", "--disable-host-loopback", "--enable-seccomp", f"--mtu={MTU}")


class Filter:
    """Decides on each frame that leaves the sandbox: IPv4 only, and nothing to private addresses."""

    def __init__(self, routes: kernel.Routes, excepted: tuple[Range, ...]) -> None:
        self._routes = routes
        self._excepted = excepted
        self._cache: dict[bytes, tuple[bool, float]] = {}
        self._nameserver = socket.inet_aton(NAMESERVER)

    def judge(self, frame: bytes) -> str:
        kind = frame[12:14]
        # ARP stays on the link; without it the sandbox would not find its gateway.
        if kind == ARP:
            return PASS
        # IP options could name a further destination.
        if kind != VERSION_4 or len(frame) < 34 or frame[14] != NO_OPTIONS or frame[23] not in (ICMP, TCP, UDP):
            return DROP
        target = frame[30:34]
        if target == self._nameserver:
            # slirp4netns forwards this address to the host's own resolver, so only DNS may go there.
            return PASS if _is_question(frame) else REFUSE
        return PASS if self.may_reach(target) else REFUSE

    def may_reach(self, target: bytes) -> bool:
        now = time.monotonic()
        may, until = self._cache.get(target, (False, 0.0))
        if until > now:
            return may
        # A port scan would otherwise fill the memory; the answers are cheap to find again.
        if len(self._cache) >= MOST_CACHED:
            self._cache.clear()
        may = self._routes.may_reach(ipaddress.IPv4Address(target), self._excepted)
        self._cache[target] = may, now + CACHED_S
        return may


def _is_question(frame: bytes) -> bool:
    """Whether it is an unfragmented DNS query, so that its port is visible."""
    is_whole = not int.from_bytes(frame[20:22], "big") & MORE_OR_LATER
    return is_whole and frame[23] in (TCP, UDP) and frame[36:38] == NAMES_PORT


def refusal(frame: bytes) -> bytes:
    """The ICMP answer of a gateway that refuses a packet, so that the sender knows at once."""
    # Never answer ICMP with ICMP, nor a multicast: RFC 1122.
    if frame[23] == ICMP or frame[30] >= 224:
        return b""
    # Type 3, code 13: communication administratively prohibited.
    body = struct.pack("!BBHI", 3, 13, 0, 0) + frame[14:42]
    body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    addresses = socket.inet_aton(GATEWAY), frame[26:30]
    head = struct.pack("!BBHHHBBH4s4s", NO_OPTIONS, 0, 20 + len(body), 0, 0, 64, ICMP, 0, *addresses)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return frame[6:12] + frame[0:6] + VERSION_4 + head + body


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


def carry_frames(card: int, settings: Mapping[str, Any], line: socket.socket, parent: int) -> None:
    """Carry frames until the parent ends. Raises OSError where slirp4netns does not start."""
    judge = Filter(kernel.Routes(), ranges(settings["private_ranges"]))
    slirp, carrier = start_slirp(settings["slirp"])
    try:
        line.sendall(READY)
        line.close()
        os.set_blocking(card, False)
        carrier.setblocking(False)
        Pump(card, carrier, judge).run(parent)
    finally:
        os.kill(slirp, signal.SIGKILL)
        os.waitpid(slirp, 0)


def start_slirp(program: str) -> tuple[int, socket.socket]:
    """Start slirp4netns; returns its pid and its socket for frames. It ends with us, because we hold its pipe."""
    folder = tempfile.mkdtemp(prefix="rsmcp-net-")
    path, said = f"{folder}/frames", os.memfd_create("said")
    try:
        pid = _spawn([program, *OPTIONS], path, said)
        return pid, _connect(path, pid, said)
    finally:
        os.close(said)
        shutil.rmtree(folder, ignore_errors=True)


def _spawn(words: list[str], path: str, said: int) -> int:
    # We hold the other end as long as this process lives, and no other process does.
    held, _ = os.pipe()
    pid = os.fork()
    if pid:
        os.close(held)
        return pid
    try:
        os.set_inheritable(held, True)
        os.dup2(said, 1)
        os.dup2(said, 2)
        # What it prints goes to a file in memory, which must not grow without end.
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_SAID, MOST_SAID))
        kernel.die_with_parent(signal.SIGKILL)
        walled = _wall_in()
        os.execv(words[0], [*words, *walled, f"--exit-fd={held}", path])
    except OSError as problem:
        os.write(2, str(problem).encode())
    finally:
        os._exit(1)


def _wall_in() -> tuple[str, ...]:
    """Options for slirp4netns: where user namespaces are forbidden, it runs as our unprivileged user."""
    try:
        kernel.enter_user_namespace(0, 0)
    except OSError:
        return ()
    return ("--enable-sandbox",)


def _connect(path: str, pid: int, said: int) -> socket.socket:
    carrier = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            carrier.connect(path)
            return carrier
        except OSError:
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
            time.sleep(0.001)
    lines = os.pread(said, MOST_SAID, 0).decode("utf-8", "replace").split("\n")
    words = [line for line in lines if line and "WARNING" not in line]
    raise OSError(f"slirp4netns did not start: {' / '.join(words[-2:]) or 'no answer'}")


class Pump:
    """Moves frames between the card and slirp4netns, no faster than slirp4netns takes them."""

    def __init__(self, card: int, carrier: socket.socket, judge: Filter) -> None:
        self._card = card
        self._carrier = carrier
        self._judge = judge
        self._waiting = b""

    def run(self, parent: int) -> None:
        poll = select.poll()
        end = kernel.end_of(parent)
        if end is not None:
            poll.register(end, select.POLLIN)
        while kernel.lives(parent):
            # While a frame waits for slirp4netns, nothing is read from the card: the kernel's queue holds back the
            # sender.
            poll.register(self._card, 0 if self._waiting else select.POLLIN)
            poll.register(self._carrier, select.POLLIN | (select.POLLOUT if self._waiting else 0))
            for descriptor, _ in poll.poll(CHECK_S * 1000):
                if descriptor == self._card:
                    self._from_card()
                elif descriptor == self._carrier.fileno() and not self._from_carrier():
                    return

    def _from_card(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self._waiting:
                frame = os.read(self._card, LONGEST)
                verdict = self._judge.judge(frame)
                if verdict == PASS:
                    self._send(frame)
                elif verdict == REFUSE and (answer := refusal(frame)):
                    os.write(self._card, answer)

    def _send(self, frame: bytes) -> None:
        try:
            self._carrier.send(frame)
            self._waiting = b""
        except BlockingIOError:
            self._waiting = frame

    def _from_carrier(self) -> bool:
        """False where slirp4netns has ended."""
        if self._waiting:
            self._send(self._waiting)
        with contextlib.suppress(BlockingIOError):
            # Bounded, so that incoming traffic does not starve outgoing.
            for _ in range(64):
                frame = self._carrier.recv(LONGEST)
                if not frame:
                    return False
                os.write(self._card, frame)
        return True
