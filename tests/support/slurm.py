"""A real Slurm cluster on loopback: a login node, a controller and a few nodes that see different files."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import secrets
import shlex
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.means import IS_ROOT, require_namespaces
from tests.support.sshd import HOST, PATH_FOLDERS, Fleet, Sshd, free_port, wait_until, with_mounts

START_S = 30.0
CPUS, MEMORY_MB = 4, 4000
# The account of the user, in a cluster with accounting.
ACCOUNT = "lab"
# Two GPUs that are none: Slurm counts files, and gives their numbers to jobs.
_GPUS = ("/dev/zero", "/dev/full")
_SLURM_CONF = """
ClusterName={name}
SlurmctldHost=localhost({host})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# A job that is requeued waits until no credential of its last run is valid: 120 seconds unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
{memory}
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=2
OverTimeLimit=0
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=10
SlurmdTimeout=6
BatchStartTimeout=20
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
GresTypes=gpu
{accounting}
NodeName=DEFAULT CPUs={cpus} CoresPerSocket={cpus} RealMemory={memory_mb}
{nodes}
PartitionName=DEFAULT Nodes={main} DefaultTime=00:10:00 MaxTime=1-00:00:00
PartitionName=main Default=YES PriorityTier=2 PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high PriorityTier=3 PreemptMode=OFF
PartitionName=bare Nodes={bare} PriorityTier=2 PreemptMode=OFF
"""
# Where there are control groups of version 1, a job that needs too much memory is OUT_OF_MEMORY, as on most clusters.
# Elsewhere its processes are killed, and it is FAILED.
_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
# The owner's pid is in it, so that what is left of a run that was killed is known as such.
_NAME = re.compile(r"\bcluster(\d+)x\d+\b")
_numbers = itertools.count(1)
_BY_GROUPS = "TaskPlugin=task/cgroup"
_BY_LOOKING = "TaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill"
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\n"
_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={host}
AccountingStoragePort={port}
# The socket of munged, in spite of its name.
AccountingStoragePass={folder}/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
"""
_SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr={host}
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageLoc=accounting
StorageUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
CommunicationParameters=NoInAddrAny
"""
# It begins with an empty folder in memory and nothing to protect, so that it needs no installation.
_MARIADB = (
    *("--no-defaults", "--user=root", "--skip-grant-tables", "--skip-networking", "--performance-schema=0"),
    *("--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0"),
)
_IN_MEMORY = 'mount -t tmpfs none "$1" && shift && exec "$@"'
# The one table of MariaDB's own that is needed: slurmdbd has stored procedures.
_TABLES_OF_MARIADB = "ma*/m*_system_tables.sql", "mysql/m*_system_tables.sql"
_TABLE = "CREATE TABLE IF NOT EXISTS proc "
# A node has its own /tmp, in which only the machines of the tests are seen, with the home among them.
_AS_NODE = """
set -e
mkdir -p "$2/tmp/${1##*/}"
chmod 1777 "$2/tmp"
mount --bind "$1" "$2/tmp/${1##*/}"
mount --rbind "$2/tmp" /tmp
hostname "${2##*/}"
shift 2
exec "$@"
"""
# The folders lie over the system's, and what is removed in them is in none but these.
_WITHOUT_PYTHON = """
set -e
mount -t tmpfs none "$1"
for folder in bin local/bin; do
    mkdir -p "$1/$folder/upper" "$1/$folder/work"
    options="lowerdir=/usr/$folder,upperdir=$1/$folder/upper,workdir=$1/$folder/work"
    mount -t overlay -o "$options" none "/usr/$folder"
    rm -f "/usr/$folder"/python*
