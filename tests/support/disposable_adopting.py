"""Measures, in a process of its own, what the start of a server costs that has no disposable sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Offer, Traits
from remote_sandbox_mcp.local.store.mark import mark_in
from remote_sandbox_mcp.services.disposable.verbs import Disposables
from remote_sandbox_mcp.services.fleet import Fleet

if TYPE_CHECKING:
    from remote_sandbox_mcp.local.store.disposables import DisposableRows

HEAVY = (
    "sqlite3",
    "remote_sandbox_mcp.backends.bubblewrap",
    "remote_sandbox_mcp.backends.opensandbox",
    "remote_sandbox_mcp.services.disposable.service",
    "remote_sandbox_mcp.local.store.disposables",
)


def rows_in(folder: Path) -> DisposableRows:
    from remote_sandbox_mcp.local.store.database import Database
    from remote_sandbox_mcp.local.store.disposables import DisposableRows

    return DisposableRows(Database(folder / "state.db"))


async def main() -> None:
    folder, fleet, rules = Path(sys.argv[1]), Fleet([]), DisposableRules()
    # Of this thread alone: others may be at work on the machine.
    begun = time.thread_time()
    disposables = Disposables(
        fleet, rules, {"embedded": Offer(Traits(), sys.exit)}, lambda: rows_in(folder), mark=lambda: mark_in(folder)
    )
    await disposables.adopt()
    milliseconds = 1000 * (time.thread_time() - begun)
    loaded = [name for name in HEAVY if name in sys.modules]
    await disposables.close()
    print(json.dumps({"milliseconds": milliseconds, "loaded": loaded}))


if __name__ == "__main__":
    asyncio.run(main())
