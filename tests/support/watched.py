"""A watchdog with a clock of its own over the real jobs of one sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remote_sandbox_mcp.core.jobs.job import JobStarted
from remote_sandbox_mcp.core.jobs.watch import Event, Policy, Watch
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.jobs import JobRecords
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.jobs.supervise import WatchSupervisor

AGAIN = 'echo "again $STEP"; echo \'{"step": 8}\' > ckpt.json; until test -e go; do sleep 0.05; done; exit 3'
POLICY = Policy(
    notify_local=False, auto_resume=True, resume_command=AGAIN, resume_env={"STEP": "7"}, resume_delay_s=0,
    checkpoint_path="ckpt.json", checkpoint_format="json",
)  # fmt: skip


class Scene:
    """A watchdog with a clock of its own, and a machine."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.database = Database(folder / "state.db")
        self.watches = Watches(self.database)
        self.now = 1_000_000.0
        self.told: list[str] = []
        self._supervisor = WatchSupervisor(
            self.watches, JobRecords(self.database), self._get, self._hear, clock=lambda: self.now
        )

    async def _get(self, watch: Watch) -> Sandbox:
        return self.sandbox

    async def _hear(self, channel: str, watch: Watch, event: Event) -> None:
        self.told.append(event.type.value)

    def watch(self, started: JobStarted, **more: Any) -> None:
        fields: dict[str, Any] = {
            "job_id": started.job_id, "log_file": started.log_file, "cwd": started.cwd, "policy": POLICY, **more
        }  # fmt: skip
        self.watches.add(Watch(sandbox="box", session=started.session, **fields))

    async def tick(self) -> Watch:
        self.now += 300
        self.due = await self._supervisor.tick()
        found = self.watches.get(1)
        assert found
        return found