done
shift
exec "$@"
"""


@dataclass
class _Daemon:
    """A program that runs until it is ended, and all that it has started since in its mount namespace."""

    name: str
    words: list[str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    # Each is kept open: the number of one that has ended would be given to another, with processes of somebody else.
    namespaces: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        with (self.folder / f"{self.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                # It ends with us, also where nobody is left to end it.
                ["setpriv", "--pdeathsig=KILL", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
                    "SLURM_CONF": f"{self.folder}/etc/slurm.conf",
                    "MYSQL_UNIX_PORT": f"{self.folder}/database/socket",
                },
                cwd=self.folder,
                start_new_session=True,
            )
        wait_until(self._has_left_ours, what=f"{self.name} to be in a namespace of its own")

    def _has_left_ours(self) -> bool:
        self.check()
        namespace = _link(self.process.pid, "ns/mnt") if self.process else ""
        if not self.process or namespace in ("", _link(os.getpid(), "ns/mnt")):
            return False
        self.namespaces[namespace] = os.open(f"/proc/{self.process.pid}/ns/mnt", os.O_RDONLY)
        return True

    def check(self) -> None:
        """Raise what it said where it has ended."""
        if self.process is None or self.process.poll() is not None:
            said = (self.folder / f"{self.name}.out").read_text(errors="replace")
            code = self.process.returncode if self.process else "nothing"
            raise RuntimeError(f"{self.name} has ended with {code}: {said[-2000:]}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def end_all(self) -> None:
        """With every process that it has started, however far that one has gone from it."""
        self.end(signal.SIGKILL)
        wait_until(lambda: not _kill(_in_namespaces(self.namespaces)), what=f"processes of {self.name} to end")
        while self.namespaces:
            os.close(self.namespaces.popitem()[1])


class Cluster:
    """Runs from start to stop; nothing of it is left then: no process, no mount, no file.

    Nodes n1 (with two GPUs of type a100) and n2 are in the partitions main, low and high; n3, without Python, in bare.
    Jobs in low are requeued when one in main or high needs their place.
    """

    def __init__(self, fleet: Fleet, *, with_accounting: bool = False) -> None:
        if not IS_ROOT:
            pytest.skip("needs root: the nodes of a cluster become other users")
        require_namespaces()
        self.name = f"cluster{os.getpid()}x{next(_numbers)}"
        self.folder = fleet.folder / self.name
        self.folder.mkdir()
        for name, mode in {
            ".": 0o755,
            "etc": 0o755,
            "state": 0o700,
            "without-python": 0o755,
            "database": 0o700,
        }.items():
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name).chmod(mode)
        # What every machine of the cluster sees in the place of the system's own.
        self._mounts = {"/etc/slurm": self.etc, "/etc/hosts": self.folder / "hosts"}
        self._munged = self._daemon("munged", self._munged_words())
        self._with_accounting = with_accounting
        if with_accounting:
            self._database = self._daemon("mariadbd", self._database_words())
            self._accountant = self._daemon("slurmdbd", ["slurmdbd", "-D"])
        self._controller = self._daemon("slurmctld", ["slurmctld", "-D"])
        self.tells_out_of_memory = _MEMORY_GROUPS.is_dir()
        groups = {str(_MEMORY_GROUPS): self._group} if self.tells_out_of_memory else {}
        self._nodes = {name: self._daemon(name, self._slurmd_words(name), groups) for name in ("n1", "n2", "n3")}
        self._write_config()
        self._fleet = fleet
        self.login: Sshd

    @property
    def etc(self) -> Path:
        """What the login node and the nodes see as /etc/slurm."""
        return self.folder / "etc"

    @property
    def _group(self) -> Path:
        """The control group of all its jobs: their nodes see no other."""
        return _MEMORY_GROUPS / self.name

    def _daemon(self, name: str, words: list[str], more: Mapping[str, Path] | None = None) -> _Daemon:
        return _Daemon(name, with_mounts({**self._mounts, **(more or {})}, words), self.folder)

    def _munged_words(self) -> list[str]:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": key.name, "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
        places = [f"--{option}={self.folder}/{name}" for option, name in files.items()]
        return ["munged", "--foreground", f"--socket={self.folder}/munge.socket", *places]

    def _database_words(self) -> list[str]:
        folder = self.folder / "database"
        (folder / "data").mkdir()
        tables = next(file for place in _TABLES_OF_MARIADB for file in Path("/usr/share").glob(place))
        needed = [line for line in tables.read_text().splitlines() if line.startswith(_TABLE)]
        (folder / "first.sql").write_text("\n".join(["CREATE DATABASE mysql;", "USE mysql;", *needed, ""]))
        places = [f"--datadir={folder}/data", f"--socket={folder}/socket", f"--pid-file={folder}/pid"]
        words = ["mariadbd", *_MARIADB, *places, f"--init-file={folder}/first.sql"]
        return ["sh", "-c", _IN_MEMORY, "sh", str(folder / "data"), *words]

    def _slurmd_words(self, name: str) -> list[str]:
        words = ["slurmd", "-D", "-N", name]
        if name == "n3":
            words = ["sh", "-c", _WITHOUT_PYTHON, "sh", str(self.folder / "without-python"), *words]
        node = self.folder / "nodes" / name
        return ["unshare", "--uts", "sh", "-c", _AS_NODE, "sh", str(self.folder.parent), str(node), *words]

    def _write_config(self) -> None:
        more = {"n1": f"Gres=gpu:a100:{len(_GPUS)} Feature=gpu", "n2": "Feature=cpu", "n3": "Feature=bare"}
        nodes = [
            f"NodeName={name} NodeHostname=localhost NodeAddr={HOST} Port={free_port()} {more[name]}"
            for name in self._nodes
        ]
        places = {"host": HOST, "port": free_port(), "folder": self.folder}
        secret = self.etc / "slurmdbd.conf"
        secret.touch(mode=0o600)
        secret.write_text(_SLURMDBD_CONF.format(**places))
        accounting = _ACCOUNTING.format(**places) if self._with_accounting else ""
        text = _SLURM_CONF.format(
            name=self.name, host=HOST, port=free_port(), folder=self.folder, cpus=CPUS, memory_mb=MEMORY_MB,
            nodes="\n".join(nodes), main="n1,n2", bare="n3", accounting=accounting,
            memory=_BY_GROUPS if self.tells_out_of_memory else _BY_LOOKING,
        )  # fmt: skip
        (self.etc / "slurm.conf").write_text(text)
        (self.etc / "cgroup.conf").write_text(_CGROUP_CONF if self.tells_out_of_memory else "")
        gpus = [f"NodeName=n1 Name=gpu Type=a100 File={file}\n" for file in _GPUS]
        (self.etc / "gres.conf").write_text("".join(gpus))
        names = ("localhost", os.uname().nodename, *self._nodes)
        (self.folder / "hosts").write_text("".join(f"{HOST} {name}\n" for name in names))

    def start(self) -> None:
        self.login = self._fleet.machine(self.name, mounts=self._mounts)
        _sweep()
        if self.tells_out_of_memory:
            self._group.mkdir()
        self._munged.start()
        self._await(self._munged, (self.folder / "munge.socket").exists)
        if self._with_accounting:
            self._start_accounting()
        self.start_controller()
        for node in self._nodes.values():
            node.start()
        self._await_nodes()

    def _start_accounting(self) -> None:
        self._database.start()
        self._await(self._database, (self.folder / "database/socket").exists)
        self._accountant.start()
        # Before the controller starts: while that one loads its accounts, another change of them may crash it.
        add = ("sacctmgr", "--immediate", "add")
        self._await(self._accountant, lambda: not self._ask(*add, "cluster", self.name).returncode)
        self.admin(*add, "account", ACCOUNT)
        self.admin(*add, "user", self.login.user, f"account={ACCOUNT}")

    def stop(self) -> None:
        for daemon in self._daemons():
            daemon.end_all()
        if self._group.exists():
            wait_until(partial(_remove_groups, self._group), what="the control groups of jobs to be free")

    def _daemons(self) -> list[_Daemon]:
        accounting = [self._accountant, self._database] if self._with_accounting else []
        return [self._controller, *self._nodes.values(), *accounting, self._munged]

    def _await(self, daemon: _Daemon, condition: Callable[[], object]) -> None:
        def holds() -> object:
            daemon.check()
            return condition()

        wait_until(holds, what=daemon.name, seconds=START_S)

    def _await_nodes(self) -> None:
        for name, node in self._nodes.items():
            if node.process:
                self._await(node, partial(self._works, name))

    def _works(self, name: str) -> bool:
        """Whether it takes jobs. A controller that has just started does not know when the node did."""
        said = self.admin("scontrol", "--oneliner", "show", "node", name)
        fields = dict(word.split("=", 1) for word in said.split() if "=" in word)
        return fields["State"] in {"IDLE", "MIXED", "ALLOCATED"} and fields["SlurmdStartTime"] != "None"

    # What happens to a cluster

    def start_controller(self) -> None:
        self._controller.start()
        self._await(self._controller, self._controller_answers)

    def _controller_answers(self) -> bool:
        return "is UP" in self._ask("scontrol", "ping").stdout

    def stop_controller(self) -> None:
        """Jobs go on without it, and commands of Slurm fail."""
        self._controller.end()

    def restart_controller(self) -> None:
        """Waits until it has heard of all nodes: until then srun gives up for a whole minute."""
        self.stop_controller()
        self.start_controller()
        self._await_nodes()

    def kill_slurmd(self, node: str) -> None:
        """The node answers no more, while the processes of its jobs go on; Slurm takes half a minute to see it."""
        self._nodes[node].end(signal.SIGKILL)

    def crash(self, node: str) -> None:
        """The node has lost its power, with all processes of its jobs, and Slurm has just found out."""
        self._nodes[node].end_all()
        self._set_node(node, "DOWN")

    def start_slurmd(self, node: str) -> None:
        """The node is back. Jobs may begin there when it has been told which of the old ones to end.

        Those would otherwise end a new run of the same job.
        """
        is_down = self.node_state(node).startswith("down")
        if is_down:
            self._set_node(node, "DRAIN")
        self._nodes[node].start()
        self._await(self._nodes[node], lambda: self.node_state(node) in {"drained", "idle", "mixed", "allocated"})
        if is_down:
            wait_until(self._has_told_all_nodes, what="the controller to end old jobs", seconds=START_S)
            self._set_node(node, "RESUME")
        self._await_nodes()

    def _set_node(self, node: str, state: str) -> None:
        self.admin("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=Not responding")

    def _has_told_all_nodes(self) -> bool:
        said = self.admin("sdiag")
        return all(re.search(rf"^{name}: +0$", said, re.MULTILINE) for name in ("Agent queue size", "Agent count"))

    def expire(self, number: str) -> None:
        """Let a job reach its time limit now. Slurm looks twice a minute: its state is TIMEOUT within 35 seconds."""
        words = ("scontrol", "update", f"JobId={number}", "EndTime=now")
        # Refused where the controller reads it in the next second.
        wait_until(lambda: self._ask(*words).returncode == 0, what=f"job {number} to reach its limit")

    def reset(self) -> None:
        """Make it fit for the next test: every daemon runs, and no job."""
        if self._controller.process is None:
            self.start_controller()
        self.admin("scancel", f"--user={self.login.user}")
        self.login.reset()
        for node in self._nodes.values():
            if node.process is None:
                node.start()
        for name in self._nodes:
            if self.node_state(name).startswith(("drain", "fail")):
                self.admin("scontrol", "update", f"NodeName={name}", "State=RESUME")
        wait_until(lambda: not self.squeue(), what="all jobs to end", seconds=START_S)
        self._await_nodes()

    # Questions

    def processes(self) -> list[int]:
        """Everything that runs in the cluster, but for what the user runs on the login node."""
        return _in_namespaces({each for daemon in self._daemons() for each in daemon.namespaces})

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": os.pathsep.join(PATH_FOLDERS), "SLURM_CONF": f"{self.etc}/slurm.conf"}

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self._env, cwd="/", capture_output=True, text=True, check=False)

    def admin(self, *words: str) -> str:
        """Run a command as the cluster's administrator; gives what it says."""
        done = self._ask(*words)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
        return done.stdout

    def run(self, *words: str, text: str = "") -> str:
        """Run a command as the user, in the home; gives what it says. As over ssh, only quicker."""
        user = pwd.getpwuid(self.login.uid)
        env = {**self._env, "HOME": user.pw_dir, "USER": user.pw_name, "SHELL": user.pw_shell}
        who: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        streams: dict[str, Any] = {"input": text, "capture_output": True, "text": True}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words, env=env, cwd=user.pw_dir, check=False, **streams, **who
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
        return done.stdout

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a job as the user; gives its number."""
        return self.run("sbatch", "--parsable", *options, "--wrap", script).strip()

    def squeue(self) -> dict[str, str]:
        """The state of each job that has not ended, by its number."""
        lines = self.admin("squeue", "--noheader", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job, also of one that has ended lately."""
        said = self.admin("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def state(self, number: str) -> str:
        return self.job(number)["JobState"]

    def await_state(self, number: str, *states: str, seconds: float = START_S) -> dict[str, str]:
        """Wait until a job is in one of these states; gives all that is known of it then."""
        found: dict[str, str] = {}

        def is_there() -> bool:
            found.update(self.job(number))
            return found["JobState"] in states

        try:
            wait_until(is_there, what=f"job {number} to be {' or '.join(states)}", seconds=seconds)
        except TimeoutError as late:
            raise AssertionError(f"{late}: {found}") from None
        return found

    def node_state(self, name: str) -> str:
        """As sinfo names it, such as idle, mixed, allocated, down or drained; with "*" where it does not answer."""
        return self.admin("sinfo", "--noheader", f"--nodes={name}", "--format=%T").partition("\n")[0]


@contextmanager
def running_cluster(fleet: Fleet, *, with_accounting: bool = False) -> Iterator[Cluster]:
    cluster = Cluster(fleet, with_accounting=with_accounting)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _sweep() -> None:
    """Remove what earlier runs could not, because they were killed."""
    wait_until(lambda: not _kill([pid for pid in _pids() if _is_stale(_link(pid, "cwd"))]), what="old steps to end")
    for group in _MEMORY_GROUPS.glob("cluster*"):
        if _is_stale(group.name):
            wait_until(partial(_remove_groups, group), what="old control groups to be free")


def _is_stale(name: str) -> bool:
    found = _NAME.search(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()


def _remove_groups(top: Path) -> bool:
    """Whether all are gone; one stays as long as a process in it is about to end."""
    for group, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            os.rmdir(group)
    return not top.exists()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _link(pid: int, name: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/{name}")
    return ""


def _in_namespaces(namespaces: Collection[str]) -> list[int]:
    return [pid for pid in _pids() if _link(pid, "ns/mnt") in namespaces]


def _kill(pids: Collection[int]) -> Collection[int]:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids
