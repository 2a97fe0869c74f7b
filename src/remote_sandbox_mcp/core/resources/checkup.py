"""A machine's check-up: its steps, the result of each, and what to do about a bad one."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import SandboxError
from ..sandboxes.cluster import ClusterUsage
from ..sandboxes.login import login_command
from ..sandboxes.machine import Machine, trouble
from ..sandboxes.transport import TransportChoice
from ..texts.text import harmless
from .usage import Usage

MACHINE_STEPS = ("transport", "name", "port", "host key", "login")
# Asked of SSH machines alone: on others no sandboxes are made.
ENGINE_STEPS = ("containers",)
INSIDE_STEPS = ("shell", "python3", "tmux", "GPUs", "clock", "PATH")
# Asked where Slurm is configured; the first also where it is only installed.
CLUSTER_STEPS = ("slurm", "controller", "sbatch", "sacct", "shared home", "modules")
CODE_STEP = "code"
# Whether the embedded sandbox can run on this computer.
WALLS = "walls"
CLOCK_LIMIT_S = 5.0
_SHOWN = 300
_LONGEST = 4000


class Mark(str, Enum):
    """Result of a step; only `failed` makes the machine unfit for use."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Step:
    """One thing that was checked, what was found, and what to do if it is not as it should be."""

    name: str
    mark: Mark
    said: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """All steps of one sandbox."""

    name: str
    kind: str
    address: str
    steps: tuple[Step, ...]
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return any(step.mark is Mark.FAILED for step in self.steps)

    @property
    def not_offered(self) -> str:
        """Explain why the embedded sandbox cannot run here; empty where it can."""
        walls = (step for step in self.steps if step.name == WALLS and step.mark is Mark.WARNING)
        return next((step.said for step in walls), "")


@dataclass(frozen=True)
class Findings:
    """Output of doctor.sh: versions are the tools' own first lines, empty where a tool is missing.

    `noise` is what start-up files printed before the script's first word; it precedes the output of every command.
    """

    shell: str = ""
    login_shell: str = ""
    python: str = ""
    tmux: str = ""
    # "yes" and the version of an engine that answers, or "no" and its complaint.
    docker: str = ""
    podman: str = ""
    # The same of sinfo.
    slurm: str = ""
    path: str = ""
    noise: str = ""


@dataclass(frozen=True)
class ClusterFindings:
    """Output of doctor_cluster.sh: "yes" or "no" and the command's message, "none" without a command, "late" without
    an answer; where Slurm is if not in PATH; the type of the home's file system; where `module` works, if anywhere.
    """

    sbatch: str = ""
    sacct: str = ""
    elsewhere: str = ""
    home: str = ""
    modules: str = ""


def ok(name: str, said: str) -> Step:
    return Step(name, Mark.OK, said)


def warning(name: str, said: str, remedy: str = "") -> Step:
    return Step(name, Mark.WARNING, said, remedy)


def failed(name: str, problem: SandboxError, *, otherwise: str = "", also: str = "") -> Step:
    """A step that ended in an error: what was found, without what was tried, and what to do about it.

    `otherwise` is the remedy where the error names none, `also` is added to whichever.
    """
    remedies = [text[:1].upper() + text[1:].rstrip(".") for text in (problem.remedy or otherwise, also) if text]
    return Step(name, Mark.FAILED, _tidy(problem.found or str(problem)), ". ".join(remedies))


def complete(steps: Iterable[Step], names: Sequence[str]) -> tuple[Step, ...]:
    """All steps in order; those that were not reached are marked as skipped."""
    found = {step.name: step for step in steps}
    return tuple(found.get(name) or Step(name, Mark.SKIPPED) for name in names)


# A second factor


def unanswered_code_step(name: str, asked: str) -> Step:
    """The machine asks for a code, and nothing that is configured gives one."""
    return warning(
        CODE_STEP,
        f"it asks {asked} during the login, and nothing that is configured answers that, so the rest was not checked",
        f"Open ways: a form of the client, for clients that show forms; in a terminal, {login_command(name)}; "
        "otp or otp_seed in config.toml, where the site allows it",
    )


def answered_code_step(machine: Machine, asked: str) -> Step:
    logins = (machine.login, *(hop.login for hop in machine.hops))
    ways = [way for way in ("otp", "otp_seed") if any(getattr(login, way) for login in logins)]
    return ok(CODE_STEP, f"it asks {asked}; answered by {' and '.join(ways)}")


