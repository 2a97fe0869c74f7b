"""What is configured may change while sessions go on: nobody has to start anything again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_place import Place, done, logins, names, told
from tests.support.pace import Deadline
from tests.support.server import Wire
from tests.support.sshd import Fleet, Sshd

LOCAL_OFF = "[local]\nenabled = false\n"
TOOLS_CHANGED, RESOURCES_CHANGED = "notifications/tools/list_changed", "notifications/resources/list_changed"


def table(sshd: Sshd, name: str = "", **more: str) -> str:
    """A machine in config.toml."""
    fields = {"host": sshd.host, "user": sshd.user, "key_file": sshd.key_file, **more}
    said = "".join(f"{key} = {value!r}\n" for key, value in fields.items() if value)
    return f"[machines.{name or sshd.name}]\nport = {sshd.port}\n{said}"


def until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> Any:
    deadline = Deadline(seconds)
    while not (found := condition()):
        assert not deadline.has_passed(), f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return found


def heard(line: Wire, wanted: str, seconds: float = 10.0) -> None:
    """Wait for a notification."""
    deadline = Deadline(seconds)
    while line.receive().get("method") != wanted:
        assert not deadline.has_passed(), wanted


def run(line: Wire, sandbox: str, command: str = "echo here") -> str:
    return str(done(line.call("exec_bash", command=command, sandbox_name=sandbox))["stdout"])


def open_lines(sshd: Sshd) -> int:
    """How many connections a machine serves now, as the kernel has them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{sshd.port:04X}") and row[3] == "01" for row in rows)


@pytest.fixture(scope="module")
def one(fleet: Fleet) -> Sshd:
    return fleet.machine("one", extra_config=["LogLevel VERBOSE"])


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> Sshd:
    return fleet.machine("two", extra_config=["LogLevel VERBOSE"])


