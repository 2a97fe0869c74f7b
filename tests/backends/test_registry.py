"""Images behind a login: a real registry, from which a real platform fetches with what the operator configured."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.opensandbox.problems import LOGIN_WANTED, explained
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.errors import BadArgument, ConfigError, SandboxError
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, RegistryLogin, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.backends.contract.basics import said
from tests.support.config_reading import read
from tests.support.platform import Platform
from tests.support.registry import PASSWORD, USER, Registry

pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
WRONG = "not-the-one-of-the-registry"


@contextmanager
def fetched(platform: Platform, image: str) -> Iterator[None]:
    """The engine has none of it before, and none afterwards."""
    try:
        yield
    finally:
        platform.engine.docker("rmi", image, check=False)


def provider(platform: Platform, logins: dict[str, RegistryLogin]) -> OpenSandboxProvider:
    return OpenSandboxProvider(replace(platform.settings(), registries=logins), DisposableRules(), "tests")


def everything_logged(platform: Platform, registry: Registry, caplog: pytest.LogCaptureFixture) -> str:
    logs = [platform.folder / "log", platform.engine.folder / "log", registry.folder / "log"]
    return caplog.text + "".join(log.read_text(errors="replace") for log in logs)


async def test_an_image_is_fetched_with_the_login_that_is_configured(
    platform: Platform, registry: Registry, private_image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "password").chmod(0o600)
    text = f'[registries."{registry.host}"]\nuser = "{USER}"\npassword = "file:{tmp_path}/password"\n'
    configuration = read(tmp_path, text)
    assert configuration.problems == ()
    maker = provider(platform, dict(configuration.settings.platform.registries))
    with caplog.at_level(logging.DEBUG), fetched(platform, private_image):
        made = await maker.create(new_disposable_id(), SandboxOrder(image=private_image, network=True))
        sandbox = await maker.open(made)
        assert await said(sandbox, "id -un") == b"agent\n"
        shown = platform.engine.docker("inspect", platform.container_of(made.key)).stdout
        assert PASSWORD not in f"{shown}{await said(sandbox, 'env')!r}{made!r}"
        await sandbox.close()
        await maker.delete(made)
    await maker.close()
    assert PASSWORD not in everything_logged(platform, registry, caplog)


@pytest.mark.parametrize(
    ("password", "words"),
    [
        pytest.param("", "the registry {host} wants a login; set user and password under {place}", id="none"),
        pytest.param(
            WRONG,
            f"the registry {{host}} refuses the login of {USER}; correct user and password under {{place}}",
            id="wrong",
        ),
    ],
)
async def test_an_error_names_where_a_missing_or_wrong_login_is_configured(
    platform: Platform,
    registry: Registry,
    private_image: str,
    password: str,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    logins = {registry.host: RegistryLogin(USER, Secret(password))} if password else {}
    maker, before = provider(platform, logins), platform.containers()
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as refusal:
        await maker.create(new_disposable_id(), SandboxOrder(image=private_image, network=True))
    await maker.close()
    place = f'[registries."{registry.host}"] in config.toml'
    assert str(refusal.value) == (
        f"unable to create a sandbox from {private_image}: {words.format(host=registry.host, place=place)}"
    )
    assert platform.containers() == before
    assert WRONG not in f"{refusal.value}{everything_logged(platform, registry, caplog)}"


async def test_an_image_that_the_registry_has_not_is_not_a_matter_of_the_login(
    platform: Platform, registry: Registry, private_image: str
) -> None:
    maker = provider(platform, {registry.host: RegistryLogin(USER, Secret(PASSWORD))})
    with pytest.raises(BadArgument, match="cannot get that image; check its name") as refusal:
        await maker.create(new_disposable_id(), SandboxOrder(image=f"{registry.host}/private/none:1", network=True))
    await maker.close()
    assert f'[registries."{registry.host}"]' in str(refusal.value)


def test_a_refused_password_is_read_again() -> None:
    kept = ["old", "new"]
    login = RegistryLogin(USER, Secret.later(lambda: kept.pop(0), "command:pass"))
    assert login.password.reveal() == "old"
    problem = BadArgument("unable", LOGIN_WANTED)
    assert isinstance(explained(problem, "unable", "a.b/c", login), ConfigError)
    assert login.password.reveal() == "new"


def test_other_problems_stay_as_they_are() -> None:
    problem = SandboxError("unable: the platform failed (unauthorized)")
    assert explained(problem, "unable", "a.b/c", None) is problem
