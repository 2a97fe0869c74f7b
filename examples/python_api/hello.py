#!/usr/bin/env python3
"""Run a command on a machine.

Run it where a machine is configured as gpu1: python3 hello.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        done = await gpu.run("echo hello; exit 3")
        print(done.exit_code, done.text.strip())


asyncio.run(main())
