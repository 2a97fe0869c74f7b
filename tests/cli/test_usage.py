from __future__ import annotations

import time

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.resources.history import Minute, Owner
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.machines import MachineRows
from tests.cli.conftest import Cli


def test_gpu_hours_are_a_table_for_people_and_json_for_programs(cli: Cli) -> None:
    nothing = cli("usage")
    assert (nothing.code, nothing.stdout) == (0, "")
    assert "no GPU of a connected machine was used" in nothing.stderr
    rows, now = MachineRows(Database(paths.state_folder() / STATE_FILE)), time.time()
    used = {Owner("ann", "llama\x1b[31m"): 4.0, Owner("bob"): 2.0}
    rows.write([Minute("gpu1", (now - 3600 + 60 * n, 0.5, 0.5, ()), used) for n in range(30)])
    rows.write([Minute("gpu2", (now - 20 * 86400, 0.5, 0.5, ()), {Owner("old"): 1.0}, 3600.0)])
    rows.database.close()
    header, first, second = cli("usage").stdout.splitlines()
    assert header.split() == ["user", "GPU-hours"]
    assert [first.split()[:2], second.split()[:2]] == [["ann", "2.0"], ["bob", "1.0"]]
    by_job = cli("usage", "--by", "job").stdout
    assert "llama" in by_job
    assert "\x1b" not in by_job
    found = cli("usage", "--since", "4w", "--by", "machine", "--json").json
    assert found["total"] == 4.0
    assert found["usage"][0] == {"machine": "gpu1", "user": "ann", "gpu_hours": 2.0}
    assert "must be a time such as" in cli("usage", "--since", "soon").stderr
