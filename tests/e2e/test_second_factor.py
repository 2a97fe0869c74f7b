"""Logins that ask for a one-time code, on a real sshd with PAM, through the real server."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.support.in_process import serve_here
from tests.support.second_factor import Factor, assert_found_nowhere, machine_with_code
from tests.support.server import entry
from tests.support.sshd import Fleet


@pytest.fixture(scope="module")
def by_key(fleet: Fleet) -> Factor:
    return machine_with_code(fleet, name="by-key")


@pytest.fixture(scope="module")
def by_password(fleet: Fleet) -> Factor:
    return machine_with_code(fleet, name="by-password-and-code", auth="password")


@pytest.fixture(params=["by_key", "by_password"])
def factor(request: pytest.FixtureRequest) -> Factor:
    """A machine that nobody has logged in to with this seed."""
    found: Factor = request.getfixturevalue(request.param)
    found.machine.reset()
    return found.renew()


# Codes from the configuration


async def test_a_command_prints_the_code(factor: Factor, tmp_path: Path) -> None:
    seed = tmp_path / "phone"
    seed.write_text(factor.seed)
    printing = shlex.join(["oathtool", "--totp", "--base32", f"@{seed}"])
    async with serve_here(tmp_path, entry(factor.machine, otp=f"command:{printing}")) as server:
        assert await server.output("whoami") == f"{factor.machine.user}\n"
        assert_found_nowhere([factor.code()], tmp_path / "state", server.everything_said)


async def test_codes_are_computed_from_a_seed(factor: Factor, tmp_path: Path) -> None:
    (tmp_path / "seed").write_text(f"otpauth://totp/site:me?secret={factor.seed}&issuer=site\n")
    async with serve_here(tmp_path, entry(factor.machine, otp_seed=f"file:{tmp_path / 'seed'}")) as server:
        outputs = await asyncio.gather(*(server.output("whoami") for _ in range(4)))
        assert set(outputs) == {f"{factor.machine.user}\n"}
        assert_found_nowhere([factor.code(), factor.seed], tmp_path / "state", server.everything_said)


async def test_a_wrong_code_is_one_attempt_and_is_not_repeated(by_key: Factor, tmp_path: Path) -> None:
    by_key.renew()
    before = by_key.attempts
    wrong = by_key.wrong_code()
    async with serve_here(tmp_path, entry(by_key.machine, otp=f"command:echo {wrong}")) as server:
        for _ in range(3):
            told = (await server.fail("exec_bash", command="true"))["error"]
            assert "the login was refused after a code was given" in told
        assert "not tried again for another" in told
        assert by_key.attempts == before + 1
        assert_found_nowhere([wrong], tmp_path / "state", server.everything_said)
