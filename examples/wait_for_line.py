#!/usr/bin/env python3
"""Starts a server as a background job, waits until it says that it is ready, and stops it.

pip install mcp
python wait_for_line.py [SANDBOX]
"""

import asyncio
import sys
import uuid

from mcp import Client, StdioServerParameters

# Stands for `python -m http.server`, a notebook, a model that is loaded: it says when it is ready, and does not end.
SERVER = "echo loading; sleep 1; echo ready at port 8000; sleep 600"


async def main(sandbox: str) -> None:
    name = f"example-{uuid.uuid4().hex[:8]}"
    async with Client(StdioServerParameters(command="remote-sandbox-mcp")) as client:

        async def call(tool: str, **arguments: object) -> dict:
            answer = await client.call_tool(tool, {"sandbox_name": sandbox, **arguments})
            if answer.is_error:
                raise RuntimeError(answer.content[0].text)
            return answer.structured_content

        await call("exec_bash_background", command=SERVER, session_name=name, watch=False)
        lines = r"ready at port \d+|Error"
        seen = await call("wait_background_task", tmux_session=name, until_pattern=lines, timeout_s=60)
        print("reason:", seen["reason"])
        print("line:", seen["matched_line"])
        await call("stop_background_task", tmux_session=name)
        print("outcome:", (await call("check_background_task", tmux_session=name))["outcome"])


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
