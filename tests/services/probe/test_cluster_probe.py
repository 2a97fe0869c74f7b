"""cluster.sh with commands of Slurm that answer as recorded ones did."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.means import require_program

import remote_sandbox_mcp.far.probe
from remote_sandbox_mcp.core.resources.checkup import ClusterFindings, parse_cluster_findings
from remote_sandbox_mcp.core.resources.report import parse_usage
from remote_sandbox_mcp.core.sandboxes.cluster import ClusterUsage, GpuCount, OldestPending

SCRIPT = Path(remote_sandbox_mcp.far.probe.__file__).with_name("cluster.sh")
TOOLS = [
    "awk",
    "cat",
    "date",
    "flock",
    "head",
    "id",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sh",
    "sleep",
    "tail",
    "timeout",
    "true",
]
TOOLS += ["uname"]
# As sinfo 22.05 pads its columns.
NODES = """\
main*  up  1-00:00:00  mixed      1/3/0/4      1   gpu:a100:2                 gpu:a100:1(IDX:0)
main*  up  1-00:00:00  allocated  4/0/0/4      1   (null)                     gpu:0
big    up  infinite    mixed      8/120/0/128  2   gpu:a100:4(S:0-1),gpu:h100:4  gpu:a100:1(IDX:0),gpu:h100:0(IDX:N/A)
big    up  infinite    mixed      8/120/0/128  3   gpu:a100:4(S:0-1),gpu:h100:4  gpu:a100:1(IDX:3),gpu:h100:0(IDX:N/A)
bare   up  1-00:00:00  drained    0/0/4/4      1   (null)                     gpu:0
"""
MINE = """\
2 main PENDING 1794865000 1794865600 Resources
3_1 low PENDING 1794865100 N/A ReqNodeNotAvail, UnavailableNodes:n[1-2]
3_2 low PENDING 1794865100 N/A None
1 main RUNNING 1794864000 1794864001 None
"""
ASSOC = "hpc|lab||long,normal|normal|10|100|gres/gpu=8|2-00:00:00||gres/gpu=64\n"
QOS = "normal|||||\nlong|2|5|gres/gpu=4||7-00:00:00|\nother|1||||1:00|\n".replace("normal|", "normal||", 1)


class Login:
    """A login node: a folder of tools as the whole of PATH, and a home."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.home = folder / "bin", folder / "home"
        self.bin.mkdir()
        self.home.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.says("sinfo", NODES)
        self.says("squeue", MINE)
        self.put(
            "squeue",
            f'case $* in *PENDING*) echo "main,low Priority"; echo "low Dependency" ;; *) {self.bin}/mine ;; esac',
        )
        self.says("mine", MINE)
        self.put("sacctmgr", f"case $* in *assoc*) {self.bin}/assoc ;; *) {self.bin}/qos ;; esac")
        self.says("assoc", ASSOC)
        self.says("qos", QOS)

    def put(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} >>{self.home}/asked\n{script}\n")
        path.chmod(0o755)

    def says(self, name: str, text: str) -> None:
        self.put(name, f"cat <<'END'\n{text}END")

    @property
    def asked(self) -> int:
        """How often sinfo was run."""
        return (self.home / "asked").read_text().split().count("sinfo")

    def start(self, shell: list[str], rate: int) -> subprocess.Popen[str]:
        program, *options = shell
        argv = [require_program(program), *options, str(SCRIPT), str(rate)]
        env = {"PATH": str(self.bin), "HOME": str(self.home)}
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def look(self, shell: list[str] | None = None, rate: int = 1000) -> ClusterUsage:
        return read(self.start(shell or ["sh"], rate))


def read(started: subprocess.Popen[str]) -> ClusterUsage:
    said, complaint = started.communicate(timeout=30)
    assert complaint == ""
    found = parse_usage("@@ load\n 1 1 1\n" + said).cluster
    assert found is not None
    return found


@pytest.fixture
def login(tmp_path: Path) -> Login:
    return Login(tmp_path)


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "ash"]], ids=lambda shell: shell[0])
def test_nodes_gpus_jobs_and_limits_are_read(login: Login, shell: list[str]) -> None:
    seen = login.look(shell)
    by_name = {partition.name: partition for partition in seen.partitions}
    assert [*by_name] == ["main", "big", "bare"]
    main, big, bare = by_name.values()
    assert (main.is_default, main.time_limit, main.waiting) == (True, "1-00:00:00", 1)
    assert (main.idle, main.mixed, main.allocated, main.down) == (0, 1, 1, 0)
    assert main.gpus == (GpuCount("a100", 1, 2),)
    assert (big.mixed, big.idle_cpus, big.cpus, big.time_limit) == (5, 240, 256, "")
    assert big.gpus == (GpuCount("a100", 15, 20), GpuCount("h100", 20, 20))
    assert (bare.down, bare.gpus) == (1, ())
    assert (seen.running, seen.pending) == ({"main": 1}, {"low": 2, "main": 1})
    assert seen.oldest == OldestPending("2", "main", "Resources", 1794865000, 1794865600)
    assert seen.limits == (
        {
            "account": "lab", "qos": "long,normal", "default_qos": "normal", "max_jobs": "10", "max_submitted": "100",
            "max_per_job": "gres/gpu=8", "max_time": "2-00:00:00", "group_resources": "gres/gpu=64",
        },
        {"qos": "long", "max_jobs": "2", "max_submitted": "5", "max_resources": "gres/gpu=4", "max_time": "7-00:00:00"},
    )  # fmt: skip
    assert seen.problems == ()


