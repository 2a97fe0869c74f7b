"""What list_sandboxes tells of a real Slurm cluster."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.core.resources.report import parse_usage
from tests.support.pace import at_most
from tests.support.server import Server, entry, serve, text_of
from tests.support.slurm import ACCOUNT, Cluster


def forget_answers(slurm: Cluster) -> None:
    """What an earlier test asked is kept in the home."""
    for file in slurm.login.home.glob(".local/state/remote-sandbox/cluster-*"):
        file.unlink()


async def look(server: Server) -> dict[str, Any]:
    (found,) = (await server.call("list_sandboxes", check_resources=True))["sandboxes"]
    resources: dict[str, Any] = found["resources"]
    return resources


async def test_partitions_gpus_and_my_jobs_are_told(slurm: Cluster, tmp_path: Path) -> None:
    forget_answers(slurm)
    running = slurm.sbatch("sleep 60", "--gres=gpu:a100:1")
    slurm.await_state(running, "RUNNING")
    pending = slurm.sbatch("sleep 60", "--gres=gpu:a100:2")
    slurm.sbatch("sleep 60", "--array=0-2", "--partition=low", "--hold")
    slurm.admin("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
    async with serve(tmp_path, entry(slurm.login, slurm={"rate_s": 60})) as server:
        resources = await look(server)
        text = text_of(await server.ask("list_sandboxes", check_resources=True))
    cluster = resources["cluster"]
    main, bare = (next(row for row in cluster["partitions"] if row["name"] == name) for name in ("main", "bare"))
    assert cluster["partitions"][0] == main
    assert main["nodes"] == {"idle": 1, "mixed": 1, "allocated": 0, "down": 0}
    assert main["cpus"] == {"idle": 7, "total": 8}
    assert main["gpus"] == [{"type": "a100", "idle": 1, "total": 2}]
    assert (main["default"], main["time_limit"], main["waiting_jobs"]) == (True, "1-00:00:00", 1)
    assert bare["nodes"] == {"idle": 0, "mixed": 0, "allocated": 0, "down": 1}
    assert cluster["my_jobs"] == {"running": {"main": 1}, "pending": {"low": 3, "main": 1}}
    assert cluster["oldest_pending"]["job"] == pending
    # No job waits for the nodes in high; in bare nothing would start.
    scores = {row["name"]: row["idle_score"] for row in cluster["partitions"]}
    assert resources["idle_score"] == scores["high"] > scores["main"] > 0.5
    assert scores["bare"] == 0
    assert cluster["limits_unknown"] == "this cluster keeps no accounts"
    assert resources["measured_on"] == "the login node"
    assert resources["cpu"]["count"] > 0
    assert "  main (default)  1     1      0" in text
    assert "a100 1 of 2" in text
    assert (
        f"your jobs: 1 running (1 in main), 4 pending (3 in low, 1 in main); the oldest pending is {pending} in" in text
    )


async def test_a_controller_that_is_down_is_told_and_delays_little(slurm: Cluster, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(slurm.login, slurm={"rate_s": 60})) as server:
        forget_answers(slurm)
        slurm.stop_controller()
        begun = time.monotonic()
        resources = await look(server)
        took = time.monotonic() - begun
        begun = time.monotonic()
        assert (await look(server))["cluster"]["problems"] == resources["cluster"]["problems"]
        took_again = time.monotonic() - begun
    (problem,) = resources["cluster"]["problems"]
    assert problem.startswith("the partitions are unknown: sinfo did not answer in time; the controller may be down")
    assert resources["idle_score"] == 0
    assert resources["memory"]["total_mb"] > 0
    assert took < at_most(8)
    # The cluster is not asked again, because that would take as long.
    assert took_again < at_most(2)


def test_the_limits_of_my_account_and_its_qos_are_told(slurm_with_accounting: Cluster) -> None:
    slurm = slurm_with_accounting
    # So large that no other test meets them.
    slurm.admin("sacctmgr", "-i", "add", "qos", "long", "MaxTRESPU=cpu=9000", "MaxWall=9-00:00:00")
    slurm.admin("sacctmgr", "-i", "modify", "user", slurm.login.user, "set", "MaxJobs=7000", "qos+=long")
    said = slurm.run(
        "sh", "-c", files("remote_sandbox_mcp.far.probe").joinpath("cluster.sh").read_text(), "cluster", "0"
    )
    cluster = parse_usage(f"@@ load\n 1 1 1\n{said}").cluster
    assert cluster is not None
    assert cluster.limits == (
        {"account": ACCOUNT, "qos": "long,normal", "max_jobs": "7000"},
        {"qos": "long", "max_resources": "cpu=9000", "max_time": "9-00:00:00"},
    )
    assert (cluster.limits_unknown, cluster.problems) == ("", ())
