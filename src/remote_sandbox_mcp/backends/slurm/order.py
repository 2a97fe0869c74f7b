"""A SandboxOrder as the words of sbatch and the script that holds the allocation: pure."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.commands.shell import join, quote
from ...core.errors import BadArgument, Unsupported
from ...core.sandboxes.disposable import DISPOSABLE_ID, Limits, SandboxOrder
from ...core.sandboxes.slurm import Cluster, Options, time_limit_s, words
from ...far.program import read_program

PREFIX = "rsmcp"
# Where allocations leave their signs, below the home folder; holder.py removes its own.
SIGNS = ".local/state/remote-sandbox/allocations"
VERSION = re.compile(r"\b(\d{1,3})\.(\d{1,3})\b")
KEY = re.compile(r"[0-9]{1,18}\Z")
# A type of GPU as clusters name them, and how many.
GPU = re.compile(r"(?P<type>[A-Za-z][A-Za-z0-9_.-]{0,63})(?::(?P<count>[1-9][0-9]{0,3}))?\Z")
# An allocation is one job, which we must be able to tell from all others; and it never begins anew behind our back.
NOT_FOR_ALLOCATIONS = ("array", "requeue")
# What an order's own fields say, and the options of Slurm that would say it once more.
SAME = {
    "cpu": ("cpus_per_task",),
    "memory": ("mem", "mem_per_cpu", "mem_per_gpu"),
    "gpu": ("gres", "gpus", "gpus_per_node", "gpus_per_task"),
}
# As old as the flag is that lets a step share what another step has; before it, every step did.
OVERLAP_SINCE = (20, 11)
END_OF_PROGRAM = "END_OF_HOLDER"
LONGEST_S = 366 * 86400


@dataclass(frozen=True)
class BatchSubmission:
    """Input of sbatch: its arguments, and the script on its standard input. `limit_s` is 0 for no time limit."""

    words: Sequence[str]
    script: str
    limit_s: float


@functools.cache
def program(name: str) -> str:
    """A program for the nodes, without its comments: of the relay, everybody sees it who lists the processes there."""
    lines = read_program(f"slurm/{name}.py").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.strip().startswith("#"))


def job_name(mark: str, disposable_id: str) -> str:
    """The name of its job in the queue, by which it is found again."""
    return f"{PREFIX}-{mark}-{disposable_id}"


def id_in(name: str, mark: str) -> str:
    """The id in a job's name, if it is one of ours.

    >>> id_in("rsmcp-ab12-sb-0123456789ab", "ab12"), id_in("rsmcp-ab12-x", "ab12")
    ('sb-0123456789ab', '')
    """
    found = name.removeprefix(f"{PREFIX}-{mark}-")
    return found if found != name and DISPOSABLE_ID.match(found) else ""


def sign_of(disposable_id: str) -> str:
    """The file by which an allocation says that it runs, as a word for a shell. All nodes share the home folder."""
    return f'"$HOME/{SIGNS}/{disposable_id}"'


def checked(order: SandboxOrder, where: str) -> SandboxOrder:
    """The order as a cluster can keep it. Raises BadArgument, Unsupported."""
    for asked, name in ((order.hosts, "network"), (order.volumes, "volumes"), (order.entrypoint, "entrypoint")):
        if asked:
            raise Unsupported(f"{name}: an allocation of {where} has the nodes' own; leave it out")
    if order.network is False:
        raise Unsupported(f"network: nobody can take the network from an allocation of {where}; leave it out")
    if order.image:
        raise Unsupported(f"image: an allocation of {where} has the nodes' own system; start a container in it")
    for name in NOT_FOR_ALLOCATIONS:
        if order.slurm.get(name):
            raise BadArgument(f"slurm option {name} is for background jobs and not for a sandbox; leave it out")
    for name, given in (("cpu", order.limits.cpu), ("memory", order.limits.memory_mb), ("gpu", order.limits.gpus)):
        twice = [option for option in SAME[name] if given and option in order.slurm]
        if twice:
            raise BadArgument(f"{name} and slurm option {twice[0]} say the same; give one of them")
    notes = ["cpu, memory and gpu: given out by the queue; how they are held is the cluster's matter"]
    if order.limits.gpu_memory_mb:
        notes.append("gpu_memory: Slurm has no option for it; name a type of GPU, as gpu='a100:2'")
    return replace(order, limits=replace(order.limits, gpus=gpu_count(order.limits), told=tuple(notes)), network=True)


def gpu_count(limits: Limits) -> int:
    """Count the GPUs, of all types. Raises BadArgument.

    >>> gpu_count(Limits(gpus=1, cards=("a100:2",))), gpu_count(Limits(gpus=3)), gpu_count(Limits())
    (2, 3, 0)
    """
    return sum(int(part.rpartition(":")[2]) for part in gres(limits).split(",") if part)


def gres(limits: Limits) -> str:
    """GPUs as sbatch takes them: "gpu:2" or "gpu:a100:2". Raises BadArgument.

    >>> gres(Limits(gpus=2)), gres(Limits(gpus=1, cards=("a100:2",))), gres(Limits(gpus=1, cards=("2",)))
    ('gpu:2', 'gpu:a100:2', 'gpu:2')
    """
    if not limits.cards:
        return f"gpu:{limits.gpus}" if limits.gpus else ""
    if len(limits.cards) == 1 and limits.cards[0].isdecimal() and int(limits.cards[0]) > 0:
        return f"gpu:{int(limits.cards[0])}"
    kinds = [GPU.match(card) for card in limits.cards]
    if not all(kinds):
        raise BadArgument('gpu: on a cluster, GPUs are named by type and number; write 2, "a100" or "a100:2"')
    return ",".join(f"gpu:{kind['type']}:{kind['count'] or 1}" for kind in kinds if kind)


def submission(cluster: Cluster, disposable_id: str, order: SandboxOrder, mark: str) -> BatchSubmission:
    """Build the submission of an order that was checked."""
    options = options_of(cluster, order)
    silent = [f"--{name}=/dev/null" for name in ("output", "error", "input")]
    argv = ["sbatch", "--parsable", "--no-requeue", f"--job-name={job_name(mark, disposable_id)}", *silent]
    limit_s = time_limit_s(str(options.get("time", "")))
    return BatchSubmission(
        [*argv, "--open-mode=append", *words(options)], script(disposable_id, order, limit_s or LONGEST_S), limit_s
    )


def options_of(cluster: Cluster, order: SandboxOrder) -> Options:
    limits = order.limits
    asked = {
        "cpus_per_task": str(math.ceil(limits.cpu)) if limits.cpu else "",
        "mem": f"{limits.memory_mb}M" if limits.memory_mb else "",
        "gres": gres(limits),
    }
    given = {name: value for name, value in asked.items() if value}
    options = dict(cluster.options({**order.slurm, **given}))
    for name in NOT_FOR_ALLOCATIONS:
        options.pop(name, None)
    # A default of the operator's that is shorter than the sandbox is to live does not count; a caller's time does.
    if order.timeout_s and "time" not in order.slurm:
        usual_s = time_limit_s(str(options.get("time", "")))
        options["time"] = options["time"] if usual_s >= order.timeout_s else str(math.ceil(order.timeout_s / 60))
    return options


def script(disposable_id: str, order: SandboxOrder, limit_s: float) -> str:
    """The batch script. Variables are in it, which only its user and the cluster's administrators can read."""
    lines = [
        "#!/bin/sh",
        "# An allocation that is used as a sandbox over srun. To end it: scancel, or delete_sandbox.",
        f'(umask 077; mkdir -p "$HOME/{SIGNS}" && : >{sign_of(disposable_id)}) 2>/dev/null',
        "python=$(command -v python3)",
        *(f"export {name}={quote(value)}" for name, value in order.env.items()),
        'if [ -n "$python" ]; then',
        f"exec \"$python\" -IS - {disposable_id} {order.timeout_s:.0f} <<'{END_OF_PROGRAM}'",
        program("holder"),
        END_OF_PROGRAM,
        "fi",
        "# Without Python, every command is a step of its own, and this only keeps the place.",
        f"exec sleep {limit_s:.0f}",
    ]
    return "\n".join(lines) + "\n"


