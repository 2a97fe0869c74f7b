"""The stream of changes and the streams of logs, over real HTTP from a real hub."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fronts.http.conftest import Service, service
from tests.fronts.page.conftest import CONFIG, PASSWORD_WORD
from tests.support.hubs import hub_pid, kill_hub
from tests.support.page import Browser
from tests.support.server import entry
from tests.support.sshd import Sshd, wait_until

TOPICS = (
    "about",
    "machines",
    "trends",
    "jobs",
    "sandboxes",
    "workspaces",
    "transfers",
    "events",
    "calls",
    "usage",
    "running",
)


def resident(pid: int) -> int:
    """Memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_all_topics_come_whole_and_then_as_changes(served: Service, browser: Browser, machine: Sshd) -> None:
    with browser.stream() as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-store"
        stream.until(lambda topics: set(topics) == set(TOPICS), "all topics")
        row = stream.row("machines", machine.name, lambda row: row["state"] == "up")
        assert row["resources"]["memory"]["total_mb"] > 0
        down = stream.row("machines", "guarded", lambda row: row["state"] == "down")
        assert "nothing listens" in down["trouble"]
        about = stream.topics["about"]["hub"]
        assert about["pid"] == hub_pid(served.home)
        assert about["config_file"] == str(served.home / "config.toml")
        assert not browser.call("exec_bash", command="echo hello", sandbox_name=machine.name)["is_error"]
        call = stream.until(
            lambda topics: [
                row for row in topics["calls"].values() if row.get("arguments", {}).get("command") == "echo hello"
            ],
            "the call",
        )[0]
        assert (call["client"], call["tool"], call["sandbox"]) == ("page", "exec_bash", machine.name)
        stream.row("trends", machine.name, lambda row: "add" in row)
        for secret in (PASSWORD_WORD, served.key, browser.token, browser.cookie):
            assert secret not in stream.said


def test_two_streams_see_the_same_and_end_apart(browser: Browser, machine: Sshd) -> None:
    with browser.stream() as second:
        with browser.stream() as first:
            first.row("machines", machine.name, lambda row: row["state"] == "up")
        second.row("machines", machine.name, lambda row: row["state"] == "up")
        sampled = second.topics["machines"][machine.name]["sampled"]
        second.row("machines", machine.name, lambda row: row["sampled"] > sampled)


def test_a_browser_that_does_not_read_costs_little_and_holds_up_nothing(
    served: Service, browser: Browser, machine: Sshd
) -> None:
    with browser.stream() as unread, browser.stream() as stream:
        unread.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.row("machines", machine.name, lambda row: row["state"] == "up")
        before = resident(hub_pid(served.home))
        long = "x" * 2000
        for number in range(100):
            browser.call("check_background_task", tmux_session=f"none-{number}-{long}", sandbox_name=machine.name)
        last = f"none-99-{long[:50]}"
        stream.until(lambda topics: any(last in str(row) for row in topics.get("calls", {}).values()), "the last call")
        assert resident(hub_pid(served.home)) - before < 64 << 20
        # Once it reads again, it has what is true now.
        unread.until(lambda topics: any(last in str(row) for row in topics.get("calls", {}).values()), "the last call")


def test_a_hub_that_is_killed_is_replaced_under_the_page(tmp_path: Path, machine: Sshd) -> None:
    with service(tmp_path / "home", entries=(entry(machine),), local=False) as served:
        browser = Browser(served.port)
        browser.enter(served.key)
        with browser.stream() as stream:
            first = stream.row("about", "hub")["pid"]
            kill_hub(served.home, signal.SIGKILL)
            with pytest.raises((AssertionError, ConnectionError, OSError)):
                stream.until(lambda topics: False, "the end")
        with browser.stream() as stream:
            assert stream.status == 200
            assert stream.row("about", "hub")["pid"] != first
            stream.row("machines", machine.name, lambda row: row["state"] == "up")
        # A process that listens anew lets in nobody that another one let in.
        port, key = served.port, served.key
        served.leave()
        with service(tmp_path / "home", "--port", str(port), entries=(entry(machine),), local=False) as again:
            assert again.key == key
            assert browser.ask("GET", "/ui/api/choices").status == 401


@pytest.mark.parametrize("words", [("--port", "0"), ("--port", "0", "--no-hub")], ids=["hub", "no hub"])
def test_streams_end_at_once_when_the_server_is_told_to_end(
    tmp_path: Path, machine: Sshd, words: tuple[str, ...]
) -> None:
    with service(tmp_path / "home", *words, entries=(entry(machine),), local=False) as served:
        browser = Browser(served.port)
        browser.enter(served.key)
        with browser.stream() as read, browser.stream() as unread:
            read.until(lambda topics: "jobs" in topics, "jobs")
            assert unread.status == 200
            seconds, code = served.leave()
            assert code == 0
            assert seconds < 3
            assert not [name for name, _ in read.events() if name == "never"]


def test_a_hub_that_is_looked_at_stays(tmp_path: Path) -> None:
    with service(tmp_path / "home", local=False, env={"REMOTE_SANDBOX_HUB_IDLE_S": "0.3"}) as served:
        browser = Browser(served.port)
        browser.enter(served.key)
        pid = hub_pid(served.home)
        with browser.stream() as stream:
            begun = time.monotonic()
            stream.until(lambda topics: "calls" in topics, "calls")
            wait_until(lambda: time.monotonic() - begun > 1.5, what="longer than it stays idle")
            assert not browser.call("check_background_task", tmux_session="x")["structured"].get("running")
            stream.until(lambda topics: topics["calls"], "the call")
        assert hub_pid(served.home) == pid


