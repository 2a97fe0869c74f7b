"""Logins that ask for a one-time code, on a real sshd with PAM, through the real server."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from tests.support.second_factor import Factor, assert_found_nowhere, machine_with_code
from tests.support.server import Entry, arguments, entry, environment, serve, until
from tests.support.sshd import Fleet, wait_until


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
    async with serve(tmp_path, entry(factor.machine, otp=f"command:{printing}")) as server:
        assert await server.output("whoami") == f"{factor.machine.user}\n"
        assert_found_nowhere([factor.code()], tmp_path / "state", server.everything_said)


async def test_codes_are_computed_from_a_seed(factor: Factor, tmp_path: Path) -> None:
    (tmp_path / "seed").write_text(f"otpauth://totp/site:me?secret={factor.seed}&issuer=site\n")
    async with serve(tmp_path, entry(factor.machine, otp_seed=f"file:{tmp_path / 'seed'}")) as server:
        outputs = await asyncio.gather(*(server.output("whoami") for _ in range(4)))
        assert set(outputs) == {f"{factor.machine.user}\n"}
        assert_found_nowhere([factor.code(), factor.seed], tmp_path / "state", server.everything_said)


async def test_a_wrong_code_is_one_attempt_and_is_not_repeated(by_key: Factor, tmp_path: Path) -> None:
    by_key.renew()
    before = by_key.attempts
    wrong = by_key.wrong_code()
    async with serve(tmp_path, entry(by_key.machine, otp=f"command:echo {wrong}")) as server:
        for _ in range(3):
            told = (await server.fail("exec_bash", command="true"))["error"]
            assert "the login was refused after a code was given" in told
        assert "not tried again for another" in told
        assert by_key.attempts == before + 1
        assert_found_nowhere([wrong], tmp_path / "state", server.everything_said)


# A connection that a person has opened


@contextmanager
def opened_by_a_person(factor: Factor, home: Path) -> Iterator[None]:
    """The host "far" of a home's ssh_config, with a connection for which a person has typed the code."""
    machine, typed = factor.machine, home / "typed"
    typed.write_text(f"#!/bin/sh\necho {factor.code()}\n")
    typed.chmod(0o700)
    (home / ".ssh").mkdir(mode=0o700)
    # Not in pytest's folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory() as folder:
        (home / ".ssh" / "config").write_text(
            f"Host far\n HostName {machine.host}\n Port {machine.port}\n User {machine.user}\n"
            f" IdentityFile {machine.key_file}\n UserKnownHostsFile {machine.known_hosts}\n ControlPath {folder}/cm\n"
        )
        words = ["ssh", "-F", str(home / ".ssh" / "config"), "-M", "-N", "far"]
        env = {**os.environ, "SSH_ASKPASS": str(typed), "SSH_ASKPASS_REQUIRE": "force"}
        with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            try:
                wait_until(Path(folder, "cm").exists, what="the person's connection")
                yield
            finally:
                client.kill()


async def test_over_a_connection_that_a_person_has_opened_no_code_is_asked_for(by_key: Factor, tmp_path: Path) -> None:
    before = by_key.renew().logins
    with opened_by_a_person(by_key, tmp_path):
        async with serve(tmp_path, config='[machines.far]\nssh_alias = "far"\n') as server:
            assert await server.output("whoami") == f"{by_key.machine.user}\n"
            (tmp_path / "file").write_text("content")
            await server.call("sync_local_to_remote", local_path=str(tmp_path / "file"), remote_path="got/")
            assert await server.output("cat got/file") == "content"
        assert by_key.logins == before + 1


# Forms of the client

ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


class User:
    """Who sits before the client: answers its forms, and remembers them."""

    def __init__(self, *answers: Callable[[], str] | str) -> None:
        self._answers = list(answers)
        self.forms: list[Any] = []

    async def fill_in(self, context: Any, params: Any) -> ElicitResult:
        self.forms.append(params)
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            return ElicitResult.model_validate({"action": answer})
        return ElicitResult(action="accept", content={name: answer() for name in params.requested_schema["properties"]})


