"""The screen of `top`: from what is known and the size of the window to its lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.resources.usage import Point, Share, thinned
from ..views.texts import cluster_lines, gpu_users
from .render import ago, bar_parts, count, knows, one_line
from .top_state import Row, TopState, gpu_share, is_free, who

if TYPE_CHECKING:
    from rich.text import Text

GIB = 1024
SPARKS, PLAIN_SPARKS = "▁▂▃▄▅▆▇█", "._-=+*%#"
JOB_STYLES = {
    **{"running": "cyan", "pending": "yellow", "succeeded": "green", "stopped": "yellow"},
    **{"failed": "red", "interrupted": "red", "unknown": "red"},
}
KEYS = "↑↓ choose  Enter log  s stop  r resume  i/n/g sort  / filter  ? help  q quit"
HELP = """
  Machines         CPU, memory, GPUs, and how that went over the last hour at most
    i  n  g        sort by idle score, by name, by free GPUs
    PgUp  PgDn     scroll, where not all fit

  Jobs             those that run first, then the newest
    Up Down  k j   choose one
    Enter          its log, as it grows (q or Esc: back)
    s              stop it, with all that it started
    r              resume it by its resume command, interrupted or ended

    /              only what contains a text (Enter: keep it, Esc: all again)
    q  Ctrl-C      quit

  idle: 1.00 is all free, 0.00 is all taken
  *     the sandbox that is used when none is named
