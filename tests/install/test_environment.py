"""scripts/environment with a Python that lacks something; the stand-in is that Python, and all else is real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.test_setup import INSTALLERS, SETUP_S, UV, copy_project

# Without venv and pip, as Debian's python3 is without further packages.
BARE = f"""#!/bin/sh
case "$1 $2" in "-m venv" | "-m pip") echo "No module named $2" >&2; exit 1 ;; esac
exec {sys.executable} "$@"
"""
OLD = "#!/bin/sh\nexit 1\n"


class Checkout:
    """A copy of the project, with the programs that its scripts find first."""

    def __init__(self, folder: Path) -> None:
        self.folder = copy_project(folder / "project")
        self.bin = folder / "bin"
        self.bin.mkdir()
        # What a missing package leads to is tested with that script.
        (self.folder / "scripts/system-packages").write_text("#!/bin/sh\necho wanted: $* >&2\n")

    def put(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def set_up(self) -> tuple[int, str]:
        words = ["make", "setup", "PYTHON=python3"]
        env = os.environ | INSTALLERS | {"PATH": f"{self.bin}:/usr/bin:/bin"}
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.timeout(SETUP_S)
def test_a_python_without_pip_and_venv_is_served_by_uv(checkout: Checkout) -> None:
    checkout.put("python3", BARE)
    (checkout.bin / "uv").symlink_to(UV)
    code, said = checkout.set_up()
    assert code == 0, said
    assert "wanted:" not in said
    command = checkout.folder / ".venv/bin/remote-sandbox-mcp"
    assert subprocess.run([command, "--version"], capture_output=True, check=True).stdout


def test_without_uv_either_it_says_what_to_install(checkout: Checkout) -> None:
    checkout.put("python3", BARE)
    code, said = checkout.set_up()
    assert code != 0
    assert "wanted: python3-venv" in said
    assert "python3 has neither venv nor pip, and there is no uv; install one of them: python3-venv, or uv" in said


def test_where_python3_is_too_old_a_newer_one_beside_it_is_used(checkout: Checkout) -> None:
    checkout.put("python3", OLD)
    checkout.put("python3.14", BARE)
    _, said = checkout.set_up()
    assert "python3 is not Python 3.10 or newer, so python3.14 is used" in said


def test_where_every_python_is_too_old_it_says_how_to_name_another(checkout: Checkout) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(10, 15))):
        checkout.put(name, OLD)
    code, said = checkout.set_up()
    assert code != 0
    assert "Python 3.10 or newer is needed, and python3 is not; name another one" in said
