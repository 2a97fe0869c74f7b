"""What `top` shows and what keys do, without a terminal: order, filter, choice, questions, and every size of window."""

from __future__ import annotations

import re
from typing import Any

import pytest

from remote_sandbox_mcp.cli.top_screen import draw
from remote_sandbox_mcp.cli.top_state import TopState, Wish

NOW = 1_000_000.0


def gpu(index: int, use: float, **more: Any) -> dict[str, Any]:
    told = {"index": index, "name": "NVIDIA H200", "util_pct": use, "mem_used_pct": use, "mem_used_mb": 1024 * use}
    state = "busy" if use else "free"
    return told | {"mem_total_mb": 102_400, "temperature_c": 57, "power_w": 692.4, "state": state} | more


def machine(name: str, idle: float = 0.5, *gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    used = {"cpu": {"load_1m": 2.0, "count": 4}, "memory": {"used_mb": 1024, "total_mb": 4096, "used_pct": 25}}
    return {"name": name, "state": "up", "idle_score": idle, "resources": used | {"gpu": [*gpus]}} | more


def job(name: str, sandbox: str = "a", state: str = "running", **more: Any) -> dict[str, Any]:
    return {"sandbox": sandbox, "tmux_session": name, "state": state, "command": "train", "began": NOW - 60} | more


def state(*machines: dict[str, Any], jobs: tuple[dict[str, Any], ...] = ()) -> TopState:
    made = TopState()
    made.take("machines", {row["name"]: row for row in machines}, (), True)
    made.take("jobs", {f"{row['sandbox']}/{row['tmux_session']}": row for row in jobs}, (), True)
    return made


def shown(made: TopState, rows: int = 24, columns: int = 80) -> str:
    lines = draw(made, rows, columns, now=NOW)
    assert len(lines) == rows
    assert all(line.cell_len <= columns for line in lines)
    return "\n".join(line.plain for line in lines)


def test_a_machine_is_shown_with_what_is_used_and_by_whom() -> None:
    busy = gpu(0, 80.0, processes=[{"user": "ann", "name": "python"}, {"user": "ann", "name": "python"}])
    made = state(machine("gpu1", 0.25, busy, is_active=True), jobs=(job("t"),))
    made.take("trends", {"gpu1": {"points": [(n, n / 8, None, (n / 8,)) for n in range(8)]}}, (), True)
    made.take("trends", {"gpu1": {"add": [(9.0, 1.0, None, (1.0,))]}}, (), False)
    text = shown(made, columns=160)
    assert "gpu1 *" in text
    assert "idle 0.25" in text
    assert "CPU ████████░░░░░░░░  50%" in text
    assert " ▁▂▃▄▅▆▇██ " in text
    assert "0 H200" in text
    assert "ann python  80/100 GB 57° 692W" in text
    assert "ann python  57°" in shown(made)


def test_whose_a_gpu_is_and_who_used_how_many_hours_is_shown() -> None:
    leased = gpu(0, 80.0, lease={"user": "ann", "job": "llama-7b"}, processes=[{"user": "root", "name": "python"}])
    made = state(machine("gpu1", 0.25, leased), jobs=(job("t"),))
    assert "GPU-hours" not in shown(made)
    rows = {name: {"user": name, "today": today, "week": 80.0} for name, today in (("bob", 1.0), ("ann", 12.34))}
    made.take("usage", rows, (), True)
    text = shown(made, rows=30, columns=120)
    assert "ann · llama-7b" in text
    assert "GPU-hours today (7 d)  ann 12.3 (80)  bob 1.0 (80)" in text


def test_where_not_all_gpus_have_room_a_machine_has_them_in_one_line_and_the_first_ones_are_whole() -> None:
    held = gpu(0, 90.0, processes=[{"user": "ann", "name": "python"}])
    eight = [held, *(gpu(number, 0.0) for number in range(1, 8))]
    made = state(machine("a", 0.9, *eight), machine("b", 0.5, *eight), jobs=(job("t"),))
    text = shown(made, rows=20, columns=100)
    assert text.count(" H200") == 9
    assert "8 x H200" in text
    assert "1,2,3,4,5,6,7 free  0 ann python" in text
    assert "  GPU █▁▁▁▁▁▁▁" in shown(made, rows=7)


@pytest.mark.parametrize(
    ("key", "order"),
    [pytest.param("i", "bca", id="idle"), pytest.param("n", "abc", id="name"), pytest.param("g", "cab", id="gpu")],
)
def test_machines_are_sorted(key: str, order: str) -> None:
    made = state(machine("a", 0.1, gpu(0, 90.0)), machine("b", 0.9), machine("c", 0.5, gpu(0, 0.0), gpu(1, 0.0)))
    made.press(key)
    assert "".join(row["name"] for row in made.shown_machines()) == order


def test_jobs_that_run_come_first_and_one_is_chosen_by_keys() -> None:
    made = state(jobs=(job("old", state="ended", outcome="failed", exit_code=3), job("b"), job("new", began=NOW)))
    assert [row["tmux_session"] for row in made.shown_jobs()] == ["new", "b", "old"]
    assert "> new" in shown(made)
    for key in ("down", "j", "j", "k"):
        made.press(key)
    assert "> b" in shown(made)
    assert made.press("enter") == Wish("log", "a/b")
    made.press("end")
    assert "failed (3)" in next(line for line in shown(made).splitlines() if line.startswith("> old"))


def test_a_filter_is_typed_kept_and_dropped() -> None:
    made = state(machine("gpu1"), machine("gpu2"), jobs=(job("train", "gpu1"), job("prep", "gpu2")))
    for key in "/", "q", "backspace", *"prep":
        made.press(key)
    assert "/prep█" in shown(made)
    made.press("enter")
    assert [row["name"] for row in made.shown_machines()] == ["gpu2"]
    assert [row["tmux_session"] for row in made.shown_jobs()] == ["prep"]
    made.press("esc")
    assert len(made.shown_jobs()) == 2
    assert made.press("q") == Wish("quit")


@pytest.mark.parametrize(
    ("row", "key", "asks", "says"),
    [
        pytest.param(job("t"), "s", "stop t on a? (y/n)", "", id="stop"),
        pytest.param(job("t", state="ended"), "s", "", "t on a does not run", id="stop what is over"),
        pytest.param(job("t", state="gone", can_resume=True), "r", "resume t on a? (y/n)", "", id="resume"),
        pytest.param(job("t"), "r", "", "it can be resumed when it is over", id="resume what runs"),
        pytest.param(job("t", state="gone"), "r", "", "jobs resume t --command COMMAND", id="no resume command"),
        pytest.param(job("t", state="ended", kind="command"), "r", "", "a command of exec_bash", id="a command"),
    ],
)
def test_what_changes_a_job_is_confirmed_or_refused(row: dict[str, Any], key: str, asks: str, says: str) -> None:
    for answer, wish in (("y", "a/t"), ("n", None), ("enter", None)):
        made = state(jobs=(row,))
        assert made.press(key) is None
        assert (asks or says) in shown(made).splitlines()[-1]
        if asks:
            granted = made.press(answer)
            assert (granted and granted.job) == wish


@pytest.mark.parametrize("size", [(1, 1), (3, 10), (10, 40), (24, 80), (24, 132), (50, 160), (200, 300)], ids=str)
def test_every_size_of_window_is_filled_and_no_line_is_too_wide(size: tuple[int, int]) -> None:
    machines = [machine(f"機械-{n}", n / 40, *(gpu(m, 50.0) for m in range(8))) for n in range(30)]
    jobs = tuple(job(f"訓練-{n}", f"機械-{n % 30}") for n in range(50))
    made = state(*machines, machine("down", state="down", trouble="no route " * 30), jobs=jobs)
    for key in ("", "?", "", "end", "page down"):
        made.press(key)
        shown(made, *size)


def test_where_not_all_machines_fit_each_has_a_line_and_the_rest_is_counted() -> None:
    made = state(
        *(machine(f"m{n:02}", 1 - n / 100, *(gpu(m, 95.0 - 90 * m) for m in (0, 1))) for n in range(10)),
        jobs=(job("t"),),
    )
    assert "GPU █▁" in shown(made, 18)
    assert "more (PgUp, PgDn" in shown(made, 12)
    first = shown(made, 12).splitlines()[1]
    made.press("page down")
    assert shown(made, 12).splitlines()[1] != first


def test_foreign_text_cannot_write_to_the_terminal() -> None:
    evil = "\x1b]0;evil\x07\x1b[2J\r\nx\u202e"
    made = state(
        machine(f"m{evil}", 0.5, gpu(0, 5.0, name=evil, processes=[{"user": evil, "name": evil}])),
        machine("down", state="down", trouble=evil),
        jobs=(job(f"j{evil}", f"s{evil}", command=evil),),
    )
    text = shown(made, 24, 200)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)


