"""`dashboard`: one page, at a port that is new each time, opened without showing the key to other users."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote_sandbox_mcp.cli.browser import browser_here, is_confined, sweep, write_lead
from tests.support.hubs import hub_pid, kill_hub
from tests.support.page import Browser
from tests.support.programs import look_in
from tests.support.server import arguments, environment
from tests.support.sshd import wait_until

FOUND = re.compile(r"(http://127\.0\.0\.1:(\d+)/ui/)#key=(\S+)")


class Dashboard:
    """A running one; `said` is all that it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path) -> None:
        self.process = process
        self._file = home / f"said-{process.pid}"

    @property
    def said(self) -> str:
        return self._file.read_text()

    @property
    def place(self) -> re.Match[str]:
        wait_until(lambda: FOUND.search(self.said) or self.process.poll() is not None, what="the address", seconds=20)
        found = FOUND.search(self.said)
        assert found, self.said
        return found

    @property
    def port(self) -> int:
        return int(self.place[2])

    def entered(self) -> Browser:
        browser = Browser(self.port)
        assert browser.enter(self.place[3]).status == 200
        return browser


@contextmanager
def dashboard(home: Path, *words: str, **env: str) -> Iterator[Dashboard]:
    home.mkdir(exist_ok=True)
    command = [*arguments(home, local=False), "dashboard", *words]
    given = environment(home, (), {"REMOTE_SANDBOX_HUB_IDLE_S": "2"} | env)
    fresh = home / "said"
    with fresh.open("wb") as said:
        process = subprocess.Popen(command, env=given, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    fresh.rename(home / f"said-{process.pid}")
    try:
        yield Dashboard(process, home)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_the_page_is_there_until_ctrl_c_and_a_killed_hub_is_replaced_under_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with dashboard(home, "--no-open", "--port", "0") as shown:
        browser = shown.entered()
        assert f"ssh -L {shown.port}:127.0.0.1:{shown.port}" in shown.said
        with browser.stream() as stream:
            first = stream.row("about", "hub")["pid"]
        told = subprocess.run(
            [*arguments(home, local=False), "hub"],
            env=environment(home, ()),
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"http://127.0.0.1:{shown.port}/ui/" in told.stdout
        assert shown.place[3] not in told.stdout
        assert kill_hub(home) == first
        with browser.stream() as stream:
            assert stream.row("about", "hub")["pid"] == hub_pid(home) != first
        # The same page, opened again by another process.
        again = subprocess.run(
            [*arguments(home, local=False), "dashboard", "--no-open", "--json"],
            env=environment(home, ()), capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = json.loads(again.stdout)
        assert (said["port"], said["pid"], said["running"]) == (shown.port, shown.process.pid, True)
        assert said["url"] == shown.place[0]
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(10) == 0
    assert "Traceback" not in shown.said


def test_one_that_runs_with_another_configuration_key_or_port_is_not_opened(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with dashboard(home, "--no-open", REMOTE_SANDBOX_NO_HUB="1") as shown:
        port, pid = shown.port, shown.process.pid
        other = tmp_path / "other.toml"
        other.write_text("")
        ours = arguments(home, local=False)
        key = {"REMOTE_SANDBOX_API_KEY": "another key"}
        for words, env, different in (
            ([ours[0], "--config", str(other), "dashboard"], {}, f"of another configuration, {home / 'config.toml'},"),
            ([*ours, "dashboard"], key, "with another key"),
            ([*ours, "dashboard", "--port", "1"], {}, f"at another port, {port},"),
        ):
            given = environment(home, (), env)
            done = subprocess.run([*words, "--no-open"], env=given, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (1, ""), done.stderr
            assert f"a dashboard {different} runs already, as process {pid}" in done.stderr
            assert f"kill {pid}" in done.stderr
        same = [*ours, "dashboard", "--no-open", "--port", str(port)]
        done = subprocess.run(same, env=environment(home, ()), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, shown.place[0])
        noted = (home / "state" / "dashboard.json").read_text()
        assert shown.place[3] not in noted


def test_it_is_served_without_a_hub_where_there_is_none(tmp_path: Path) -> None:
    with dashboard(tmp_path / "home", "--no-open", "--port", "0", REMOTE_SANDBOX_NO_HUB="1") as shown:
        with shown.entered().stream() as stream:
            assert stream.row("about", "hub")["pid"] == shown.process.pid
        shown.process.send_signal(signal.SIGTERM)
        assert shown.process.wait(10) == 0


def test_a_port_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with dashboard(tmp_path / "asked", "--no-open", "--port", str(number)) as refused:
            assert refused.process.wait(20) == 2
            assert f"port {number}: another program listens there" in refused.said


def test_each_run_has_another_port_so_that_nobody_can_wait_there(tmp_path: Path) -> None:
    ports = set()
    for _ in range(2):
        with dashboard(tmp_path / "home", "--no-open", REMOTE_SANDBOX_NO_HUB="1") as shown:
            ports.add(shown.port)
            assert shown.entered().ask("GET", "/ui/").status == 200
    assert len(ports) == 2


def make_browser(folder: Path, comment: str = "") -> tuple[Path, Path]:
    """A browser that writes down how it was started, and what it read; and where it writes that."""
    program, seen = folder / "browser", folder / "seen"
    program.write_text(
        f"#!{sys.executable}\n{comment}\n"
        "import os, sys, urllib.parse, urllib.request, json\n"
        "file = urllib.request.url2pathname(urllib.parse.urlparse(sys.argv[1]).path)\n"
        "told = {'argv': sys.argv, 'mode': os.stat(file).st_mode & 0o777, 'text': open(file).read(),\n"
        "        'file': file, 'environ': dict(os.environ)}\n"
        f"open({str(seen)!r} + '.new', 'w').write(json.dumps(told))\n"
        f"os.rename({str(seen)!r} + '.new', {str(seen)!r})\n"
    )
    program.chmod(0o700)
    return program, seen


def test_the_browser_gets_the_key_by_a_file_of_the_owner_alone(tmp_path: Path) -> None:
    program, seen = make_browser(tmp_path)
    key = "a key of the operator's & <more>"
    given = {"BROWSER": str(program), "REMOTE_SANDBOX_API_KEY": key, "REMOTE_SANDBOX_NO_HUB": "1"}
    with dashboard(tmp_path / "home", "--port", "0", **given) as shown:
        wait_until(seen.exists, what="the browser", seconds=20)
        told = json.loads(seen.read_text())
        assert told["mode"] == 0o600
        assert not any(word in str(told["argv"]) for word in (key, shown.place[3]))
        assert key not in told["environ"].values()
        assert shown.place[0] in told["text"].replace("&amp;", "&")
        assert Path(told["file"]).parent == tmp_path / "home" / "state"
        assert "the page opens in the browser" in shown.said
        assert "if the browser shows an error, open that address by hand" in shown.said
        browser = Browser(shown.port)
        assert browser.enter(key).status == 200
        # Neither this process nor the one before shows the key in its arguments.
        assert key.encode() not in Path(f"/proc/{shown.process.pid}/cmdline").read_bytes()


def test_a_browser_that_reads_no_hidden_folder_gets_the_file_in_the_home_folder(tmp_path: Path) -> None:
    program, seen = make_browser(tmp_path, "# exec /snap/bin/firefox")
    home = tmp_path / "home"
    with dashboard(home, BROWSER=str(program), REMOTE_SANDBOX_NO_HUB="1") as shown:
        wait_until(seen.exists, what="the browser", seconds=20)
        told = json.loads(seen.read_text())
        assert (Path(told["file"]).parent, told["mode"]) == (home, 0o600)
        assert re.fullmatch(r"remote-sandbox-mcp-open-page-[0-9a-f]{32}\.html", Path(told["file"]).name)
        assert shown.place[0] in told["text"]
    sweep(home / "state", time.time() + 1)
    assert not [*home.glob("*.html"), *(home / "state").glob("*.html")]


def script(text: str) -> str:
    return f"#!/bin/sh\n{text}\n"


@pytest.mark.parametrize(
    ("program", "text", "confined"),
    [
        pytest.param("bin/firefox", script('exec /snap/bin/firefox "$@"'), True, id="Ubuntu's script for a snap"),
        pytest.param("snap/bin/firefox", script(""), True, id="a snap"),
        pytest.param("bin/firefox", script("exec flatpak run org.mozilla.firefox"), True, id="a script for a flatpak"),
        pytest.param("bin/firefox", script("exec /usr/lib/firefox/firefox"), False, id="another script"),
        pytest.param("bin/firefox", "\x7fELF /snap/bin/", False, id="a program"),
    ],
)
def test_a_snap_or_flatpak_is_known_by_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, text: str, confined: bool
) -> None:
    file = tmp_path / program
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o700)
    look_in(monkeypatch, file.parent)
    assert is_confined("firefox", {"PATH": str(file.parent)}) is confined
    assert is_confined(str(file), {"PATH": ""}) is confined


@pytest.mark.parametrize(
    ("line", "confined"),
    [
        ("Exec=env X=1 /snap/bin/firefox %u", True),
        ("Exec=/usr/bin/flatpak run --branch=stable org.mozilla.firefox @@u %u @@", True),
        ("Exec=/usr/lib/firefox/firefox %u", False),
        ("", False),
    ],
    ids=["snap", "flatpak", "neither", "no desktop file"],
)
def test_the_browser_of_the_desktop_is_known_by_its_desktop_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, confined: bool
) -> None:
    asked = tmp_path / "xdg-mime"
    asked.write_text(script('[ "$*" = "query default text/html" ] && echo a-browser.desktop'))
    asked.chmod(0o700)
    look_in(monkeypatch, tmp_path, os.environ["PATH"])
    if line:
        (tmp_path / "applications").mkdir()
        (tmp_path / "applications" / "a-browser.desktop").write_text(f"[Desktop Entry]\n{line}\n")
    environ = {"PATH": os.environ["PATH"], "XDG_DATA_HOME": str(tmp_path)}
    assert is_confined("/usr/bin/xdg-open", environ) is confined


def test_files_that_led_to_the_page_are_removed_later(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in ("open-page-1.html", "open-page-2.html", "http.key"))
    for file in (old, new, other):
        file.write_text("x")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    sweep(tmp_path, 1000)
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_a_file_in_the_home_folder_is_removed_with_what_leads_to_it(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    home.mkdir()
    state.mkdir()
    lead = write_lead(state, "http://127.0.0.1:1/ui/", home)
    sweep(state, time.time() - 1000)
    assert lead.exists()
    own = home / "open-page-of-mine.html"
    own.write_text("x")
    sweep(state, time.time() + 1000)
    assert ([*home.iterdir()], [*state.iterdir()]) == ([own], [])


@pytest.mark.parametrize("name", ["SSH_CONNECTION", "SSH_TTY"])
def test_over_ssh_no_browser_is_opened(name: str) -> None:
    assert browser_here({name: "x", "DISPLAY": ":0", "BROWSER": "firefox"}) is None
