"""The text of results: complete by itself, because some clients show their model nothing else; and short."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..core.texts.text import counted

Fields = Mapping[str, Any]

# Longer texts get lines of their own.
LONGEST_INLINE = 200


# Any result


def fields_text(first: str, fields: Fields, *, without: Collection[str] = ()) -> str:
    """A first line, then all other fields: short ones on one line, longer texts and lists below."""
    rest = {name: value for name, value in fields.items() if name not in without}
    short = [_pair(name, value) for name, value in rest.items() if not _is_long(value)]
    long = [line for name, value in rest.items() if _is_long(value) for line in _block(name, value)]
    return "\n".join(filter(None, (first, ", ".join(short), *long)))


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value or len(value) > LONGEST_INLINE
    return isinstance(value, list) and any(isinstance(item, dict) or _is_long(item) for item in value)


def _block(name: str, value: Any) -> Iterator[str]:
    yield f"{name}:"
    if isinstance(value, str):
        yield value.rstrip("\n")
    else:
        yield from (f"- {_inline(item)}" for item in value)


def _pair(name: str, value: Any) -> str:
    return name if value is True else f"{name}: {_inline(value)}"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(_pair(name, item) if item != {} else name for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"({_inline(item)})" if isinstance(item, dict) else _inline(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else "" if value is None else one_line(str(value))


def one_line(text: str) -> str:
    """A foreign name or sentence on one line: a line break in it must not begin another row."""
    return text.replace("\n", "\\n")


# Sandboxes


def sandboxes_text(fields: Fields) -> str:
    """One line per sandbox, and the problems of the configuration."""
    rows: Sequence[Fields] = fields["sandboxes"]
    active = fields["active_sandbox"] or "none"
    lines = [f"{_how_many_answer(rows)}; active: {active}", *map(sandbox_line, rows)]
    return "\n".join([*lines, *(f"problem: {one_line(problem)}" for problem in fields.get("problems", ()))])


def _how_many_answer(rows: Sequence[Fields]) -> str:
    alive = sum(row["connection_alive"] for row in rows)
    if len(rows) == 1:
        return f"1 sandbox, which {'answers' if alive else 'does not answer'}"
    return f"{len(rows)} sandboxes, {alive} of them {'answers' if alive == 1 else 'answer'}" if rows else "no sandboxes"


IN_A_LINE = ("name", "kind", "host", "port", "user", "is_active", "connection_alive", "connection_error", "resources")


def sandbox_line(row: Fields) -> str:
    answers = "answers" if row["connection_alive"] else f"does not answer: {one_line(row.get('connection_error', ''))}"
    parts = [f"{'*' if row.get('is_active') else '-'} {row['name']} ({kind_and_address(row)}) {answers}"]
    parts += [_inline({name: value}) for name, value in row.items() if name not in IN_A_LINE]
    found = row.get("resources", {})
    return "\n  ".join(["; ".join([*parts, *_resources(found)]), *cluster_lines(found.get("cluster", {}))])


def kind_and_address(row: Fields) -> str:
    host = ":".join(str(row[name]) for name in ("host", "port") if row.get(name))
    address = "@".join(filter(None, (row.get("user"), host)))
    return ", ".join(filter(None, (str(row["kind"]), address)))


def _resources(found: Fields) -> Iterator[str]:
    """Describe a machine's resources and their use, including GPUs, as parts of one line."""
    if "idle_score" in found:
        yield f"idle_score {found['idle_score']}"
    if "measured_on" in found:
        yield f"what follows is of {found['measured_on']}"
    if cpu := found.get("cpu"):
        loads = "/".join(str(cpu[name]) for name in ("load_1m", "load_5m", "load_15m") if name in cpu)
        used = f"CPU {cpu['used_pct']} % used, " if "used_pct" in cpu else ""
        yield f"{used}load {loads} on {counted(cpu['count'], 'CPU') if 'count' in cpu else '? CPUs'}"
    if memory := found.get("memory"):
        yield f"memory {_gb(memory['free_mb'])} of {_gb(memory['total_mb'])} GB free"
    for name in ("disk", "root_disk"):
        if disk := found.get(name):
            yield f"{disk.get('path', name)} {disk.get('free_gb')} of {disk.get('total_gb')} GB free"
    yield from map(_gpu, found.get("gpu", ()))
    rest = ("idle_score", "cluster", "measured_on", "cpu", "memory", "disk", "root_disk", "gpu")
    yield from (_pair(name, value) for name, value in found.items() if name not in rest)


IN_GPU = ("index", "name", "state", "util_pct", "mem_used_mb", "mem_total_mb", "mem_used_pct", "processes")


