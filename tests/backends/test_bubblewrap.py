"""Whether bubblewrap can run, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap, seccomp
from remote_sandbox_mcp.backends.bubblewrap.local import open_local, why_not
from remote_sandbox_mcp.core.errors import ConnectError, Unsupported
from remote_sandbox_mcp.core.machine import LocalPlace
from tests.support.programs import look_in


@pytest.fixture
def no_footing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "_found", {})


async def test_it_can_run_where_bubblewrap_can(no_footing: None) -> None:
    simple = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    can = await asyncio.to_thread(subprocess.run, simple, capture_output=True, check=False)
    assert bool(await why_not()) == bool(can.returncode)


async def test_without_bubblewrap_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look_in(monkeypatch, tmp_path)
    reason = await why_not()
    assert "apt install bubblewrap" in reason
    assert "dnf install bubblewrap" in reason
    with pytest.raises(Unsupported, match="not installed"):
        await open_local(LocalPlace(), tmp_path)


async def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux" in await why_not()


async def test_on_a_machine_with_unknown_system_calls_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "ABIS", {})
    assert "system calls" in await why_not()


def fake_bwrap(folder: Path, complaint: str) -> None:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
    program.chmod(0o755)


COMPLAINTS = {
    "a plain container": "bwrap: No permissions to create new namespace",
    "root without rights": "bwrap: Creating new namespace failed: Operation not permitted",
    "a masked proc": "bwrap: Can not mount proc on /newroot/proc: Operation not permitted",
    "nothing said": "",
}


@pytest.mark.parametrize("complaint", COMPLAINTS.values(), ids=COMPLAINTS.keys())
async def test_in_a_container_it_names_the_flags(
    complaint: str, no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, complaint)
    look_in(monkeypatch, tmp_path)
    monkeypatch.setattr(bwrap, "SWITCHES", ())
    reason = await why_not()
    assert complaint in reason
    assert "docker run --security-opt seccomp=unconfined" in reason
    with pytest.raises(Unsupported) as caught:
        await open_local(LocalPlace(), tmp_path)
    assert str(caught.value) == reason


@pytest.mark.parametrize("switch", bwrap.SWITCHES, ids=lambda switch: switch[0].name)
async def test_a_switch_that_forbids_namespaces_is_named(
    switch: tuple[Path, str, str], no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: setting up uid map: Permission denied")
    file = tmp_path / "switch"
    file.write_text(f"{switch[1]}\n")
    look_in(monkeypatch, tmp_path)
    monkeypatch.setattr(bwrap, "SWITCHES", ((file, *switch[1:]),))
    assert f"sudo {switch[2]}" in await why_not()


async def test_a_failure_that_was_fixed_is_noticed(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: not yet")
    look_in(monkeypatch, tmp_path)
    assert "not yet" in await why_not()
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    assert await why_not() == ""


async def test_a_bubblewrap_that_fails_later_is_an_error_and_no_way_around(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: out of luck")
    program = tmp_path / "bwrap"
    program.write_text(program.read_text().replace("echo", '[ "${*%true}" != "$*" ] && exit 0\necho', 1))
    look_in(monkeypatch, tmp_path)
    with pytest.raises(ConnectError, match="out of luck"):
        await open_local(LocalPlace(), tmp_path)


# Python inside


@pytest.mark.parametrize(
    ("python", "usable"),
    [
        ("/usr/bin/python3.6", True),
        ("/usr/bin/python3.12", True),
        ("/usr/libexec/python3.11", True),
        ("/usr/bin/python3.5", False),
        ("/usr/bin/pypy3", False),
        ("/opt/python/bin/python3.12", False),
    ],
)
def test_a_system_python_must_be_new_enough_and_inside(python: str, usable: bool) -> None:
    assert bwrap.is_usable(Path(python)) == usable
