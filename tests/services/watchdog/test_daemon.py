from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import time

import pytest

from remote_sandbox_mcp.local.store.database import STATE_FILE
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE, LOG_FILE, Pulse, pause_after
from tests.services.watchdog.conftest import WATCH, Post, ended
from tests.support.pace import at_most
from tests.support.sshd import wait_until


def test_a_second_one_says_who_is_there_and_leaves(post: Post) -> None:
    first = post.watch()
    code, said, _ = ended(post.start())
    assert (code, said) == (3, f"the watchdog of {post.state} runs already, as process {first.pid}\n")
    assert first.poll() is None


def test_of_several_that_start_at_once_one_stays(post: Post) -> None:
    crowd = [post.start() for _ in range(6)]
    wait_until(lambda: sum(process.poll() is not None for process in crowd) == 5, what="five to leave")
    (stays,) = (process for process in crowd if process.poll() is None)
    assert post.pid == stays.pid
    assert {process.returncode for process in crowd} == {3, None}


def test_one_whose_lock_was_taken_away_leaves_the_place_to_another(post: Post) -> None:
    first = post.watch()
    (post.state / LOCK_FILE).unlink()
    second = post.watch()
    assert ended(first)[0] == 0
    assert "ended: its lock was taken away" in post.log
    assert post.pid == second.pid


def test_after_a_kill_the_next_one_starts_at_once(post: Post) -> None:
    first = post.watch()
    first.kill()
    first.wait()
    second = post.watch()
    assert post.pid == second.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_it_in_order(post: Post, number: signal.Signals) -> None:
    process = post.watch()
    process.send_signal(number)
    code, said, seconds = ended(process)
    assert (code, said, post.trace()[-1]) == (0, "", "close")
    assert seconds < at_most(2)
    assert "ended: told to" in post.log
    assert post.pid == 0


@pytest.mark.parametrize(
    "how",
    [pytest.param("slow", id="in a round"), pytest.param("dead", id="what is open does not close")],
)
def test_whatever_it_is_doing_it_ends_within_two_seconds(post: Post, how: str) -> None:
    post.tell(how)
    process = post.watch()
    process.send_signal(signal.SIGTERM)
    code, _, seconds = ended(process)
    assert code == 0
    assert seconds < at_most(2)


def test_a_round_that_fails_is_told_with_its_stack_and_the_next_begins(post: Post) -> None:
    post.tell("raise")
    process = post.watch()
    post.until("tick", 3)
    (post.state / "raise").unlink()
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    assert process.poll() is None
    assert "a round failed; the next begins in 0.2 s\nTraceback" in post.log
    assert "ValueError: a defect" in post.log
    # What could have been left broken is opened anew.
    assert post.count("open") == post.count("close") + 1


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 2), (5, 32), (6, 60), (10_000, 60)])
def test_it_tries_again_less_and_less_often(failures: int, seconds: float) -> None:
    assert pause_after(failures, 60) == seconds


def test_what_is_due_is_done_when_it_is(post: Post) -> None:
    post.tell("due", "0.1")
    post.watch(changes_s=5, settings_s=60)
    post.until("tick", 4)


def test_a_watch_that_is_added_is_noticed(post: Post) -> None:
    post.watch(settings_s=60)
    # Those of its own start are over when nothing is written any more.
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    before = post.count("tick")
    post.watches.add(WATCH)
    post.until("tick", before + 1)


def test_a_configuration_that_has_changed_is_read_anew(post: Post) -> None:
    post.watch()
    opened = post.count("open")
    post.tell("config.toml", "[server]")
    post.until("open", opened + 1)
    assert "the configuration has changed" in post.log
    assert post.trace().index("close") < len(post.trace()) - post.trace()[::-1].index("open")


def test_its_heartbeat_is_noted(post: Post) -> None:
    process = post.watch()
    wait_until(lambda: post.beat_since(time.time() - 5), what="a heartbeat")
    beat = post.watches.last_beat()
    assert beat is not None
    assert beat.pid == process.pid


def test_a_heartbeat_is_no_change_but_what_others_write_is(post: Post) -> None:
    pulse = Pulse(post.state)
    first = pulse.version()
    pulse.beat()
    assert pulse.version() == first
    post.watches.add(WATCH)
    second = pulse.version()
    assert second != first
    assert pulse.version() == second
    pulse.close()


def test_a_database_that_is_locked_for_a_while_does_not_end_it(post: Post) -> None:
    process = post.watch()
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    other = sqlite3.connect(post.state / STATE_FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    wait_until(lambda: "the database does not answer" in post.log, what="it to be told")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[2] < 2
    process, moment = post.watch(), time.time()
    other.execute("ROLLBACK")
    other.close()
    wait_until(lambda: post.beat_since(moment), what="a heartbeat")
    assert process.poll() is None


def test_a_database_that_is_broken_for_a_while_does_not_end_it(post: Post) -> None:
    process = post.watch()
    post.database.close()
    for suffix in ("-wal", "-shm"):
        (post.state / f"{STATE_FILE}{suffix}").unlink(missing_ok=True)
    (post.state / "broken").write_bytes(b"no database at all" * 1000)
    os.replace(post.state / "broken", post.state / STATE_FILE)
    wait_until(lambda: "the database does not answer" in post.log, what="it to be told")
    opened, moment = post.count("open"), time.time()
    # Moved away, not removed: the new one might get its inode, and seem to be the same file.
    (post.state / STATE_FILE).rename(post.state / "aside")
    wait_until(lambda: post.beat_since(moment), what="a heartbeat")
    post.until("open", opened + 1)
    assert process.poll() is None
    assert post.log.count("the database does not answer") < 10


def test_a_disk_that_is_full_for_a_while_does_not_end_it(post: Post) -> None:
    process = post.watch()
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    # To the process it is as if there were no room: nothing that it writes may grow, nor its log.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 1, what="several rounds to fail")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    moment = time.time()
    wait_until(lambda: post.beat_since(moment), what="a heartbeat")
    assert process.poll() is None


def test_without_work_it_ends_where_that_is_wanted(post: Post) -> None:
    code, _, _ = ended(post.start("--until-idle", idle_s=0.3))
    assert code == 0
    assert "ended: nothing to look after" in post.log
    assert post.trace()[-1] == "close"


def test_with_work_it_stays(post: Post) -> None:
    post.tell("due", "0.1")
    process = post.watch("--until-idle", idle_s=0.3)
    post.until("tick", 8)
    assert process.poll() is None
    (post.state / "due").unlink()
    assert ended(process)[0] == 0


def test_what_it_logs_is_the_owners_alone(post: Post) -> None:
    post.watch()
    assert (post.state / LOG_FILE).stat().st_mode & 0o777 == 0o600
    assert f"watching over {post.state} as process {post.pid}\n" in post.log


def test_at_rest_it_takes_next_to_nothing(post: Post) -> None:
    """With its usual pace; ten looks at the database are a fiftieth of a second at the very most."""
    process = post.start(**{"changes_s": 0.1, "settings_s": 60.0})
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    begun, used = time.monotonic(), cpu_s(process)
    wait_until(lambda: time.monotonic() > begun + 2, what="two seconds of rest")
    # Looked at twenty times as often as usual.
    assert (cpu_s(process) - used) / (time.monotonic() - begun) / 20 < 0.01


def cpu_s(process: subprocess.Popen[str]) -> float:
    with open(f"/proc/{process.pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
