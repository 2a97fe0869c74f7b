"""Reads the output of probe.sh into a Usage; no output makes the reading fail."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ..jobs.cards import CardLease
from ..sandboxes.cluster import OUT_OF_TIME, ClusterUsage, Section, read_cluster, tidy
from .usage import Cpu, Disk, Gpu, GpuProcess, Memory, Usage

_MIB = 1024 * 1024


@dataclass(frozen=True)
class _Cards:
    """Report of one vendor's tool."""

    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    problems: tuple[str, ...] = ()


# The year 5138: a later time is nonsense.
_LAST_MOMENT = 1e11
# Of /proc/stat, between two looks at it.
LEAST_TICKS = 10
_Report = Mapping[str, Sequence[Section]]


def parse_usage(text: str) -> Usage:
    """Read what probe.sh printed, and cluster.sh where it ran, whole or cut off.

    What cannot be read is missing, and listed in `problems`. Raises ValueError where nothing can be read.
    """
    report = _sections(text)
    nvidia, amd = _nvidia(report), _amd(report)
    cpu, memory, disks = _cpu(report), _memory(_named(report, "memory")), _disks(report)
    missing = [
        f"the machine did not tell its {name}"
        for name, value in (("load", cpu), ("memory", memory), ("disk space", disks))
        if not value
    ]
    # A rocm-smi left over on a machine with NVIDIA cards is not worth a message.
    error = nvidia.error or ("" if nvidia.gpus else amd.error)
    unfinished = () if "end" in report else ("the machine's answer was cut off",)
    usage = Usage(
        cpu=cpu, memory=memory, gpus=_leased(report, nvidia.gpus + amd.gpus), disks=disks, gpu_error=error,
        clock=_number("".join(_first(report, "clock").lines[:1])), cluster=_cluster(report),
        problems=(*missing, *nvidia.problems, *amd.problems, *unfinished),
    )  # fmt: skip
    if not (cpu or memory or disks or usage.gpus or error):
        raise ValueError(f"the machine's answer holds nothing that can be read: {tidy(text[:400], 120)!r}")
    return usage


# Text


def _sections(text: str) -> _Report:
    # Split at "\n" only: a process name of another user may hold characters at which splitlines would split.
    report: dict[str, list[Section]] = {}
    for block in ("\n" + text).split("\n@@ ")[1:]:
        marker, *lines = block.split("\n")
        name, *words = marker.split() or [""]
        said = tuple(line[1:] for line in lines if line[:1] == " ")
        report.setdefault(name, []).append(Section("".join(words[:1]), said, "".join(words[1:2])))
    return report


def _first(report: _Report, name: str) -> Section:
    return report.get(name, (Section(),))[0]


def _number(text: str) -> float | None:
    """A plain number that is not negative; None for [N/A], [Not Supported], ERR! and everything else."""
    found = re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,9})?", text.strip())
    return float(found.group()) if found else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _percent(text: str) -> float | None:
    number = _number(text)
    return None if number is None else min(100.0, number)


def _named(report: _Report, name: str) -> dict[str, int]:
    lines = [re.match(r"([A-Za-z][\w. ]*):\s+([0-9]{1,19})(?![0-9])", line) for line in _first(report, name).lines]
    return {found.group(1): int(found.group(2)) for found in lines if found}


def _value(text: str) -> str:
    """The text; empty for the tools' words for nothing: [N/A], [Not Found], 0x..., Unsupported."""
    text = text.strip()
    return "" if re.match(r"\[|N/A|0x|unsupported|unknown", text, re.IGNORECASE) else tidy(text, 80)


# The host


def _cpu(report: _Report) -> Cpu | None:
    words = " ".join(_first(report, "load").lines[:1]).strip("{ ").split()[:3]
    load = [number for number in map(_number, words) if number is not None]
    if len(load) != 3:
        return None
    one, five, fifteen = load
    values = _named(report, "cpus")
    counts = [values[name] for name in ("usable", "online") if values.get(name)]
    if counts and values.get("quota") and values.get("period"):
        counts.append(math.ceil(values["quota"] / values["period"]))
    online, used = values.get("online") or None, _used_pct(report)
    return Cpu(one, five, fifteen, count=min(counts, default=None), online=online, used_pct=used)


