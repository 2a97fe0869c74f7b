"""Selection and order of the tests: `--quick`, `--all`, recorded durations, and second tries that are reported."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Cheap folders, and in them what starts no machine, container or server: `make quick`.
QUICK_FOLDERS = (
    *("app", "config", "core", "docs", "local", "views"),
    *(
        f"services/{name}"
        for name in ("apps", "disposable", "fleet", "jobs", "platform_server", "probe", "setup", "suites", "transfers")
    ),
)
# Files in them that are not cheap: random histories, programs of other projects, documented lines that start hubs.
COSTLY_FILES = (
    *("config/test_any_input.py", "docs/test_lines.py", "services/disposable/test_processes.py"),
    *("services/jobs/test_histories.py", "services/suites/test_cargo.py", "services/suites/test_loan.py"),
    *(
        "services/suites/test_on_a_sandbox.py",
        "services/suites/test_on_machines.py",
        "services/transfers/test_take_up.py",
    ),
)
COSTLY_FIXTURES = frozenset(
    {"fleet", "platform", "engine_place", "registry", "shared_slurm", "shared_slurm_with_accounting"}
)
# Of the other contracts, whose subject is the program at the far end, these backends run what is marked `line`.
LINE_CONTRACTS = frozenset({"RunContract", "SessionContract", "JobContract", "PortContract", "PythonContract"})
MOST_SECOND_TRIES = 3
SECOND_TRIES = ".pytest_cache/second-tries.txt"
_DURATIONS = "remote-sandbox-mcp/durations"
# For a checkout in which no test has run yet. Its numbers only keep the order of an older list: nobody measured them.
FALLBACK = TESTS / "support" / "durations.json"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--quick", action="store_true", help="only tests that are cheap: no machines, no containers")
    group.addoption("--all", action="store_true", help="the whole contract also for backends that differ in their line")
    group.addoption("--second-try", action="store_true", help=f"report what passes now, in {SECOND_TRIES}, too")


# Which tests run


def is_left_unread(path: Path, config: pytest.Config) -> bool:
    """Whether a folder or file of the tests is not even imported, because nothing in it is cheap."""
    if not config.getoption("--quick") or not path.is_relative_to(TESTS):
        return False
    if not path.is_dir():
        return path.relative_to(TESTS).as_posix() in COSTLY_FILES
    return not any(path.is_relative_to(TESTS / name) or (TESTS / name).is_relative_to(path) for name in QUICK_FOLDERS)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove, and count as deselected, what this run does not ask for."""
    rules: list[Callable[[pytest.Item], bool]] = []
    if config.getoption("--quick"):
        rules.append(_is_cheap)
    if not config.getoption("--all"):
        rules.append(is_in_line_contract)
    kept = [item for item in items if all(rule(item) for rule in rules)]
    if len(kept) < len(items):
        names = {item.nodeid for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


def _is_cheap(item: pytest.Item) -> bool:
    return COSTLY_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def is_in_line_contract(item: pytest.Item) -> bool:
    """Whether a test runs by default: all do, but for those of backends that differ from another only in their line.

    Such a backend (marked `line_only`) runs what depends on a line, with the first row of each table.
    """
    if item.get_closest_marker("line_only") is None:
        return True
    contract = getattr(getattr(item, "function", None), "__qualname__", "").partition(".")[0]
    if contract not in LINE_CONTRACTS and item.get_closest_marker("line") is None:
        return False
    return not any(getattr(getattr(item, "callspec", None), "indices", {}).values())


# In which order


def cache_of(config: pytest.Config) -> pytest.Cache | None:
    """Give pytest's cache, which a run may do without (`-p no:cacheprovider`)."""
    return getattr(config, "cache", None)


def recorded(config: pytest.Config) -> dict[str, float]:
    """Give the seconds of each test, as earlier runs in this checkout have written them."""
    cache = cache_of(config)
    found = cache.get(_DURATIONS, None) if cache else None
    return found if isinstance(found, dict) else {}


def order(config: pytest.Config, items: list[pytest.Item], group_of: Callable[[pytest.Item], str]) -> None:
    """Begin with what takes longest, so that no worker is at work on it alone at the end."""
    durations = recorded(config)
    fallback: dict[str, float] = json.loads(FALLBACK.read_text())
    units = {item: group_of(item) or item.nodeid.partition("::")[0] for item in items}
    lengths: dict[str, float] = defaultdict(float)
    for item, unit in units.items():
        seconds = durations.get(item.nodeid, 0.0)
        # A group is one piece of work; of a file, each test is one.
        lengths[unit] = lengths[unit] + seconds if group_of(item) else max(lengths[unit], seconds)
    items.sort(key=lambda item: -(lengths[units[item]] or fallback.get(units[item], 0.0)))


class Record:
    """What a run writes down: how long each test took, and which passed only on their second try."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations: dict[str, float] = defaultdict(float)
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._file = config.rootpath / SECOND_TRIES

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = cache_of(self._config)
        if cache and self._durations:
            known = {name: round(seconds, 2) for name, seconds in self._durations.items()}
            cache.set(_DURATIONS, {**recorded(self._config), **known})
        if not self._is_second_try:
            self._file.unlink(missing_ok=True)
            return
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text("".join(f"{name}\n" for name in self.second_tries))
        if len(self.second_tries) > MOST_SECOND_TRIES and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._is_second_try or not self.second_tries:
            return
        count = len(self.second_tries)
        verdict = f", and more than {MOST_SECOND_TRIES} fail the run" if count > MOST_SECOND_TRIES else ""
        terminalreporter.section(f"passed only on the second try: {count}{verdict} (see {SECOND_TRIES})")
        _write_lines(terminalreporter, self.second_tries)

    @property
    def second_tries(self) -> list[str]:
        return sorted(self._passed - self._failed)

    @property
    def _is_second_try(self) -> bool:
        return bool(self._config.getoption("--second-try"))


def _write_lines(terminalreporter: pytest.TerminalReporter, lines: Iterable[str]) -> None:
    for line in lines:
        terminalreporter.write_line(line)