# With Python, the line runs in the batch step; else in the step itself, with which it ends.
_ENTER = (
    'if command -v python3 >/dev/null; then exec python3 -IS -c "$1" "$2" "$3" "$4"; fi; '
    '[ "$3" != L ] || exec /bin/sh -c "$4"'
)


def step_line(number: str, disposable_id: str, wanted: str, text: str, version: tuple[int, int]) -> str:
    """Line for the login node's shell that enters an allocation: `L` runs a shell line, `U` sets how long it lives."""
    # The step asks for nothing of what the job has: it only hands on its input and output, which srun would otherwise
    # keep back until a line of text is whole.
    share = ["--overlap"] if version >= OVERLAP_SINCE else []
    plain = ["--nodes=1", "--ntasks=1", "--relative=0", "--mem=0", "--gres=none", "--mpi=none", "--cpu-bind=none"]
    step = ["srun", f"--jobid={number}", *share, *plain, "--unbuffered", "--quiet", "--job-name=rsmcp"]
    return f"exec {join([*step, '/bin/sh', '-c', _ENTER, 'sh', program('relay'), disposable_id, wanted, text])}"


def read_version(said: str) -> tuple[int, int]:
    """Parse "slurm 22.05.8"; a version that is not understood is taken for a present one.

    >>> read_version("slurm-wlm 22.05.8"), read_version("slurm 20.02.7"), read_version("?")
    ((22, 5), (20, 2), (99, 0))
    """
    found = VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else (99, 0)
