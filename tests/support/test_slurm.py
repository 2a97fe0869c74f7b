"""The tests' own Slurm cluster: it does what they rely on, and leaves nothing behind."""

from __future__ import annotations

from tests.support.slurm import ACCOUNT, Cluster, running_cluster
from tests.support.sshd import Fleet, all_processes, wait_until


def test_a_job_of_the_user_runs_on_a_node_and_sees_its_home(slurm: Cluster) -> None:
    job = slurm.sbatch("hostname; echo $CUDA_VISIBLE_DEVICES; command -v python3", "--gres=gpu:a100:2", "--output=said")
    slurm.await_state(job, "COMPLETED")
    assert (slurm.login.home / "said").read_text().split() == ["n1", "0,1", "/usr/bin/python3"]


def test_one_node_has_no_python(slurm: Cluster) -> None:
    job = slurm.sbatch("hostname; ! command -v python3", "--partition=bare", "--output=said")
    slurm.await_state(job, "COMPLETED")
    assert (slurm.login.home / "said").read_text().split() == ["n3"]


def test_a_job_is_requeued_when_a_better_one_needs_its_place_and_when_its_node_is_lost(slurm: Cluster) -> None:
    job = slurm.sbatch("sleep 60", "--partition=low", "--nodelist=n2", "--exclusive")
    slurm.await_state(job, "RUNNING")
    better = slurm.sbatch("true", "--partition=high", "--nodelist=n2")
    assert slurm.await_state(job, "PENDING")["Reason"] == "BeginTime"
    slurm.await_state(better, "COMPLETED")
    slurm.await_state(job, "RUNNING")
    slurm.crash("n2")
    assert slurm.await_state(job, "PENDING")["Restarts"] == "2"
    assert not slurm.login.processes()
    slurm.start_slurmd("n2")
    slurm.await_state(job, "RUNNING")


def test_a_job_that_needs_too_much_memory_is_told_as_such(slurm: Cluster) -> None:
    hog = "import time; taken = bytearray(200 << 20); time.sleep(30)"
    job = slurm.sbatch(f"python3 -c '{hog}'", "--mem=50", "--nodelist=n2")
    state = slurm.await_state(job, "OUT_OF_MEMORY", "FAILED")["JobState"]
    assert (state == "OUT_OF_MEMORY") == slurm.tells_out_of_memory


def test_jobs_outlive_a_restart_of_the_controller(slurm: Cluster) -> None:
    slurm.run("salloc", "--no-shell")
    (job,) = slurm.squeue()
    slurm.restart_controller()
    assert slurm.run("srun", f"--jobid={job}", "--overlap", "cat", text="hello") == "hello"


def test_accounting_remembers_a_job_and_who_pays(slurm_with_accounting: Cluster) -> None:
    slurm = slurm_with_accounting
    job = slurm.sbatch("exit 3")
    ask = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=Account,State,ExitCode")
    wait_until(lambda: slurm.run(*ask) == f"{ACCOUNT}|FAILED|3:0\n", what="the job in accounting", seconds=30)


def test_nothing_is_left_of_a_cluster(fleet: Fleet) -> None:
    with running_cluster(fleet) as cluster:
        cluster.sbatch("setsid sleep 987654 & wait")
        wait_until(lambda: "sleep 987654" in cluster.login.processes().values(), what="the process of the job")
        cluster.kill_slurmd("n1")
        processes = cluster.processes()
        assert set(cluster.login.processes()) < set(processes)
    assert not [each for each in all_processes() if each.pid in processes]
