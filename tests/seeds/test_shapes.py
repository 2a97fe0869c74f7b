"""remote-sandbox-mcp 0.7, README, section 7: the fields of each tool's result, as recorded from the published 0.7.6."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_jobs import end_watchdog
from tests.seeds import record
from tests.support.original import install_once
from tests.support.server import Wire, wire
from tests.support.sshd import Fleet

RECORDED: dict[str, Any] = json.loads(record.FILE.read_text())
COMPARED = [label for label in RECORDED if label not in (*record.INSTALLERS, record.PARAMETERS)]
SAFER, TRUER, IMPOSSIBLE = "safer", "truer", "impossible here"
# Fields of 0.7.6 that are not here, or differ: patterns for their places, and why.
DIFFERENT = {
    r"exec_bash that takes too long\.stderr": (TRUER, "the command wrote nothing; timed_out says what happened"),
    r"sync_local_to_remote in the background\.pid": (TRUER, "no process is there for one transfer alone"),
    r".*\.watch(es\[\])?\.(event_command|webhook_url)": (SAFER, "hooks are the operator's, and addresses hold keys"),
    r".*\.watch(es\[\])?\.(checkpoint_updated_ts|last_event_ts)": (IMPOSSIBLE, "events and checkpoints have their own"),
    r".*\.watch(es\[\])?\.last_(log|checkpoint)_digest": (IMPOSSIBLE, "nothing is compared by digests"),
    r"(list|cancel|watch)_background_\w+\.status": (TRUER, "get_watchdog_status tells it when it is asked"),
    r"get_watchdog_status\.(heartbeat|heartbeat_stale|launchd|paths|watch_counts)": (
        *(TRUER, "the watchdog is a part of the hub on every system: kind, installed, running, last_heartbeat_ts"),
    ),
    r"watch_background_task\.(persisted_sandboxes|watchdog_setup)": (SAFER, "no secrets are copied for a watchdog"),
    r"list_background_watch_events\.events\[\]\.payload\.\w+": (
        *(IMPOSSIBLE, "an event keeps what happened; get_background_watch has the log and the checkpoint"),
    ),
}


def calls_of(server: Wire) -> record.Call:
    """As a program calls that was written for the original: it reads the text, and the fields of an error."""

    def call(tool: str, **given: Any) -> record.Fields:
        answer = server.call(tool, **given)
        fields = dict(answer["structuredContent"])
        assert answer.get("isError") or json.loads(answer["content"][0]["text"]) == fields
        return fields

    return call


@pytest.fixture(scope="module")
def ours(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same calls of our server, by a client that it does not know."""
    home = tmp_path_factory.mktemp("ours")
    with record.machines(fleet) as entries, wire(home, *entries, env=record.SETTINGS, cwd=home) as server:
        server.initialize()
        try:
            return dict(record.walk(calls_of(server), home)) | {record.PARAMETERS: record.parameters(server)}
        finally:
            end_watchdog(home)


def differences(recorded: Any, found: Any, path: str) -> Iterator[tuple[str, str]]:
    """Places of recorded fields that are not there, or have another type, and what is there."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for name, item in recorded.items():
            yield from differences(item, found.get(name), f"{path}.{name}")
    elif isinstance(recorded, list) and isinstance(found, list):
        if recorded:
            yield from differences(recorded[0], found[0] if found else None, f"{path}[]")
    # A number may happen to be whole.
    elif found != recorded and (recorded, found) != ("number", "integer"):
        yield path, f"{recorded} there, {found} here"


@pytest.mark.parametrize("label", COMPARED)
def test_a_result_has_every_field_of_the_original(ours: dict[str, Any], label: str) -> None:
    found = dict(differences(RECORDED[label], record.shape(ours[label]), label))
    assert not {path: what for path, what in found.items() if not any(re.fullmatch(it, path) for it in DIFFERENT)}


# Nothing, and here or the home folder: a schema of ours does not say so.
USUAL = ("", 0, None, ".")
# Ours give more where nothing else is said; the last one is taken, and not listed.
GENEROUS = ("limit", "max_bytes", "checkpoint_max_bytes")
NOT_LISTED = "max_log_lines"


@pytest.mark.parametrize("tool", RECORDED[record.PARAMETERS])
def test_a_tool_has_every_parameter_of_the_original_with_its_default(ours: dict[str, Any], tool: str) -> None:
    found = ours[record.PARAMETERS][tool]
    for name, default in RECORDED[record.PARAMETERS][tool].items():
        if name == NOT_LISTED and tool.startswith("exec_bash"):
            continue
        assert name in found
        is_same = found[name] == default or (default in USUAL and found[name] is None)
        assert is_same or default == record.REQUIRED or (name in GENEROUS and found[name] > default), name
        assert default == record.REQUIRED or found[name] != record.REQUIRED, name


def test_every_difference_that_is_named_is_one(ours: dict[str, Any]) -> None:
    found = [path for it in COMPARED for path, _ in differences(RECORDED[it], record.shape(ours[it]), it)]
    assert [it for it in DIFFERENT if not any(re.fullmatch(it, path) for path in found)] == []
    assert {reason for reason, _ in DIFFERENT.values()} <= {SAFER, TRUER, IMPOSSIBLE}


def test_a_watch_without_a_run_id_has_its_sessions_name(ours: dict[str, Any]) -> None:
    assert ours["watch_background_task"]["watch"]["run_id"] == "bare"


@pytest.mark.timeout(600)
def test_the_recorded_shapes_are_those_of_the_published_package(
    fleet: Fleet, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert record.record(install_once(tmp_path_factory), fleet, tmp_path) == RECORDED