def _used_pct(report: _Report) -> float | None:
    """The share of time in which the CPUs computed, between two looks at /proc/stat."""
    looks = [_busy_and_all(section) for section in report.get("stat", ())]
    if len(looks) < 2 or not looks[0] or not looks[-1]:
        return None
    (busy, all_), (busy_then, all_then) = looks[-1], looks[0]
    passed = all_ - all_then
    # A counter may step back, and a few ticks say nothing.
    return round(min(100.0, max(0.0, 100 * (busy - busy_then) / passed)), 1) if passed >= LEAST_TICKS else None


def _busy_and_all(section: Section) -> tuple[float, float] | None:
    """Ticks in which CPUs computed, and all of them, of `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ...`."""
    words = " ".join(section.lines[:1]).split()
    ticks = [number for number in map(_number, words[1:9]) if number is not None]
    # Time in guests, which follows, is a part of USER.
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if len(ticks) == 8 else None


def _memory(values: Mapping[str, int]) -> Memory | None:
    total, available = _linux_memory(values) if "MemTotal" in values else _paged_memory(values)
    if not total or available is None:
        return None
    limit = values.get("memory.max", values.get("memory.limit_in_bytes", total))
    used = values.get("memory.current", values.get("memory.usage_in_bytes"))
    if limit < total:
        # In a container the host's memory is not ours; files that the kernel can drop do not count as used.
        kept = max(0, (used or 0) - values.get("inactive_file", values.get("total_inactive_file", 0)))
        total, available = limit, min(available, limit - kept)
    return Memory(total / _MIB, min(total, max(0, available)) / _MIB)


def _linux_memory(values: Mapping[str, int]) -> tuple[int, int | None]:
    available = values.get("MemAvailable")
    if available is None and "MemFree" in values:
        # Kernels before 3.14 do not report the sum. Shmem is part of Cached but cannot be dropped.
        parts = ("MemFree", "Buffers", "Cached", "SReclaimable")
        available = sum(values.get(part, 0) for part in parts) - values.get("Shmem", 0)
    return values["MemTotal"] * 1024, None if available is None else available * 1024


def _paged_memory(values: Mapping[str, int]) -> tuple[int, int | None]:
    pages = [
        count
        for name, count in values.items()
        if re.fullmatch(r"Pages (free|inactive|speculative)|vm\.stats\.vm\.v_(free|inactive|laundry)_count", name)
    ]
    total = values.get("hw.memsize", values.get("hw.physmem", 0))
    return total, sum(pages) * values.get("hw.pagesize", 4096) if pages else None


def _disks(report: _Report) -> tuple[Disk, ...]:
    by_place = {section.status: _disk(section.lines) for section in report.get("disk", ())}
    found = [disk for disk in (by_place.get("home"), by_place.get("root")) if disk]
    return tuple({disk.path: disk for disk in found}.values())


def _disk(lines: Iterable[str]) -> Disk | None:
    for line in lines:
        # From the right: on macOS the file system's own name may hold spaces.
        row = re.search(r"\s([0-9]{1,18})\s+([0-9]{1,18})\s+(-?[0-9]{1,18})\s+(?:[0-9]+%|-)\s+(/.*)", line)
        if row and int(row.group(1)):
            total, used, free = (max(0, int(row.group(n))) / _MIB for n in (1, 2, 3))
            return Disk(tidy(row.group(4), 200), total, used, free)
    return None


def _cluster(report: _Report) -> ClusterUsage | None:
    if "cluster" not in report:
        return None
    answers = {name: sections[0] for name, sections in report.items()}
    return read_cluster(_first(report, "cluster").status, answers, "told" in report)


# GPUs


def _complaint(program: str, section: Section, said: Sequence[str]) -> str:
    text = tidy(" ".join(said), 300)
    if section.status in OUT_OF_TIME:
        return f"{program} did not answer in time; the driver may hang"
    if section.status != "0":
        return f"{program} failed with exit code {section.status}" + (f": {text}" if text else "")
    return f"{program}: {text or 'it lists no GPU'}"


def _silent(report: _Report, program: str) -> _Cards:
    asked = any(section.status == program for section in report.get("asking", ()))
    return _Cards(error=f"{program} did not answer in time; the driver may hang" if asked else "")


def _cards(program: str, section: Section, gpus: Sequence[Gpu], said: Sequence[str]) -> _Cards:
    if gpus and section.status == "0":
        return _Cards(tuple(gpus), problems=(_complaint(program, section, said),) if said else ())
    return _Cards(tuple(gpus), error=_complaint(program, section, said))


