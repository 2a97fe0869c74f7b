#!/usr/bin/env python3
"""Runs a command in a sandbox as a coding agent does: over MCP, through the official SDK.

pip install mcp
python run_a_command.py [SANDBOX]
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters


async def main(sandbox: str) -> None:
    async with Client(StdioServerParameters(command="remote-sandbox-mcp")) as client:
        answer = await client.call_tool(
            "exec_bash",
            {"command": "echo hello from the sandbox; ls no-such-file", "sandbox_name": sandbox, "timeout_s": 60},
        )
        # A command that fails is an answer like any other. `is_error` says that it could not be run.
        done = answer.structured_content
        if answer.is_error or done is None:
            raise RuntimeError(answer.content[0].text)
        print("stdout:", done["stdout"].strip())
        print("exit code:", done["exit_code"])


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
