"""The network of a sandbox on this machine: what it reaches, what it does not, and that nothing of it is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import networks
from tests.support.networks import (
    ABSTRACT,
    OUTSIDE,
    OUTSIDE_6,
    OWN,
    OWN_6,
    OWN_TOO,
    PRIVATE,
    PRIVATE_6,
    Networks,
)
from tests.support.pace import Deadline

pytestmark = [
    pytest.mark.skipif(bool(networks.missing()), reason=networks.missing() or "none"),
    pytest.mark.xdist_group("own-network"),
]

OF_THE_USER = ["127.0.0.1", "::1", OWN, OWN_TOO, OWN_6, *PRIVATE, PRIVATE_6, "10.0.2.2", "10.0.2.3"]
# From a device on purpose: the kernel then asks no route, and would take every address for a neighbour's.
PAST_THE_ROUTES = [["tcp", address, 80, "tap0"] for address in (OWN, PRIVATE[0])]
EVERYTHING = [
    *(["tcp", address] for address in [OUTSIDE, OUTSIDE_6, *OF_THE_USER]),
    *(["udp", address] for address in [OUTSIDE, *OF_THE_USER]),
    *PAST_THE_ROUTES,
    ["abstract", ABSTRACT],
    ["tcp", "outside.example.org"],
    ["tcp", "private.example.org"],
]
USERS = pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary-user"])


@pytest.fixture(scope="module")
def world() -> Iterator[Networks]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Networks(Path(folder))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below the folders of pytest, which are closed to other users."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def name_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "du"


def reached(seen: dict[str, str]) -> set[str]:
    return {target for target, word in seen.items() if word == "reached"}


@USERS
def test_the_internet_is_reached_and_the_users_networks_are_not(world: Networks, folder: Path, ordinary: bool) -> None:
    seen = world.probe(folder, {}, EVERYTHING, ordinary=ordinary)
    assert reached(seen) == {f"tcp {OUTSIDE}", f"udp {OUTSIDE}", "tcp outside.example.org"}
    # Who may not go there is told at once, and does not wait for an answer that cannot come.
    assert "No route" in seen[f"tcp {PRIVATE[0]}"]
    world.until_home_is_quiet()


def test_the_hosts_network_is_reached_if_the_operator_shares_it(world: Networks, folder: Path) -> None:
    seen = world.probe(folder, {"rules": {"shares_host_network": True}}, [["tcp", "127.0.0.1"], ["abstract", ABSTRACT]])
    assert reached(seen) == {"tcp 127.0.0.1", f"abstract {ABSTRACT}"}


def test_private_ranges_open_exactly_what_they_name(world: Networks, folder: Path) -> None:
    rules = {"private_ranges": ["10.77.0.2", f"{OWN}/32"]}
    seen = world.probe(folder, {"rules": rules}, [["tcp", address] for address in OF_THE_USER])
    assert reached(seen) == {"tcp 10.77.0.2", f"tcp {OWN}"}


@USERS
@pytest.mark.parametrize("told", [{}, {"hosts": ["pypi.org"]}], ids=["own", "hosts"])
def test_a_server_that_is_killed_leaves_no_process(
    world: Networks, folder: Path, told: dict[str, Any], ordinary: bool
) -> None:
    with world.serve(folder, {**told, "waits": True}, ordinary=ordinary) as server:
        assert server.stdout
        assert server.stdout.readline() == b"open\n"
        # Now and then the server measures a sandbox's disk with du, which has its parent's name at first.
        deadline = Deadline(10)
        while True:
            beside = [pid for pid in world.processes_at_home() if int(pid) != server.pid]
            carriers = [pid for pid in beside if name_of(pid) != "du"]
            if len(carriers) <= (1 if told else 2) or deadline.has_passed():
                break
        cards, harmless = [has_card(pid) for pid in carriers], [is_harmless(pid) for pid in carriers]
        server.kill()
    # Nobody but the one that checks every frame has the card.
    assert sum(cards) == (0 if told else 1)
    assert harmless == ([True] if told else [True, True])
    world.until_home_is_quiet()


def test_where_no_card_can_be_made_it_is_refused_with_what_to_do(folder: Path) -> None:
    bare = Networks(folder, tun=False)
    try:
        said = bare.ask(folder, {})["problem"]
    finally:
        bare.close()
    assert "--device /dev/net/tun" in said
    assert 'network=["pypi.org"' in said


def has_card(pid: str) -> bool:
    return any(os.readlink(link) == "/dev/net/tun" for link in Path(f"/proc/{pid}/fd").iterdir())


def is_harmless(pid: str) -> bool:
    """Not root, and cannot become it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return "Uid:\t0" not in status and "NoNewPrivs:\t1" in status


# Lists of hosts

CURL = "curl --silent --show-error --max-time 8 --output - --write-out '%{http_code}'"
LISTED = ["outside.example.org", "*.example.org:8443", "loopback.example.org", "private.example.org", "own.example.org"]
REQUESTS = {
    "a listed name": ("http://outside.example.org/", "reached"),
    "the same through a tunnel": ("--proxytunnel http://outside.example.org/", "reached"),
    "the same by SOCKS": ("--proxy socks5h://127.0.0.1:3128 http://outside.example.org/", "reached"),
    "a port of its own": ("http://outside.example.org:8443/", "reached"),
    "a port that is not listed": (
        "http://outside.example.org:22/",
        "port 22 of outside.example.org is not in the list",
    ),
    "a name that is not listed": ("http://example.net/", "example.net is not in the list of hosts"),
    "its address": (f"http://{OUTSIDE}/", f"{OUTSIDE} is not in the list"),
    "a tunnel to its address": (f"--proxytunnel http://{OUTSIDE}/", "403"),
    "its address by SOCKS": (f"--proxy socks5://127.0.0.1:3128 http://{OUTSIDE}/", "(97)"),
    "a name that leads to loopback": ("http://loopback.example.org/", "leads to 127.0.0.1"),
    "a name that leads into a private network": ("http://private.example.org/", f"leads to {PRIVATE[0]}"),
    "a name that leads to this computer": ("http://own.example.org/", f"leads to {OWN}"),
    "no proxy": (f"--noproxy '*' http://{OUTSIDE}/", "curl: (7)"),
    "no proxy by name": ("--noproxy '*' http://outside.example.org/", "curl: (6)"),
}


@pytest.fixture(scope="module")
def said(world: Networks) -> dict[str, str]:
    """All of the requests from one sandbox, which takes longer to make than they take."""
    lines = [f"echo; echo '== {name}'; {CURL} {words} 2>&1" for name, (words, _) in REQUESTS.items()]
    with tempfile.TemporaryDirectory() as folder:
        answer = world.ask(Path(folder), {"hosts": LISTED, "script": "\n".join((*lines, "true"))})
    assert any("HTTPS_PROXY" in note for note in answer["notes"])
    parts = answer["said"][1].split("== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


@pytest.mark.parametrize("name", REQUESTS.keys())
def test_only_listed_hosts_are_reached(said: dict[str, str], name: str) -> None:
    expected = REQUESTS[name][1]
    assert expected in said[name]
    assert ("reached GET" in said[name]) == (expected == "reached")


@USERS
def test_beside_its_proxy_a_sandbox_with_a_list_has_no_network(world: Networks, folder: Path, ordinary: bool) -> None:
    targets = [target for target in EVERYTHING if "tap0" not in target]
    seen = world.probe(folder, {"hosts": LISTED}, targets, ordinary=ordinary)
    assert not reached(seen)
    world.until_home_is_quiet()
