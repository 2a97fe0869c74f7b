"""Which program of this computer is meant by a name: folders that others can write, links, and what came later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.secrets import resolve_secret
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.local.processes import programs
from remote_sandbox_mcp.local.processes.ownership import who_else_on_the_way
from remote_sandbox_mcp.local.processes.programs import NotUsed, Programs, by_path, find_chosen, find_helper
from tests.support.means import IS_ROOT
from tests.support.programs import plant
from tests.support.sshd import wait_until

STRANGER = 61_300


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of the system's and one of the user's."""
    made = (tmp_path / "system", tmp_path / "bin")
    for folder in made:
        folder.mkdir()
    return made


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path]) -> Callable[..., None]:
    """Let this process begin now, as far as programs are concerned."""

    def begin(*path: Path | str) -> None:
        system, own = folders
        given = os.pathsep.join(map(str, path or (own,)))
        monkeypatch.setattr(programs, "_here", Programs(given, (str(system),)))

    return begin


def plant_late(file: Path) -> Path:
    """A program that comes after this process has begun, also by a clock that ticks slowly."""
    wait_until(lambda: time.time() > programs._here.began + 0.05, what="the next tick of the file system's clock")
    return plant(file)


def test_what_we_choose_comes_from_the_system_and_what_the_operator_names_from_path(
    folders: tuple[Path, Path], begin: Callable[..., None]
) -> None:
    system, own = (plant(folder / "tool") for folder in folders)
    alone = plant(folders[1] / "alone")
    begin()
    assert (find_helper("tool"), find_chosen("tool")) == (str(system), str(own))
    assert find_helper("alone") == find_chosen("alone") == str(alone)
    assert find_helper("none") == find_chosen("none") == ""
    assert find_chosen("tool", str(folders[0])) == str(system)
    assert find_chosen("/whatever/is/named") == "/whatever/is/named"


def test_what_comes_into_a_folder_of_the_users_later_is_never_run(
    folders: tuple[Path, Path], begin: Callable[..., None]
) -> None:
    before = plant(folders[1] / "old")
    begin()
    late = plant_late(folders[1] / "tool")
    assert find_helper("tool") == find_chosen("tool") == find_chosen("tool", str(folders[1])) == ""
    (folders[1] / "linked").symlink_to(before)
    assert find_helper("linked") == ""
    # Times of a file can be set back, but for the one that the kernel keeps.
    os.utime(late, (1, 1))
    assert find_chosen("tool") == ""
    with pytest.raises(FileNotFoundError, match="after this program had started"):
        by_path(["tool", "x"], {"PATH": str(folders[1])})
    begin()
    assert find_chosen("tool") == str(late)


def test_an_old_program_that_was_replaced_before_its_first_use_is_not_run(
    folders: tuple[Path, Path], begin: Callable[..., None]
) -> None:
    plant(folders[1] / "tool")
    begin()
    plant_late(folders[1] / "tool")
    assert find_helper("tool") == ""


def test_a_program_is_found_once(folders: tuple[Path, Path], tmp_path: Path, begin: Callable[..., None]) -> None:
    first, second = tmp_path / "first", plant(folders[1] / "tool")
    first.mkdir()
    begin(first, folders[1])
    assert find_chosen("tool") == find_helper("tool") == str(second)
    plant(first / "tool")
    plant(folders[0] / "tool")
    assert find_chosen("tool") == find_helper("tool") == str(second)


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to whom the system's folders belong")
def test_the_system_gets_new_programs_at_any_time(folders: tuple[Path, Path], begin: Callable[..., None]) -> None:
    begin()
    assert find_helper("tool") == ""
    late = plant_late(folders[0] / "tool")
    assert find_helper("tool") == str(late)


def test_relative_folders_and_the_current_one_never_count(
    folders: tuple[Path, Path], begin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(folders[1] / "tool")
    plant(folders[1] / "bin" / "tool")
    monkeypatch.chdir(folders[1])
    begin(".", "", "bin", "./bin")
    assert find_helper("tool") == find_chosen("tool") == find_chosen("tool", ".::bin") == ""
    begin()
    assert find_chosen("bin/tool") == find_chosen("./tool") == find_chosen("../bin/tool") == find_chosen("") == ""


def open_folder(file: Path) -> None:
    file.parent.chmod(0o777)


def open_sticky_folder(file: Path) -> None:
    file.parent.chmod(0o1777)


def open_file(file: Path) -> None:
    file.chmod(0o777)


def open_above(file: Path) -> None:
    file.parent.parent.chmod(0o777)


def give_to_group(file: Path) -> None:
    os.chown(file.parent, -1, STRANGER)
    file.parent.chmod(0o775)


def give_away(file: Path) -> None:
    os.chown(file, STRANGER, -1)


def give_folder_away(file: Path) -> None:
    os.chown(file.parent, STRANGER, -1)


def move_behind_link(file: Path) -> None:
    """The folder itself is in order, and the program is a link to a folder that everybody can write."""
    elsewhere = file.parent.parent / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    file.symlink_to(file.rename(elsewhere / file.name))


def link_over_open_folder(file: Path) -> None:
    """A link to a link: that one is in a folder that everybody can write, where it leads to is not."""
    elsewhere = file.parent.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o1777)
    real = file.rename(file.with_name("real"))
    (elsewhere / "link").symlink_to(real)
    file.symlink_to(elsewhere / "link")


