#!/usr/bin/env python3
"""Wait for a line of a job's log, then stop the job.

Run it where a machine is configured as gpu1: python3 wait_for_line.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        job = await gpu.start("echo ready at port 8000; sleep 600", name="server-1")
        await job.wait(pattern="ready at port", timeout=60)
        print((await job.tail()).strip())
        print((await job.stop()).ending)


asyncio.run(main())
