#!/usr/bin/env python3
"""Start a job that outlives the program.

Run it where a machine is configured as gpu1: python3 job.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        job = await gpu.start("echo epoch 1; sleep 1; echo epoch 2", name="train-7")
    async with Sandboxes() as boxes:
        job = (await boxes.open("gpu1")).job("train-7")
        seen = await job.wait(timeout=60)
        print(seen.exit_code, await job.tail(lines=2), end="")


asyncio.run(main())
