"""Settings of a Slurm cluster by its operator, and the options of an allocation or a job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import BadArgument

# The options of sbatch that a caller may give. Not among them: those that name files, users or programs, because
# these are ours to choose (output, error, chdir, export, uid, wrap and their like).
_NAMES = (
    "account array begin comment constraint core_spec cpus_per_gpu cpus_per_task deadline dependency distribution "
    "exclude exclusive gpus gpus_per_node gpus_per_task gres gres_flags hint licenses mem mem_per_cpu mem_per_gpu "
    "nice nodelist nodes ntasks ntasks_per_core ntasks_per_node ntasks_per_socket oversubscribe partition qos requeue "
    "reservation signal sockets_per_node switches threads_per_core time time_min tmp wckey"
)
OPTIONS = frozenset(_NAMES.split())
# Options without a value.
_SWITCHES = frozenset({"exclusive", "oversubscribe", "requeue"})
# What a value of any of these options can consist of; nothing that could begin another option or line.
_VALUE = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:;/@=%&|*+?()\[\] -]{0,999}\Z|-?\d{1,9}\Z")

# Of each of these, sbatch takes one: a call that gives one takes the operator's others out.
_ONE_OF = (
    frozenset({"mem", "mem_per_cpu", "mem_per_gpu"}),
    frozenset({"gres", "gpus", "gpus_per_node", "gpus_per_task"}),
)
# As sbatch takes a time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<first>\d{1,7})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?\Z")

Options = Mapping[str, str | bool]


@dataclass(frozen=True)
class Cluster:
    """A machine that is the login node of a Slurm cluster, as its operator configured it.

    `defaults` are options for everything that is submitted there, unless a call gives others. The queue is asked at
    most every `rate_s` seconds, whoever wants to know. `login_jobs`: jobs that say so run on the login node itself.
    """

    defaults: Options = field(default_factory=dict)
    rate_s: float = 10.0
    login_jobs: bool = False

    def options(self, given: Options) -> Options:
        """The operator's defaults with what a call asks for; "" or false takes a default out."""
        replaced = frozenset().union(*(group for group in _ONE_OF if group & given.keys()))
        kept = {name: value for name, value in self.defaults.items() if name not in replaced}
        return {name: value for name, value in {**kept, **given}.items() if value not in ("", False)}


def read_options(given: Mapping[str, object]) -> Options:
    """The options of a call or of the configuration, by their names in sbatch. Raises BadArgument."""
    options: dict[str, str | bool] = {}
    for name, value in given.items():
        option = str(name).strip().lstrip("-").replace("-", "_").lower()
        if option not in OPTIONS:
            raise BadArgument(f"slurm has an option {str(name)[:40]!r}, which cannot be given here{_near(option)}")
        options[option] = _read_value(option, value)
    return options


def _near(name: str) -> str:
    # Imported here: every start reads this file.
    import difflib

    near = difflib.get_close_matches(name[:40], sorted(OPTIONS), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else "; there are " + ", ".join(sorted(OPTIONS))


def _read_value(name: str, value: object) -> str | bool:
    if isinstance(value, bool):
        if value and name not in _SWITCHES:
            raise BadArgument(f"slurm option {name} needs a value, as sbatch --{name.replace('_', '-')}=VALUE does")
        return value
    text = str(value).strip() if isinstance(value, str | int | float) else None
    if text == "":
        return ""
    if text is None or not _VALUE.match(text):
        raise BadArgument(
            f"slurm option {name} has a value that sbatch cannot be given; write it as in sbatch's manual"
        )
    return text


def in_slurms_words(gpus: int, run_for_s: float, priority: int) -> Options:
    """Translate what a job asks of any machine; a lower priority is Slurm's nice."""
    options = {"gpus": str(gpus or ""), "time": str(math.ceil(run_for_s / 60) or ""), "nice": str(max(0, -priority))}
    return {name: value for name, value in options.items() if value not in ("", "0")}


def words(options: Options) -> list[str]:
    """The options as arguments of sbatch, each one word."""
    shown = sorted((name.replace("_", "-"), value) for name, value in options.items())
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in shown if value not in ("", False)]


def time_limit_s(text: str) -> float:
    """The seconds of a time limit as sbatch takes it; 0 where it says none (UNLIMITED), or nothing that we know."""
    found = _TIME.match(text.strip())
    if found is None:
        return 0.0
    days, first, second, third = (int(found[name] or 0) for name in ("days", "first", "second", "third"))
    if found["days"] is not None:
        return float(((days * 24 + first) * 60 + second) * 60 + third)
    if found["third"] is not None:
        return float((first * 60 + second) * 60 + third)
    return float(first * 60 + second)