@pytest.mark.parametrize(("factor", "mode"), [("by_key", "legacy"), ("by_password", "2026-07-28")], indirect=["factor"])
async def test_a_form_of_the_client_asks_for_the_code_through_the_hub(
    factor: Factor, tmp_path: Path, mode: str
) -> None:
    user, before, told = User(factor.code), factor.logins, {"MCP_LOG_LEVEL": "DEBUG"}
    async with serve(tmp_path, entry(factor.machine), mode=mode, elicitation=user.fill_in, env=told) as server:
        outputs = await asyncio.gather(*(server.output("whoami") for _ in range(3)))
        assert set(outputs) == {f"{factor.machine.user}\n"}
        (form,) = user.forms
        assert factor.machine.name in form.message
        assert "> Verification code:" in form.message
        assert factor.logins == before + 1
        assert_found_nowhere(factor.codes, tmp_path, server.everything_said)


@ERAS
async def test_after_a_cut_the_next_call_asks_again(by_key: Factor, tmp_path: Path, mode: str) -> None:
    by_key.renew()
    user = User(by_key.code, by_key.code)
    async with serve(tmp_path, entry(by_key.machine), mode=mode, elicitation=user.fill_in) as server:
        assert await server.output("echo 1") == "1\n"
        await asyncio.to_thread(by_key.machine.kill_sessions)
        by_key.renew()
        assert await server.output("echo 2") == "2\n"
        assert len(user.forms) == 2


@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_form_fails_the_login(by_key: Factor, tmp_path: Path, mode: str, action: str) -> None:
    user, before = User(action, action), by_key.renew().attempts
    async with serve(tmp_path, entry(by_key.machine), mode=mode, elicitation=user.fill_in) as server:
        told = (await server.fail("exec_bash", command="true"))["error"]
        assert "it asks “Verification code:”, and the form with its question was" in told
        assert f"remote-sandbox-mcp login {by_key.machine.name}" in told
        assert "otp" in told
        await server.fail("exec_bash", command="true")
    assert len(user.forms) == 2
    assert by_key.attempts == before


async def test_a_client_without_forms_gets_the_other_ways_in_the_error(by_key: Factor, tmp_path: Path) -> None:
    before = by_key.renew().connections
    async with serve(tmp_path, entry(by_key.machine)) as server:
        for _ in range(3):
            told = (await server.fail("exec_bash", command="true"))["error"]
            assert f"remote-sandbox-mcp login {by_key.machine.name}" in told
    assert by_key.connections == before + 1


@ERAS
async def test_a_wrong_code_in_a_form_is_one_attempt(by_key: Factor, tmp_path: Path, mode: str) -> None:
    user, before = User(by_key.wrong_code, by_key.code), by_key.renew().attempts
    async with serve(tmp_path, entry(by_key.machine), mode=mode, elicitation=user.fill_in) as server:
        told = (await server.fail("exec_bash", command="true"))["error"]
        assert "refused after a code was given" in told
        assert "not tried again" in (await server.fail("exec_bash", command="true"))["error"]
        assert len(user.forms) == 1
        assert by_key.attempts == before + 1
        assert_found_nowhere(by_key.codes, tmp_path, server.everything_said)


@ERAS
async def test_a_command_that_was_cut_is_found_again_after_the_next_form(
    by_key: Factor, tmp_path: Path, mode: str
) -> None:
    user, flag = User(by_key.code, by_key.code), by_key.renew().machine.home / f"begun-{mode}"
    async with serve(tmp_path, entry(by_key.machine), mode=mode, elicitation=user.fill_in) as server:
        running = asyncio.ensure_future(server.call("exec_bash", command=f"touch {flag}; sleep 1; echo over"))
        await until(flag.exists, "the command")
        by_key.renew()
        await asyncio.to_thread(by_key.machine.kill_sessions)
        # The call goes on over the cut: the person is asked once more.
        assert (await running)["stdout"] == "over\n"
        assert len(user.forms) == 2