def test_what_was_asked_lately_is_not_asked_again_by_any_session(login: Login) -> None:
    login.put("sinfo", f"sleep 0.3\n{login.bin}/nodes")
    login.says("nodes", NODES)
    sessions = [login.start(["sh"], 1000) for _ in range(4)]
    first, *others = map(read, sessions)
    assert all(other.partitions == first.partitions for other in others)
    assert login.asked == 1
    assert login.look(rate=0).partitions == first.partitions
    assert login.asked == 2


def test_a_home_that_keeps_nothing_only_costs_a_question(login: Login) -> None:
    (login.home / ".local").write_text("a file in the way")
    assert login.look() == login.look()
    assert login.asked == 2


def test_thousands_of_nodes_become_a_few_rows(login: Login) -> None:
    row = "main* up 1:00 mixed 1/3/0/4 1 gpu:h100:8(S:0-1) gpu:h100:%d(IDX:0-%d)\\n"
    login.put("sinfo", f"awk 'BEGIN {{ for (n = 0; n < 5000; n++) printf \"{row}\", n % 8, n }}'")
    started = login.start(["sh"], 0)
    said, _ = started.communicate(timeout=30)
    assert len(said) < 3000
    found = parse_usage("@@ load\n 1 1 1\n" + said).cluster
    assert found is not None
    assert found.partitions[0].mixed == 5000
    assert found.partitions[0].gpus == (GpuCount("h100", 22500, 40000),)


def test_an_old_sinfo_that_does_not_know_used_gpus_counts_those_of_idle_nodes_as_free(login: Login) -> None:
    old = "sinfo: error: Invalid node format specification: GresUsed\n"
    old += "gpu up 1:00 idle 0/4/0/4 2 gpu:2\ngpu up 1:00 mixed 1/3/0/4 1 gpu:2\n"
    login.says("sinfo", old)
    (partition,) = login.look().partitions
    assert partition.gpus == (GpuCount("gpu", 4, 6, 4),)


def test_each_silence_is_told_in_one_sentence(login: Login) -> None:
    login.put("timeout", f'shift 3\nexec {shutil.which("timeout")} -k 1 0.3 "$@"')
    login.put("sinfo", "sleep 60")
    seen = login.look(rate=0)
    assert seen.problems == (
        "the partitions are unknown: sinfo did not answer in time; the controller may be down or busy",
    )
    login.put("sinfo", "echo slurm_load_partitions: Unable to contact slurm controller; exit 1")
    login.put("sacctmgr", "echo accounting_storage plugin >&2; exit 1")
    seen = login.look(rate=0)
    assert seen.problems == (
        "the partitions are unknown: sinfo failed with exit code 1: slurm_load_partitions: Unable to contact slurm "
        "controller",
    )
    assert seen.limits_unknown == "this cluster keeps no accounts"
    (login.bin / "sinfo").unlink()
    assert login.look(rate=0).problems == ("the partitions are unknown: sinfo is not installed there, or not in PATH",)


def test_slurm_that_only_a_login_shell_finds_is_used(login: Login) -> None:
    hidden = login.home / "module"
    hidden.mkdir()
    for name in ("sinfo", "squeue", "sacctmgr"):
        (login.bin / name).rename(hidden / name)
    login.put("bash", f'[ "$1" = -lc ] && PATH={hidden}:$PATH && eval "$2"')
    assert [partition.name for partition in login.look().partitions] == ["main", "big", "bare"]


def test_the_doctors_script_tells_what_a_site_lacks(login: Login) -> None:
    login.put(
        "sbatch", '[ "$*" = "--test-only --partition=a b --wrap true" ] && echo "sbatch: error: no account" >&2\nexit 1'
    )
    login.put("bash", '[ "$1" = -lc ]')
    login.says("df", "Filesystem Type 1024-blocks Used\nserver:/home nfs4 1 1\n")
    (login.bin / "grep").symlink_to(str(shutil.which("grep")))
    argv = [str(shutil.which("sh")), str(SCRIPT.with_name("doctor_cluster.sh")), "--partition=a b"]
    env = {"PATH": str(login.bin), "HOME": str(login.home)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=True)
    assert parse_cluster_findings(done.stdout) == ClusterFindings(
        sbatch="no sbatch: error: no account", sacct="none", home="nfs4", modules="login"
    )
