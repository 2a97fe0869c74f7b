"""Calls tools through the OpenAI Agents SDK: python openai_agents.py SERVER.json CALLS.json; a JSON line for each."""

import asyncio
import json
import sys
from pathlib import Path

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp


async def main(server: dict, calls: list) -> None:
    kind = MCPServerStreamableHttp if "url" in server else MCPServerStdio
    async with kind(params=server, client_session_timeout_seconds=120) as ours:
        await ours.list_tools()
        for call in calls:
            answer = await ours.call_tool(call["tool"], call["arguments"])
            text = "\n".join(part.text for part in answer.content if part.type == "text")
            print(json.dumps({"tool": call["tool"], "is_error": bool(answer.isError), "text": text}), flush=True)


asyncio.run(main(*(json.loads(Path(name).read_text()) for name in sys.argv[1:3])))
