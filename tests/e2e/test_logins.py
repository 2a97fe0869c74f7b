"""Every way in, every kind of machine, and machines that do not answer, through the real server."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.line import Line
from tests.support.pace import at_most
from tests.support.server import Server, entry, serve, until
from tests.support.sshd import HOST, PASSPHRASE, PASSWORD, Auth, Fleet, Sshd, closed_port, silent_port

# As they are, and as they would look inside JSON or a repr.
SECRETS = [
    shown
    for secret in (PASSWORD, PASSPHRASE, "wrong-horse-battery")
    for shown in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
]


def assert_no_secret(server: Server) -> None:
    said = server.everything_said
    for path in (server.home / "state").rglob("*"):
        said += path.read_text(errors="replace") if path.is_file() else ""
    for secret in SECRETS:
        assert secret not in said


@pytest.fixture(scope="module")
def by_password(fleet: Fleet) -> Sshd:
    return fleet.machine("by-password", auth="password")


@pytest.mark.parametrize("auth", get_args(Auth))
async def test_every_way_to_log_in_works_and_leaves_no_secret_behind(fleet: Fleet, tmp_path: Path, auth: Auth) -> None:
    machine = fleet.machine(auth=auth)
    async with serve(tmp_path, entry(machine)) as server:
        assert await server.output("whoami") == f"{machine.user}\n"
        await server.call("list_sandboxes", check_resources=True)
        assert_no_secret(server)


async def test_a_connection_that_is_cut_during_the_login_is_made_again(machine: Sshd, tmp_path: Path) -> None:
    async with Line(machine.port, rtt_s=0.05) as line, serve(tmp_path, entry(machine, port=line.port)) as server:
        asked = asyncio.ensure_future(server.output("whoami"))
        await until(lambda: line.connections, "the first connection")
        line.cut()
        assert await asked == f"{machine.user}\n"
        assert line.total_opened == 2


async def test_a_connection_that_is_cut_after_the_login_is_made_again(machine: Sshd, tmp_path: Path) -> None:
    async with Line(machine.port, rtt_s=0.05) as line, serve(tmp_path, entry(machine, port=line.port)) as server:
        before = machine.log.count("Accepted")
        asked = asyncio.ensure_future(server.output("whoami"))
        await until(lambda: machine.log.count("Accepted") > before, "the login")
        line.cut()
        assert await asked == f"{machine.user}\n"


async def test_a_machine_that_cuts_every_login_is_asked_twice(machine: Sshd, tmp_path: Path) -> None:
    met = []

    def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer)
        writer.transport.abort()

    async with await asyncio.start_server(cut, HOST, 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with serve(tmp_path, entry(machine, port=port)) as server:
            assert (await server.fail("exec_bash", command="true"))["outcome"] == "not_started"
    assert len(met) == 2


async def test_one_machine_by_the_short_variables(by_password: Sshd, tmp_path: Path) -> None:
    machine = by_password
    given = {"REMOTE_HOST": HOST, "REMOTE_PORT": str(machine.port), "REMOTE_USER": machine.user}
    async with serve(tmp_path, env=given | {"REMOTE_PASSWORD": PASSWORD, "REMOTE_SANDBOX_LIST": ""}) as server:
        assert await server.output("whoami") == f"{machine.user}\n"
        active = await server.call("get_active_sandbox")
        assert active == {
            "active_sandbox": HOST,
            "kind": "ssh",
            "host": HOST,
            "port": machine.port,
            "user": machine.user,
            "connection_alive": True,
        }


async def test_the_key_is_tried_first_and_then_the_password(by_password: Sshd, machine: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(by_password, key_file=machine.key_file)) as server:
        assert await server.output("whoami") == f"{by_password.user}\n"


@pytest.mark.parametrize("hops", [1, 2])
async def test_a_machine_behind_jump_hosts_is_reached_through_them(
    fleet: Fleet, machine: Sshd, by_password: Sshd, tmp_path: Path, hops: int
) -> None:
    jumps = [machine, by_password][:hops]
    target = fleet.machine("behind")
    entries = (entry(target, jump=[jump.name for jump in jumps]), *map(entry, jumps))
    async with serve(tmp_path, *entries) as server:
        assert await server.output("whoami") == f"{target.user}\n"
        for jump in jumps:
            assert "Accepted" in jump.log
        assert_no_secret(server)
    for jump in jumps:
        await until(lambda jump=jump: not jump.sessions(), "the connection to the jump host to end with its purpose")


# Logins that are refused


async def test_a_refused_login_is_reported_and_not_tried_again_for_a_while(by_password: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(by_password, password="wrong-horse-battery")) as server:
        problem = await server.fail("exec_bash", command="touch pwned")
        assert problem["code"] == "login_refused"
        assert problem["outcome"] == "not_started"
        assert "check user, key and password" in problem["error"]
        tries = by_password.log.count("Failed password")
        again = await server.fail("exec_bash", command="touch pwned")
        assert again["code"] == "login_refused"
        assert "not tried again for another" in again["error"]
        assert by_password.log.count("Failed password") == tries
        listed = (await server.call("list_sandboxes", check_resources=True))["sandboxes"][0]
        assert "refused" in listed["connection_error"]
        assert_no_secret(server)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"key_file": "~/nope"}, "no usable key: {home}/nope: No such file or directory"),
        ({"key_passphrase": "wrong-horse-battery"}, "it is encrypted and key_passphrase is missing or wrong"),
        ({"key_passphrase": ""}, "it is encrypted and key_passphrase is missing or wrong"),
        ({"user": "nobody-there"}, "the login was refused"),
    ],
    ids=["no file", "wrong passphrase", "no passphrase", "unknown user"],
)
async def test_a_key_that_opens_nothing_says_why(
    fleet: Fleet, tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    locked = fleet.machine("locked", auth="encrypted_key")
    async with serve(tmp_path, entry(locked, **fields)) as server:
        problem = await server.fail("exec_bash", command="true")
        assert problem["code"] == "login_refused"
        assert told.format(home=tmp_path) in problem["error"]
        assert_no_secret(server)


# Kinds of machines

NOISE = "echo welcome to this machine; echo and mind the step >&2; printf '\\0\\377noise'\n"
KINDS: dict[str, dict[str, Any]] = {
    "dash": {"shell": "/bin/dash"},
    "fish": {"shell": "/usr/bin/fish"},
    "tcsh": {"shell": "/bin/tcsh"},
    "busybox": {"shell": "busybox"},
    "noisy": {"bashrc": NOISE},
    "noisy, no python": {"bashrc": NOISE, "python": False},
    "no python": {"python": False},
    "no tmux": {"tmux": False},
    "one session": {"max_sessions": 1},
    "one session, no python": {"max_sessions": 1, "python": False},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_machine_gives_the_same_results(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    machine = fleet.machine(**KINDS[kind])
    async with serve(tmp_path, entry(machine)) as server:
        assert await server.run("echo out; echo err >&2; exit 3") == {
            "exit_code": 3,
            "stdout": "out\n",
            "stderr": "err\n",
        }
        assert await server.output("mkdir 'a b'") == ""
        assert await server.output("pwd", cwd="a b") == f"{machine.home}/a b\n"
        assert await server.run("cat") == {"exit_code": 0}
        assert await server.run("echo x; sleep 30", timeout_s=0.5) == {
            "exit_code": 124,
            "timed_out": True,
            "stdout": "x\n",
        }
        outputs = await asyncio.gather(*(server.output(f"echo {number}") for number in range(12)))
        assert outputs == [f"{number}\n" for number in range(12)]
        await server.call("write_remote_file", remote_path="a b/new", content="one\ntwo\n")
        assert (machine.home / "a b" / "new").read_text() == "one\ntwo\n"
        await server.call("edit_remote_file", remote_path="a b/new", old_text="two", new_text="2")
        assert (await server.call("read_remote_file", remote_path="a b/new"))["content"] == "one\n2\n"
        found = await server.call("search_remote_files", remote_path="a b", pattern="^2$")
        assert [(match["line"], match["text"]) for match in found["matches"]] == [(2, "2")]
        listed = await server.call("list_remote_files", remote_path="a b")
        assert [entry["path"] for entry in listed["entries"]] == [f"{machine.home}/a b/new"]
        resources = (await server.call("list_sandboxes", check_resources=True))["sandboxes"][0]["resources"]
        assert resources["cpu"]["count"] >= 1
        assert resources["memory"]["total_mb"] > 100


# Machines that do not answer


def absent(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "host": HOST, "port": port, "user": "nobody", "password": PASSWORD}


async def test_dead_machines_do_not_delay_live_ones(machine: Sshd, tmp_path: Path) -> None:
    with silent_port() as first, silent_port() as second, closed_port() as closed:
        entries = (entry(machine), absent("silent-1", first), absent("silent-2", second), absent("closed", closed))
        async with serve(tmp_path, *entries) as server:
            begun = time.monotonic()
            survey = asyncio.ensure_future(server.call("list_sandboxes", check_resources=True))
            for number in range(5):
                assert await server.output(f"echo {number}") == f"{number}\n"
            live_s = time.monotonic() - begun
            assert not survey.done()
            sandboxes = {sandbox["name"]: sandbox for sandbox in (await survey)["sandboxes"]}
            assert time.monotonic() - begun < at_most(6.5)
            assert live_s < at_most(3)
            assert sandboxes[machine.name]["connection_alive"] is True
            assert sandboxes[machine.name]["resources"]["cpu"]
            for name in ("silent-1", "silent-2"):
                assert "no answer within 5 s" in sandboxes[name]["connection_error"]
            assert "nothing listens on that port" in sandboxes["closed"]["connection_error"]
            assert_no_secret(server)


async def test_a_host_name_that_cannot_be_found_is_reported(tmp_path: Path) -> None:
    async with serve(tmp_path, absent("lost", 22) | {"host": "no-such-host.invalid"}) as server:
        problem = await server.fail("exec_bash", command="true")
        assert problem["code"] == "unreachable"
        assert "no-such-host.invalid" in problem["error"]


async def test_a_machine_whose_shell_never_answers_is_given_up_in_time(fleet: Fleet, tmp_path: Path) -> None:
    stuck = fleet.machine("stuck", bashrc="sleep 600\n")
    async with serve(tmp_path, entry(stuck, connect_timeout_s=1.5)) as server:
        begun = time.monotonic()
        problem = await server.fail("exec_bash", command="true")
        assert problem["code"] == "unreachable"
        assert time.monotonic() - begun < at_most(5)


# Configuration


async def test_one_bad_entry_disables_no_other_and_is_reported(machine: Sshd, tmp_path: Path) -> None:
    bad: list[Any] = [
        {"name": "hostless", "password": PASSWORD},
        {"name": "misported", "host": HOST, "port": PASSWORD},
        {"name": machine.name, "host": HOST, "password": PASSWORD},
        PASSWORD,
    ]
    async with serve(tmp_path, *bad[:2], entry(machine), *bad[2:]) as server:
        assert await server.output("whoami") == f"{machine.user}\n"
        seen = await server.call("list_sandboxes")
        assert [sandbox["name"] for sandbox in seen["sandboxes"]] == [machine.name]
        assert len(seen["problems"]) == 4
        for problem in seen["problems"]:
            assert problem.startswith("REMOTE_SANDBOX_LIST entry ")
            assert problem in server.stderr
        assert_no_secret(server)


async def test_a_list_that_is_no_json_is_reported_without_quoting_it(machine: Sshd, tmp_path: Path) -> None:
    broken = json.dumps([{"host": HOST, "password": PASSWORD}])[:-1]
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry(machine).items() if key != "name"]
    config = "\n".join(["[machines.by-file]", *lines])
    async with serve(tmp_path, env={"REMOTE_SANDBOX_LIST": broken}, config=config) as server:
        assert await server.output("whoami") == f"{machine.user}\n"
        seen = await server.call("list_sandboxes")
        assert "is not valid JSON" in seen["problems"][0]
        assert_no_secret(server)
