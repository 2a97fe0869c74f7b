"""Look at a machine: run probe.sh there, and cluster.sh where it is a login node, and read what they say."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ..core.command import Command, Completed, Ending, Running
from ..core.errors import SandboxError
from ..core.sandbox import Sandbox
from ..core.shell import join
from ..core.slurm import Cluster
from ..core.text import last_line
from ..core.usage import Usage
from ..core.usage_report import parse_usage

# rocm-smi prints 60 KB of JSON for 64 AMD partitions.
_KEEP = 200_000
_LATE_S = 5.0
# Both at once; what the cluster says comes after what the machine says.
_BOTH = 'sh -c "$1" cluster "$2" | { sh -c "$3"; cat; }'


async def measure(sandbox: Sandbox, timeout_s: float = 12.0, cluster: Cluster | None = None) -> Usage:
    """How busy the sandbox's machine is, and the cluster where it is one's login node, in one round trip.

    What hangs there (a broken GPU driver, a dead file server) is left out, and the Usage says so.
    Raises what `sandbox.run` raises, and SandboxError where the machine's answer holds nothing.
    """
    # A machine that cannot finish its probe in time counts as not answering.
    outcome = await sandbox.run(
        Command(_script(cluster), timeout_s=timeout_s, keep=_KEEP), patience_s=timeout_s + _LATE_S
    )
    sandbox.forget(outcome.run_id)
    try:
        return parse_usage((outcome.stdout.head + outcome.stdout.tail).decode("utf-8", "replace"))
    except ValueError as error:
        raise _problem(f"unable to measure {sandbox.description.name}", outcome, error, timeout_s) from error


def _script(cluster: Cluster | None) -> str:
    """One command for whatever shell is configured; the probe itself runs in sh."""
    if cluster is None:
        return "exec " + join(["sh", "-c", _text("probe.sh")])
    # Sent at whole seconds, because that is what a shell can count.
    rate = str(max(1, round(cluster.rate_s)))
    return "exec " + join(["sh", "-c", _BOTH, "probe", _text("cluster.sh"), rate, _text("probe.sh")])


@cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _problem(doing: str, outcome: Completed | Running, error: ValueError, timeout_s: float) -> SandboxError:
    if isinstance(outcome, Running) or outcome.ending is Ending.TIMED_OUT:
        found = f"it did not answer within {timeout_s:g} s. It may be overloaded"
        return SandboxError.of_parts(doing, found, "try again later")
    said = last_line(outcome.stderr.head + outcome.stderr.tail) or str(error)
    return SandboxError.of_parts(doing, f"the probe ended with exit code {outcome.exit_code}: {said}")