# Logs


WAIT = "until [ -e ~/go-{job} ]; do sleep 0.05; done; "


def read_log(browser: Browser, machine: Sshd, job: str) -> tuple[list[Any], list[Any], Any]:
    """Texts, states and the end of a log that is followed to its end; a job that waits for it is told to go on."""
    texts, states = [], []
    with browser.stream("/ui/api/log", sandbox=machine.name, job=job) as stream:
        assert stream.status == 200, stream.status
        for name, data in stream.events():
            if name == "end":
                return texts, states, data
            if name == "text":
                texts.append(data)
            elif name == "state":
                states.append(data)
                (machine.home / f"go-{job}").touch()
    raise AssertionError(f"the log of {job} ended without an end: {texts[-1:]}")


@pytest.fixture
def started(served: Service, machine: Sshd) -> Any:
    """Starts a job by the command line, in the home of the server."""
    import subprocess

    from tests.support.server import arguments, environment

    def start(name: str, command: str) -> None:
        words = [*arguments(served.home, local=True, config=CONFIG), "jobs", "start"]
        done = subprocess.run(
            [*words, "--name", name, "--sandbox", machine.name, "--", command],
            env=environment(served.home, (entry(machine),)), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return start


def test_a_fast_log_is_followed_to_its_end_without_loss(browser: Browser, machine: Sshd, started: Any) -> None:
    """Ten thousand lines a second, for three seconds."""
    burst = "seq -f 'line %.0f' $((1000 * n + 1)) $((1000 * n + 1000)); sleep 0.1"
    started("fast", f"{WAIT.format(job='fast')} n=0; while [ $n -lt 30 ]; do {burst}; n=$((n + 1)); done; exit 4")
    texts, states, end = read_log(browser, machine, "fast")
    assert (end["state"], end["exit_code"]) == ("ended", 4)
    assert states[0]["state"] == "running"
    assert states[0]["usage"]["processes"] > 0
    assert "usage" not in end
    told = "".join(text["text"] for text in texts)
    # One piece begins where the one before it ends, unless it says what was skipped.
    at = texts[0]["from"]
    for text in texts:
        assert text["from"] - at == text.get("skipped", 0)
        at = text["to"]
    assert not sum(text.get("skipped", 0) for text in texts)
    # The line that the job's keeper adds is for programs.
    assert told == "".join(f"line {number}\n" for number in range(1, 30_001))
    assert len(texts) > 3


def test_a_line_of_ten_megabytes_comes_in_pieces(browser: Browser, machine: Sshd, started: Any) -> None:
    started(
        "long-line",
        WAIT.format(job="long-line") + "head -c 10000000 /dev/zero | tr '\\0' x; echo; printf '\\033[31mred\\377\\n'",
    )
    texts, _, end = read_log(browser, machine, "long-line")
    assert end["exit_code"] == 0
    assert max(len(text["text"]) for text in texts) <= 256 << 10
    told = "".join(text["text"] for text in texts)
    skipped = sum(text.get("skipped", 0) for text in texts)
    assert told.count("x") + skipped >= 10_000_000 - (64 << 10)
    # Raw, as a terminal would get it; what is no UTF-8 is marked.
    assert "\x1b[31mred\ufffd\n" in told
    # Of a log that is there already, the last lines come, from the beginning of one on.
    texts, _, _ = read_log(browser, machine, "long-line")
    assert [(text["text"], text["from"]) for text in texts] == [("\x1b[31mred\ufffd\n", 10_000_001)]


def test_the_output_of_a_command_that_outlasted_its_call_is_followed(browser: Browser, machine: Sshd) -> None:
    command = f"echo begun; {WAIT.format(job='command')} echo done; echo wrong >&2; exit 3"
    handle = browser.call("exec_bash", command=command, sandbox_name=machine.name)["structured"]["tmux_session"]
    (machine.home / "go-command").touch()
    texts, states, end = read_log(browser, machine, handle)
    assert (end["state"], end["exit_code"]) == ("ended", 3)
    assert "".join(text["text"] for text in texts) == "begun\ndone\n\nstderr:\nwrong\n"
    assert states[0]["kind"] == "command"
    with browser.stream() as stream:
        row = stream.row("jobs", f"{machine.name}/{handle}", lambda row: row["state"] == "ended")
        assert row["command"].startswith("echo begun")


def test_a_job_that_is_not_there_is_an_error_and_no_stream(browser: Browser, machine: Sshd) -> None:
    answer = browser.ask("GET", f"/ui/api/log?sandbox={machine.name}&job=none")
    assert answer.status == 404
    assert "knows no none" in answer.json["error"]
    answer = browser.ask("GET", "/ui/api/log?sandbox=nowhere&job=none")
    assert answer.status == 404
    assert browser.ask("GET", "/ui/api/log?" + "&".join(f"a{n}=1" for n in range(30))).status == 400


def test_a_log_is_followed_over_a_cut_of_the_line(browser: Browser, machine: Sshd, started: Any) -> None:
    started("cut", "for n in 1 2 3 4; do echo part $n; sleep 1; done")
    threading.Timer(1.5, machine.kill_sessions).start()
    texts, _, end = read_log(browser, machine, "cut")
    assert end["exit_code"] == 0
    told = "".join(text["text"] for text in texts)
    assert [told.count(f"part {n}\n") for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
