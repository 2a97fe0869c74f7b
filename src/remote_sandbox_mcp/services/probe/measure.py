"""Look at a machine: run probe.sh there, and cluster.sh where it is a login node, and read what they say."""

from __future__ import annotations

import re
from time import monotonic
from weakref import WeakKeyDictionary

from ...core.commands.command import Command, Completed, Ending, Running
from ...core.commands.shell import join
from ...core.errors import SandboxError
from ...core.resources.report import parse_usage
from ...core.resources.usage import Usage
from ...core.sandboxes.sandbox import Sandbox
from ...core.sandboxes.slurm import Cluster
from ...core.texts.text import last_line
from ...far.program import read_program

# rocm-smi prints 60 KB of JSON for 64 AMD partitions.
_KEEP = 200_000
_LATE_S = 5.0
# Both at once; what the cluster says comes after what the machine says.
_BOTH = 'sh -c "$1" cluster "$2" | { sh -c "$3" probe $4; cat; }'
# What the CPUs had done at the last look over a connection, and when: one that is this old serves the next look.
_looks: WeakKeyDictionary[object, tuple[float, str]] = WeakKeyDictionary()
_LEAST_S, _MOST_S = 0.2, 15.0
_COUNTERS = re.compile(r"^@@ stat\n (cpu .*)$", re.MULTILINE)


async def measure(sandbox: Sandbox, timeout_s: float = 12.0, cluster: Cluster | None = None) -> Usage:
    """Measure the load of the sandbox's machine, and the cluster where it is one's login node, in one round trip.

    What hangs there (a broken GPU driver, a dead file server) is left out, and the Usage says so.
    Raises what `sandbox.run` raises, and SandboxError where the machine's answer holds nothing.
    """
    since, counters = _looks.get(sandbox.connection, (0.0, "")) if sandbox.connection else (0.0, "")
    earlier = f"@@ stat\n {counters}\n" if _LEAST_S <= monotonic() - since <= _MOST_S else ""
    # A machine that cannot finish its probe in time counts as not answering.
    outcome = await sandbox.run(
        Command(_script(cluster, "once" if earlier else ""), timeout_s=timeout_s, keep=_KEEP),
        patience_s=timeout_s + _LATE_S,
    )
    sandbox.forget(outcome.run_id)
    said = (outcome.stdout.head + outcome.stdout.tail).decode("utf-8", "replace")
    if sandbox.connection and (found := _COUNTERS.findall(said)):
        _looks[sandbox.connection] = monotonic(), found[-1]
    try:
        return parse_usage(earlier + said)
    except ValueError as error:
        raise _problem(f"unable to measure {sandbox.description.name}", outcome, error, timeout_s) from error


def _script(cluster: Cluster | None, looks: str) -> str:
    """One command for whatever shell is configured; the probe itself runs in sh."""
    probe = read_program("probe/probe.sh")
    if cluster is None:
        return "exec " + join(["sh", "-c", probe, "probe", looks])
    # Sent at whole seconds, because that is what a shell can count.
    rate = str(max(1, round(cluster.rate_s)))
    return "exec " + join(["sh", "-c", _BOTH, "probe", read_program("probe/cluster.sh"), rate, probe, looks])


def _problem(doing: str, outcome: Completed | Running, error: ValueError, timeout_s: float) -> SandboxError:
    if isinstance(outcome, Running) or outcome.ending is Ending.TIMED_OUT:
        found = f"it did not answer within {timeout_s:g} s. It may be overloaded"
        return SandboxError.of_parts(doing, found, "try again later")
    said = last_line(outcome.stderr.head + outcome.stderr.tail) or str(error)
    return SandboxError.of_parts(doing, f"the probe ended with exit code {outcome.exit_code}: {said}")