"""


@dataclass(frozen=True)
class Widths:
    """Widths of the parts of a line."""

    columns: int
    bar: int
    spark: int
    name: int
    # How far a job is.
    done: int

    @classmethod
    def of(cls, columns: int) -> Widths:
        if columns < 100:
            return cls(columns, 7, 8, 14, 4)
        return cls(columns, 12, 16, 18, 14) if columns < 140 else cls(columns, 16, 30, 22, 18)


def draw(state: TopState, rows: int, columns: int, *, now: float) -> list[Text]:
    """Exactly so many lines, none wider than the window."""
    body = max(0, rows - 2)
    if state.is_helping:
        middle = [plain(line) for line in HELP.splitlines()]
    else:
        middle = fleet(state, body, Widths.of(columns), now)
    middle = [*middle, *[plain("")] * body][:body]
    return [fitted(line, columns) for line in (title(state, columns), *middle, footer(state))][:rows]


def fleet(state: TopState, room: int, widths: Widths, now: float) -> list[Text]:
    """Machines, and below them jobs, in that many lines."""
    machines, jobs = state.shown_machines(), state.shown_jobs()
    least_jobs = min(max(1, len(jobs)), max(3, room // 3)) + 2
    # GPU-hours of today, and of a week, by user.
    rows = sorted(state.usage.values(), key=lambda row: (-row["today"], -row["week"]))
    texts = (((f"  {row['user']} ", "bold"), (f"{row['today']:.1f} ({row['week']:.0f})", "")) for row in rows)
    used = [styled((" GPU-hours today (7 d)", "dim"), *(part for text in texts for part in text))] if rows else []
    above = [*machine_lines(state, machines, room - least_jobs - len(used), widths), *used]
    return [*above, plain(""), *job_lines(state, jobs, room - len(above) - 1, widths, now)]


# Machines


def machine_lines(state: TopState, machines: Sequence[Row], room: int, widths: Widths) -> list[Text]:
    """Show as much of each machine as there is room for: its GPUs line by line or in one line, one line, or only some.

    Every GPU comes before the partitions of clusters.
    """
    if not machines:
        said = "No machine fits." if state.machines else "No machine is configured; see remote-sandbox-mcp doctor."
        return [styled((said if state.is_loaded else "asking ...", "dim"))]
    points = [state.trends.get(row["name"], ()) for row in machines]
    shown = [brief(row, seen, widths) for row, seen in zip(machines, points, strict=True)]
    for make in (with_gpus, block):
        for number, row in enumerate(machines):
            # The first ones in the chosen order are shown whole.
            more = make(row, points[number], widths)
            if sum(map(len, shown)) + len(more) - len(shown[number]) <= room:
                shown[number] = more
    if sum(map(len, shown)) <= room:
        return [line for lines in shown for line in lines]
    return some_lines([compact(row, widths) for row in machines], state.passed, room)


def some_lines(lines: list[Text], passed: int, room: int) -> list[Text]:
    """All of them, or those from where the person has scrolled to, and how many more there are."""
    if len(lines) <= room:
        return lines
    first = min(passed, max(0, len(lines) - room + 1))
    rest = len(lines) - first - room + 1
    text = f"  {first + rest} more (PgUp, PgDn, or / to filter)"
    return [*lines[first : first + max(0, room - 1)], styled((text, "dim"))]


def block(row: Row, points: Sequence[Point], widths: Widths) -> list[Text]:
    """All about a machine: its GPUs and, of a cluster, its partitions."""
    used = row.get("resources", {})
    # As an agent gets them: they are a table already.
    partitions = cluster_lines(used["cluster"]) if "cluster" in used else ()
    return [*with_gpus(row, points, widths), *(styled((f"   {line}", "dim")) for line in partitions)]


def with_gpus(row: Row, points: Sequence[Point], widths: Widths) -> list[Text]:
    """A line for the machine, and one for each of its GPUs."""
    gpus = row.get("resources", {}).get("gpu", ())
    lines = [gpu_line(gpu, [_gpu_of(point, n) for point in points], widths) for n, gpu in enumerate(gpus)]
    return [head(row, points, widths), *lines]


def brief(row: Row, points: Sequence[Point], widths: Widths) -> list[Text]:
    """A line for the machine, and one for all of its GPUs."""
    gpus = row.get("resources", {}).get("gpu", ())
    return [head(row, points, widths), *([gpus_line(gpus, widths)] if gpus else ())]


def gpus_line(gpus: Sequence[Row], widths: Widths) -> Text:
    """A small bar for each, which are free, and who has the others."""
    name = one_line(str(gpus[0].get("name", ""))).removeprefix("NVIDIA ")
    line = sized(styled((f"   {len(gpus)} x {name}", "dim")), widths.name + 2)
    line.append_text(styled((sparks([gpu_share(gpu) for gpu in gpus]), "magenta")))
    groups: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        groups.setdefault(gpu_words(gpu), []).append(str(gpu.get("index", "?")))
    if not any(map(is_free, gpus)):
        line.append_text(styled(("  none free", "red")))
    for (words, style), indexes in sorted(groups.items(), key=lambda group: group[0][0] != "free"):
        line.append_text(styled((f"  {','.join(indexes)} ", ""), (words, style)))
    return line


def gpu_words(gpu: Row) -> tuple[str, str]:
    """A GPU's state and whose it is, with a style: free, held (full, but idle) by someone, or in use by someone."""
    if is_free(gpu):
        return "free", "bold green"
    is_held = gpu.get("state") == "held"
    state = "held" if is_held and not gpu.get("lease") else ""
    words = " ".join(filter(None, (state, gpu_users(gpu)))) or str(gpu.get("state") or "unknown")
    return words, "magenta" if is_held else "yellow"


def compact(row: Row, widths: Widths) -> Text:
    """One line, with a small bar for each GPU in the place of how it went."""
    gpus = row.get("resources", {}).get("gpu", ())
    line = head(row, (), replace(widths, spark=0), with_amount=not gpus)
    return line + styled(("  GPU ", "dim"), (sparks([gpu_share(gpu) for gpu in gpus]), "magenta")) if gpus else line


def head(row: Row, points: Sequence[Point], widths: Widths, *, with_amount: bool = True) -> Text:
    name = styled((f" {row['name']}", "bold"), (" *" if row.get("is_active") else "", "cyan"))
    line = sized(name, widths.name + 2)
    if row["state"] != "up":
        style = {"asking": "dim", "unasked": "dim"}.get(row["state"], "red")
        return line + styled((f"{row['state']}  {row.get('trouble', '')}", style))
    if "resources" not in row:
        return line + styled((f"up  {row.get('trouble', '')}", "yellow"))
    used = row["resources"]
    line.append_text(styled((f"idle {row.get('idle_score', 0.0):.2f} ", "bold cyan")))
    cpu, memory = used.get("cpu", {}), used.get("memory", {})
    line.append_text(gauge(" CPU", cpu_share(cpu), widths.bar))
    line.append_text(spark([point[1] for point in points], widths.spark))
    line.append_text(gauge("  mem", memory["used_pct"] / 100 if "used_pct" in memory else None, widths.bar))
    if widths.columns >= 100 and memory and with_amount:
        line.append(f" {amount(memory['used_mb'], memory['total_mb'])}")
    return line


