#!/usr/bin/env python3
"""Runs a command over HTTP, with the server's key: for clients that cannot start a program.

pip install mcp
REMOTE_SANDBOX_API_KEY=$(openssl rand -hex 20); export REMOTE_SANDBOX_API_KEY
remote-sandbox-mcp --mode http --port 3000 &
python over_http.py http://127.0.0.1:3000/mcp [SANDBOX]
"""

import asyncio
import os
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(address: str, sandbox: str) -> None:
    key = os.environ["REMOTE_SANDBOX_API_KEY"]
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=300) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        tools = await client.list_tools()
        print("exec_bash is there:", any(tool.name == "exec_bash" for tool in tools.tools))
        answer = await client.call_tool("exec_bash", {"command": "echo over HTTP", "sandbox_name": sandbox})
        if answer.is_error:
            raise RuntimeError(answer.content[0].text)
        print("stdout:", answer.structured_content["stdout"].strip())


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "local"))
