#!/usr/bin/env python3
"""Show output as it comes, and end a command in time.

Run it where a machine is configured as gpu1: python3 output_as_it_comes.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        output = gpu.stream("echo building; echo careful >&2; sleep 600", timeout=2)
        async for chunk in output:
            print(chunk.stream, chunk.text.strip())
        assert output.done is not None
        print("timed out:", output.done.timed_out)


asyncio.run(main())
