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

# Answers as nvidia-smi gives them; the lines are those of an H200 that trains, and of one that is idle.
NVIDIA_SMI = """\
#!/bin/sh
case $* in
*query-gpu*) awk -F', ' -v OFS=', ' -v t="$(date +%s)" '
    $5 > 0 { $5 = int($5 + 7 * sin(t / 11 + $1) - 4); $10 = int(10 * ($10 + 25 * sin(t / 9 + 2 * $1))) / 10 }
    1' ~/.gpus ;;
*query-compute-apps*) while read -r pid uuid; do echo "$uuid, $pid, 118214, python3"; done <~/.gpu-users ;;
esac
"""
BUSY = (
    "{index}, GPU-{index}, NVIDIA H200, 580.159.04, {use}, 22, 143771, {memory}, 24000, {heat}, {power}, 700.00, "
    "Default, Disabled"
)
IDLE = "{index}, GPU-{index}, NVIDIA H200, 580.159.04, 0, 0, 143771, 0, 143156, 36, 125.44, 700.00, Default, Disabled"
HELD = (
    "{index}, GPU-{index}, NVIDIA H200, 580.159.04, 0, 0, 143771, 92044, 51112, 38, 131.07, 700.00, Default, Disabled"
)
# People in the place of the machines' test users.
NAMES = {"gpu1": "ann", "gpu2": "bob"}
# A training run in a nutshell: a loss that falls, a progress bar, and a checkpoint.
TRAIN = """\
import json, math, pathlib, sys, time
total, step = int(sys.argv[1]), int(sys.argv[2])
pathlib.Path("runs").mkdir(exist_ok=True)
while step < total:
    step += 1
    loss = 1.4 + 2.1 * math.exp(-step / 900)
    now = time.strftime("%H:%M:%S")
    print(f"\\033[2m{now}\\033[0m step {step:>5}  \\033[32mloss {loss:.4f}\\033[0m  lr 2.9e-4", flush=True)
    told = {"step": step, "total": total, "loss": round(loss, 4)}
    pathlib.Path(f"runs/{sys.argv[3]}.json").write_text(json.dumps(told))
    time.sleep(0.4)
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

    def use_cards(self) -> None:
        """Say of the training runs of both people, by their real process ids, that they hold the cards."""
        for machine, other in zip(self.machines, reversed(self.machines), strict=True):
            found = subprocess.run(
                ["pgrep", "-u", machine.user, "-f", "^python3 train"], capture_output=True, text=True
            )
            rows_of = (machine.home / ".gpus").read_text().splitlines()
            cards = [row.split(", ")[1] for row in rows_of if ", 0, 0, " not in row]
            pids = found.stdout.split() or ["1"]
            theirs = subprocess.run(["pgrep", "-u", other.user, "-f", "^python3 train"], capture_output=True, text=True)
            held = [row.split(", ")[1] for row in rows_of if ", 92044, " in row]
            # A few of the cards, and the one that a notebook holds, are the other person's.
            pids = [*pids, *theirs.stdout.split()[:1]]
            rows = [f"{pids[number * len(pids) // len(cards)]} {card}" for number, card in enumerate(cards)]
            rows += [f"{pids[-1]} {card}" for card in held]
            (machine.home / ".gpu-users").write_text("\n".join(rows) + "\n")

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
        machines = [fleet.machine(name, bashrc="export PATH=$HOME/bin:$PATH\n") for name in ("gpu1", "gpu2")]
        for machine, cards in zip(machines, (6, 2), strict=True):
            _give_cards(machine, cards)
        here = Lab(home, machines, _environment(home))
        settings = home / ".config/remote-sandbox-mcp/config.toml"
        settings.parent.mkdir(parents=True)
        named = {**{machine.name: machine for machine in machines}, "cluster": cluster.login}
        settings.write_text("\n".join(_table(name, machine) for name, machine in named.items()), encoding="utf-8")
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
    chance, (ann, bob) = random.Random(7), (machines[name].user for name in NAMES)
    for ago in [*range(7 * 96 * 15, 24 * 60, -15), *range(24 * 60, 0, -1)]:
        at = now - 60 * ago
        minutes = []
        for number, machine in enumerate(machines):
            hour = ago / 60 + 5 * number
            day = 0.5 + 0.5 * math.sin(hour / 24 * 2 * math.pi)
            pause = 0.25 if (ago + 60) % (110 + 20 * number) < 9 else 1.0
            busy = (0.86 + 0.1 * math.sin(hour)) * pause
            cards = tuple(
                min(
                    1.0,
                    max(
                        0.0,
                        (busy if card < 6 - 3 * number else 0.3 * day if card == 6 else 0.0) + chance.gauss(0, 0.02),
                    ),
                )
                for card in range(0 if machine == "cluster" else 8)
            )
            point = (at, 0.35 + 0.2 * day + chance.random() * 0.08, 0.06 + 0.03 * day, cards)
            used = {Owner(ann, "llama-7b"): 4.0 - 2 * number, Owner(bob, "whisper-ft"): 3.0 * day, Owner("chen"): 0.7}
            minutes.append(Minute(machine, point, used if cards else {}, 900.0 if ago > 24 * 60 else 60.0))
        rows.write(minutes)
    rows.database.close()


def _give_cards(machine: Sshd, busy: int) -> None:
    """Eight cards: so many at work, one held by a notebook, the others free."""
    rows = [
        BUSY.format(
            index=index, use=89 + (index * 5) % 11, memory=118214 + 311 * index, heat=56 + index, power=641 + 9 * index
        )
        for index in range(busy)
    ]
    rows += [HELD.format(index=busy), *(IDLE.format(index=index) for index in range(busy + 1, 8))]
    files = {"bin/nvidia-smi": NVIDIA_SMI, ".gpus": "\n".join(rows) + "\n", ".gpu-users": "", "train.py": TRAIN}
    for name, text in files.items():
        file = machine.home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        os.chown(file, machine.uid, -1)


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
