"""Calls tools through LangChain's adapter: python langchain_adapter.py SERVER.json CALLS.json; a JSON line for each."""

import asyncio
import json
import sys
from pathlib import Path

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main(server: dict, calls: list) -> None:
    kind = "streamable_http" if "url" in server else "stdio"
    client = MultiServerMCPClient({"ours": {"transport": kind, **server}})
    async with client.session("ours") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        for call in calls:
            try:
                answer = await tools[call["tool"]].ainvoke(call["arguments"])
                # It hands the text of an error to the model like any other.
                told = {"is_error": None, "text": answer if isinstance(answer, str) else json.dumps(answer)}
            except Exception as problem:  # noqa: BLE001 - a failed tool is an exception in this library
                told = {"is_error": True, "text": str(problem)}
            print(json.dumps({"tool": call["tool"], **told}), flush=True)


asyncio.run(main(*(json.loads(Path(name).read_text()) for name in sys.argv[1:3])))