def gpu_line(gpu: Row, points: Sequence[Share], widths: Widths) -> Text:
    name = one_line(str(gpu.get("name", "")))
    # Its bars are below those of the machine, where there is room for that.
    is_wide = widths.columns >= 100
    width = widths.name + (12 if is_wide else 1)
    line = sized(styled((f"   {gpu.get('index', '')} {name.removeprefix('NVIDIA ')}", "dim")), width)
    line.append_text(gauge(" use", share_of(gpu.get("util_pct")), widths.bar))
    line.append_text(spark(points, widths.spark))
    line.append_text(gauge("  mem", share_of(gpu.get("mem_used_pct")), widths.bar))
    parts = [amount(gpu["mem_used_mb"], gpu["mem_total_mb"])] if is_wide and gpu.get("mem_total_mb") else []
    parts += [f"{gpu['temperature_c']:.0f}°"] if "temperature_c" in gpu else []
    parts += [f"{gpu['power_w']:.0f}W"] if "power_w" in gpu else []
    # Whose it is matters most, and is cut last.
    words, look = gpu_words(gpu)
    line.append_text(styled((f" {words} ", look), ("".join(f" {part}" for part in parts), "")))
    return line


# Jobs


def job_lines(state: TopState, jobs: Sequence[Row], room: int, widths: Widths, now: float) -> list[Text]:
    titles = sized(plain("  JOB"), 27) + sized(plain("ON"), widths.name) + sized(plain("STATE"), 13)
    titles += sized(plain("FOR"), 8) + sized(plain("DONE"), widths.done + 1) + plain("COMMAND")
    titles.stylize("dim")
    if not jobs:
        return [titles, styled(("  none", "dim"))]
    chosen = state.chosen_job()
    at = next((number for number, row in enumerate(jobs) if row is chosen), 0)
    # As little as possible is scrolled, and the chosen one is always there.
    first = max(0, min(at - max(1, room - 1) + 1, len(jobs) - 1))
    shown = jobs[first : first + max(1, room - 1)]
    return [titles, *(job_line(row, row is chosen, widths, now) for row in shown)]


def job_line(row: Row, is_chosen: bool, widths: Widths, now: float) -> Text:
    outcome = row.get("outcome", row["state"])
    style, word = JOB_STYLES.get(outcome, ""), outcome
    if outcome == "failed" and "exit_code" in row:
        word = f"failed ({row['exit_code']})"
    line = sized(plain(f"{'>' if is_chosen else ' '} {one_line(row['tmux_session'])}"), 26) + plain(" ")
    line += sized(plain(one_line(row["sandbox"])), widths.name - 1) + plain(" ")
    line += sized(styled((word, style)), 12) + plain(" ")
    line += sized(plain(ran(row, now)), 7) + plain(" ") + sized(done(row, widths), widths.done) + plain(" ")
    line += plain(resumes(row) + waits(row) + one_line(str(row.get("command", ""))))
    if is_chosen:
        line = sized(line, widths.columns)
        line.stylize("reverse")
    return line


def resumes(row: Row) -> str:
    """Format when an interrupted job is resumed by itself, to stand before its command; else empty."""
    if not row.get("resume_ts"):
        return ""
    at = time.strftime("%H:%M", time.localtime(row["resume_ts"]))
    return f"resumes at {at}, attempt {row['resume_attempt']} of {row['max_resume_attempts']}: "


def waits(row: Row) -> str:
    """Format why a job has not started, to stand before its command; else empty."""
    reason = row.get("queue", {}).get("reason") if row["state"] == "pending" else ""
    return f"{one_line(reason)} | " if reason else ""


