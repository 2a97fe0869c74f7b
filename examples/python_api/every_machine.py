#!/usr/bin/env python3
"""Run one command on every machine at once.

Run it where a machine is configured as gpu1: python3 every_machine.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        machines = [name for name in await boxes.list() if name.startswith("gpu")]
        opened = await asyncio.gather(*map(boxes.open, machines))
        done = await asyncio.gather(*(box.run("uname") for box in opened))
        print({box.name: each.text.strip() for box, each in zip(opened, done, strict=True)})


asyncio.run(main())
