#!/usr/bin/env python3
"""Use sandboxes without asyncio.

Run it where a machine is configured as gpu1: python3 without_asyncio.py
"""

from remote_sandbox_mcp.blocking import Sandboxes

with Sandboxes() as boxes:
    gpu = boxes.open("gpu1")
    print(gpu.run("cat", input=b"hello").stdout)
    for chunk in gpu.stream("echo one"):
        print(chunk.data)
    job = gpu.start("exit 4", name="short")
    print(job.wait(timeout=60).exit_code)
