#!/usr/bin/env python3
"""Send a folder, run it there, and get its results back.

Run it where a machine is configured as gpu1: python3 folder_and_results.py
"""

import asyncio
from pathlib import Path

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    Path("src").mkdir(exist_ok=True)
    Path("src/eval.py").write_text("print(6 * 7)\n")
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        sent = await gpu.push("src", "project/src")
        await gpu.run("mkdir -p runs && python3 src/eval.py > runs/7", cwd="project")
        await gpu.pull("project/runs", "runs")
    print(sent.sent_files, Path("runs/7").read_text().strip())


asyncio.run(main())
