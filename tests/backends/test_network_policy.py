"""A network that is off, open or narrowed: asked of a real platform with egress control, and without it."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.opensandbox import provider as egress
from remote_sandbox_mcp.backends.opensandbox.order import request_of
from remote_sandbox_mcp.backends.opensandbox.problems import NETWORK_POLICY, sentence
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider, gap_in
from remote_sandbox_mcp.core.errors import SandboxError, Unsupported
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder, new_disposable_id
from tests.backends.contract import finish
from tests.support.platform import AS_ROOT, IMAGE, Platform
from tests.support.ports import free_block, free_port
from tests.support.root import as_root

pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
CONTROL = Path(__file__).parents[1] / "support" / "egress" / "egress.py"
CONTROL_IMAGE = "egress:test"
RULES = DisposableRules(default_image=IMAGE)
HOSTS = ("pypi.org", "*.pythonhosted.org", "10.1.0.0/16")
OFF: dict[str, Any] = {"network": False}
SOME: dict[str, Any] = {"network": True, "hosts": HOSTS}


class Controlled(Platform):
    """A second server over the engine of the first, with egress control in one of its modes."""

    def __init__(self, beside: Platform, mode: str) -> None:
        self.bridge, self.engine, self.execd = beside.bridge, beside.engine, beside.execd
        self.folder = Path(tempfile.mkdtemp(prefix="platform-", dir="/tmp"))
        self.port, self._ports = free_port(), free_block()
        self._mode, self._server = mode, None

    def _config(self) -> str:
        return f'{super()._config()}[egress]\nimage = "{CONTROL_IMAGE}"\nmode = "{self._mode}"\n'

    def __enter__(self) -> Controlled:
        self.start_server()
        return self

    def stop(self) -> None:
        self.stop_server()
        subprocess.run([*as_root(), "rm", "-rf", str(self.folder)], check=False)

    def given(self, key: str) -> dict[str, str]:
        """The environment of the egress control beside a sandbox."""
        (control,) = self.containers(f"label=opensandbox.io/egress-sidecar-for={key}")
        shown = self.engine.docker("inspect", "--format={{json .Config.Env}}", control).stdout
        return dict(line.split("=", 1) for line in json.loads(shown))


@pytest.fixture(scope="module")
def control_image(platform: Platform) -> None:
    docker = platform.engine.docker
    docker("create", "--name=maker-egress", AS_ROOT, "true")
    docker("cp", str(CONTROL), "maker-egress:/egress.py")
    docker("commit", '--change=CMD ["python3", "/egress.py"]', "maker-egress", CONTROL_IMAGE)
    docker("rm", "maker-egress")


@pytest.fixture(scope="module")
def closed(platform: Platform, control_image: None) -> Iterator[Controlled]:
    """Holds names and addresses."""
    with Controlled(platform, "dns+nft") as controlled:
        yield controlled


@pytest.fixture(scope="module")
def leaky(platform: Platform, control_image: None) -> Iterator[Controlled]:
    """Holds names alone."""
    with Controlled(platform, "dns") as controlled:
        yield controlled


@asynccontextmanager
async def made(on: Platform, **fields: Any) -> AsyncIterator[tuple[Disposable, OpenSandboxProvider]]:
    provider = OpenSandboxProvider(on.settings(), RULES, "tests")
    try:
        found = await provider.create(new_disposable_id(), SandboxOrder(**fields))
        try:
            yield found, provider
        finally:
            await provider.delete(found)
    finally:
        await provider.close()


async def refused(on: Platform, **fields: Any) -> str:
    """Why it is not made; and nothing is left of it."""
    before = on.containers(), on.volumes()
    with pytest.raises(Unsupported) as refusal:
        async with made(on, **fields):
            pass
    assert (on.containers(), on.volumes()) == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


# With egress control


@pytest.mark.parametrize(
    ("fields", "allowed", "has_network"),
    [({}, (), False), (OFF, (), False), (SOME, HOSTS, True)],
    ids=["nothing said", "off", "hosts"],
)
async def test_what_was_asked_for_arrives_at_the_egress_control(
    closed: Controlled, fields: dict[str, Any], allowed: tuple[str, ...], has_network: bool
) -> None:
    before = closed.containers(), closed.volumes()
    async with made(closed, **fields) as (found, provider):
        rules = json.loads(closed.given(found.key)["OPENSANDBOX_EGRESS_RULES"])
        assert rules == {
            "defaultAction": "deny",
            "egress": [{"action": "allow", "target": host} for host in allowed],
        }
        (again,) = [each for each in await provider.list() if each.id == found.id]
        assert found.network == again.network == has_network
        assert found.notes == ((f"its network reaches only {', '.join(allowed)}",) if allowed else ())
    assert (closed.containers(), closed.volumes()) == before


async def test_an_open_network_has_no_policy(closed: Controlled) -> None:
    async with made(closed, network=True) as (found, _):
        assert not closed.containers(f"label=opensandbox.io/egress-sidecar-for={found.key}")
        assert (found.network, found.notes) == (True, ())


@pytest.fixture
def beyond(platform: Platform) -> Iterator[str]:
    """An address of this machine to which a container has no way but the default one."""
    address = f"203.0.113.{random.randint(1, 254)}"
    words = ("addr", "{}", f"{address}/32", "dev", platform.bridge.name)
    for verb in ("add", "del"):
        subprocess.run([*as_root(), "ip", *(word.format(verb) for word in words)], check=True, capture_output=True)
        if verb == "add":
            yield address


@pytest.mark.parametrize(("network", "code"), [(False, 1), (True, 0)], ids=["off", "on"])
async def test_only_an_open_network_has_a_way_out(closed: Controlled, beyond: str, network: bool, code: int) -> None:
    # Whether the port is open does not matter: a refusal comes from there, too.
    script = f"import socket, sys; sys.exit(socket.socket().connect_ex(('{beyond}', 9)) == 101)"
    async with made(closed, network=network) as (found, provider):
        sandbox = await provider.open(found)
        assert (await finish(sandbox, f'python3 -c "{script}"')).exit_code == code
        await sandbox.close()


async def test_a_closed_sandbox_is_reached_through_the_server(closed: Controlled) -> None:
    provider = OpenSandboxProvider(closed.settings(use_server_proxy=True), RULES, "tests")
    found = await provider.create(new_disposable_id(), SandboxOrder(**OFF))
    sandbox = await provider.open(found)
    assert (await finish(sandbox, "echo here")).stdout.head == b"here\n"
    await sandbox.close()
    await provider.delete(found)
    await provider.close()


async def test_a_sandbox_whose_policy_cannot_be_checked_is_removed(
    closed: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(*_: object) -> str:
        raise SandboxError("the line was cut")

    monkeypatch.setattr(egress, "gap", no_answer)
    before = closed.containers(), closed.volumes()
    with pytest.raises(SandboxError, match="the line was cut"):
        async with made(closed):
            pass
    assert (closed.containers(), closed.volumes()) == before


# With egress control that holds names alone


@pytest.mark.parametrize(
    ("fields", "words"),
    [(OFF, "its network cannot be kept off: "), (SOME, "its network cannot be narrowed to these hosts: ")],
    ids=["off", "hosts"],
)
async def test_a_sandbox_whose_required_policy_is_not_enforced_is_removed(
    leaky: Controlled, fields: dict[str, Any], words: str
) -> None:
    why = await refused(leaky, **fields)
    assert f"{words}the platform's egress control refuses names alone, and addresses can be reached; set up" in why


async def test_an_optional_policy_that_is_not_enforced_is_reported(leaky: Controlled) -> None:
    async with made(leaky) as (found, provider):
        assert found.network
        assert "could not be kept off: the platform's egress control refuses names alone" in " ".join(found.notes)
        (again,) = [each for each in await provider.list() if each.id == found.id]
        assert again.network


# Without egress control


@pytest.mark.parametrize("fields", [OFF, SOME], ids=["off", "hosts"])
async def test_without_egress_control_nothing_is_made_that_needs_it(platform: Platform, fields: dict[str, Any]) -> None:
    why = await refused(platform, **fields)
    assert "egress.image must be configured" in why
    assert "set up [egress]" in why
    assert "leave network out" in why


# What is decided


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param({"policy": {"defaultAction": "deny"}, "enforcementMode": "dns+nft"}, "", id="holds"),
        pytest.param({"policy": {"defaultAction": "deny"}}, "", id="does not tell its mode"),
        pytest.param({"policy": {"defaultAction": "deny"}, "enforcementMode": "dns"}, "names alone", id="names"),
        pytest.param({"policy": {"defaultAction": "allow"}, "enforcementMode": "dns+nft"}, "not deny", id="open"),
        pytest.param({"policy": None, "enforcementMode": "dns+nft"}, "not deny", id="no policy"),
        pytest.param({}, "not deny", id="nothing"),
        pytest.param([], "not deny", id="something else"),
    ],
)
def test_an_answer_of_the_egress_control_shows_whether_the_policy_is_enforced(said: object, words: str) -> None:
    assert words in gap_in(said)
    assert bool(gap_in(said)) == bool(words)


@pytest.mark.parametrize(
    ("status", "words", "about"),
    [
        (400, "networkPolicy is not supported when docker network_mode=host.", True),
        (501, "egress.image must be configured when networkPolicy is provided.", True),
        (400, "no image mirror/egress:1", False),
        (500, "networkPolicy", False),
    ],
    ids=["network of the host", "no control", "an image", "failure"],
)
def test_a_failure_never_opens_a_network(status: int, words: str, about: bool) -> None:
    from opensandbox.exceptions import SandboxApiException, SandboxError

    answer = SandboxApiException(f"HTTP {status}", status_code=status, error=SandboxError("", words))
    assert (sentence("unable", answer).reason == NETWORK_POLICY) is about


@pytest.mark.parametrize(
    ("fields", "must_hold"),
    [({}, False), ({"network": True}, False), (OFF, True), (SOME, True), ({"hosts": HOSTS}, True)],
    ids=["nothing said", "on", "off", "hosts", "hosts alone"],
)
def test_a_policy_that_was_asked_for_must_be_enforced(fields: dict[str, Any], must_hold: bool) -> None:
    assert request_of("sb-12345678", SandboxOrder(**fields), RULES, "mine").must_hold is must_hold
