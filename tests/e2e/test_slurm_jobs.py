"""Batch jobs through the real server, on a real Slurm cluster behind a real sshd, with a real watchdog beside it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, entry, serve, text_of, until
from tests.support.slurm import Cluster

from .test_jobs import ADVANCED, end_watchdog

UNWATCHED: dict[str, Any] = {"watch": False}
# All of a node, so that two such jobs cannot run at once.
ALL_OF_N1 = {"nodelist": "n1", "exclusive": True}
BY_HAND = ("--nodelist=n1", "--exclusive")
# Counts into its checkpoint until a file says that it may end, and saves its work when it is told to end.
COUNTING = """\
step=$(cat count 2>/dev/null || echo 0)
echo "begins at $step"
trap 'echo saved; exit 143' TERM
while [ ! -e enough ]; do
    step=$((step + 1)); echo "$step" >count.new; mv count.new count; sleep 0.1
done
echo all counted
"""


def entries(slurm: Cluster) -> tuple[dict[str, Any], ...]:
    """The cluster, and the same one where the operator allows light jobs on its login node."""
    options = {"rate_s": 0.5, "time": "5"}
    return (
        entry(slurm.login, name="hpc", slurm=options),
        entry(slurm.login, name="light", slurm={**options, "login_jobs": True}),
    )


def is_written(home: Path, event: str) -> bool:
    """Whether the watchdog has told of an event; looking at its file costs the server nothing."""
    return any((home / "state" / "events").glob(f"*-{event}.json"))


@pytest.fixture(scope="module")
async def server(shared_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    # Jobs of the contract, which may have run here before, would be listed as well.
    shared_slurm.reset()
    async with serve(tmp_path_factory.mktemp("server"), *entries(shared_slurm), env=ADVANCED) as server:
        yield server


async def test_a_job_goes_through_the_queue_beside_one_that_was_submitted_by_hand(
    slurm: Cluster, server: Server
) -> None:
    # What earlier tests have run on the same cluster.
    ended = {task["tmux_session"] for task in (await server.call("list_background_tasks"))["tasks"]}
    other = slurm.sbatch("sleep 600", *BY_HAND)
    slurm.await_state(other, "RUNNING")
    answer = await server.ask(
        "exec_bash_background",
        command="hostname; echo $SLURM_JOB_ID; exit 3",
        session_name="train",
        slurm=ALL_OF_N1,
        **UNWATCHED,
    )
    assert re.search("submitted train to the queue of hpc; its log is ", text_of(answer))

    async def reason() -> Any:
        return (await server.call("check_background_task", tmux_session="train"))["queue"].get("reason")

    await until(reason, "the queue to say why")
    seen = await server.ask("check_background_task", tmux_session="train")
    fields = seen.structured_content or {}
    assert (fields["running"], fields["pending"]) == (False, True)
    number = fields["queue"]["job"]
    assert re.search(rf"pending: (Resources|Priority).*; job {number} in partition main", text_of(seen))
    listed = (await server.call("list_background_tasks"))["tasks"]
    known = {task["tmux_session"]: (task["status"], task.get("foreign", False)) for task in listed}
    known = {name: told for name, told in known.items() if name not in ended}
    assert known == {"train": ("pending", False), f"slurm-{other}": ("running", True)}

    by_hand: dict[str, Any] = {"tmux_session": f"slurm-{other}", "ensure_watchdog": False}
    problem = await server.fail("watch_background_task", **by_hand, resume_command="true", auto_resume=True)
    assert "it cannot be submitted again" in problem["error"]
    assert (await server.call("watch_background_task", **by_hand))["watch"]["status"] == "active"

    said: list[str] = []

    async def make_room(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")
        if len(said) == 1:
            stopped = await server.call("stop_background_task", tmux_session=f"slurm-{other}", grace_s=0)
            assert not stopped["running"]

    waited = await server.call("wait_background_task", progress=make_room, tmux_session="train", timeout_s=40)
    assert said[0].startswith("pending: ")
    assert (waited["reason"], waited["exit_code"]) == ("ended", 3)
    assert waited["log_tail"].splitlines() == ["n1", number, "EXIT_CODE=3"]


ALIAS = """\
[machines.hpc]
ssh_alias = "cluster"
slurm = { rate_s = 0.5, time = "5" }
"""


@pytest.mark.parametrize("more", ["", 'transport = "openssh"\n'], ids=["alias", "over OpenSSH"])
async def test_a_cluster_by_its_name_in_ssh_config_gets_the_job_into_its_queue(
    slurm: Cluster, tmp_path: Path, more: str
) -> None:
    login = slurm.login
    (tmp_path / ".ssh").mkdir()
    lines = (f"HostName {login.host}", f"Port {login.port}", f"User {login.user}", f"IdentityFile {login.key_file}")
    (tmp_path / ".ssh" / "config").write_text("\n    ".join(("Host cluster", *lines)) + "\n")
    async with serve(tmp_path, config=ALIAS + more, env=ADVANCED) as server:
        # Before anything has opened the machine: what its table says must not wait for that.
        told = await server.call(
            "exec_bash_background", command="hostname; echo $SLURM_JOB_ID", slurm={"nodelist": "n1"}, **UNWATCHED
        )
        assert told["status"] == "submitted"
        ended = await server.call("wait_background_task", tmux_session=told["tmux_session"], timeout_s=40)
        node, number, _ = ended["log_tail"].splitlines()
        assert (node, number.isdigit()) == ("n1", True)


async def test_the_first_answer_about_a_pending_job_says_why_it_waits(slurm: Cluster, tmp_path: Path) -> None:
    slow = entry(slurm.login, name="hpc", slurm={"rate_s": 60, "time": "5"})
    async with serve(tmp_path, slow, env=ADVANCED) as server:
        # From now on the queue has been asked, and is not to be asked again for a minute.
        await server.call("list_background_tasks")
        order: dict[str, Any] = {"command": "true", "session_name": "late", "slurm": {"begin": "now+1hour"}}
        await server.call("exec_bash_background", **order, **UNWATCHED)
        seen = await server.call("check_background_task", tmux_session="late")
        assert (seen["pending"], seen["queue"]["reason"]) == (True, "BeginTime")
        await server.call("stop_background_task", tmux_session="late")


async def test_a_pending_job_is_taken_out_of_the_queue(slurm: Cluster, server: Server) -> None:
    later = {"begin": "now+1hour"}
    await server.call("exec_bash_background", command="true", session_name="later", slurm=later, **UNWATCHED)
    seen = await server.call("check_background_task", tmux_session="later")
    stopped = await server.call("stop_background_task", tmux_session="later")
    assert (seen["pending"], stopped["running"], stopped["stopped"]) == (True, False, True)
    assert "PENDING" not in slurm.squeue().values()


async def test_what_the_queue_refuses_is_told_and_nothing_is_left(slurm: Cluster, server: Server) -> None:
    nowhere = {"partition": "nowhere"}
    problem = await server.fail("exec_bash_background", command="true", session_name="no", slurm=nowhere, **UNWATCHED)
    assert "nvalid partition" in problem["error"]
    listed = (await server.call("list_background_tasks"))["tasks"]
    assert "no" not in [task["tmux_session"] for task in listed]


async def test_an_array_is_one_job_and_each_element_can_be_looked_at(slurm: Cluster, server: Server) -> None:
    command = "echo element $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID"
    await server.call(
        "exec_bash_background", command=command, session_name="sweep", slurm={"array": "0-2"}, **UNWATCHED
    )
    waited = await server.call("wait_background_task", tmux_session="sweep", timeout_s=40)
    assert (waited["reason"], waited["exit_code"]) == ("ended", 1)
    assert waited["queue"]["array"] == {"ended": 3, "failed": 2}
    one = await server.call("check_background_task", tmux_session="sweep[2]")
    assert (one["tmux_session"], one["exit_code"], one["log_tail"]) == ("sweep[2]", 2, "element 2\nEXIT_CODE=2")
    none = await server.fail("check_background_task", tmux_session="sweep[3]")
    assert "sweep has no element 3" in none["error"]


async def test_elements_that_have_not_begun_are_taken_out_of_the_queue(slurm: Cluster, server: Server) -> None:
    later = {"array": "0-2", "begin": "now+1hour"}
    await server.call("exec_bash_background", command="true", session_name="many", slurm=later, **UNWATCHED)
    one = await server.call("stop_background_task", tmux_session="many[1]", grace_s=1)
    assert (one["stopped"], one.get("pending")) == (True, None)
    rest = await server.call("check_background_task", tmux_session="many")
    assert (rest["pending"], rest["queue"]["array"]["pending"]) == (True, 2)
    stopped = await server.call("stop_background_task", tmux_session="many", grace_s=1)
    assert (stopped["stopped"], stopped["queue"]["array"]["ended"]) == (True, 3)


async def test_a_light_job_runs_on_the_login_node_where_that_is_allowed(slurm: Cluster, server: Server) -> None:
    order: dict[str, Any] = {"command": "echo ${SLURM_JOB_ID:-here}", "session_name": "light", "slurm": False}
    problem = await server.fail("exec_bash_background", **order, **UNWATCHED)
    assert "login_jobs" in problem["error"]
    started = await server.call("exec_bash_background", **order, sandbox_name="light", **UNWATCHED)
    assert started["status"] == "started"
    waited = await server.call("wait_background_task", tmux_session="light", sandbox_name="light")
    assert waited["log_tail"].splitlines()[0] == "here"


async def test_a_preempted_job_goes_on_from_its_checkpoint_though_all_of_ours_is_killed_meanwhile(
    slurm: Cluster, tmp_path: Path
) -> None:
    home = slurm.login.home
    order: dict[str, Any] = {
        "command": COUNTING,
        "resume_command": COUNTING,
        "session_name": "count",
        "slurm": {**ALL_OF_N1, "partition": "low"},
        "checkpoint_path": "count",
        **{"auto_resume": True, "resume_delay_s": 0, "interval_s": 1},
    }
    try:
        async with serve(tmp_path, entries(slurm)[0], env=ADVANCED) as server:
            watch_id = (await server.call("exec_bash_background", **order))["watch_id"]
            await until(lambda: (home / "count").exists(), "the first steps", 20)
            urgent = slurm.sbatch("sleep 600", *BY_HAND, "--partition=high")
            await until(lambda: is_written(tmp_path, "resume_started"), "it to be submitted again", 40)
            pending = await server.call("check_background_task", watch_id=watch_id)
            assert pending["pending"]
            assert not pending["running"]
            events = (await server.call("list_background_watch_events", watch_id=watch_id))["events"]
            assert [(event["event_type"], event["payload"].get("fate")) for event in events] == [
                ("interrupted", "preempted"),
                ("resume_started", None),
            ]
            for pid in {server.worker, server.pid}:
                os.kill(pid, signal.SIGKILL)
        slurm.admin("scancel", urgent)
        (home / "enough").touch()
        async with serve(tmp_path, entries(slurm)[0], env=ADVANCED) as server:
            await until(lambda: is_written(tmp_path, "completed"), "the watch to complete", 40)
            ended = await server.call("check_background_task", watch_id=watch_id)
            assert ended["exit_code"] == 0
            begins = re.findall(r"begins at (\d+)", ended["log_tail"])
            assert len(begins) == 2
            assert int(begins[1]) > 0
    finally:
        end_watchdog(tmp_path)