def done(row: Row, widths: Widths) -> Text:
    """Progress by its checkpoint: per cent, with a bar where there is room."""
    progress = row.get("checkpoint", {}).get("progress")
    if not progress or row.get("outcome") == "succeeded":
        return plain("")
    percent = f"{round(100 * progress['share']):>3}%"
    if widths.done <= 10:
        return plain(percent)
    return styled(*bar_parts(progress["share"], widths.done - len(percent) - 1, "cyan"), (f" {percent}", ""))


def ran(row: Row, now: float) -> str:
    seconds = row["running_s"] if "running_s" in row else now - row["began"] if row.get("began") else None
    return "" if seconds is None else ago(seconds)


# The lines around


def title(state: TopState, columns: int) -> Text:
    down = sum(row["state"] == "down" for row in state.machines.values())
    running = sum(row["state"] == "running" for row in state.jobs.values())
    text = f" {count(len(state.machines), 'machine')}" + (f", {down} down" if down else "")
    text += f"   {count(len(state.jobs), 'job')}, {running} running   by {state.sort}"
    text += f"   /{state.filter}" if state.filter and not state.is_filtering else ""
    line = sized(styled((text, "bold")), max(0, columns - 10)) + plain(f" {time.strftime('%H:%M:%S')} ")
    line.stylize("reverse")
    return line


def footer(state: TopState) -> Text:
    if state.question:
        row = state.jobs.get(state.question.job)
        what = who(row) if row else state.question.job
        return styled((f" {state.question.what} {what}? (y/n) ", "bold yellow"))
    if state.is_filtering:
        return styled((f" /{state.filter}", "bold"), ("█", ""))
    return styled((f" {state.note}", "yellow")) if state.note else styled((f" {KEYS}", "dim"))


# Pieces


def gauge(label: str, share: float | None, width: int) -> Text:
    """A bar and its per cent; red where little is left."""
    if share is None:
        return styled((f"{label} ", "dim"), (f"{'?':>{width}}", "dim"), ("     ", ""))
    return styled((f"{label} ", "dim"), *bar_parts(share, width), (f"{min(100, round(100 * share)):>4}%", ""))


def spark(shares: Sequence[Share], width: int) -> Text:
    """The last points as a row of small bars, the newest at the right."""
    if not width:
        return plain("")
    points = [(float(number), share, None, ()) for number, share in enumerate(shares)]
    shown = [point[1] for point in thinned(points, width)] if points else []
    return styled((f" {sparks(shown):>{width}}", "blue"))


def sparks(shares: Sequence[Share]) -> str:
    signs = SPARKS if knows(SPARKS) else PLAIN_SPARKS
    return "".join(" " if share is None else signs[min(7, max(0, int(share * 8)))] for share in shares)


def _gpu_of(point: Point, number: int) -> Share:
    return point[3][number] if number < len(point[3]) else None


def cpu_share(cpu: Row) -> Share:
    """The use or, where a machine does not say it, the load on each CPU."""
    cpus = cpu.get("machine_count") or cpu.get("count")
    if "used_pct" in cpu or not cpus or cpu.get("load_1m") is None:
        return share_of(cpu.get("used_pct"))
    return min(1.0, float(cpu["load_1m"] / cpus))


def share_of(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def amount(used_mb: float, total_mb: float) -> str:
    return f"{used_mb / GIB:.0f}/{total_mb / GIB:.0f} GB"


def styled(*parts: tuple[str, str]) -> Text:
    """Foreign text, made safe and one line, in colours."""
    from .render import styled

    return styled(*((one_line(text), style) for text, style in parts))


def plain(text: str) -> Text:
    return styled((text, ""))


def sized(line: Text, width: int) -> Text:
    """Exactly so wide: cut, or filled up with spaces."""
    cut = line.copy()
    cut.truncate(width, overflow="ellipsis", pad=True)
    return cut


def fitted(line: Text, width: int) -> Text:
    cut = line.copy()
    cut.truncate(width, overflow="ellipsis")
    return cut