def _gpu(gpu: Fields) -> str:
    parts = [gpu["state"]] if "state" in gpu else []
    parts += [f"{gpu['util_pct']} %"] if "util_pct" in gpu else []
    if "mem_total_mb" in gpu:
        parts.append(f"{_gb(gpu.get('mem_used_mb', 0))} of {_gb(gpu['mem_total_mb'])} GB used")
    parts += [_pair(name, value) for name, value in gpu.items() if name not in IN_GPU]
    parts += [_gpu_process(process) for process in gpu.get("processes", ())]
    return f"GPU {gpu.get('index', '?')} {gpu.get('name', '')}: {', '.join(parts)}"


def _gpu_process(process: Fields) -> str:
    used = f" {_gb(process['mem_mb'])} GB" if "mem_mb" in process else ""
    since = f" for {process['elapsed']}" if "elapsed" in process else ""
    return f"{process.get('user', '?')} {process.get('name', '')} (pid {process.get('pid', '?')}){used}{since}"


def _gb(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f}"


PARTITION_TITLES = (
    "partition", "idle", "mixed", "allocated", "down", "CPUs idle", "GPUs idle", "jobs waiting", "time limit", "score"
)  # fmt: skip


def cluster_lines(found: Fields) -> Iterator[str]:
    """The partitions of a cluster as a table, then the caller's jobs and limits there."""
    rows = [PARTITION_TITLES, *map(_partition, found.get("partitions", ()))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else ():
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if "more_partitions" in found:
        yield f"and {counted(found['more_partitions'], 'more partition')}"
    if found.get("partitions"):
        yield f"your jobs: {_my_jobs(found.get('my_jobs', {}))}{_oldest(found.get('oldest_pending', {}))}"
    yield from (f"your limit: {_inline(limit)}" for limit in found.get("my_limits", ()))
    if "limits_unknown" in found:
        yield f"your limits are unknown: {one_line(found['limits_unknown'])}"
    if "asked_s_ago" in found:
        yield f"asked {found['asked_s_ago']} s ago"
    yield from (f"problem: {one_line(problem)}" for problem in found.get("problems", ()))


def _partition(row: Fields) -> tuple[str, ...]:
    name = one_line(row["name"]) + (" (default)" if row.get("default") else "")
    nodes, cpus = row["nodes"], row["cpus"]
    gpus = ", ".join(f"{one_line(gpus['type'])} {gpus['idle']} of {gpus['total']}" for gpus in row.get("gpus", ()))
    return (
        f"{name} ({row['state']})" if "state" in row else name,
        *(str(nodes[kind]) for kind in ("idle", "mixed", "allocated", "down")),
        f"{cpus['idle']} of {cpus['total']}",
        gpus or "-",
        str(row.get("waiting_jobs", 0)),
        row.get("time_limit", "none"),
        str(row["idle_score"]),
    )


def _my_jobs(jobs: Fields) -> str:
    parts = (
        f"{sum(counts.values())} {state} ({', '.join(f'{count} in {name}' for name, count in counts.items())})"
        for state, counts in jobs.items()
    )
    return ", ".join(parts) or "none"


def _oldest(job: Fields) -> str:
    if not job:
        return ""
    start = f", expected to start {job['expected_start']}" if "expected_start" in job else ""
    since = f", since {job['submitted']}" if "submitted" in job else ""
    return f"; the oldest pending is {job['job']} in {job['partition']}: {one_line(job['reason'])}{since}{start}"


# Files


def listing_text(fields: Fields, folder: str) -> str:
    """A table: time, size, name; folders end with a slash."""
    rows: Sequence[Fields] = fields["entries"]
    width = max((len(str(row["size"])) for row in rows), default=0)
    lines = [f"{row['modified']} {row['size']:>{width}} {_name(row)}" for row in rows]
    where = f" in {folder}" if folder else ""
    return "\n".join((f"{counted(len(rows), 'entry', 'entries')}{where}{go_on(fields)}", *lines, *_problems(fields)))


def _name(row: Fields) -> str:
    kind = f" ({row['kind']})" if "kind" in row else ""
    return f"{one_line(row['path'])}{'/' if row['is_dir'] else ''}{kind}"


def matches_text(fields: Fields) -> str:
    rows: Sequence[Fields] = fields["matches"]
    lines = [f"{row['path']}:{row['line']}:{row.get('text', '')}" if "line" in row else row["path"] for row in rows]
    return "\n".join((f"{len(rows)} found{go_on(fields)}", *map(one_line, lines), *_problems(fields)))


def go_on(fields: Fields) -> str:
    """Explain how to get the next part, where there is more."""
    if next_cursor := fields.get("next_cursor"):
        return f"; there are more: the same call with cursor={next_cursor!r} goes on"
    return "; there are more" if fields.get("truncated") else ""


def _problems(fields: Fields) -> Iterator[str]:
    yield from (one_line(f"problem: {it['path']}: {it['reason']}") for it in fields.get("problems", ()))


def content_text(fields: Fields, length: int) -> str:
    """A part of a file, after a line that says which part it is."""
    offset = fields.get("offset", 0)
    parts = [f"{length} of {counted(fields['size'], 'byte')}" + (f" from offset {offset}" if offset else "")]
    if "next_offset" in fields:
        parts.append(f"offset={fields['next_offset']} goes on")
    if encoding := fields.get("encoding"):
        parts.append(f"not text, so in {encoding}" if encoding == "base64" else f"read as {encoding}")
    if hidden := fields.get("invisible_characters"):
        parts.append(f"{counted(hidden, 'invisible character')}, shown as \\u escapes")
    return f"{'; '.join(parts)}\n{fields['content']}"


def image_text(fields: Fields) -> str:
    """An image, which follows the text where it can be shown."""
    pixels = f", {fields['width']} x {fields['height']} pixels" if "width" in fields else ""
    return f"{fields['mime_type']}{pixels}, {fields['size']} bytes; {fields.get('problem', 'shown as an image')}"


def taken_text(fields: Fields) -> str:
    """Files that were taken out of a sandbox, and those that could not be."""
    files: Sequence[Fields] = fields["files"]
    lines = [f"not taken: {problem['reason']}" for problem in fields.get("problems", ())]
    lines += [f"problem_count: {fields['problem_count']}"] if "problem_count" in fields else []
    lines += [fields["note"]] if "note" in fields else []
    # Failures come before content, which may be long.
    return "\n".join((f"{len(files)} taken", *lines, *_file_lines(files)))


def files_text(verb: str, files: Sequence[Fields]) -> str:
    """Files that were put in place or taken: a line for each, then what is in them."""
    return "\n".join((f"{len(files)} {verb}", *_file_lines(files)))


def _file_lines(files: Sequence[Fields]) -> Iterator[str]:
    for file in files:
        if "mime_type" in file:
            yield f"- {file['path']}: {image_text(file)}"
            continue
        yield f"- {_inline({name: value for name, value in file.items() if name != 'content'})}"
        if file.get("content"):
            yield _readable(file["content"])


def _readable(content: str) -> str:
    """Base64 decoded to text, if it is text."""
    import base64

    try:
        text = base64.b64decode(content).decode("utf-8")
    except UnicodeDecodeError:
        return f"base64: {content}"
    return f"base64: {content}" if "\0" in text else text.rstrip("\n")


# Jobs


# What an entry of the list of jobs is, where it is no job.
KINDS_OF_TASK = {
    "command": " (a command of exec_bash)",
    "shell": " (a session of exec_bash)",
    "python": " (run_python)",
}


def job_line(task: Fields) -> str:
    """One job of a list."""
    rest = {name: value for name, value in task.items() if name not in ("status", "tmux_session", "sandbox", "kind")}
    kind = KINDS_OF_TASK.get(task.get("kind", ""), "")
    return f"{task['status']}: {one_line(task['tmux_session'])} on {task['sandbox']}{kind}; {_inline(rest)}"


def tasks_text(tasks: Sequence[Fields]) -> str:
    return "\n".join(map(job_line, tasks)) or "no jobs"


def transfers_text(tasks: Sequence[Fields]) -> str:
    """A line for each transfer: what it moves, then how far it is."""
    return "\n".join(map(_transfer_line, tasks)) or "no transfers"


def _transfer_line(task: Fields) -> str:
    rest = {name: value for name, value in task.items() if name not in ("task_id", "status", "source", "target")}
    return f"{task['task_id']} {task['status']}: {task['source']} to {task['target']}; {_inline(rest)}"


def rows_text(rows: Sequence[Fields], nothing: str) -> str:
    """A line for each."""
    return (
        "\n".join(_inline({name: value for name, value in row.items() if value not in (None, "", {})}) for row in rows)
        or nothing
    )


def gpu_users(gpu: Mapping[str, Any]) -> str:
    """Name who has leased a GPU, and its users, each once, with their programs."""
    found: dict[str, list[str]] = {}
    for process in gpu.get("processes", ()):
        found.setdefault(process.get("user") or "somebody", []).append(process.get("name") or f"pid {process['pid']}")
    users = [f"{user} {', '.join(dict.fromkeys(names))}" for user, names in found.items()]
    if lease := gpu.get("lease"):
        own = f"{lease['user']} · {lease['job']}" if lease.get("job") else f"leased by {lease['user']}"
        users = [own, *(words for user, words in zip(found, users, strict=True) if user != lease["user"])]
    return "  ".join(users)
