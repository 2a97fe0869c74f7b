"""A lab to take pictures of: real sshd machines with jobs, a cluster, and cards as nvidia-smi told of a real H200."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.slurm import running_cluster
from tests.support.sshd import HOST, Fleet, Sshd

from remote_sandbox_mcp.core.resources.history import Minute, Owner
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.machines import MachineRows

# Answers as nvidia-smi gives them; the lines are those of a card that trains, of one that a notebook holds, and of one
# that is idle. Which card does what is in ~/.gpus, whose it is in ~/.gpu-users.
NVIDIA_SMI = """\
#!/bin/sh
case $* in
*query-gpu=index,uuid,memory*) awk -F', ' -v OFS=', ' '{ print $1, $2, $7, $8, $13, $14 }' ~/.gpus ;;
*query-gpu*) awk -F', ' -v OFS=', ' -v t="$(date +%s)" '
    $5 > 0 { $5 = int($5 + 7 * sin(t / 11 + $1) - 4); $10 = int($10 + 5 * sin(t / 9 + 2 * $1)) }
    1' ~/.gpus ;;
*query-compute-apps=gpu_uuid,pid,used*) awk '{ print $2 ", " $1 ", 118214, python3" }' ~/.gpu-users ;;
*query-compute-apps*) awk '{ print $2 ", " $1 }' ~/.gpu-users ;;
esac
"""
CARD = (
    "{index}, GPU-{machine}-{index}, {kind}, 580.159.04, {use}, {use}, {all}, {used}, {free}, {heat}, {power}, 700.00, "
    "Default, Disabled"
)
# What the probe asks a machine, answered as a large one would: this computer is not what the pictures are about.
HOST_TOOLS = {
    "nproc": "echo {cpus}",
    "getconf": "echo {cpus}",
    "head": 'case $* in */proc/stat) echo "cpu $(($(date +%s%N) / 10000000 * {cpus} * {busy} / 100)) 0 0 '
    '$(($(date +%s%N) / 10000000 * {cpus} * (100 - {busy}) / 100)) 0 0 0 0 0 0" ;; *) exec /usr/bin/head "$@" ;; esac',
    "cat": 'case $* in /proc/loadavg) echo "{load} {load} {load} 9/999 1" ;; *) exec /bin/cat "$@" ;; esac',
    "grep": 'case $* in */proc/meminfo) echo "MemTotal: {memory} kB"; echo "MemAvailable: {unused} kB" ;; '
    '*) exec /bin/grep "$@" ;; esac',
    "df": "echo Filesystem 1024-blocks Used Available Capacity Mounted on; echo /dev/md0 {disk} {full} {room} 47% /",
}


@dataclass(frozen=True)
class Kind:
    """A machine of the lab: its cards, and how busy it is apart from them."""

    card: str
    cards: int
    card_mb: int
    cpus: int
    busy: int
    memory_gb: int
    disk_tb: int

    @property
    def host_tools(self) -> dict[str, str]:
        memory, disk = self.memory_gb << 20, self.disk_tb * 10**9
        given = {"cpus": self.cpus, "busy": self.busy, "load": f"{self.cpus * self.busy / 100:.2f}", "memory": memory}
        given |= {"unused": memory * 7 // 10, "disk": disk, "full": disk * 47 // 100, "room": disk * 53 // 100}
        tools = HOST_TOOLS.items()
        return {f"bin/{name}": f"#!/bin/sh\n{text.format_map(given)}\n" for name, text in tools}


KINDS = {
    "gpu1": Kind("NVIDIA H200", 8, 143771, 128, 46, 2048, 14),
    "gpu2": Kind("NVIDIA H200", 8, 143771, 128, 21, 2048, 14),
    "gpu3": Kind("NVIDIA A100-SXM4-80GB", 4, 81920, 64, 12, 1024, 7),
}
LOGIN = Kind("", 0, 0, 16, 30, 64, 1)
# People in the place of the machines' test users.
NAMES = {"gpu1": "ann", "gpu2": "bob", "gpu3": "chen"}
# A training run in a nutshell: a loss that falls, its steps of the last hour at once and then one by one, a checkpoint.
TRAIN = """\
import datetime, json, math, os, pathlib, random, sys, time
name, total, first, now, rate, pace = sys.argv[1], *map(int, sys.argv[2:5]), *map(float, sys.argv[5:7])
pathlib.Path("runs").mkdir(exist_ok=True)
random.seed(name)
begun = time.time() - (now - first) * pace
wander = 0.0
for step in range(first + 1, total):
    when = begun + (step - first) * pace
    time.sleep(max(0, when - time.time()))
    wander = 0.98 * wander + random.gauss(0, 0.012)
    loss = 1.62 - 0.18 * rate + 2.3 * math.exp(-step * rate / 700) + wander + random.gauss(0, 0.02)
    rest = min(1, step / 200) * 3e-4 * rate * (1 + math.cos(math.pi * step / total)) / 2
    stamp = datetime.datetime.fromtimestamp(when).isoformat(" ", "seconds")
    print(f"\\033[2m{stamp}\\033[0m step {step}/{total}  \\033[32mloss {loss:.4f}\\033[0m  lr {rest:.3g}", flush=True)
    if step % 500 == 0:
        print(f"{stamp} step {step}/{total}  eval loss {loss + 0.07:.4f}  acc {0.71 - loss / 9:.4f}", flush=True)
    if when > time.time() - 5:
        told = {"step": step, "total": total, "loss": round(loss, 4)}
        pathlib.Path(f"runs/{name}.new").write_text(json.dumps(told))
        os.replace(f"runs/{name}.new", f"runs/{name}.json")