def _nvidia(report: _Report) -> _Cards:
    if "nvidia" not in report:
        return _silent(report, "nvidia-smi")
    section = _first(report, "nvidia")
    columns = section.more.split(",")
    rows = [(line, _gpu_row(line, columns)) for line in section.lines if line.strip()]
    gpus = [piece for _, row in rows if row for piece in _pieces(_nvidia_gpu(row), _first(report, "slices").lines)]
    cards = _cards("nvidia-smi", section, gpus, [line for line, row in rows if not row])
    return _with_processes(cards, *_nvidia_processes(report, cards.gpus))


def _gpu_row(line: str, columns: Sequence[str]) -> dict[str, str]:
    """The cells by column; empty if the line is a message instead of a row."""
    cells = [cell.strip() for cell in line.split(",")]
    row = dict(zip(columns, cells, strict=True)) if len(cells) == len(columns) else {}
    return row if _whole(row.get("index", "")) is not None else {}


def _nvidia_gpu(row: Mapping[str, str]) -> Gpu:
    def cell(name: str) -> str:
        return row.get(name, "")

    return Gpu(
        index=_whole(cell("index")) or 0, name=_value(cell("name")) or "NVIDIA GPU", uuid=_value(cell("uuid")),
        util_pct=_percent(cell("utilization.gpu")), mem_total_mb=_number(cell("memory.total")),
        mem_used_mb=_number(cell("memory.used")), temperature_c=_number(cell("temperature.gpu")),
        power_w=_number(cell("power.draw")), compute_mode=_value(cell("compute_mode")),
        mig=cell("mig.mode.current") == "Enabled",
    )  # fmt: skip


_SLICE = re.compile(r"\s*MIG\s+(\S+)\s+Device\s+[0-9]+:\s+\(UUID:\s+(MIG-[^)]+)\)")


def _pieces(gpu: Gpu, listed: Iterable[str]) -> list[Gpu]:
    """The MIG slices of a card, which are leased one by one, where they are listed; else the card itself."""
    found, is_here = [], False
    for line in listed if gpu.mig else ():
        is_here = f"(UUID: {gpu.uuid})" in line if line.startswith("GPU ") else is_here
        if is_here and (part := _SLICE.match(line)):
            # Its size is in the name of its profile: 3g.20gb.
            size = re.search(r"\.([0-9]{1,4})gb", part[1])
            total = float(size[1]) * 1024 if size else None
            name, uuid = f"{gpu.name} MIG {tidy(part[1], 40)}", _value(part[2])
            found.append(replace(gpu, name=name, uuid=uuid, card=gpu.uuid, mem_total_mb=total))
    return found or [gpu]


_Held = tuple[str, GpuProcess]  # the uuid of a GPU, and a process on it


def _nvidia_processes(report: _Report, gpus: Sequence[Gpu]) -> tuple[list[_Held], tuple[str, ...]]:
    section = _first(report, "apps")
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in section.lines]
    owners = _owners(report)
    held = [(_home(row[0], gpus), _nvidia_process(row, owners)) for row in rows if len(row) == 4 and _whole(row[1])]
    problems = ("nvidia-smi did not list the GPU processes in time",) if section.status in OUT_OF_TIME else ()
    return held, problems


def _nvidia_process(row: Sequence[str], owners: Mapping[int, GpuProcess]) -> GpuProcess:
    pid, name = _whole(row[1]) or 0, _value(row[3])
    # If nvidia-smi finds no name, the pid belongs to another container; here the same pid is a different process.
    owner = owners.get(pid, GpuProcess(pid)) if name else GpuProcess(pid)
    name = name.rsplit("/", 1)[-1] if name.startswith("/") else name
    return replace(owner, name=name or owner.name, mem_mb=_number(row[2]))


def _home(uuid: str, gpus: Sequence[Gpu]) -> str:
    """The card's uuid: older drivers write MIG-<card's uuid>/1/0 for a slice, newer ones give it its own uuid."""
    slices = [gpu for gpu in gpus if gpu.mig] if uuid.startswith("MIG-") else []
    for gpu in gpus:
        if gpu.uuid and gpu.uuid in uuid:
            return gpu.uuid
    return slices[0].uuid if len(slices) == 1 else uuid


def _with_processes(cards: _Cards, held: Sequence[_Held], problems: tuple[str, ...] = ()) -> _Cards:
    homes = {uuid for gpu in cards.gpus for uuid in (gpu.uuid, gpu.card)}
    lost = sum(uuid not in homes for uuid, _ in held)
    if lost and cards.gpus:
        problems = (*problems, f"{lost} GPU processes could not be matched to a GPU")
    gpus = tuple(_with_own(gpu, held) for gpu in cards.gpus)
    return replace(cards, gpus=gpus, problems=cards.problems + problems)