async def test_files_go_over_the_connection_that_the_code_was_given_for(by_key: Factor, tmp_path: Path) -> None:
    user, before = User(by_key.code), by_key.renew().logins
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(40):
        (folder / str(number)).write_bytes(bytes([number]) * 100_000)
    async with serve(tmp_path, entry(by_key.machine), elicitation=user.fill_in) as server:
        done = await server.call("sync_local_to_remote", local_path=str(folder), remote_path="~/data")
        assert done["uploaded_files"] == 40
        assert await server.output("ls ~/data | wc -l") == "40\n"
    assert by_key.logins == before + 1
    assert len(user.forms) == 1


async def test_no_further_login_is_made_where_all_sessions_are_taken(fleet: Fleet, tmp_path: Path) -> None:
    factor = machine_with_code(fleet, name="narrow", max_sessions=1)
    (tmp_path / "file").write_text("x")
    user = User(factor.code)
    async with serve(tmp_path, entry(factor.machine), elicitation=user.fill_in) as server:
        given = {"local_path": str(tmp_path / "file"), "remote_path": "~/file"}
        assert "would ask for another code" in (await server.fail("sync_local_to_remote", **given))["error"]
        assert await server.output("echo 1") == "1\n"
    assert factor.connections == 1


async def test_listing_all_machines_asks_for_no_code(by_key: Factor, tmp_path: Path) -> None:
    by_key.renew()
    user = User()
    async with serve(tmp_path, entry(by_key.machine), elicitation=user.fill_in) as server:
        (found,) = (await server.call("list_sandboxes", check_resources=True))["sandboxes"]
        assert "Verification code" in found["connection_error"]
    assert not user.forms


# The doctor


def doctor(home: Path, machine: Entry) -> dict[str, Any]:
    """The rows of a machine's check-up by their names, each with its mark and what it says."""
    words = [*arguments(home, local=False), "doctor", "--json"]
    done = subprocess.run(words, env=environment(home, (machine,)), capture_output=True, text=True, check=False)
    (found,) = json.loads(done.stdout)["sandboxes"]
    return {"exit": done.returncode} | {step["name"]: step for step in found["steps"]}


def test_the_doctor_says_that_a_code_is_asked_for_and_which_ways_are_open(by_key: Factor, tmp_path: Path) -> None:
    before = by_key.renew().connections
    found = doctor(tmp_path, entry(by_key.machine))
    assert found["exit"] == 0
    assert found["code"]["mark"] == "warning"
    assert "it asks “Verification code:”" in found["code"]["said"]
    for way in ("form", f"remote-sandbox-mcp login {by_key.machine.name}", "otp_seed"):
        assert way in found["code"]["remedy"]
    assert found["login"]["mark"] == found["shell"]["mark"] == "skipped"
    # One to read the greeting, one to log in.
    assert by_key.connections == before + 2


def test_the_doctor_needs_one_code_for_all_of_its_steps(by_key: Factor, tmp_path: Path) -> None:
    before = by_key.renew().logins
    (tmp_path / "seed").write_text(by_key.seed)
    (tmp_path / "seed").chmod(0o600)
    found = doctor(tmp_path, entry(by_key.machine, otp_seed=f"file:{tmp_path / 'seed'}"))
    assert found["exit"] == 0
    assert found["code"]["said"] == "it asks “Verification code:”; answered by otp_seed"
    assert found["login"]["mark"] == found["PATH"]["mark"] == "ok"
    assert by_key.logins == before + 1


async def test_a_machine_without_python_shares_its_one_login_too(fleet: Fleet, tmp_path: Path) -> None:
    factor = machine_with_code(fleet, name="plain", python=False)
    user = User(factor.code, factor.code)
    async with serve(tmp_path, entry(factor.machine), elicitation=user.fill_in) as server:
        outputs = await asyncio.gather(*(server.output("sleep 0.2; echo 1") for _ in range(14)))
        assert set(outputs) == {"1\n"}
        assert factor.logins == 1
        await asyncio.to_thread(factor.machine.kill_sessions)
        factor.renew()
        assert await server.output("echo 2") == "2\n"
    assert factor.logins == len(user.forms) == 2
