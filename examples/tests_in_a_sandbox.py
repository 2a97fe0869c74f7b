#!/usr/bin/env python3
"""Runs a test suite in a disposable sandbox: a clean, isolated place that is deleted afterwards.

pip install mcp
python tests_in_a_sandbox.py
"""

import asyncio

from mcp import Client, StdioServerParameters

CODE = "def add(a, b):\n    return a - b\n"
TESTS = """import unittest
from calculator import add

class Sums(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(add(1, 0), 1)

    def test_sum(self):
        self.assertEqual(add(1, 2), 3)
"""


async def main() -> None:
    async with Client(StdioServerParameters(command="remote-sandbox-mcp")) as client:

        async def call(tool: str, **arguments: object) -> dict:
            answer = await client.call_tool(tool, arguments)
            if answer.is_error:
                raise RuntimeError(answer.content[0].text)
            return answer.structured_content

        sandbox = (await call("create_sandbox"))["sandbox_id"]
        try:
            for path, text in (("project/calculator.py", CODE), ("project/test_calculator.py", TESTS)):
                await call("write_remote_file", remote_path=path, content=text, sandbox_name=sandbox)
            # The runner is found by what is in the folder. A sandbox without pytest is lent one.
            found = await call("run_tests", sandbox_id=sandbox, path="project")
            print("passed:", found["passed"], "failed:", found["failed"])
            for failure in found["failures"]:
                print("failure:", failure["id"])
        finally:
            await call("delete_sandbox", sandbox_id=sandbox)


asyncio.run(main())
