"""/healthz, /metrics and spans of a server, as those who operate it see them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from .conftest import Service, connected, service

pytestmark = pytest.mark.xdist_group("operation")
# An operator's own file, loaded into the server: there OpenTelemetry is set up, if it is installed.
TRACING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open({file!r}, "w", buffering=1))))
trace.set_tracer_provider(provider)
"""


def read(served: Service, path: str) -> str:
    url = f"http://127.0.0.1:{served.port}{path}"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {served.key}"} if served.key else {})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


async def test_health_numbers_and_spans_are_for_those_who_have_the_key(tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    (tmp_path / "tracing.py").write_text(TRACING.format(file=str(spans)))
    (tmp_path / "own.toml").write_text(f"extensions = [{json.dumps(str(tmp_path / 'tracing.py'))}]\n")
    with service(tmp_path / "home", "--config", str(tmp_path / "own.toml"), "--port", "0") as served:
        async with connected(served) as caller:
            await caller.call("exec_bash", command="true", sandbox_name="local")
        health, numbers = json.loads(read(served, "/healthz")), read(served, "/metrics")
        assert health["status"] == "ok"
        assert 'remote_sandbox_calls_total{tool="exec_bash",outcome="done"} 1' in numbers.splitlines()
        assert 'remote_sandbox_machine_up{machine="local"} 1' in numbers.splitlines()
        for path in ("/healthz", "/metrics"):
            assert served.ask("GET", path)[0] == 401
            assert served.ask("POST", path, Authorization=f"Bearer {served.key}")[0] == 405
            assert served.ask("GET", path, Authorization=f"Bearer {served.key}", Host="evil.example.org")[0] == 421
    assert '"name": "tools/call exec_bash"' in spans.read_text()


def test_without_a_key_on_loopback_they_are_open(tmp_path: Path) -> None:
    with service(tmp_path / "home", "--port", "0", "--no-auth") as served:
        assert json.loads(read(served, "/healthz"))["status"] == "ok"
        assert "remote_sandbox_calls_total" in read(served, "/metrics")
