"""The numbers of a server as text, in the format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import Any

from ...services.history import BOUNDS_S, Tally
from .board import Row

# Fields of a GPU, their families, and what one of their unit is.
GPU_FIELDS = (
    ("util_pct", "gpu_utilization_percent", 1),
    ("mem_used_mb", "gpu_memory_used_bytes", 1 << 20),
    ("mem_total_mb", "gpu_memory_bytes", 1 << 20),
)


def metrics_text(tally: Tally, machines: Collection[Row], jobs: Iterable[Row]) -> str:
    """Calls since this process began; machines, GPUs and jobs as they were last seen."""
    families: dict[str, list[str]] = {"calls_total counter": [], "call_seconds histogram": [], "machine_up gauge": []}
    for family, line in (*_calls(tally), *_gauges(machines, jobs)):
        families.setdefault(family, []).append(line)
    return "".join(line for family, lines in families.items() for line in (f"# TYPE remote_sandbox_{family}\n", *lines))


def _line(name: str, value: float, **labels: Any) -> str:
    escaped = {key: str(it).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, it in labels.items()}
    shown = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"remote_sandbox_{name}{{{shown}}} {value:.12g}\n"


def _calls(tally: Tally) -> Iterator[tuple[str, str]]:
    for (tool, outcome), count in tally.calls.items():
        yield "calls_total counter", _line("calls_total", count, tool=tool, outcome=outcome)
    for tool, counts in tally.took.items():
        for bound, count in zip((*BOUNDS_S, "+Inf"), accumulate(counts), strict=True):
            yield "call_seconds histogram", _line("call_seconds_bucket", count, tool=tool, le=bound)
        yield "call_seconds histogram", _line("call_seconds_sum", tally.seconds[tool], tool=tool)
        yield "call_seconds histogram", _line("call_seconds_count", sum(counts), tool=tool)


def _gauges(machines: Iterable[Row], jobs: Iterable[Row]) -> Iterator[tuple[str, str]]:
    for row in machines:
        machine = row["name"]
        yield "machine_up gauge", _line("machine_up", row["state"] == "up", machine=machine)
        if row.get("idle_score") is not None:
            yield "machine_idle_score gauge", _line("machine_idle_score", row["idle_score"], machine=machine)
        for gpu in row.get("resources", {}).get("gpu", ()):
            labels = {"machine": machine, "gpu": gpu["index"], "model": gpu.get("name", "")}
            yield "gpu_leased gauge", _line("gpu_leased", bool(gpu.get("lease")), **labels)
            for field, family, unit in GPU_FIELDS:
                if gpu.get(field) is not None:
                    yield f"{family} gauge", _line(family, gpu[field] * unit, **labels)
    for (machine, state), count in Counter((row.get("sandbox", ""), row["state"]) for row in jobs).items():
        yield "jobs gauge", _line("jobs", count, machine=machine, state=state)
