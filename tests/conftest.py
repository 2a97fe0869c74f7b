"""Fixtures for every test: a clean environment, real machines, coroutine tests without decoration."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import shutil
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

from remote_sandbox_mcp.local.processes.locks import holder
from tests.support import selection
from tests.support.means import remove_copies
from tests.support.platform import Platform
from tests.support.slurm import Cluster, running_cluster
from tests.support.sshd import Fleet, Sshd
from tests.support.warm import LANE_NURSERY, NURSERY

if TYPE_CHECKING:
    from tests.support.engine_place import Place

FOREIGN_PREFIXES = ("REMOTE_", "OPENSANDBOX_", "OPEN_SANDBOX_", "MCP_", "XDG_")
# More would only crowd the machine that they all share: its users, ports and interfaces.
MOST_WORKERS = 8
XDG_FOLDERS = ("CONFIG_HOME", "DATA_HOME", "STATE_HOME", "CACHE_HOME", "RUNTIME_DIR")


# How long an example takes says more of the other work on the machine than of ours.
settings.register_profile("beside other work", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beside other work")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Mark every coroutine test for anyio's plugin, which looks for the mark right after this."""
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj):
        pytest.mark.anyio(obj)


def pytest_configure(config: pytest.Config) -> None:
    """With `--dist loadgroup` the work is handed out in the order of collection, which is ours."""
    # While tests are collected, nothing becomes garbage, and the collector would look at everything again and again.
    gc.disable()
    read_certificates_once()
    config.addinivalue_line("markers", "line: a test of the contract that depends on how a line carries it")
    config.addinivalue_line("markers", "line_only: a backend that differs from another only in its line")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(selection.Record(config))
    if getattr(config.option, "dist", "") == "loadgroup":
        config.option.loadscopereorder = False


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_options(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return selection.is_left_unread(collection_path, config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.select(config, items)
    if getattr(config.option, "loadgroup", False):
        selection.order(config, items, group_of)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """With `--dist loadgroup` a group belongs to one worker: xdist 3.8 says so in a field that pytest 9.2 has not.

    Not before `--last-failed` has chosen: it knows tests by their plain names.
    """
    # Ten thousand tests are a million objects that stay; the collector would look at all of them, again and again.
    gc.enable()
    gc.collect()
    gc.freeze()
    if not getattr(session.config.option, "loadgroup", False):
        return
    from _pytest.nodes import NodeId

    for item in session.items:
        group = group_of(item)
        if group and not item.nodeid.endswith(f"@{group}"):
            item._id = NodeId.parse(f"{item.nodeid}@{group}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tests are told and remembered by their plain names, in whatever group they ran."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    name, sign, _ = report.nodeid.rpartition("@")
    if sign and report.nodeid.rfind("@") > report.nodeid.rfind("]"):
        report.nodeid = name


def group_of(item: pytest.Item) -> str:
    """Tests that share what was started for their module stay together, so that one worker starts it, once."""
    mark = item.get_closest_marker("xdist_group")
    if mark:
        return str(mark.args[0])
    known: Any = getattr(item, "_fixtureinfo", None)
    fixtures = known.name2fixturedefs.values() if known else ()
    is_shared = any(found[-1].scope in ("class", "module", "package") for found in fixtures)
    return f"{item.path.parent.name}.{item.path.stem}" if is_shared else ""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: tests of real parts wait for much of their time. Five keep two cores busy; more crowd them."""
    return min(5 * (os.cpu_count() or 1) // 2, MOST_WORKERS)


def read_certificates_once() -> None:
    """Each HTTP client reads the certificates of all authorities, which takes longer than most requests of tests."""
    read, theirs = ssl.create_default_context, {"cafile": certifi.where()}

    @functools.cache
    def usual() -> ssl.SSLContext:
        return read(cafile=theirs["cafile"])

    def create(*args: Any, **given: Any) -> ssl.SSLContext:
        return usual() if not args and given == theirs else read(*args, **given)

    ssl.create_default_context = create


def pytest_sessionfinish() -> None:
    remove_copies()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What could not run on this machine, so that a green run is not taken for a whole one."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    terminalreporter.section(f"left out on this machine: {len(skipped)} tests")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:6}  {reason}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing of the person who runs the tests is seen or touched; gives the home folder used instead."""
    for name in tuple(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name == "SSH_AUTH_SOCK":
            monkeypatch.delenv(name)
    home = HOMES.take(tmp_path_factory)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("REMOTE_SANDBOX_MCP_HOME", str(home / "remote-sandbox-mcp"))
    # A hub that nobody uses is to end soon.
    monkeypatch.setenv("REMOTE_SANDBOX_HUB_IDLE_S", "1")
    for name in XDG_FOLDERS:
        monkeypatch.setenv(f"XDG_{name}", str(home / "xdg" / name.lower()))
    return home


class Homes:
    """Home folders for tests. One in which a test has left nothing, as most do, is that of the next test, too.

    To make three folders for each of ten thousand tests, and to remove them later, takes longer than many tests.
    """

    def __init__(self) -> None:
        self._last: Path | None = None

    def take(self, factory: pytest.TempPathFactory) -> Path:
        if self._last is None or not self._is_untouched(self._last):
            self._last = factory.mktemp("home")
            # The one that must exist already where it is named at all.
            (self._last / "xdg" / "runtime_dir").mkdir(parents=True, mode=0o700)
        return self._last

    def _is_untouched(self, home: Path) -> bool:
        try:
            found = [os.listdir(folder) for folder in (home, home / "xdg", home / "xdg/runtime_dir")]
            return found == [["xdg"], ["runtime_dir"], []] and home.stat().st_mode & 0o777 == 0o700
        except OSError:
            return False


HOMES = Homes()


@pytest.fixture(scope="session", autouse=True)
def no_hub_outlives_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One that has something to look after, such as a sandbox that no test has deleted, would stay."""
    yield
    base = tmp_path_factory.getbasetemp()
    for lock in (lock for depth in ("*/*", "*/*/*") for lock in base.glob(f"{depth}/hub/*.lock")):
        found = holder(lock)
        if found and found.is_alive():
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
    NURSERY.close()
    LANE_NURSERY.close()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """Starts machines on demand; all of them end with the session."""
    with Fleet() as fleet:
        yield fleet
        # To remove all its users takes longer than the test may that happens to be the last.
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(scope="session")
def shared_sshd(fleet: Fleet) -> Sshd:
    return fleet.machine("shared")


@pytest.fixture
def sshd(shared_sshd: Sshd) -> Iterator[Sshd]:
    """A machine with bash and a key login, shared by all tests and put right after each."""
    before = set(os.listdir(shared_sshd.home))
    yield shared_sshd
    shared_sshd.reset()
    # Names such as `project` and `runs` belong to one test at a time; the far side's own records are hidden.
    for left in shared_sshd.home.iterdir():
        if left.name in before or left.name.startswith("."):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()


@pytest.fixture(scope="session")
def shared_slurm(fleet: Fleet) -> Iterator[Cluster]:
    with running_cluster(fleet) as cluster:
        yield cluster


@pytest.fixture
def slurm(shared_slurm: Cluster) -> Iterator[Cluster]:
    """A cluster without accounting, shared by all tests and put right after each."""
    yield shared_slurm
    shared_slurm.reset()


@pytest.fixture(scope="session")
def shared_slurm_with_accounting(fleet: Fleet) -> Iterator[Cluster]:
    with running_cluster(fleet, with_accounting=True) as cluster:
        yield cluster


@pytest.fixture
def slurm_with_accounting(shared_slurm_with_accounting: Cluster) -> Iterator[Cluster]:
    """The same for a cluster on which `sacct` tells of jobs that have ended."""
    yield shared_slurm_with_accounting
    shared_slurm_with_accounting.reset()


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """One for all tests of containers: those belong to the xdist group "platform", so that one worker has them all."""
    with Platform() as platform:
        yield platform


@pytest.fixture(scope="session")
def engine_place(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A machine with an engine, for the tests of the xdist group "engine": one worker has them all."""
    from tests.support.engine_place import running_place

    with running_place(fleet, tmp_path_factory.mktemp("image")) as place:
        yield place
