#!/usr/bin/env python3
"""Take the most idle machine.

Run it where a machine is configured as gpu1: python3 most_idle.py
"""

import asyncio

from remote_sandbox_mcp import SandboxError, Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        print((await boxes.most_idle()).name)
        try:
            await boxes.most_idle(gpu_memory="4000g")
        except SandboxError as problem:
            print(type(problem).__name__)


asyncio.run(main())
