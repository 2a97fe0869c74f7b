#!/usr/bin/env python3
"""Give a command standard input, variables and a folder.

Run it where a machine is configured as gpu1: python3 input_and_variables.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        done = await gpu.run('sort; echo "seed $SEED in $PWD"', cwd="/usr", env={"SEED": "1"}, input=b"b\na\n")
        print(done.text, end="")


asyncio.run(main())
