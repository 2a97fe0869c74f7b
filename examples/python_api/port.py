#!/usr/bin/env python3
"""Reach a port of a sandbox on this computer.

Run it where a machine is configured as gpu1: python3 port.py
"""

import asyncio

from remote_sandbox_mcp import Sandboxes

SERVE = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


async def main() -> None:
    async with Sandboxes() as boxes:
        gpu = await boxes.open("gpu1")
        await gpu.write("serve.py", SERVE)
        job = await gpu.start("python3 serve.py", name="server-2")
        await job.wait(pattern="port", timeout=60)
        remote = int((await job.tail()).split()[1])
        async with gpu.forward(remote) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            print((await reader.readline()).split()[1])
            writer.close()
        await job.stop()


asyncio.run(main())