# How to reach a machine


def by_hand(machine: Machine) -> str:
    """The OpenSSH command with which a person can try the same by hand."""
    login, port = machine.login, ["-p", str(machine.port)] if machine.port != 22 else []
    keys = [word for file in login.key_files[:1] for word in ("-i", file)]
    jumps = (address(hop.login.user, hop.host, hop.port) for hop in machine.hops)
    jump = ["-J", ",".join(jumps)] if machine.hops else []
    return f"by hand: {shlex.join(['ssh', *port, *keys, *jump, _at(login.user, machine.host)])}"


def address(user: str, host: str, port: int) -> str:
    """Address of a machine as people write it, without the default port."""
    if port in (0, 22):
        return _at(user, host)
    return _at(user, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _at(user: str, host: str) -> str:
    return f"{user}@{host}" if user and host else host or user


def transport_step(choice: TransportChoice, unused_socket: str = "") -> Step:
    """`unused_socket` says which control socket of the user's is not used, and why."""
    said = f"{choice.transport}: {choice.why}"
    return warning("transport", f"{said}; {unused_socket}") if unused_socket else ok("transport", said)


def name_step(host: str, addresses: Sequence[str], is_hop: bool) -> Step:
    shown = ", ".join(dict.fromkeys(addresses))
    said = f"{host} is {shown}" if shown != host else shown
    return ok("name", said + (" (the first jump host)" if is_hop else ""))


def port_step(port: int, banner: bytes) -> Step:
    """`banner` is the first line that the SSH server sends; it names its software: SSH-2.0-OpenSSH_9.6."""
    software = _tidy(harmless(banner)).split("-", 2)[-1]
    return ok("port", f"{port}, {software}")


def host_key_step(before: bool, now: bool, files: Sequence[str], fingerprint: str) -> Step:
    """`files` are the known_hosts files, other than our own, that have a key of this machine."""
    if before:
        return ok("host key", f"known{f', from {files[0]}' if files else ''}")
    if now:
        return ok("host key", f"new, and remembered from now on: {fingerprint}".removesuffix(": "))
    return Step("host key", Mark.SKIPPED, "the connection ended before it was told")


# What is inside


def parse_findings(text: str) -> Findings:
    """Read what doctor.sh printed."""
    sections, noise = _read_sections(text)
    told = {name: sections.get(name, "") for name in ("shell", "python", "tmux", "docker", "podman", "slurm", "path")}
    return Findings(**told, login_shell=sections.get("login", ""), noise=noise.strip())


_CLUSTER_SECTIONS = ("sbatch", "sacct", "elsewhere", "home", "modules")


def parse_cluster_findings(text: str) -> ClusterFindings:
    """Read what doctor_cluster.sh printed."""
    sections, _ = _read_sections(text)
    return ClusterFindings(**{name: sections.get(name, "") for name in _CLUSTER_SECTIONS})


def _read_sections(text: str) -> tuple[dict[str, str], str]:
    """Sections and the noise before them: `@@ NAME` opens a section, lines of it begin with one space."""
    noise, mark, rest = text.partition("@@ doctor 1\n")
    if not mark:
        raise ValueError("the machine's answer cannot be read")
    sections: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line.startswith("@@ "):
            name = line[3:]
        elif line.startswith(" "):
            sections.setdefault(name, _tidy(harmless(line.encode()), _LONGEST))
    return sections, noise


def shell_step(findings: Findings, configured: Sequence[str], login_noise: str) -> Step:
    """Warn about start-up files that print: they break scp, rsync and git, and may spoil the output of commands."""
    shell = " ".join(configured) or _version(findings.shell or "sh")
    said = f"commands run in {shell}"
    if findings.login_shell.rpartition("/")[2] not in ("", shell.split(" ")[0].rpartition("/")[2]):
        said += f"; the login shell is {findings.login_shell}"
    remedy = "Let them print only for a person: write `[ -t 1 ] &&` before what prints (in ~/.bashrc or its like)"
    if findings.noise:
        return warning("shell", f"{said}. Start-up files print {_quoted(findings.noise)} before every command", remedy)
    if login_noise:
        said += f". Start-up files print {_quoted(login_noise)}: dropped here, but scp, rsync and git break on it"
        return warning("shell", said, remedy)
    return ok("shell", said)


def python_step(version: str, program: str, found: str, *, kills_trees: bool) -> Step:
    """`version` is that of the Python that runs our outpost there; without one, the slower shell path is used."""
    if version:
        return ok("python3", version)
    stop = "" if kills_trees else ", and a stop reaches only the command's own session of processes"
    return warning(
        "python3",
        f"{f'{found} is of no use' if found else f'there is no {program}'}, so the plain way is used: slower, with one "
        f"session for each command{stop}",
        "Install Python 3.6 or newer there, or name one with python = in the machine's configuration",
    )


def tool_step(name: str, version: str, use: str) -> Step:
    if version:
        return ok(name, _version(version).removeprefix(f"{name} "))
    return warning(name, "not installed", f"Not needed, but {use}")


def engine_step(findings: Findings, machine: Machine) -> Step:
    """Whether sandboxes are, or could be, made with the machine's container engine."""
    said = {"docker": findings.docker, "podman": findings.podman}
    engine = machine.engine
    if engine and machine.writable is not None:
        return ok("containers", f"{engine.tool} is asked when a sandbox is made: this check runs within the walls")
    if engine:
        return _configured_step(engine.tool, said[engine.tool], machine.name)
    for tool, answer in said.items():
        if answer.startswith("yes"):
            how = f"to make sandboxes with it, write {tool} = true under [machines.{machine.name}]"
            return ok("containers", f"{tool} {answer[4:]}; {how}")
    for tool, answer in said.items():
        if answer:
            found, remedy = trouble(tool, machine.name, answer)
            return ok("containers", f"{tool}, of no use now: {found or answer[3:]}{remedy and f'; {remedy}'}")
    return ok("containers", "there is neither docker nor podman")


def _configured_step(tool: str, answer: str, name: str) -> Step:
    if answer.startswith("yes"):
        return ok("containers", f"{tool} {answer[4:]}; sandboxes are made with it: create_sandbox(on={name!r})")
    found, remedy = trouble(tool, name, answer)
    said = found or answer[3:] or f"there is no {tool}"
    remedy = remedy or f"install {tool} there, or take {tool} out of [machines.{name}]"
    return warning("containers", f"no sandboxes can be made: {said}", remedy[:1].upper() + remedy[1:])


# A cluster

# File systems that are made to be shared. A home on another one can be shared, too, if the login node itself serves it.
_SHARED = re.compile(r"nfs|lustre|gpfs|beegfs|ceph|panfs|glusterfs|wekafs|afs|cifs|smb|orangefs|pvfs|fhgfs|fuse", re.I)
_OVERLAP = (20, 11)
_NO_SLURM = (
    "Check env, init and shell: sinfo and sbatch must be in the PATH of commands, perhaps after module load slurm"
)


def installed_slurm_step(answer: str, name: str) -> Step | None:
    """Slurm that answers on a machine that is not configured as a cluster; None where there is none of use."""
    if not answer.startswith("yes"):
        return None
    return ok("slurm", f"{_slurm_version(answer[4:])}; slurm = true under [machines.{name}] makes it a cluster")


def cluster_steps(answer: str, findings: ClusterFindings, cluster: ClusterUsage | None, machine: Machine) -> list[Step]:
    """List the steps of a checkup for the login node of a cluster."""
    return [
        _slurm_step(answer, findings.elsewhere),
        _controller_step(cluster or ClusterUsage()),
        _sbatch_step(findings.sbatch, machine.name),
        _sacct_step(findings.sacct),
        _home_step(findings.home),
        _modules_step(findings.modules),
    ]


def _slurm_version(text: str) -> str:
    """Version in what Slurm says of itself; all of the text where there is none."""
    found = re.search(r"\d{1,4}\.\d{1,4}(?:\.\d{1,4}){0,2}", text)
    return found[0] if found else text


def _slurm_step(answer: str, elsewhere: str) -> Step:
    if answer.startswith("no"):
        return warning("slurm", f"sinfo does not answer: {answer[3:]}", _NO_SLURM)
    shown = _slurm_version(answer[4:])
    if elsewhere:
        said = f"in {elsewhere}, which is not in the PATH of commands; jobs and allocations find it there"
        return ok("slurm", f"{shown}, {said}".removeprefix(", "))
    if not answer:
        return warning("slurm", "sinfo is not found, so nothing can be submitted", _NO_SLURM)
    numbers = tuple(int(part) for part in shown.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < _OVERLAP:
        return ok("slurm", f"{shown}, older than 20.11: srun is used without --overlap")
    return ok("slurm", shown)


def _controller_step(cluster: ClusterUsage) -> Step:
    if cluster.problems or not cluster.partitions:
        said = cluster.problems[0] if cluster.problems else "it was not asked"
        return warning("controller", said, "Try again later, or ask the site's staff. By hand: scontrol ping")
    names = [f"{it.name} (default)" if it.is_default else it.name for it in cluster.partitions]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ok("controller", f"answers; partitions for you: {', '.join(names[:8])}{more}")


_SILENT = {
    "none": "it is not installed, or not in PATH",
    "late": "it did not answer within 5 s",
    "": "it was not asked",
}


def _sbatch_step(said: str, name: str) -> Step:
    answers, _, what = said.partition(" ")
    if answers == "yes":
        at, where = re.search(r"to start at (\S{1,40})", what), re.search(r" in partition (\S{1,100})", what)
        when = f"; a small job would start at {at[1]} in {where[1]}" if at and where else ""
        return ok("sbatch", f"takes jobs{when}")
    if answers in _SILENT:
        return warning("sbatch", _SILENT[answers], _NO_SLURM if answers == "none" else "")
    remedy = f"Set what the site asks for, such as slurm = {{ account = ..., partition = ... }} under [machines.{name}]"
    return warning("sbatch", f"refuses a small job: {what.removeprefix('sbatch: error: ')}", remedy)


def _sacct_step(said: str) -> Step:
    answers, _, why = said.partition(" ")
    if answers == "yes":
        return ok("sacct", "answers")
    lost = "why a job ended is known as long as squeue shows it, and by what the job itself noted"
    return ok("sacct", f"of no use ({_SILENT.get(answers, why)}): {lost}")


def _home_step(kind: str) -> Step:
    by_hand = "By hand: srun ls ~ must show the same files as ls ~"
    if _SHARED.search(kind):
        return ok("shared home", f"on {kind}, as nodes share it; only a job can prove that")
    said = (
        f"on {kind or 'an unknown file system'}, perhaps of the login node alone; nodes must see the same home folder"
    )
    return warning("shared home", said, by_hand)


def _modules_step(where: str) -> Step:
    if where == "commands":
        return ok("modules", "module works in commands")
    if where == "login":
        return ok("modules", 'module takes a login shell: set shell = "bash -lc", or write what defines it into init')
    return ok("modules", "no module command was found")


def gpu_step(usage: Usage) -> Step:
    counts = Counter(gpu.name for gpu in usage.gpus)
    names = ", ".join(f"{count} × {name}" for name, count in counts.items())
    if usage.gpu_error:
        return warning("GPUs", f"{names}; {usage.gpu_error}".removeprefix("; "), "Check the driver on the machine")
    return ok("GPUs", names or "none")


def clock_step(there: float | None, before: float, after: float) -> Step:
    """Compare clocks: the machine's clock was read between our `before` and `after`, in whole seconds."""
    if there is None:
        return warning("clock", "the machine did not tell the time")
    offset = there - after if there > after else min(0.0, there + 1 - before)
    if abs(offset) <= CLOCK_LIMIT_S:
        return ok("clock", "agrees with ours")
    side = "ahead of" if offset > 0 else "behind"
    remedy = "Set it right (timedatectl set-ntp true): make and caches compare times"
    return warning("clock", f"{_span(abs(offset))} {side} ours", remedy)


def path_step(path: str) -> Step:
    if path:
        return ok("PATH", path)
    return warning("PATH", "empty", "Set it with env = { PATH = ... } in the machine's configuration")


def _version(text: str) -> str:
    """The name and number in a tool's first line: `GNU bash, version 5.2.15(1)-release` is bash 5.2.15."""
    found = re.match(r"(?:GNU )?(\w+),?\s+(?:version )?v?(\d[\w.]*)", text)
    return f"{found[1]} {found[2]}" if found else text


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _quoted(text: str) -> str:
    first = _tidy(text, 60)
    return f"“{first}”"


def _tidy(text: str, limit: int = _SHOWN) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"
