"""Installing packages for the tests: it leaves no service behind, and where it cannot be done, that is no failure."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "system-packages"
UNITS = "/usr/lib/systemd/system"
# What packages bring, as Debian has them, and what they pull in.
PACKAGES = {
    "openssh-server": [f"{UNITS}/ssh.service", f"{UNITS}/ssh.socket", f"{UNITS}/ssh@.service", "/etc/init.d/ssh"],
    "docker.io": ["/usr/bin/dockerd", f"{UNITS}/docker.service", f"{UNITS}/docker.socket"],
    "containerd": [f"{UNITS}/containerd.service"],
    "munge": ["/lib/systemd/system/munge.service"],
    "tmux": ["/usr/bin/tmux", "/usr/share/doc/systemd/system/readme"],
    "old-daemon": ["/etc/init.d/old"],
}
NEEDS = {"docker.io": ["containerd"]}

DPKG_QUERY = """#!/bin/sh
case $1 in
-L) shift; for name; do cat "$WORLD/files/$name"; done ;;
-W) if [ $# -gt 3 ]; then [ -e "$WORLD/installed/$4" ] && echo "install ok installed"
    else for name in "$WORLD"/installed/*; do echo "installed ${name##*/}"; done; echo "config-files munge"; fi ;;
esac
"""
APT_GET = """#!/bin/sh
echo "$*" >>"$WORLD/apt"
[ "$2" = install ] || exit "${UPDATE_FAILS:-0}"
shift 4
for name; do touch "$WORLD/installed/$name"; for other in $(cat "$WORLD/needs/$name"); do
    touch "$WORLD/installed/$other"; done; done
exit "$APT_FAILS"
"""
SYSTEMCTL = """#!/bin/sh
[ "$1" = is-system-running ] && { echo "$STATE"; [ "$STATE" = running ]; exit; }
echo "$*" >>"$WORLD/calls"
"""
# Asked with -n by those who are not root.
SUDO = """#!/bin/sh
[ "$1" != -n ] || shift
exec "$@"
"""


@dataclass
class World:
    """A machine of stand-ins that write down what is asked of them."""

    folder: Path

    said: str = ""

    def install(
        self, *packages: str, state: str = "running", apt_fails: int = 0, stdin: int = subprocess.DEVNULL, **more: str
    ) -> int:
        given = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "WORLD": str(self.folder), "STATE": state}
        env = {**given, "APT_FAILS": str(apt_fails), **more}
        done = subprocess.run(
            [SCRIPT, *packages], env=env, stdin=stdin, stderr=subprocess.PIPE, text=True, check=False, timeout=30
        )
        self.said = done.stderr
        return done.returncode

    def put(self, program: str, text: str) -> None:
        (self.folder / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / program).chmod(0o755)

    @property
    def asked_apt(self) -> bool:
        return (self.folder / "apt").exists()

    @property
    def disabled(self) -> list[str]:
        calls = self.folder / "calls"
        words = [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []
        assert all(call[:3] == ["disable", "--quiet", "--now"] for call in words), words
        return [call[3] for call in words]


@pytest.fixture
def world(tmp_path: Path) -> World:
    for name in ("bin", "installed", "files", "needs"):
        (tmp_path / name).mkdir()
    for name, files in PACKAGES.items():
        (tmp_path / "files" / name).write_text("\n".join(files) + "\n")
        (tmp_path / "needs" / name).write_text(" ".join(NEEDS.get(name, [])))
    programs = {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET, "systemctl": SYSTEMCTL, "sudo": SUDO}
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return World(tmp_path)


def test_the_services_of_new_packages_are_disabled_by_their_own_names(world: World) -> None:
    assert world.install("openssh-server", "docker.io", "tmux", "old-daemon") == 0
    # Sockets before their services, and those of what was only pulled in.
    assert world.disabled == [
        *("docker.socket", "ssh.socket"),
        *("containerd.service", "docker.service", "old.service", "ssh.service"),
    ]


def test_what_was_installed_before_is_left_alone(world: World) -> None:
    for name in ("openssh-server", "containerd"):
        (world.folder / "installed" / name).touch()
    assert world.install("openssh-server", "docker.io", "munge") == 0
    assert world.disabled == ["docker.socket", "docker.service", "munge.service"]
    (world.folder / "calls").unlink()
    assert world.install("openssh-server", "docker.io", "munge") == 0
    assert world.disabled == []


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 100)])
def test_a_failed_installation_leaves_no_services_either_and_fails_only_in_ci(world: World, ci: str, code: int) -> None:
    assert world.install("openssh-server", apt_fails=100, CI=ci) == code
    assert "apt-get could not install all of: openssh-server; what needs them is left out" in world.said
    assert world.disabled == ["ssh.socket", "ssh.service"]


def test_a_broken_source_of_packages_does_not_keep_others_from_being_used(world: World) -> None:
    assert world.install("tmux", UPDATE_FAILS="100") == 0
    assert "apt-get update failed" in world.said
    assert (world.folder / "installed/tmux").exists()


@pytest.mark.parametrize(
    ("programs", "more", "said"),
    [
        pytest.param({}, {"NO_INSTALL": "1"}, "not installed: tmux (NO_INSTALL is set)", id="not wanted"),
        pytest.param({"uname": "echo Darwin"}, {}, "packages of Linux, and this is Darwin", id="macOS"),
        pytest.param(
            {"id": "echo 1000", "sudo": "echo '1000 is not in the sudoers file' >&2; exit 1"},
            {},
            "(that takes root, or sudo); what needs them is left out. An administrator installs them with: apt-get",
            id="no sudoer",
        ),
    ],
)
@pytest.mark.parametrize("has_terminal", [False, True])
def test_where_nothing_can_be_installed_that_is_said_and_is_no_failure(
    world: World, programs: dict[str, str], more: dict[str, Any], said: str, has_terminal: bool
) -> None:
    for name, text in programs.items():
        world.put(name, text)
    terminal, inside = pty.openpty()
    try:
        assert world.install("tmux", stdin=inside if has_terminal else subprocess.DEVNULL, **more) == 0
    finally:
        os.close(terminal)
        os.close(inside)
    assert said in world.said
    assert not world.asked_apt


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be another user")
def test_an_ordinary_user_is_told_who_can_install_it() -> None:
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-s", "--", "no-such-package-of-ours"]
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        words, input=SCRIPT.read_bytes(), env=env, capture_output=True, cwd="/", timeout=30, check=False
    )
    said = done.stderr.decode()
    assert (
        done.returncode,
        "An administrator installs them with: apt-get install no-such-package-of-ours" in said,
    ) == (
        0,
        True,
    ), said


def test_where_systemd_does_not_run_nothing_is_disabled(world: World) -> None:
    assert world.install("openssh-server", state="offline") == 0
    assert world.disabled == []


def test_a_package_may_be_wanted_for_a_command_alone(world: World) -> None:
    assert world.install("munge:no-such-command", "tmux:sh") == 0
    assert (world.folder / "installed/munge").exists()
    assert not (world.folder / "installed/tmux").exists()
