"""The tests' own Slurm cluster: it does what they rely on, and leaves nothing behind."""

from __future__ import annotations

from tests.support.slurm import Cluster


def test_a_job_of_the_user_runs_on_a_node_and_sees_its_home(slurm: Cluster) -> None:
    job = slurm.sbatch("hostname; echo $CUDA_VISIBLE_DEVICES; command -v python3", "--gres=gpu:a100:2", "--output=said")
    slurm.await_state(job, "COMPLETED")
    assert (slurm.login.home / "said").read_text().split() == ["n1", "0,1", "/usr/bin/python3"]


def test_one_node_has_no_python(slurm: Cluster) -> None:
    job = slurm.sbatch("hostname; ! command -v python3", "--partition=bare", "--output=said")
    slurm.await_state(job, "COMPLETED")
    assert (slurm.login.home / "said").read_text().split() == ["n3"]
