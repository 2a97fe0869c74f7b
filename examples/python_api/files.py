#!/usr/bin/env python3
"""Read and write files, and see what may go wrong.

Run it where a machine is configured as gpu1: python3 files.py
"""

import asyncio

from remote_sandbox_mcp import SandboxError, Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        await gpu.write("notes/a.txt", "one\n")
        print(await gpu.read("notes/a.txt"))
        await gpu.run("chmod 444 notes/a.txt")
        try:
            await gpu.write("notes/a.txt", b"two\n")
        except SandboxError as problem:
            print(type(problem).__name__, problem.reason)
        await gpu.write("notes/a.txt", b"two\n", force=True)


asyncio.run(main())