@pytest.fixture(scope="module")
def guarded(fleet: Fleet) -> Sshd:
    return fleet.machine("guarded", auth="password", extra_config=["LogLevel VERBOSE"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("home"))
    yield place
    place.end()


@pytest.mark.parametrize("words", [(), ("--no-hub",)], ids=["hub", "no hub"])
def test_machines_come_and_go_with_the_file(place: Place, one: Sshd, two: Sshd, words: tuple[str, ...]) -> None:
    place.write(LOCAL_OFF + table(one))
    with place.front(words=words) as line:
        assert run(line, "one") == "here\n"
        assert open_lines(one)
        wait = "while ! test -e go-on; do sleep 0.05; done; rm go-on; echo went on"
        before, running = logins(one), line.start_call("exec_bash", command=wait, sandbox_name="one")
        place.write(LOCAL_OFF + table(one) + table(two))
        heard(line, RESOURCES_CHANGED)
        assert run(line, "two") == "here\n"
        place.write(LOCAL_OFF + table(two))
        until(lambda: names(line) == ["two"], "the first to go")
        assert open_lines(one)
        subprocess.run(one.client("touch go-on"), check=True, capture_output=True)
        while (message := line.receive()).get("id") != running:
            pass
        assert done(message["result"])["stdout"] == "went on\n"
        until(lambda: not open_lines(one), "its connection to end")
        assert "no sandbox is named 'one'" in told(line.call("exec_bash", command="true", sandbox_name="one"))
        assert logins(one) == before + 1  # that of the test itself


def test_a_machine_with_changed_settings_is_opened_again(place: Place, one: Sshd, two: Sshd) -> None:
    place.write(LOCAL_OFF + table(one, "it"))
    with place.front() as line:
        assert run(line, "it", "whoami") == f"{one.user}\n"
        place.write(LOCAL_OFF + table(two, "it"))
        until(lambda: run(line, "it", "whoami") == f"{two.user}\n", "the other machine")
        until(lambda: not open_lines(one), "the connection to the first to end")


def test_a_sync_goes_to_the_machine_that_has_the_name_now(place: Place, one: Sshd, two: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    place.write(LOCAL_OFF + table(one, "it"))
    with place.front() as line:
        done(line.call("sync_local_to_remote", local_path=str(tmp_path), remote_path="first"))
        place.write(LOCAL_OFF + table(two, "it"))
        until(lambda: run(line, "it", "whoami") == f"{two.user}\n", "the other machine")
        done(line.call("sync_local_to_remote", local_path=str(tmp_path), remote_path="second"))
    assert (two.home / "second" / "file").exists()
    assert not (one.home / "second").exists()


@pytest.mark.parametrize(
    "text",
    [pytest.param("[machines.one\nhost", id="half a table"), pytest.param("", id="nothing yet")],
)
def test_a_half_written_file_changes_nothing(place: Place, one: Sshd, text: str) -> None:
    place.write(LOCAL_OFF + table(one))
    with place.front() as line:
        assert run(line, "one") == "here\n"
        if text:
            place.write(text)
            found = until(lambda: done(line.call("list_sandboxes")).get("problems"), "the problem to be told")
            assert "not valid TOML" in found[-1]
            assert "what was configured before is in force" in found[-1]
            with place.front() as other:
                assert names(other) == ["one"]
        else:
            place.config.unlink()
        assert run(line, "one") == "here\n"
        place.write(LOCAL_OFF + table(one))
        until(lambda: "problems" not in done(line.call("list_sandboxes")), "the problem to be gone")
        assert run(line, "one") == "here\n"


def test_advanced_tools_appear_only_where_they_are_configured(place: Place) -> None:
    place.write("")
    place.write("", "other.toml")
    with place.front() as line, place.front(config="other.toml") as other:
        assert line.ask("tools/list")
        place.write("[server]\nexpose_advanced_tools = true\n")
        heard(line, TOOLS_CHANGED)
        listed = {tool["name"] for tool in line.ask("tools/list")["result"]["tools"]}
        assert "list_background_watches" in listed
        assert done(line.call("list_background_watches")) == {"watches": []}
        assert "list_background_watches" not in {it["name"] for it in other.ask("tools/list")["result"]["tools"]}
        place.write("")
        heard(line, TOOLS_CHANGED)
        assert "list_background_watches" not in {it["name"] for it in line.ask("tools/list")["result"]["tools"]}


def test_hosts_of_ssh_config_and_of_what_it_includes_are_followed(place: Place, one: Sshd, two: Sshd) -> None:
    ssh = place.home / ".ssh"
    (ssh / "more").mkdir(parents=True)
    place.write(f'hosts = ["far"]\n{LOCAL_OFF}')

    def host(sshd: Sshd) -> str:
        return f"Host far\n HostName {sshd.host}\n Port {sshd.port}\n User {sshd.user}\n IdentityFile {sshd.key_file}\n"

    (ssh / "config").write_text("Include more/*\n" + host(one))
    with place.front() as line:
        assert run(line, "far", "whoami") == f"{one.user}\n"
        # The first value counts, and the included file comes first.
        (ssh / "more" / "new").write_text(host(two))
        until(lambda: run(line, "far", "whoami") == f"{two.user}\n", "the included file to count")


def test_a_host_that_a_pattern_offers_is_opened_only_for_a_call_that_names_it(place: Place, one: Sshd) -> None:
    ssh = place.home / ".ssh"
    ssh.mkdir(exist_ok=True)
    place.write(f'hosts = ["far*"]\nhosts_at_run_time = true\ndefault = "far"\n{LOCAL_OFF}')
    way = f"HostName {one.host}\n Port {one.port}\n User {one.user}\n IdentityFile {one.key_file}\n"
    (ssh / "config").write_text(f"Host far far-off\n{way}Host far*\n {way}")
    with place.front() as line:
        listed = {row["name"]: row for row in done(line.call("list_sandboxes"))["sandboxes"]}
        assert {name: row["connection_alive"] for name, row in listed.items()} == {"far": True, "far-off": False}
        assert "it was not asked" in listed["far-off"]["connection_error"]
        assert run(line, "far-off", "whoami") == f"{one.user}\n"
        assert run(line, "far17", "whoami") == f"{one.user}\n"
        listed = {row["name"]: row for row in done(line.call("list_sandboxes"))["sandboxes"]}
        assert all(row["connection_alive"] for row in listed.values())
        assert sorted(listed) == ["far", "far-off", "far17"]
        assert "no sandbox is named" in told(line.call("exec_bash", command="true", sandbox_name="-oFar"))


def test_clients_that_differ_in_a_variable_are_separated_once_it_is_read(place: Place, guarded: Sshd) -> None:
    """Both are in one house until the file names a variable, which is right in one session and wrong in the other."""
    place.write(LOCAL_OFF)
    with (
        place.front(env={"GUARD": guarded.password}) as right,
        place.front(env={"GUARD": "wrong"}) as wrong,
    ):
        for line in (right, wrong):
            assert names(line) == []
        place.write(LOCAL_OFF + table(guarded, key_file="", password="env:GUARD"))
        until(lambda: names(right) == ["guarded"], "the machine")
        assert run(right, "guarded") == "here\n"
        until(lambda: names(wrong) == ["guarded"], "the machine")
        refused = wrong.call("exec_bash", command="echo in", sandbox_name="guarded")
        assert refused["isError"]
        assert "refused" in told(refused)
        assert run(right, "guarded") == "here\n"


def test_an_unused_configuration_is_closed_and_shared_machines_stay(place: Place, one: Sshd, two: Sshd) -> None:
    place.write(LOCAL_OFF + table(one) + table(two))
    place.write(LOCAL_OFF + table(one), "other.toml")
    with place.front(config="other.toml") as stays:
        with place.front() as goes:
            for name in ("one", "two"):
                assert run(goes, name) == "here\n"
        assert run(stays, "one") == "here\n"
        before = logins(one)
        until(lambda: not open_lines(two), "the machine that nobody has configured to be left")
        assert run(stays, "one") == "here\n"
        assert logins(one) == before


def test_a_new_table_does_not_change_the_default_of_a_running_conversation(place: Place, one: Sshd, two: Sshd) -> None:
    place.write(LOCAL_OFF + table(one))
    with place.front() as line:
        assert done(line.call("exec_bash", command="whoami"))["stdout"] == f"{one.user}\n"
        place.write(LOCAL_OFF + table(two) + table(one))
        until(lambda: names(line) == ["two", "one"], "the new machine")
        assert done(line.call("exec_bash", command="whoami"))["stdout"] == f"{one.user}\n"
        assert done(line.call("get_active_sandbox"))["active_sandbox"] == "one"
        with place.front() as later:
            assert done(later.call("exec_bash", command="whoami"))["stdout"] == f"{two.user}\n"
