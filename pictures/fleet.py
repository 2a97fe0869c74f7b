"""A lab to take pictures of: real sshd machines with jobs, a cluster, and cards as nvidia-smi told of a real H200."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.slurm import running_cluster
from tests.support.sshd import HOST, Fleet, Sshd

# Answers as nvidia-smi gives them; the lines are those of an H200 that trains, and of one that is idle.
NVIDIA_SMI = """\
#!/bin/sh
case $* in
*query-gpu*) cat ~/.gpus ;;
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
        """Say of each machine's training runs, by their real process ids, that they hold its busy cards."""
        for machine in self.machines:
            found = subprocess.run(
                ["pgrep", "-u", machine.user, "-f", "^python3 train"], capture_output=True, text=True
            )
            cards = [
                row.split(", ")[1] for row in (machine.home / ".gpus").read_text().splitlines() if ", 0, 0, " not in row
            ]
            pids = found.stdout.split() or ["1"]
            rows = [f"{pids[number * len(pids) // len(cards)]} {card}" for number, card in enumerate(cards)]
            (machine.home / ".gpu-users").write_text("\n".join(rows) + "\n")

    def run(self, *words: str) -> str:
        done = subprocess.run(
            ["remote-sandbox-mcp", *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=True,
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
            here.shown |= {machine.user: "ann", f"{HOST}:{machine.port}": f"{name}.example.org"}
            here.shown[str(machine.home)] = "/home/ann"
        here.shown[str(home)] = "/home/ann"
        yield here


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
