"""Frameworks' own tests on our adapters: each in its framework's environment, on real sandboxes of each kind."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.engine_place import WITH_PYTHON, Place
from tests.support.hub_desk import Desk, desk_in
from tests.support.means import require_local, require_program
from tests.support.platform import API_KEY, IMAGE, Platform
from tests.support.server import Entry, entry, environment
from tests.support.slurm import Cluster
from tests.support.sshd import Fleet

from .conftest import ALL, python_of

FOLDER = Path(__file__).parent
DEADLINE_S = 400
pytestmark = pytest.mark.timeout(DEADLINE_S + 60)

# Checks that cannot hold, each with its reason; a check that passes all the same fails.
ONE_USER = {"test_exec_as_user": "it has one user, and no way to another: no new privileges"}
ROOT_READS_ALL = {"test_read_file_not_allowed": "its user is root, who may read every file"}
NEWER_DEEPAGENTS = {
    **dict.fromkeys(
        (
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_with_directories",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_question_mark",
        ),
        "deepagents 0.7 itself returns whole paths, and no folders; langchain-tests 1.1 expects those of 0.6",
    ),
    "test_write_existing_file_fails": "deepagents 0.7 itself replaces a file; langchain-tests 1.1 expects 0.6",
}


@dataclass
class Site:
    """Somewhere a user has a sandbox: its machines, variables, and the name or the order of the sandbox."""

    sandbox: str | dict[str, object]
    entries: tuple[Entry, ...] = ()
    more: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


@pytest.fixture
def run(desk: Desk) -> Callable[..., str]:
    """Run words in a framework's environment, at a site; returns what was said. The user's hub runs, in another one."""

    def run(framework: str, site: Site, *words: str) -> str:
        env = environment(desk.home, site.entries, {"REMOTE_SANDBOX_HUB_IDLE_S": "300", **site.more})
        desk("sandboxes", **{name: value for name, value in env.items() if name != "HOME"})
        assert desk.hub
        env |= {"SUITE_SANDBOX": json.dumps(site.sandbox), "SUITE_EXCEPTIONS": json.dumps(site.exceptions)}
        env |= {"MSWEA_SILENT_STARTUP": "1", "TMPDIR": str(desk.home)}
        done = subprocess.run(
            [python_of(framework), *words], env=env, cwd=desk.home, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
        return done.stdout

    return run


def checked(run: Callable[..., str], framework: str, file: str, site: Site, *options: str) -> dict[str, int]:
    """How many of a framework's tests passed, and how many failed as it is known of them."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={FOLDER}", "--noconftest"]
    words += ["--import-mode=importlib", *options]
    *_, last = run(framework, site, *words, str(FOLDER / file)).strip().splitlines()
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|xfailed|skipped)", last)}


@pytest.fixture
def here() -> Site:
    require_local()
    return Site({}, exceptions=ONE_USER)


@pytest.fixture
def machine(fleet: Fleet) -> Iterator[Site]:
    """A machine whose user may become another one."""
    require_program("sudo")
    sshd = fleet.machine("suites", sudoers="USER ALL=(ALL) NOPASSWD: ALL")
    # Two of the tests of langchain run `python`, which Debian calls python3 alone.
    path = f"/tmp/{sshd.user}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    yield Site("suites", (entry(sshd, sudo="nopasswd", env={"PATH": path}),))
    sshd.stop()


@pytest.fixture
def container(engine_place: Place) -> Site:
    """A container on a machine, whose engine is reached over ssh."""
    order = {"image": WITH_PYTHON, "on": "gpu1"}
    return Site(order, (entry(engine_place.sshd, docker=list(engine_place.words)),), exceptions=ROOT_READS_ALL)


@pytest.fixture
def platforms(platform: Platform) -> Site:
    more = {"OPENSANDBOX_SERVER": platform.url, "OPEN_SANDBOX_API_KEY": API_KEY}
    return Site({"image": IMAGE, "on": "opensandbox"}, more=more, exceptions=ONE_USER)


@pytest.fixture
def allocation(slurm: Cluster) -> Site:
    options = {"rate_s": 0.5, "time": "10"}
    return Site({"on": "hpc", "memory": "2g"}, (entry(slurm.login, name="hpc", slurm=options),), exceptions=ONE_USER)


KINDS = ("here", "machine", "container", "platforms", "allocation")


@pytest.mark.parametrize("kind", KINDS)
def test_the_checks_of_inspect(run: Callable[..., str], request: pytest.FixtureRequest, kind: str) -> None:
    site: Site = request.getfixturevalue(kind)
    known = len(site.exceptions)
    found = checked(run, "inspect", "inspect_checks.py", site)
    assert found == {"passed": 44 - known, **({"xfailed": known} if known else {})}


@pytest.mark.parametrize("kind", ["here", "machine"])
def test_an_evaluation_of_inspect(run: Callable[..., str], request: pytest.FixtureRequest, kind: str) -> None:
    site: Site = request.getfixturevalue(kind)
    name = site.sandbox if isinstance(site.sandbox, str) else ""
    said = json.loads(run("inspect", site, str(FOLDER / "inspect_eval.py"), name).splitlines()[-1])
    assert (said["status"], said["errors"]) == ("success", []), said
    rows = [found.split() for found in said["found"]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    # A fresh sandbox has nothing of the sample before it; a machine that is named has.
    assert [row[1] for row in rows] == (["0", "1", "2"] if name else ["0", "0", "0"])


@pytest.mark.parametrize("kind", KINDS if ALL else ["machine"])
def test_the_tests_of_langchain(run: Callable[..., str], request: pytest.FixtureRequest, kind: str) -> None:
    site: Site = request.getfixturevalue(kind)
    assert checked(run, "deepagents-06", "deepagents_checks.py", site, "-o", "asyncio_mode=auto") == {"passed": 86}


def test_the_tests_of_langchain_with_the_newest_deepagents(run: Callable[..., str], here: Site) -> None:
    site = Site(here.sandbox, exceptions=NEWER_DEEPAGENTS)
    found = checked(run, "deepagents", "deepagents_checks.py", site, "-o", "asyncio_mode=auto")
    assert found == {"passed": 79, "xfailed": 7}


@pytest.mark.parametrize("kind", KINDS if ALL else ["here", "machine"])
def test_the_tests_of_mini_swe_agent(run: Callable[..., str], request: pytest.FixtureRequest, kind: str) -> None:
    assert checked(run, "mini-swe", "mini_swe_checks.py", request.getfixturevalue(kind)) == {"passed": 12}


def test_nothing_is_left_of_the_users_that_checks_make() -> None:
    assert "inspect-ai-test-exec-as-user" not in Path("/etc/passwd").read_text()
    assert os.environ.get("SUITE_SANDBOX") is None
