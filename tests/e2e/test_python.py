"""run_python through the real server, over real SSH: it outlives calls and servers, and ends when it is told to."""

from __future__ import annotations

from pathlib import Path

from mcp.types import ImageContent

from tests.backends.contract.pythons import STUBS
from tests.support.server import Server, entry, serve, until
from tests.support.sshd import Sshd

SLOW = "import time\nfor step in range(12):\n    print('step', step)\n    time.sleep(0.1)"


async def test_a_python_lives_between_calls_and_servers(server: Server, machine: Sshd, tmp_path: Path) -> None:
    beats: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        beats.append(message or "")

    first = await server.call("run_python", code="import os\nmodel = {'w': 1}\nos.getpid()")
    assert (first["new"], first["memory_mb"] > 1) == (True, True)
    await server.call("run_python", code=SLOW, progress=heard)
    assert any(beat.startswith("step") for beat in beats)
    await server.call("run_python", code=STUBS)
    shown = await server.ask("run_python", code="figure()\nNone")
    assert [part.mime_type for part in shown.content if isinstance(part, ImageContent)] == ["image/png"]
    # Another server, as another client would start it.
    async with serve(tmp_path, entry(machine)) as other:
        assert (await other.call("run_python", code="model, os.getpid()"))["value"] == f"({{'w': 1}}, {first['value']})"
        (task,) = (await other.call("list_background_tasks"))["tasks"]
        assert (task["tmux_session"], task["kind"], task["status"]) == ("python:main", "python", "idle")
        await other.call("stop_background_task", tmux_session="python:main")
    await until(lambda: int(first["value"]) not in machine.processes(), "the end of the interpreter")
    assert (await server.call("run_python", code="'model' in globals()"))["new"] is True
    await server.call("stop_background_task", tmux_session="python:main")
    await until(lambda: "remote_sandbox_python" not in str(machine.processes()), "the end of all that was started")