def _with_own(gpu: Gpu, held: Sequence[_Held]) -> Gpu:
    # An older driver names the whole card for a process in one of its slices.
    found = [process for uuid, process in held if uuid in (gpu.uuid, gpu.card)]
    found.sort(key=lambda process: (-(process.mem_mb or 0), process.pid))
    used = sum(process.mem_mb or 0 for process in found) if gpu.card else gpu.mem_used_mb
    return replace(gpu, processes=tuple(found), mem_used_mb=used)


def _leased(report: _Report, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    leases = {section.status: _lease(section) for section in report.get("lease", ())}
    return tuple(replace(gpu, lease=leases.get(gpu.uuid.replace("/", "_"))) for gpu in gpus)


def _lease(section: Section) -> CardLease:
    """A lease, as the machine tells it: any of its users may have written the lines."""
    said = dict(line.split(" ", 1) for line in section.lines if " " in line)
    user = section.more
    user = said.get("user", "") if user in ("", "-", "UNKNOWN") else user
    since, until = (_number(said.get(name, "")) or 0.0 for name in ("since", "until"))
    return CardLease(tidy(user, 64) or "unknown", tidy(said.get("job", ""), 60), _moment(since), _moment(until))


def _moment(seconds: float) -> float:
    return seconds if seconds < _LAST_MOMENT else 0.0


def _owners(report: _Report) -> dict[int, GpuProcess]:
    rows = [line.split(None, 3) for section in report.get("owners", ()) for line in section.lines]
    found = [
        GpuProcess(pid, user=tidy(row[1], 64), name=_value("".join(row[3:])), elapsed_s=_elapsed(row[2]))
        for row in rows
        if len(row) >= 3 and (pid := _whole(row[0]))
    ]
    return {process.pid: process for process in found}


def _elapsed(text: str) -> int | None:
    found = re.fullmatch(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,2}):)?([0-9]{1,3}):([0-9]{2})", text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _amd(report: _Report) -> _Cards:
    if "rocm" not in report:
        return _silent(report, "rocm-smi")
    section = _first(report, "rocm")
    cards = _json_object("\n".join(section.lines))
    gpus = [_amd_gpu(name, card) for name, card in cards.items() if re.fullmatch(r"card[0-9]{1,4}", name)]
    values = _cards("rocm-smi", section, gpus, () if gpus else section.lines)
    return _with_processes(values, _amd_processes(report, values.gpus))


def _json_object(text: str) -> dict[str, dict[str, str]]:
    """The first JSON object in the text; warnings may surround it."""
    # Each attempt reads up to where the JSON breaks off, so only a few are made.
    for start in islice(re.finditer(r"^\{", text, re.MULTILINE), 20):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        return {
            name: {key.lower(): str(value) for key, value in card.items()}
            for name, card in found.items()
            if isinstance(card, dict)
        }
    return {}


def _amd_gpu(name: str, card: Mapping[str, str]) -> Gpu:
    """Releases of rocm-smi differ in capitals, sensors, and what they call the power."""

    def some(*patterns: str) -> str:
        found = (
            value for pattern in patterns for key, value in card.items() if re.match(pattern, key) and _value(value)
        )
        return next(found, "")

    return Gpu(
        index=int(name[4:]),
        name=_value(some("card series", "card model", "device name", "card sku")) or "AMD GPU",
        uuid=some("guid") or name,
        util_pct=_percent(some(r"gpu use \(%\)")),
        mem_total_mb=_mib(some(r"vram total memory \(b\)")),
        mem_used_mb=_mib(some(r"vram total used memory \(b\)")),
        temperature_c=_number(some(r"temperature \(sensor junction", r"temperature \(sensor edge", "temperature")),
        power_w=_number(some(r"(current socket|average) graphics package power")),
    )


def _mib(text: str) -> float | None:
    number = _number(text)
    return None if number is None else number / _MIB


def _amd_processes(report: _Report, gpus: Sequence[Gpu]) -> list[_Held]:
    owners = _owners(report)
    # Releases before 6.0 do not tell the id that the kernel has for a card.
    only = gpus[0].uuid if len(gpus) == 1 else ""
    rows = [line.split() for line in _first(report, "kfd").lines]
    return [
        (only or row[0], replace(owners.get(pid, GpuProcess(pid)), mem_mb=memory))
        for row in rows
        if len(row) == 3 and (pid := _whole(row[1])) and (memory := _mib(row[2]))
    ]
