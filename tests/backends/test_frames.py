"""The filter between a sandbox's network card and slirp4netns: which frames pass."""

from __future__ import annotations

import socket
import struct
from contextlib import closing

import pytest

from remote_sandbox_mcp.backends.bubblewrap.network.frames import DROP, PASS, REFUSE, Filter, checksum, refusal
from remote_sandbox_mcp.backends.bubblewrap.network.kernel import Routes
from remote_sandbox_mcp.core.sandboxes.network import ranges

SENDER = "10.0.2.100"


class Anywhere(Routes):
    """A machine that has a way to every address, and whose own is one of them."""

    def __init__(self) -> None:
        pass

    def leads_away(self, packed: bytes) -> bool:
        return packed != socket.inet_aton("203.0.113.5")


def frame(target: str, protocol: int = 6, port: int = 80, first: int = 0x45, fragment: int = 0) -> bytes:
    addresses = socket.inet_aton(SENDER), socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH4s4s", first, 0, 28, 0, fragment, 64, protocol, 0, *addresses)
    return b"\x52\x55\x0a\x00\x02\x02" + b"\x02" * 6 + b"\x08\x00" + head + struct.pack("!HHI", 40000, port, 0)


FRAMES = {
    "outside": (frame("198.51.100.1"), PASS),
    "outside, UDP": (frame("198.51.100.1", 17), PASS),
    "another protocol": (frame("198.51.100.1", 47), DROP),
    "with options": (frame("198.51.100.1", first=0x46), DROP),
    "version 6": (b"\0" * 12 + b"\x86\xdd" + b"\x60" + b"\0" * 60, DROP),
    "cut": (frame("198.51.100.1")[:30], DROP),
    "nothing": (b"", DROP),
    "a question who has an address": (b"\xff" * 12 + b"\x08\x06" + b"\0" * 28, PASS),
    "names": (frame("10.0.2.3", 17, 53), PASS),
    "another port of the nameserver": (frame("10.0.2.3", 17, 80), REFUSE),
    "a later part to the nameserver": (frame("10.0.2.3", 17, 53, fragment=1), REFUSE),
    "the gateway, which is this machine's loopback": (frame("10.0.2.2"), REFUSE),
    "this machine": (frame("203.0.113.5"), REFUSE),
    "a private network": (frame("192.168.1.1"), REFUSE),
    "loopback past the routes": (frame("127.0.0.1"), REFUSE),
    "metadata": (frame("169.254.169.254"), REFUSE),
    "many at once": (frame("239.255.255.250", 17, 1900), REFUSE),
    "all at once": (frame("255.255.255.255", 17, 67), REFUSE),
    "what the operator allows": (frame("10.9.9.9"), PASS),
}


@pytest.mark.parametrize(("sent", "verdict"), FRAMES.values(), ids=FRAMES.keys())
def test_only_what_leads_outside_passes(sent: bytes, verdict: str) -> None:
    judge = Filter(Anywhere(), ranges(["10.9.9.0/24"]))
    assert judge.judge(sent) == verdict
    # From what it remembers, too.
    assert judge.judge(sent) == verdict


def test_a_refused_packet_is_answered_by_icmp_as_a_gateway_does() -> None:
    sent = frame("192.168.1.1")
    answer = refusal(sent)
    assert answer[:12] == sent[6:12] + sent[:6]
    assert socket.inet_ntoa(answer[30:34]) == SENDER
    assert (checksum(answer[14:34]), checksum(answer[34:])) == (0, 0)
    assert answer[34:36] == bytes((3, 13))
    assert answer[42:] == sent[14:42]


@pytest.mark.parametrize("sent", [frame("192.168.1.1", 1), frame("239.1.1.1", 17)], ids=["ICMP", "multicast"])
def test_some_packets_are_dropped_without_an_answer(sent: bytes) -> None:
    assert refusal(sent) == b""


def test_routes_to_loopback_and_multicast_do_not_lead_away() -> None:
    with closing(Routes()) as routes:
        assert not routes.leads_away(socket.inet_aton("127.0.0.1"))
        assert not routes.leads_away(socket.inet_aton("224.0.0.1"))
        assert not routes.leads_away(socket.inet_pton(socket.AF_INET6, "::1"))
