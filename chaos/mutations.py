"""Five defects that chaos must find: each is put into a copy of the program, which a short run then strikes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import remote_sandbox_mcp

SOURCE = Path(remote_sandbox_mcp.__file__).parent


@dataclass(frozen=True)
class Mutation:
    """A text of one file and what takes its place; `kind` and `faults` are of the schedules that must find it."""

    file: str
    text: str
    instead: str
    kind: str
    faults: tuple[str, ...]


MUTATIONS = {
    "forget-run-id": Mutation(
        "services/commands.py",
        'run_id = name_for_call("run") or new_run_id()',
        "run_id = new_run_id()",
        kind="hubs",
        faults=("kill_hub", "kill_two_hubs"),
    ),
    "drop-notifications": Mutation(
        "local/notify/announcer.py",
        "        try:\n            await self._send(channel, watch, event)\n",
        '        self.count = getattr(self, "count", 0) + 1\n        if self.count % 3 == 0:\n            return\n'
        "        try:\n            await self._send(channel, watch, event)\n",
        kind="jobs",
        faults=("reboot", "kill_keeper"),
    ),
    "forget-before-stored": Mutation(
        "services/commands.py",
        "        then = commands.forgetting(sandbox, command.run_id) if is_whole else None\n",
        "        then = sandbox.forget(command.run_id) if is_whole else None\n",
        kind="hubs",
        faults=("kill_hub_before_answers",),
    ),
    "lease-without-lock": Mutation(
        "far/jobs/cards.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        kind="leases",
        faults=("kill_keeper", "kill_sessions"),
    ),
    "start-under-another-id": Mutation(
        "services/jobs/waiting.py",
        "ready = replace(make_order(wanted), job_id=job.job_id)",
        "ready = make_order(wanted)",
        kind="leases",
        faults=("kill_while_starting",),
    ),
}


def mutated(name: str, folder: Path) -> Path:
    """A folder for PYTHONPATH with a copy of the program that has this defect."""
    mutation = MUTATIONS[name]
    copy = folder / SOURCE.name
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / mutation.file
    before = file.read_text()
    if before.count(mutation.text) != 1:
        raise ValueError(f"{mutation.file} has changed: the mutation {name} finds its text no longer")
    file.write_text(before.replace(mutation.text, mutation.instead))
    return folder


if __name__ == "__main__":
    print(*MUTATIONS)