def test_before_anything_is_known_it_says_so() -> None:
    assert "asking ..." in shown(TopState())
    assert "No machine is configured" in shown(state())


def test_every_gpu_has_its_state_before_a_cluster_has_its_partitions() -> None:
    lease = {"user": "ann", "job": "train-7"}
    held = gpu(0, 90.0, util_pct=0.0, state="held", processes=[{"user": "ann", "name": "python"}], lease=lease)
    partitions = [
        {
            "name": f"part{n}",
            "nodes": {"idle": 1, "mixed": 0, "allocated": 0, "down": 0},
            "idle_score": 0.5,
            "cpus": {"idle": 1, "total": 2},
        }
        for n in range(30)
    ]
    cluster = machine("slurm", 0.9)
    cluster["resources"] |= {"cluster": {"partitions": partitions, "my_jobs": {}}}
    made = state(cluster, machine("a", 0.5, held, *(gpu(n, 0.0) for n in range(1, 8))), jobs=(job("t"),))
    text = shown(made, rows=40, columns=120)
    assert "ann · train-7" in text
    assert text.count(" free ") == 7
    assert "part29" not in text


def test_the_cpu_is_its_use_and_never_above_all_of_it() -> None:
    busy, loaded = machine("busy"), machine("loaded")
    busy["resources"] |= {"cpu": {"used_pct": 37.5, "load_1m": 9.0, "count": 4}}
    loaded["resources"] |= {"cpu": {"load_1m": 90.0, "count": 4}}
    text = shown(state(busy, loaded))
    assert re.search(r"busy .* CPU \S+ +38%", text)
    assert re.search(r"loaded .* CPU \S+ +100%", text)


def test_a_job_shows_how_far_it_is() -> None:
    progress = {"checkpoint": {"value": {}, "progress": {"share": 0.25, "words": "step 1 / 4"}}}
    made = state(machine("a"), jobs=(job("t", **progress), job("u", outcome="succeeded", **progress)))
    assert re.search(r"> t .* 25% train", shown(made))
    assert re.search(r"> t .* ██░░░░░░░  25% train", shown(made, columns=120))
    # Of one that has ended well, the last checkpoint says nothing more.
    assert not re.search(r"  u .* 25%", shown(made))
