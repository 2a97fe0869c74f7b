"""Play many schedules, several at once, and say what was wrong with those in which something was."""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.line import ThreadedLine
from tests.support.sshd import Fleet, Sshd

from . import leases, schedule, sessions
from .mutations import MUTATIONS, mutated
from .scene import Missed, Scene
from .schedule import mount_small, unmount

PAGE = Path(__file__).resolve().parents[1] / "docs/reliability.md"
LAST_RUN = "## The last run\n\n`make chaos` writes this, when it plays all kinds of schedules.\n"
KINDS = {"jobs": schedule.play, "hubs": sessions.play, "leases": leases.play}


def main() -> int:
    options = parse()
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in range(options.seed, options.seed + options.schedules):
        seeds.put(seed)
    wrong: dict[int, list[str]] = {}
    begun = time.monotonic()
    with Fleet() as fleet, TemporaryDirectory(prefix="rsmcp-mutated-") as folder:
        program = str(mutated(options.mutation, Path(folder))) if options.mutation else ""
        play = Play(options.only, frozenset(options.faults or ()), program)
        slots = [fleet.machine(f"soak{number}") for number in range(options.at_once)]
        threads = [threading.Thread(target=work, args=(machine, seeds, wrong, play)) for machine in slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if options.mutation:
        print(f"the mutation {options.mutation} was {'found' if wrong else 'not found'}", flush=True)
        return 0 if wrong else 1
    print(f"{options.schedules} schedules in {time.monotonic() - begun:.0f} s, {len(wrong)} went wrong", flush=True)
    if not (options.only or options.faults):
        record(options, time.monotonic() - begun, wrong)
    return 1 if wrong else 0


def record(options: argparse.Namespace, seconds: float, wrong: dict[int, list[str]]) -> None:
    """Write what became of a whole run on the page about reliability."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    seeds = ", ".join(map(str, sorted(wrong))) or "none"
    rows = {
        "date, commit": f"{time.strftime('%Y-%m-%d')}, `{commit}`",
        "schedules": f"{options.schedules}, from seed {options.seed} on, {options.at_once} at once, in {seconds:.0f} s",
        "went wrong": f"{len(wrong)} (seeds: {seeds})",
        "machine": f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f} at the end",
    }
    text, lines = PAGE.read_text(encoding="utf-8"), "".join(f"| {key} | {value} |\n" for key, value in rows.items())
    before, mark, rest = text.partition(LAST_RUN)
    _, title, after = rest.partition("\n## ")
    if mark and title:
        PAGE.write_text(f"{before}{mark}\n| | |\n|---|---|\n{lines}{title}{after}", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--only", choices=tuple(KINDS), help="by default one kind after the other")
    parser.add_argument("--faults", nargs="+", metavar="FAULT", help="strike only with these")
    parser.add_argument("--mutation", choices=MUTATIONS, help="put this defect into the program: it must be found")
    options = parser.parse_args()
    if options.mutation:
        options.only = options.only or MUTATIONS[options.mutation].kind
        options.faults = options.faults or MUTATIONS[options.mutation].faults
    if os.geteuid() != 0:
        sys.exit("the soak makes users and mounts small disks: run it as root, on a machine that may suffer")
    print(f"from seed {options.seed} on", flush=True)
    return options


@dataclass(frozen=True)
class Play:
    """What is played: the kind of schedules, the faults (all, where none is named), and which copy of the program."""

    only: str | None
    faults: frozenset[str]
    program: str


def work(machine: Sshd, seeds: queue.SimpleQueue[int], wrong: dict[int, list[str]], play: Play) -> None:
    while True:
        try:
            seed = seeds.get_nowait()
        except queue.Empty:
            return
        try:
            found = attempt(machine, seed, play)
        except Missed as missed:
            found = [str(missed)]
        except Exception:  # noqa: BLE001 a schedule that cannot be played is told like one that went wrong
            found = [traceback.format_exc()]
        if not found:
            print(f"seed {seed}: passed", flush=True)
        if found:
            wrong[seed] = found
            print(f"seed {seed}: " + "; ".join(found), flush=True)


def attempt(machine: Sshd, seed: int, what: Play) -> list[str]:
    kind = what.only or tuple(KINDS)[seed % len(KINDS)]
    jobs = machine.home / ".local/state/remote-sandbox"
    with TemporaryDirectory(prefix="rsmcp-soak-") as folder, ThreadedLine(machine.port) as line:
        home = Path(folder)
        home.chmod(0o711)
        scene = Scene(machine, line, home, machine.home / f"work-{seed}", what.program)
        mount_small(scene.state)
        mount_small(jobs)
        for folder_of_user in (jobs, jobs.parent, jobs.parent.parent):
            os.chown(folder_of_user, machine.uid, machine.uid)
        jobs.chmod(0o700)
        try:
            return KINDS[kind](scene, seed, what.faults)
        finally:
            scene.close()
            unmount(scene.state)
            unmount(jobs)


if __name__ == "__main__":
    sys.exit(main())
