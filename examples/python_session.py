#!/usr/bin/env python3
"""Runs Python in a sandbox in several calls: what the first one loads, the next ones still have.

pip install mcp
python python_session.py [SANDBOX]
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters


async def main(sandbox: str) -> None:
    async with Client(StdioServerParameters(command="remote-sandbox-mcp")) as client:

        async def run(code: str) -> dict:
            arguments = {"code": code, "session": "example", "sandbox_name": sandbox}
            answer = await client.call_tool("run_python", arguments)
            if answer.is_error:
                raise RuntimeError(answer.content[0].text)
            return answer.structured_content

        await run("squares = {n: n * n for n in range(1000)}  # or a model, which takes a minute to load")
        print("value:", (await run("squares[12]"))["value"])
        failed = await run("squares['twelve']")
        print("error:", failed["traceback"].strip().splitlines()[-1])
        # An error does not end the session. `remote-sandbox-mcp sessions close python:example` does.
        print("still there:", (await run("len(squares)"))["value"])


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
