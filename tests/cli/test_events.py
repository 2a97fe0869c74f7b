from __future__ import annotations

import json
import time

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType, Watch
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from tests.cli.conftest import DEADLINE_S, Cli


def test_events_are_listed_newest_last_and_followed(cli: Cli) -> None:
    nothing = cli("events")
    assert (nothing.code, nothing.stdout) == (0, "")
    database = Database(paths.state_folder() / STATE_FILE)
    watches = Watches(database)
    watch = watches.add(Watch(sandbox="gpu1", session="train"))

    def happens(kind: EventType, summary: str) -> None:
        current = watches.get(watch.id)
        assert current
        assert watches.commit(Decision(current, (Event(type=kind, summary=summary),)), time.time())

    happens(EventType.INTERRUPTED, "train on gpu1\x1b[31m is gone")
    happens(EventType.RESUME_STARTED, "train was started again")
    first, second = cli("events").stdout.splitlines()
    assert first.split()[2:4] == ["interrupted", "train"]
    assert "\x1b" not in first
    assert second.endswith("train was started again")
    assert json.loads(cli("events", "--json", "-n", "1").stdout)["event_type"] == "resume_started"
    assert cli("events", "-n", "0").stdout == ""

    following = cli.start("events", "-f", "--json", "-n", "1")
    assert json.loads(following.stdout.readline())["event_type"] == "resume_started"
    happens(EventType.COMPLETED, "train has ended")
    assert json.loads(following.stdout.readline())["summary"] == "train has ended"
    following.kill()
    following.communicate(DEADLINE_S)
    database.close()