"""
# One that ends as they do.
PREPARE = """\
import pathlib
print("reading shards from /data/pile")
for shard in range(412):
    print(f"shard {shard:04d}: 268435456 tokens")

def write(shard):
    raise OSError(28, "No space left on device", f"/scratch/pile/shard-{shard:04d}.bin")

write(412)
"""


@dataclass
class Lab:
    """The fleet and the environment of its user."""

    home: Path
    machines: list[Sshd]
    environment: dict[str, str]
    # What pictures show in the place of test users and loopback addresses.
    shown: dict[str, str] = field(default_factory=dict)

    def start(self, sandbox: str, name: str, *words: str) -> None:
        """Start a job as its user would."""
        self.run("jobs", "start", "--sandbox", sandbox, "--name", name, *words)

    def use_cards(self, machine: str, *users: tuple[str, int]) -> None:
        """Let cards compute, one after another: so many for each job; without a job, a notebook of somebody else."""
        kind, rows, owners = KINDS[machine], [], []
        pid = {job: self._pid(job) for job, _ in users}
        wanted = [job for job, count in users for _ in range(count)]
        for index in range(kind.cards):
            job = wanted[index] if index < len(wanted) else ""
            rows.append(_card(machine, index, "hold" if job.startswith("?") else "train" if job else "idle"))
            owners += [f"{pid[job]} GPU-{machine}-{index}"] if job else []
        here = next(each for each in self.machines if each.name == machine)
        (here.home / ".gpus").write_text("\n".join(rows) + "\n", encoding="utf-8")
        (here.home / ".gpu-users").write_text("".join(f"{row}\n" for row in owners), encoding="utf-8")

    def _pid(self, job: str) -> str:
        """Of the training run with this name, or of any run of the person that is named (`?gpu2`)."""
        user = next((each.user for each in self.machines if f"?{each.name}" == job), "")
        words = ["-u", user, "-f", "^python3 train"] if user else ["-f", f"^python3 train.py {job}( |$)"]
        found = subprocess.run(["pgrep", *words], capture_output=True, text=True)
        return found.stdout.split()[0]

    def backdate(self, ago_s: float) -> None:
        """Say of all jobs that run that they began earlier."""
        for machine in self.machines:
            for file in machine.home.rglob("begun"):
                record = json.loads(file.read_text())
                if not (file.parent / "end").exists():
                    file.write_text(json.dumps(record | {"started": time.time() - ago_s}))

    def run(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["remote-sandbox-mcp", *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=check,
        )
        return done.stdout.strip()


@contextmanager
def lab() -> Iterator[Lab]:
    with TemporaryDirectory(prefix="pictures-") as folder, Fleet() as fleet, running_cluster(fleet) as cluster:
        home = Path(folder)
        machines = [fleet.machine(name) for name in KINDS]
        for machine in machines:
            _furnish(machine, KINDS[machine.name])
        _furnish(cluster.login, LOGIN)
        here = Lab(home, machines, _environment(home))
        settings = home / ".config/remote-sandbox-mcp/config.toml"
        settings.parent.mkdir(parents=True)
        named = {**{machine.name: machine for machine in machines}, "cluster": cluster.login}
        tables = [_table(name, machine) for name, machine in named.items()]
        settings.write_text("\n".join(["[local]\nenabled = false\n", *tables]), encoding="utf-8")
        for name, machine in named.items():
            person, host = NAMES.get(name, "ann"), f"{name}.example.org"
            here.shown |= {machine.user: person, f"{HOST}:{machine.port}": host}
            here.shown |= {f"{machine.user}@{HOST}{port}": f"{person}@{host}" for port in ("", f":{machine.port}")}
            here.shown |= {f"ssh -p {machine.port} {machine.user}@{HOST}": f"ssh {person}@{host}"}
            here.shown[str(machine.home)] = "/home/ann"
        here.shown[str(home)] = "/home/ann"
        remember(home / ".state/remote-sandbox-mcp/state.db", named)
        yield here


def remember(file: Path, machines: dict[str, Sshd]) -> None:
    """Write the days before, as the hub would have: training with its pauses, a notebook, nights without anybody."""
    file.parent.mkdir(parents=True, mode=0o700)
    rows = MachineRows(Database(file))
    now = float(int(time.time()) // 60 * 60)
    chance, (ann, bob, chen) = random.Random(7), (machines[name].user for name in NAMES)
    for ago in [*range(7 * 96 * 15, 24 * 60, -15), *range(24 * 60, 0, -1)]:
        at = now - 60 * ago
        minutes = []
        for number, machine in enumerate(machines):
            hour = ago / 60 + 5 * number
            kind = KINDS.get(machine, LOGIN)
            day = 0.5 + 0.5 * math.sin(hour / 24 * 2 * math.pi)
            pause = 0.25 if (ago + 60) % (110 + 20 * number) < 9 else 1.0
            busy = (0.86 + 0.1 * math.sin(hour)) * pause
            held, at_work = 0.3 * day, 6 - 3 * number
            loads = [busy if card < at_work else held if card == at_work else 0.0 for card in range(kind.cards)]
            cards = tuple(min(1.0, max(0.0, load + chance.gauss(0, 0.02))) for load in loads)
            share = kind.busy / 100 * (0.8 + 0.2 * day) + chance.gauss(0, 0.02)
            point = (at, max(0.01, share), 0.24 + 0.06 * day, cards)
            used = {Owner(ann, "llama-7b"): 4.0 - number, Owner(bob, "whisper-ft"): 3.0 * day, Owner(chen): 0.7}
            minutes.append(Minute(machine, point, used if cards else {}, 900.0 if ago > 24 * 60 else 60.0))
        rows.write(minutes)
    rows.database.close()


def _furnish(machine: Sshd, kind: Kind) -> None:
    """Give it cards that are idle, and the programs that are run on it."""
    rows = [_card(machine.name, index, "idle") for index in range(kind.cards)]
    cards = {"bin/nvidia-smi": NVIDIA_SMI, ".gpus": "\n".join(rows) + "\n", ".gpu-users": ""} if rows else {}
    programs = {"train.py": TRAIN, "prepare.py": PREPARE, ".bashrc": "export PATH=$HOME/bin:$PATH\n"}
    for name, text in {**cards, **programs, **kind.host_tools}.items():
        file = machine.home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        os.chown(file, machine.uid, -1)


def _card(machine: str, index: int, does: str) -> str:
    """A row of nvidia-smi."""
    kind = KINDS[machine]
    used = {"train": kind.card_mb * 82 // 100 + 311 * index, "hold": kind.card_mb * 64 // 100, "idle": 4}[does]
    use, heat, power = {"train": (93 + index * 5 % 7, 61 + index * 7 % 17, 590 + 14 * index), "hold": (0, 38, 131)}.get(
        does, (0, 33 + index % 4, 76)
    )
    memory = {"all": kind.card_mb, "used": used, "free": kind.card_mb - used}
    return CARD.format(machine=machine, index=index, kind=kind.card, use=use, heat=heat, power=power, **memory)


def _table(name: str, machine: Sshd) -> str:
    """Its table of config.toml."""
    given = {"host": HOST, "port": machine.port, "user": machine.user, "key_file": machine.key_file}
    lines = [f"[machines.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
    return "\n".join([*lines, *(["slurm = true"] if name == "cluster" else []), ""])


def _environment(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(home / ".state"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "REMOTE_SANDBOX_HUB_IDLE_S": "2",
    }
