"""Named volumes of a real platform: what one sandbox writes, the next one reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder, Volume, new_disposable_id
from tests.backends.contract import finish
from tests.support.platform import Platform

pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
# It has its owner from the image, so that the sandbox's user may write there.
HOME = "/home/agent"


@pytest.fixture
def volume(platform: Platform) -> Iterator[str]:
    """A name that no volume has yet."""
    name = f"remote-sandbox-{uuid.uuid4().hex[:8]}"
    yield name
    platform.engine.docker("volume", "rm", name)
    assert name not in platform.volumes()


async def in_one_with(provider: OpenSandboxProvider, volume: Volume, script: str) -> tuple[int | None, bytes]:
    """What a command says in a sandbox that is made for it, and deleted after it."""
    order = SandboxOrder(network=True, volumes=(volume,))
    made = await provider.create(new_disposable_id(), order)
    try:
        sandbox = await provider.open(made)
        seen = await finish(sandbox, script)
        await sandbox.close()
        return seen.exit_code, seen.stdout.head
    finally:
        await provider.delete(made)


async def test_a_named_volume_outlives_its_sandboxes(
    provider: OpenSandboxProvider, platform: Platform, volume: str
) -> None:
    writable = Volume(volume, HOME, read_only=False)
    assert await in_one_with(provider, writable, f"echo from the first > {HOME}/note") == (0, b"")
    assert volume in platform.volumes()
    assert await in_one_with(provider, Volume(volume, "/data"), "cat /data/note") == (0, b"from the first\n")


async def test_a_named_volume_is_only_read_unless_asked_for(provider: OpenSandboxProvider, volume: str) -> None:
    code, _ = await in_one_with(provider, Volume(volume, HOME), f"touch {HOME}/mine")
    assert code != 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("Not_A_Name", "'Not_A_Name' is no name of a volume; use lower-case", id="capitals"),
        pytest.param("../etc", "is no name of a volume", id="path"),
        pytest.param("a b", "is no name of a volume", id="space"),
        pytest.param("x" * 254, "is no name of a volume", id="long"),
        pytest.param("/etc", r'volumes = \["/etc"\] under \[opensandbox\] in config.toml', id="a folder"),
        pytest.param("postgres", r'volumes = \["postgres"\] under \[opensandbox\] in config.toml', id="of others"),
    ],
)
async def test_a_volume_that_is_not_allowed_is_refused_in_one_sentence(
    provider: OpenSandboxProvider, platform: Platform, name: str, words: str
) -> None:
    before = platform.containers(), platform.volumes()
    order = SandboxOrder(network=True, volumes=(Volume(name, "/data"),))
    with pytest.raises(BadArgument, match=words) as refusal:
        await provider.create(new_disposable_id(), order)
    assert "\n" not in str(refusal.value)
    assert (platform.containers(), platform.volumes()) == before
