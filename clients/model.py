"""A stand-in for the models of Claude Code and Codex on loopback: it makes the tool calls of a script, one by one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOT_YET = "unsupported call"
# An image block in a result.
IMAGE = "[image]"
RETRY_S, MOST_RETRIES = 0.2, 50
USAGE = {"input_tokens": 1, "output_tokens": 1}


@dataclass(frozen=True)
class Step:
    """A tool call that the model makes. Arguments as text are those of a tool that takes any text."""

    tool: str
    arguments: dict[str, Any] | str
    # Codex has the tools of a server under a name of their own.
    namespace: str = ""


@dataclass
class Model:
    """Where it listens, what it is to do, and what the client has told it of each call."""

    steps: list[Step]
    address: str = ""
    told: list[str] = field(default_factory=list)
    # Whether pictures of tools were among what it was sent.
    saw_pictures: bool = False


@contextmanager
def serving(steps: list[Step]) -> Iterator[Model]:
    model = Model(steps)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (_Asked,), {"model": model}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield model
        assert not model.saw_pictures, "pictures of tools reach the model, which pays for them"
    finally:
        server.shutdown()
        server.server_close()


class _Asked(BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the terminal."""

    def do_HEAD(self) -> None:
        self._send(b"")

    def do_GET(self) -> None:
        self._send(b'{"data": [], "models": []}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.model.saw_pictures |= b"data:image/svg" in body
        asked = json.loads(body or b"{}")
        if self.path.startswith("/v1/messages") and "count_tokens" not in self.path:
            self._stream(_of_claude(self.model, asked))
        elif self.path.startswith("/v1/responses"):
            self._stream(_of_codex(self.model, asked))
        else:
            self._send(b"{}")

    def _stream(self, events: list[dict[str, Any]]) -> None:
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self._send("".join(lines).encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _next(model: Model, told: list[str]) -> Step | None:
    model.told = told if len(told) >= len(model.told) else model.told
    return model.steps[len(told)] if len(told) < len(model.steps) else None


def _of_claude(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Claude Code asks for titles and the like, too; only a conversation has the tool Bash."""
    blocks = [block for said in asked["messages"] if isinstance(said["content"], list) for block in said["content"]]
    told = [_text(block["content"]) for block in blocks if block.get("type") == "tool_result"]
    is_conversation = any(tool.get("name") == "Bash" for tool in asked.get("tools", []))
    step = _next(model, told) if is_conversation else None
    if step:
        block = {"type": "tool_use", "id": f"toolu_{len(told)}", "name": step.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": []}
    ended = {"stop_reason": "tool_use" if step else "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def _of_codex(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    said = [_text(item["output"]) for item in asked["input"] if item.get("type", "").endswith("_call_output")]
    told = [text for text in said if not text.startswith(NOT_YET)]
    # Tools of a server that is still starting are not there yet; a model would be slower than this one.
    is_early = len(said) > len(told) and said[-1].startswith(NOT_YET)
    time.sleep(RETRY_S if is_early else 0)
    step = _next(model, told) if len(said) - len(told) < MOST_RETRIES else None
    call = f"call_{len(said)}"
    item: dict[str, Any]
    if step is None:
        content = [{"type": "output_text", "text": "done"}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    elif isinstance(step.arguments, str):
        item = {"type": "custom_tool_call", "id": call, "call_id": call, "name": step.tool, "input": step.arguments}
    else:
        item = {"type": "function_call", "id": call, "call_id": call, "name": step.tool}
        item |= {"arguments": json.dumps(step.arguments)} | ({"namespace": step.namespace} if step.namespace else {})
    usage = {**USAGE, "input_tokens_details": None, "output_tokens_details": None, "total_tokens": 2}
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
    ]


def _text(content: Any) -> str:
    """What was told of a call: a text, or blocks that hold texts; an image is told as one word."""
    if isinstance(content, list):
        return "\n".join(
            IMAGE if "image" in str(block.get("type")) else str(block.get("text", "")) for block in content
        )
    return str(content)
