from __future__ import annotations

from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.sandboxes.machine import Machine, OpenSsh
from remote_sandbox_mcp.core.sandboxes.transport import choose


def machine(transport: str = "auto", ssh: OpenSsh | None = None) -> Machine:
    return Machine("gpu1", "h", transport=transport, openssh=ssh)


def client(**fields: Any) -> OpenSsh:
    return OpenSsh(("ssh",), "gpu1", **fields)


@pytest.mark.parametrize(
    ("transport", "ssh", "seen", "chosen", "why"),
    [
        pytest.param("auto", client(), {}, "asyncssh", "fastest", id="nothing special"),
        pytest.param("auto", None, {}, "asyncssh", "fastest", id="no client"),
        pytest.param("auto", client(needs=("PKCS11Provider",)), {}, "openssh", "use PKCS11Provider", id="a need"),
        pytest.param("auto", client(needs=("a", "b")), {}, "openssh", "use a and b", id="two needs"),
        pytest.param("auto", client(), {"master": "/s"}, "openssh", "ControlMaster", id="a live master"),
        pytest.param("auto", client(kerberos=True), {}, "asyncssh", "fastest", id="Kerberos without a ticket"),
        pytest.param("auto", client(kerberos=True), {"has_ticket": True}, "openssh", "ticket", id="with a ticket"),
        pytest.param(
            "auto", client(), {"has_ticket": True}, "asyncssh", "fastest", id="a ticket that is not asked for"
        ),
        pytest.param(
            "auto", client(needs=("a",), lacks=("password",)), {}, "asyncssh", "password is configured", id="a password"
        ),
        pytest.param(
            "auto",
            client(lacks=("otp",)),
            {"master": "/s"},
            "openssh",
            "ControlMaster",
            id="a code that was given before",
        ),
        pytest.param("asyncssh", client(needs=("a",)), {"master": "/s"}, "asyncssh", "is configured", id="asyncssh"),
        pytest.param("openssh", client(), {}, "openssh", "is configured", id="openssh"),
    ],
)
def test_transports(transport: str, ssh: OpenSsh | None, seen: dict[str, Any], chosen: str, why: str) -> None:
    choice = choose(machine(transport, ssh), **seen)
    assert choice.transport == chosen
    assert why in choice.why
    assert choice.master == (seen.get("master", "") if choice.is_openssh else "")


@pytest.mark.parametrize(
    ("ssh", "told"),
    [
        pytest.param(None, "unable to open gpu1: OpenSSH's client, ssh, is not installed; install it", id="no client"),
        pytest.param(client(lacks=("password",)), "password is configured, which OpenSSH's client", id="a password"),
    ],
)
def test_openssh_that_cannot_be_used_is_told(ssh: OpenSsh | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        choose(machine("openssh", ssh))