FAULTS = [open_folder, open_sticky_folder, open_file, open_above, move_behind_link, link_over_open_folder]
AS_ROOT = [give_to_group, give_away, give_folder_away]


@pytest.mark.parametrize(
    "spoil",
    [
        *(pytest.param(spoil, id=spoil.__name__) for spoil in FAULTS),
        *(
            pytest.param(spoil, id=spoil.__name__, marks=pytest.mark.skipif(not IS_ROOT, reason="needs root for chown"))
            for spoil in AS_ROOT
        ),
    ],
)
def test_a_program_that_others_can_exchange_is_not_run(
    tmp_path: Path, begin: Callable[..., None], spoil: Callable[[Path], None]
) -> None:
    file = plant(tmp_path / "above" / "bin" / "tool")
    begin(file.parent)
    assert find_chosen("tool") == str(file)
    spoil(file)
    begin(file.parent)
    assert who_else_on_the_way(str(file))
    assert find_helper("tool") == find_chosen("tool") == ""
    with pytest.raises(NotUsed, match="it is not used, because "):
        by_path(["tool"], {"PATH": str(file.parent)})


def test_the_next_folder_counts_where_the_first_cannot_be_trusted(
    tmp_path: Path, folders: tuple[Path, Path], begin: Callable[..., None]
) -> None:
    open_folder(plant(tmp_path / "open" / "tool"))
    good = plant(folders[1] / "tool")
    begin(tmp_path / "open", folders[1])
    assert find_chosen("tool") == str(good)


def test_links_of_our_own_are_followed_and_keep_their_name(tmp_path: Path, begin: Callable[..., None]) -> None:
    real = plant(tmp_path / "store" / "1" / "tool-1.0")
    (tmp_path / "store" / "now").symlink_to("1")
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "tool").symlink_to("../store/now/tool-1.0")
    begin(tmp_path / "bin")
    assert real.exists()
    assert find_chosen("tool") == str(tmp_path / "bin" / "tool")


def test_links_without_end_and_folders_are_no_programs(tmp_path: Path, begin: Callable[..., None]) -> None:
    (tmp_path / "bin" / "folder").mkdir(parents=True, exist_ok=True)
    (tmp_path / "bin" / "tool").symlink_to("tool")
    begin(tmp_path / "bin")
    assert find_chosen("tool") == find_chosen("folder") == ""


LOADS = "from remote_sandbox_mcp.backends.ssh import connection; connection.load()"


def test_loading_libraries_runs_no_program_of_path(tmp_path: Path) -> None:
    """ctypes looks for a library with whatever gcc or ld is first in PATH, where LD_LIBRARY_PATH is set."""
    for name in ("gcc", "cc", "ld", "ldconfig", "objdump"):
        plant(tmp_path / "bin" / name, f"/usr/bin/touch {tmp_path}/was-run")
    given = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": "/nowhere", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LOADS], env=given, check=True)
    assert not (tmp_path / "was-run").exists()


def test_a_module_in_the_home_folder_does_not_take_the_place_of_the_keyring(clean_environment: Path) -> None:
    """Another client's keyring is asked by a process of ours, which runs in the home folder."""
    trap = f"open({str(clean_environment / 'was-run')!r}, 'w').close()\n"
    for name in ("keyring.py", "sitecustomize.py", "own/keyring.py", "own/sitecustomize.py"):
        (clean_environment / name).parent.mkdir(exist_ok=True)
        (clean_environment / name).write_text(trap)
    theirs = {"PATH": os.environ["PATH"], "HOME": str(clean_environment), "DISPLAY": ":77", "PYTHONPATH": "own"}
    with pytest.raises(ConfigError, match="unable to get a secret from keyring:service/user"):
        resolve_secret("keyring:service/user", theirs).reveal()
    assert not (clean_environment / "was-run").exists()
