"""Whether bubblewrap can run, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap
from remote_sandbox_mcp.backends.bubblewrap.local import open_local, why_not
from remote_sandbox_mcp.backends.bubblewrap.network import way
from remote_sandbox_mcp.core.errors import ConnectError, Unsupported
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.network import Network, Reach
from remote_sandbox_mcp.far.outpost import filter as calls
from remote_sandbox_mcp.far.outpost import guard
from remote_sandbox_mcp.services.probe.doctor import examine_local
from tests.support.disposables import reachable
from tests.support.means import IS_ROOT, readable_source, require_namespaces
from tests.support.programs import look_in, plant


@pytest.fixture
def no_footing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "_found", {})


async def test_it_can_run_where_bubblewrap_can(no_footing: None) -> None:
    simple = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    can = await asyncio.to_thread(subprocess.run, simple, capture_output=True, check=False)
    assert bool(await why_not("bubblewrap")) == bool(can.returncode)


async def test_without_bubblewrap_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look_in(monkeypatch, tmp_path)
    reason = await why_not("bubblewrap")
    assert "apt install bubblewrap" in reason
    assert "dnf install bubblewrap" in reason
    with pytest.raises(Unsupported, match="not installed"):
        await open_local(LocalPlace(walls="bubblewrap"), tmp_path)


async def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux" in await why_not("bubblewrap")


async def test_on_a_machine_with_unknown_system_calls_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ARCHITECTURES", {})
    assert "system calls" in await why_not("bubblewrap")


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
    reason = await why_not("bubblewrap")
    assert complaint in reason
    assert "docker run --security-opt seccomp=unconfined" in reason
    with pytest.raises(Unsupported) as caught:
        await open_local(LocalPlace(walls="bubblewrap"), tmp_path)
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
    assert f"run `{switch[2]}`" in await why_not("bubblewrap")


@pytest.mark.skipif(not guard.landlock_version(), reason="this kernel has no Landlock")
async def test_where_ubuntu_forbids_namespaces_doctor_prints_a_profile_for_bubblewrap_alone(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: setting up uid map: Permission denied")
    (tmp_path / "switch").write_text("1\n")
    look_in(monkeypatch, tmp_path)
    monkeypatch.setattr(bwrap, "SWITCHES", ((tmp_path / "switch", *bwrap.SWITCHES[-1][1:]),))
    with reachable():
        walls = (await examine_local(LocalPlace(), tmp_path / "state")).steps[0]
    assert walls.said.startswith(f"Landlock {guard.landlock_version()}; ")
    assert "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }" in walls.said
    assert "/etc/apparmor.d/bwrap" in walls.said
    assert "sysctl" not in walls.said


async def test_a_failure_that_was_fixed_is_noticed(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: not yet")
    look_in(monkeypatch, tmp_path)
    assert "not yet" in await why_not("bubblewrap")
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    assert await why_not("bubblewrap") == ""


@pytest.mark.skipif(os.geteuid() == 0 and not IS_ROOT, reason="root without rights cannot prepare what root's needs")
async def test_a_bubblewrap_that_fails_later_is_an_error_and_no_way_around(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_bwrap(tmp_path, "bwrap: out of luck")
    program = tmp_path / "bwrap"
    program.write_text(program.read_text().replace("echo", '[ "${*%true}" != "$*" ] && exit 0\necho', 1))
    look_in(monkeypatch, tmp_path)
    with pytest.raises(ConnectError, match="out of luck"):
        await open_local(LocalPlace(walls="bubblewrap"), tmp_path)


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


as_root = pytest.mark.skipif(not IS_ROOT, reason="is about what root runs")
STRANGER = 61_300


@as_root
async def test_root_runs_no_python_inside_that_another_user_can_change(
    no_footing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(tmp_path / "bin" / "bwrap")
    look_in(monkeypatch, tmp_path / "bin")
    home = tmp_path / "python"
    library = home / "lib" / bwrap.PYTHON_NAME / "os.py"
    plant(home / "bin" / bwrap.PYTHON_NAME)
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(bwrap, "SYSTEM_PYTHON", tmp_path / "none")
    monkeypatch.setattr(sys, "base_prefix", str(home))
    assert await why_not("bubblewrap") == ""
    monkeypatch.setattr(bwrap, "_found", {})
    os.chown(library.parent, STRANGER, STRANGER)
    assert f"{library.parent} belongs to another user ({STRANGER}): install this system's python3" in await why_not(
        "bubblewrap"
    )


@as_root
async def test_root_starts_a_network_by_the_real_path_of_our_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "environment" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    os.chown(link.parent, STRANGER, STRANGER)
    monkeypatch.setattr(sys, "executable", str(link))
    footing = bwrap.Footing("/usr/bin/bwrap", ())
    started = way.prefix(Network(Reach.HOSTS, ("example.org",)), footing)[0]
    assert started == os.path.realpath(link)
    # Where that one is others', too, there is no network.
    own = plant(tmp_path / "own" / "python3")
    os.chown(own, STRANGER, STRANGER)
    monkeypatch.setattr(sys, "executable", str(own))
    monkeypatch.setattr(way, "_works", set())
    assert "because root would start" in await way.why_not(Network(Reach.HOSTS, ("example.org",)), footing)


def test_root_of_a_namespace_of_one_user_is_that_user() -> None:
    """There the system's own Python belongs to nobody, and as that user it would be run anyway."""
    require_namespaces()
    code = "from remote_sandbox_mcp.backends.bubblewrap import bwrap; print(bwrap.doubt_about_python() or 'none')"
    other: dict[str, Any] = {"user": 61_200, "group": 61_200, "extra_groups": []} if IS_ROOT else {}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(readable_source()), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["unshare", "--user", "--map-root-user", "/usr/bin/python3", "-c", code]
    done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=False, **other)
    assert (done.stdout, done.stderr) == ("none\n", "")
