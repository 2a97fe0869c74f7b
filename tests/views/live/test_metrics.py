from __future__ import annotations

from remote_sandbox_mcp.services.history import Tally
from remote_sandbox_mcp.views.live.metrics import metrics_text


def test_calls_are_counted_by_tool_and_outcome_and_their_times_by_bounds() -> None:
    tally = Tally()
    tally.add("exec_bash", "done", 0.2)
    tally.add("exec_bash", "failed", 70)
    text = metrics_text(tally, [], [])
    for line in (
        'remote_sandbox_calls_total{tool="exec_bash",outcome="done"} 1',
        'remote_sandbox_call_seconds_bucket{tool="exec_bash",le="0.1"} 0',
        'remote_sandbox_call_seconds_bucket{tool="exec_bash",le="0.25"} 1',
        'remote_sandbox_call_seconds_bucket{tool="exec_bash",le="300.0"} 2',
        'remote_sandbox_call_seconds_bucket{tool="exec_bash",le="+Inf"} 2',
        'remote_sandbox_call_seconds_sum{tool="exec_bash"} 70.2',
        'remote_sandbox_call_seconds_count{tool="exec_bash"} 2',
    ):
        assert line in text.splitlines()


def test_machines_cards_and_jobs_are_shown_and_names_are_quoted() -> None:
    card = {"index": 0, "name": 'A "100"', "util_pct": 7, "mem_used_mb": 1, "mem_total_mb": 2, "lease": {"user": "eve"}}
    machines = [
        {"name": "gpu1", "state": "up", "idle_score": 0.5, "resources": {"gpu": [card]}},
        {"name": "gpu2", "state": "down"},
    ]
    jobs = [{"sandbox": "gpu1", "state": "running"}] * 2 + [{"sandbox": "gpu1", "state": "ended"}]
    lines = metrics_text(Tally(), machines, jobs).splitlines()
    named = 'machine="gpu1",gpu="0",model="A \\"100\\""'
    for line in (
        'remote_sandbox_machine_up{machine="gpu1"} 1',
        'remote_sandbox_machine_up{machine="gpu2"} 0',
        'remote_sandbox_machine_idle_score{machine="gpu1"} 0.5',
        f"remote_sandbox_gpu_utilization_percent{{{named}}} 7",
        f"remote_sandbox_gpu_memory_used_bytes{{{named}}} 1048576",
        f"remote_sandbox_gpu_memory_bytes{{{named}}} 2097152",
        f"remote_sandbox_gpu_leased{{{named}}} 1",
        'remote_sandbox_jobs{machine="gpu1",state="running"} 2',
    ):
        assert line in lines
    kinds = [line for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)) == 9
    assert "eve" not in "\n".join(lines)
