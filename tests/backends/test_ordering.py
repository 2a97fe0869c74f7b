"""What an agent can order of a platform, through the real server with the operator's config.toml."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.platform import API_KEY, IMAGE, Platform
from tests.support.registry import PASSWORD, USER, Registry
from tests.support.server import Server, serve

pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]


@pytest.fixture
async def server(platform: Platform, registry: Registry, tmp_path: Path) -> AsyncIterator[Server]:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    config = (
        f'[opensandbox]\nserver_url = "{platform.url}"\napi_key = "env:KEY"\ndefault_image = "{IMAGE}"\n'
        f'[registries."{registry.host}"]\nuser = "{USER}"\npassword = "file:{secret}"\n'
        f'[logging]\nlevel = "DEBUG"\nfile = "{tmp_path}/server.log"\n'
    )
    before = platform.containers()
    async with serve(tmp_path, config=config, env={"KEY": API_KEY}) as server:
        yield server
    assert platform.containers() == before


def kept_by(server: Server) -> str:
    """All that was said, logged and written down, but for the file that holds the secret."""
    files = [Path(folder, name) for folder, _, names in os.walk(server.home) for name in names if name != "password"]
    texts = [file.read_bytes().decode(errors="replace") for file in files if file.is_file()]
    return server.everything_said + "".join(texts)


async def test_an_image_behind_a_login_needs_no_password_from_an_agent(
    server: Server, platform: Platform, private_image: str
) -> None:
    made = await server.call("create_sandbox", image=private_image)
    assert (made["image"], made["provider"]) == (private_image, "opensandbox")
    assert await server.output("id -un", sandbox_name=made["sandbox_id"]) == "agent\n"
    await server.call("delete_sandbox", sandbox_id=made["sandbox_id"])
    platform.engine.docker("rmi", private_image)
    assert PASSWORD not in kept_by(server)


async def test_a_network_that_cannot_be_closed_as_required_is_an_error_and_nothing_is_left(
    server: Server, platform: Platform
) -> None:
    before = platform.containers()
    for network in (False, ["pypi.org"]):
        problem = await server.fail("create_sandbox", network=network)
        assert problem["code"] == "unsupported"
        assert "set up [egress]" in problem["error"]
    assert platform.containers() == before
    made = await server.call("create_sandbox")
    assert made["network"] is True
    assert "could not be kept off" in " ".join(made["notes"])
    await server.call("delete_sandbox", sandbox_id=made["sandbox_id"])


async def test_a_named_volume_carries_files_from_one_sandbox_to_the_next(server: Server, platform: Platform) -> None:
    name = f"remote-sandbox-{uuid.uuid4().hex[:8]}"
    first = await server.call("create_sandbox", volumes=[f"{name}:/home/agent:rw"])
    await server.output("echo from the first >~/note", sandbox_name=first["sandbox_id"])
    await server.call("delete_sandbox", sandbox_id=first["sandbox_id"])
    second = await server.call("create_sandbox", volumes=[f"{name}:/data"])
    assert await server.output("cat /data/note", sandbox_name=second["sandbox_id"]) == "from the first\n"
    await server.call("delete_sandbox", sandbox_id=second["sandbox_id"])
    platform.engine.docker("volume", "rm", name)
