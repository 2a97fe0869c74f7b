from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.support.cards import lease_path
from tests.support.means import require_program
from tests.support.pace import at_most

import remote_sandbox_mcp.far.probe
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Environment, Excerpt, Running
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.jobs.cards import CardLease
from remote_sandbox_mcp.core.resources.report import parse_usage
from remote_sandbox_mcp.core.resources.usage import Usage, as_resources, gpu_state, idle_score
from remote_sandbox_mcp.core.sandboxes.sandbox import Description, Sandbox
from remote_sandbox_mcp.services.probe.measure import measure

PROBE = Path(remote_sandbox_mcp.far.probe.__file__).with_name("probe.sh")
# nvidia-smi's answers were recorded on an H200; those of rocm-smi follow the fields of its releases 5 and 6.
DATA = Path(__file__).with_name("data")
H200_IDLE, H200_BUSY, H200_APPS = (DATA / f"h200-{name}.csv" for name in ("idle", "busy", "apps"))
SHELLS = [
    pytest.param(shell, id=" ".join(shell))
    for shell in (["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "ash"], ["zsh", "--emulate", "sh"])
]
# What the probe needs of a machine, and nothing that tells of this one's GPUs.
TOOLS = ["cat", "cut", "date", "df", "getconf", "grep", "head", "nproc", "paste", "ps", "sed", "sh", "sleep", "sort"]
TOOLS += ["stat", "timeout", "tr", "true", "uname"]
# Counters of a machine that computed a quarter of the time.
COUNTERS = [" cpu  100 0 0 900 0 0 0 0 0 0", " cpu  125 0 0 975 0 0 0 0 0 0"]
ME = pwd.getpwuid(os.geteuid()).pw_name


class Machine:
    """A folder of tools as the whole of PATH: real ones, and what a test puts in their place."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def put(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def nvidia(self, gpus: Path, apps: Path | None = None) -> None:
        self.put(
            "nvidia-smi",
            f"case $* in\n--query-gpu=*) cat {gpus} ;;\n--query-compute-apps=*) cat {apps or '/dev/null'} ;;\nesac",
        )

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": os.environ["HOME"]}

    def answer(self, shell: list[str] | None = None) -> str:
        program, *options = shell or ["sh"]
        argv = [require_program(program), *options, str(PROBE)]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30, check=True)
        assert done.stderr == ""
        return done.stdout

    def usage(self, shell: list[str] | None = None) -> Usage:
        return parse_usage(self.answer(shell))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def table(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def hurried(machine: Machine) -> None:
    """The real timeout(1), with a second where the probe allows eight."""
    machine.put("timeout", f'shift 3\nexec {shutil.which("timeout")} -k 1 1 "$@"')


@pytest.mark.parametrize("shell", SHELLS)
def test_this_machine_is_measured(machine: Machine, shell: list[str]) -> None:
    usage = machine.usage(shell)
    assert usage.problems == ()
    assert usage.gpus == ()
    assert usage.gpu_error == ""
    assert usage.cpu is not None
    assert usage.cpu.count
    assert usage.cpu.count <= len(os.sched_getaffinity(0))
    assert usage.memory is not None
    assert 0 < usage.memory.available_mb < usage.memory.total_mb
    assert usage.clock == pytest.approx(time.time(), abs=10)
    assert usage.disks[0].free_gb == pytest.approx(shutil.disk_usage(os.environ["HOME"]).free / 2**30, rel=0.05)


@pytest.mark.parametrize("shell", SHELLS)
def test_use_of_the_cpus_is_sampled_twice(machine: Machine, shell: list[str]) -> None:
    """At the beginning and at the end, of the kernel's own counters."""
    answer = machine.answer(shell)
    looks = re.findall(r"(?<=^@@ stat\n) cpu [ 0-9]+$", answer, re.MULTILINE)
    assert len(looks) == 2
    for look, counters in zip(looks, COUNTERS, strict=True):
        answer = answer.replace(look, counters, 1)
    cpu = parse_usage(answer).cpu
    assert cpu is not None
    assert cpu.used_pct == 25


def test_one_look_is_taken_where_an_earlier_one_is_known(machine: Machine) -> None:
    machine.put("sleep", "echo it slept >&2; exit 1")
    argv = ["sh", str(PROBE), "once"]
    done = subprocess.run(argv, env=machine.env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.count("@@ stat") == 1
    assert parse_usage(done.stdout).problems == ()


def test_a_machine_without_cards_is_measured_by_few_processes(machine: Machine, tmp_path: Path) -> None:
    for tool in TOOLS:
        machine.put(tool, f'echo {tool} >>{tmp_path}/started\nexec {shutil.which(tool)} "$@"')
    assert machine.usage().problems == ()
    started = (tmp_path / "started").read_text().split()
    # sed also reads what a cgroup says of its memory, where there is one.
    assert set(started) == {"date", "df", "nproc", "sed", "sleep", "timeout", "uname"}
    assert len(started) <= 9


@pytest.mark.parametrize("how", ["argument", "stdin"])
def test_the_script_needs_no_file(machine: Machine, how: str) -> None:
    text = PROBE.read_text()
    argv, given = (["sh", "-c", text], None) if how == "argument" else (["sh"], text)
    done = subprocess.run(argv, env=machine.env, input=given, capture_output=True, text=True, timeout=30, check=True)
    assert parse_usage(done.stdout).problems == ()


@pytest.mark.parametrize("shell", SHELLS)
def test_an_idle_h200_is_free(machine: Machine, shell: list[str]) -> None:
    machine.nvidia(H200_IDLE)
    (gpu,) = machine.usage(shell).gpus
    assert (gpu.name, gpu.util_pct, gpu.mem_used_mb, gpu.mem_total_mb) == ("NVIDIA H200", 0, 0, 143771)
    assert gpu.processes == ()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_busy_h200_tells_whose_process_it_runs(machine: Machine, shell: list[str], tmp_path: Path) -> None:
    apps = table(tmp_path / "apps", H200_APPS.read_text().strip().replace(" 497,", f" {os.getpid()},"))
    machine.nvidia(H200_BUSY, apps)
    usage = machine.usage(shell)
    (gpu,) = usage.gpus
    (process,) = gpu.processes
    assert (gpu.util_pct, gpu.power_w) == (96, 692.43)
    assert (process.pid, process.user, process.name, process.mem_mb) == (os.getpid(), ME, "python3", 1002)
    assert process.elapsed_s is not None
    assert usage.problems == ()
    machine.nvidia(H200_IDLE)
    assert idle_score(usage) < idle_score(replace(usage, gpus=machine.usage(shell).gpus))


def test_a_machine_of_busybox_alone_is_measured(tmp_path: Path) -> None:
    busybox = require_program("busybox")
    machine = Machine(tmp_path)
    for tool in TOOLS:
        (machine.bin / tool).unlink()
        if tool != "getconf":  # of the C library there
            (machine.bin / tool).symlink_to(busybox)
    apps = table(tmp_path / "apps", H200_APPS.read_text().strip().replace(" 497,", f" {os.getpid()},"))
    machine.nvidia(H200_BUSY, apps)
    usage = machine.usage(["busybox", "ash"])
    assert usage.problems == ()
    assert usage.cpu is not None
    assert usage.cpu.online
    assert usage.gpus[0].processes[0].user == ME


def test_a_long_user_name_is_asked_for_in_full(machine: Machine, tmp_path: Path) -> None:
    machine.nvidia(H200_BUSY, H200_APPS)
    machine.put("ps", 'case $* in *user:32=*"-p 497") echo "  497 a-user-with-a-long-name 1-02:03:04 python3" ;; esac')
    assert machine.usage().gpus[0].processes[0].user == "a-user-with-a-long-name"


def test_eight_gpus_with_their_processes(machine: Machine, tmp_path: Path) -> None:
    row = H200_BUSY.read_text().strip().removeprefix("0, GPU-d4de1bdf")
    gpus = table(tmp_path / "gpus", *(f"{n}, GPU-{n}{row}" for n in range(8)))
    tail = row.split(",")[0]
    apps = table(tmp_path / "apps", *(f"GPU-{n % 4}{tail}, {os.getpid() + n}, {n}, python3" for n in range(40)))
    machine.nvidia(gpus, apps)
    usage = machine.usage()
    assert [gpu.index for gpu in usage.gpus] == list(range(8))
    assert [len(gpu.processes) for gpu in usage.gpus] == [10, 10, 10, 10, 0, 0, 0, 0]
    assert usage.problems == ()


def test_a_driver_that_knows_no_mig_is_asked_again(machine: Machine, tmp_path: Path) -> None:
    rows = table(tmp_path / "gpus", H200_IDLE.read_text().strip().removesuffix(", Disabled"))
    complaint = 'Field "mig.mode.current" is not a valid field to query.'
    machine.put(
        "nvidia-smi",
        f"case $* in\n*mig.mode.current*) echo '{complaint}'; exit 2 ;;\n--query-gpu=*) cat {rows} ;;\nesac",
    )
    usage = machine.usage()
    assert [gpu.name for gpu in usage.gpus] == ["NVIDIA H200"]
    assert usage.gpu_error == ""


def test_a_driver_that_tells_little_is_believed(machine: Machine, tmp_path: Path) -> None:
    untold = ["[N/A]"] * 5
    row = ["0", "GPU-0", "NVIDIA GB10", "580.95.05", "3", *untold, "4.53", "[Not Supported]", "Default", "[N/A]"]
    machine.nvidia(table(tmp_path / "gpus", ", ".join(row)))
    usage = machine.usage()
    (gpu,) = usage.gpus
    assert (gpu.util_pct, gpu.mem_total_mb, gpu.power_w, gpu.mig) == (3, None, 4.53, False)
    assert usage.problems == ()


FAILURES = [
    pytest.param(
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
        "nvidia-smi failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch",
        id="driver mismatch",
    ),
    pytest.param("echo 'No devices were found'; exit 6", "exit code 6: No devices were found", id="no devices"),
    pytest.param("echo 'cannot open libnvidia-ml.so' >&2; exit 127", "cannot open libnvidia-ml.so", id="on stderr"),
    pytest.param("exec sleep 60", "nvidia-smi did not answer in time", id="hangs"),
    pytest.param("trap '' TERM; sleep 60; sleep 60", "nvidia-smi did not answer in time", id="hangs and will not die"),
]


@pytest.mark.parametrize(("script", "expected"), FAILURES)
def test_a_failing_nvidia_smi_is_told_and_the_rest_is_measured(machine: Machine, script: str, expected: str) -> None:
    hurried(machine)
    machine.put("nvidia-smi", script)
    start = time.monotonic()
    usage = machine.usage()
    assert time.monotonic() - start < at_most(8)
    assert expected in usage.gpu_error
    assert usage.memory
    assert usage.disks


def test_a_hanging_driver_without_a_time_limit_leaves_the_rest_readable(machine: Machine) -> None:
    (machine.bin / "timeout").unlink()
    machine.put("nvidia-smi", "exec sleep 60")
    with subprocess.Popen(
        ["sh", str(PROBE)], env=machine.env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        seen = []
        while not seen or seen[-1] != "@@ asking nvidia-smi\n":
            seen.append(running.stdout.readline())
        os.killpg(running.pid, signal.SIGKILL)
    usage = parse_usage("".join(seen))
    assert usage.gpu_error == "nvidia-smi did not answer in time; the driver may hang"
    assert usage.memory
    assert usage.cpu


def test_a_hanging_home_costs_only_its_own_disk(machine: Machine) -> None:
    hurried(machine)
    machine.nvidia(H200_IDLE)
    machine.put("df", f'[ "$*" = "-Pk /" ] || exec sleep 60\nexec {shutil.which("df")} "$@"')
    usage = machine.usage()
    assert [disk.path for disk in usage.disks] == ["/"]
    assert usage.gpus


def test_the_questions_are_asked_at_the_same_time(machine: Machine, tmp_path: Path) -> None:
    """Each answers only once the other is asked too."""
    meet = f'touch {tmp_path}/"$1"; until [ -e {tmp_path}/"$2" ]; do sleep 0.02; done'
    (machine.bin / "touch").symlink_to(str(shutil.which("touch")))
    machine.put("meet", meet)
    machine.put(
        "nvidia-smi",
        f"case $* in\n--query-gpu=*) meet gpus rocm; cat {H200_IDLE} ;;\n"
        "--query-compute-apps=*) meet apps gpus ;;\nesac",
    )
    machine.put("rocm-smi", f"meet rocm apps; cat {DATA / 'mi300x.json'}")
    assert [gpu.name.split()[0] for gpu in machine.usage().gpus] == ["NVIDIA", "AMD", "AMD"]


@pytest.mark.parametrize("shell", SHELLS)
def test_amd_cards_are_measured(machine: Machine, shell: list[str]) -> None:
    machine.put("rocm-smi", f"cat {DATA / 'mi300x.json'}")
    usage = machine.usage(shell)
    idle, busy = usage.gpus
    assert (idle.name, idle.util_pct, idle.mem_total_mb) == ("AMD Instinct MI300X OAM", 0, 196592)
    assert (busy.util_pct, busy.temperature_c, busy.power_w) == (99, 68, 612)
    assert usage.gpu_error == ""


def test_older_amd_releases_are_measured(machine: Machine) -> None:
    machine.put("rocm-smi", f"cat {DATA / 'mi250-old.json'}")
    first, second = machine.usage().gpus
    assert (first.name, first.util_pct, first.temperature_c) == ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 50, 44)
    assert (second.name, second.power_w, second.temperature_c) == ("AMD GPU", None, None)


def test_an_amd_tool_without_a_driver_is_told(machine: Machine) -> None:
    machine.put("rocm-smi", "echo 'ERROR:root:Driver not initialized (amdgpu not found in modules)' >&2")
    usage = machine.usage()
    assert usage.gpu_error == "rocm-smi: ERROR:root:Driver not initialized (amdgpu not found in modules)"


def test_a_mac_is_measured(machine: Machine) -> None:
    machine.put("uname", "echo Darwin")
    machine.put(
        "sysctl",
        "case $2 in\nkern.boottime) echo '{ sec = 1700000000, usec = 5 } Tue Nov 14 22:13:20 2023' ;;\n"
        "vm.loadavg) echo '{ 2.10 3.20 4.30 }' ;;\nhw.memsize) echo 17179869184 ;;\nhw.pagesize) echo 16384 ;;\n"
        '*) echo "sysctl: unknown oid $2" >&2; exit 1 ;;\nesac',
    )
    machine.put(
        "vm_stat",
        "echo 'Mach Virtual Memory Statistics: (page size of 16384 bytes)'\n"
        "echo 'Pages free:              65536.'\necho 'Pages inactive:         65536.'",
    )
    usage = machine.usage()
    assert usage.cpu is not None
    assert (usage.cpu.load_1m, usage.cpu.load_15m) == (2.1, 4.3)
    assert usage.memory is not None
    assert (usage.memory.total_mb, usage.memory.available_mb) == (16384, 2048)


def test_the_script_is_clean() -> None:
    shellcheck = require_program("shellcheck")
    for dialect in ("sh", "dash", "busybox"):
        done = subprocess.run([shellcheck, "-s", dialect, str(PROBE)], capture_output=True, text=True, check=False)
        if "Unknown shell" not in done.stderr:
            assert (done.returncode, done.stdout) == (0, ""), dialect


def test_the_script_is_the_same_in_shells_that_read_backslashes_in_quotes() -> None:
    """fish takes two backslashes in single quotes for one."""
    assert "\\\\" not in PROBE.read_text()


class Shell:
    """As much of a Sandbox as measuring needs: this machine, behind a configured shell."""

    description = Description("gpu1", "ssh")
    connection: object | None = None

    def __init__(self, machine: Machine, environment: Environment) -> None:
        self.machine = machine
        self.environment = environment
        self.commands: list[Command] = []

    async def run(self, command: Command, *, patience_s: float | None = None) -> Completed:
        self.commands.append(command)
        program, *options = self.environment.shell
        argv = [require_program(program), *options, "-c", self.environment.source(command.script)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, env=self.machine.env, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        return Completed(
            command.run_id, process.returncode or 0, stdout=Excerpt(out[:100], out[100:], len(out)), stderr=Excerpt(err)
        )

    def forget(self, run_id: str) -> None:
        assert self.commands[-1].run_id == run_id


class Canned:
    """A Sandbox whose command ends as a test wants it to."""

    description = Description("gpu1", "ssh")
    connection: object | None = None

    def __init__(self, outcome: Completed | Running) -> None:
        self.outcome = outcome

    async def run(self, command: Command, *, patience_s: float | None = None) -> Completed | Running:
        return self.outcome

    def forget(self, run_id: str) -> None:
        assert run_id == self.outcome.run_id


@pytest.mark.parametrize("shell", [("bash",), ("sh",), ("zsh",), ("fish",), ("busybox", "ash")], ids=" ".join)
async def test_measuring_works_behind_any_shell(machine: Machine, shell: tuple[str, ...]) -> None:
    machine.nvidia(H200_IDLE)
    sandbox = Shell(machine, Environment(shell=shell, init=("echo Welcome", "echo '@ motd'")))
    usage = await measure(cast(Sandbox, sandbox), timeout_s=7)
    assert [gpu.name for gpu in usage.gpus] == ["NVIDIA H200"]
    assert usage.problems == ()
    assert [command.timeout_s for command in sandbox.commands] == [7]


async def test_over_one_connection_the_last_look_serves_the_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Connection:
        pass

    now, sandbox = [100.0], Shell(machine, Environment(shell=("sh",)))
    monkeypatch.setattr("remote_sandbox_mcp.services.probe.measure.monotonic", lambda: now[0])
    sandbox.connection = Connection()
    asked = []
    for seconds in (0, 0.05, 5, 5, 60):
        now[0] += seconds
        await measure(cast(Sandbox, sandbox))
        asked.append(sandbox.commands[-1].script.endswith("'once'"))
    assert asked == [False, False, True, True, False]
    sandbox.connection = Connection()
    now[0] += 5
    usage = await measure(cast(Sandbox, sandbox))
    assert usage.cpu
    assert usage.cpu.used_pct is not None
    now[0] += 5
    await asyncio.sleep(0.2)
    usage = await measure(cast(Sandbox, sandbox))
    assert usage.cpu
    assert usage.cpu.used_pct is not None


async def test_output_before_a_time_limit_is_used() -> None:
    text = b"@@ probe 1\n@@ load\n 1 2 3\n@@ asking nvidia-smi\n"
    outcome = Completed("run-1", 143, Ending.TIMED_OUT, stdout=Excerpt(text))
    usage = await measure(cast(Sandbox, Canned(outcome)))
    assert usage.gpu_error == "nvidia-smi did not answer in time; the driver may hang"


REFUSALS = [
    pytest.param(
        Completed("run-1", 127, stderr=Excerpt(b"bash: exec: sh: not found\n")),
        "unable to measure gpu1: the probe ended with exit code 127: bash: exec: sh: not found",
        id="no sh",
    ),
    pytest.param(
        Completed("run-1", 0, stdout=Excerpt(b"This account is currently not available.\n")),
        "unable to measure gpu1: the probe ended with exit code 0: the machine's answer holds nothing "
        "that can be read: 'This account is currently not available.'",
        id="a shell that runs nothing",
    ),
    pytest.param(
        Completed("run-1", 143, Ending.TIMED_OUT),
        "unable to measure gpu1: it did not answer within 12 s. It may be overloaded; try again later",
        id="out of time",
    ),
    pytest.param(
        Running("run-1"),
        "unable to measure gpu1: it did not answer within 12 s. It may be overloaded; try again later",
        id="still running",
    ),
]


@pytest.mark.parametrize(("outcome", "expected"), REFUSALS)
async def test_an_answer_that_holds_nothing_is_told_in_a_sentence(outcome: Completed | Running, expected: str) -> None:
    with pytest.raises(SandboxError) as caught:
        await measure(cast(Sandbox, Canned(outcome)))
    assert str(caught.value) == expected


# Leases


LEASED = "user mallory\njob train\npid {pid}\nsince 1790000000\nuntil 1790003600\n"


@contextmanager
def held(name: str, record: bytes) -> Iterator[Path]:
    """A card's file as a job of ours has it: locked, with a record."""
    path = lease_path(name)
    with path.open("w+b") as file:
        try:
            file.write(record)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            yield path
        finally:
            path.unlink()


def leasable(machine: Machine, folder: Path) -> str:
    """One card, with a UUID that no other test has."""
    uuid = f"GPU-{os.urandom(8).hex()}"
    row = H200_IDLE.read_text().strip().split(", ")
    machine.nvidia(table(folder / "gpus", ", ".join([row[0], uuid, *row[2:]])))
    return uuid


@pytest.mark.parametrize("shell", SHELLS)
def test_a_lease_is_told_with_its_real_owner(machine: Machine, tmp_path: Path, shell: list[str]) -> None:
    uuid = leasable(machine, tmp_path)
    with held(uuid, LEASED.format(pid=os.getpid()).encode()):
        (gpu,) = machine.usage(shell).gpus
    assert gpu.lease == CardLease(ME, "train", 1790000000, 1790003600)
    assert gpu_state(gpu) == "held"
    (fields,) = cast("list[dict[str, object]]", as_resources(Usage(gpus=(gpu,)), 0.5)["gpu"])
    times = {"since": "2026-09-21T14:13:20Z", "until": "2026-09-21T15:13:20Z"}
    assert fields["lease"] == {"user": ME, "job": "train", **times}
    (free,) = machine.usage(shell).gpus
    assert (free.lease, gpu_state(free)) == (None, "free")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_lease_of_a_slice_is_told(machine: Machine, tmp_path: Path, shell: list[str]) -> None:
    whole = leasable(machine, tmp_path)
    rows = (tmp_path / "gpus").read_text().replace("Disabled", "Enabled")
    slices = [f"MIG-{whole}/7/0", f"MIG-{os.urandom(8).hex()}"]
    listed = [f"  MIG 1g.18gb     Device  {n}: (UUID: {uuid})" for n, uuid in enumerate(slices)]
    (tmp_path / "list").write_text("\n".join([f"GPU 0: NVIDIA H200 (UUID: {whole})", *listed, ""]))
    machine.nvidia(table(tmp_path / "gpus", rows.strip()))
    tool = (machine.bin / "nvidia-smi").read_text()
    machine.put("nvidia-smi", tool.replace("esac", f"-L) cat {tmp_path}/list ;;\nesac"))
    with held(slices[0], LEASED.format(pid=os.getpid()).encode()):
        usage = machine.usage(shell)
    assert [(gpu.uuid, gpu.lease.job if gpu.lease else "") for gpu in usage.gpus] == [
        (slices[0], "train"), (slices[1], ""),
    ]  # fmt: skip
    assert usage.problems == ()


@pytest.mark.parametrize(
    "record",
    [os.urandom(5000), b"@@ nvidia 0 index\n@@ end\nuser \nsince 1e9\nuntil -4\njob \x1b[31m" + b"x" * 500, b""],
)
def test_any_record_of_a_lease_is_data(machine: Machine, tmp_path: Path, record: bytes) -> None:
    uuid = leasable(machine, tmp_path)
    with held(uuid, record):
        usage = machine.usage()
    assert usage.problems == ()
    (gpu,) = usage.gpus
    assert gpu.lease is not None
    assert (gpu.lease.user, gpu.lease.since, gpu.lease.until) == (ME, 0, 0)
    assert len(gpu.lease.job) <= 60
    assert gpu.lease.job.isprintable()


def test_a_file_that_nobody_holds_is_no_lease_nor_is_a_link(machine: Machine, tmp_path: Path) -> None:
    uuid = leasable(machine, tmp_path)
    lease_path(uuid).write_text(LEASED.format(pid=os.getpid()))
    assert machine.usage().gpus[0].lease is None
    lease_path(uuid).unlink()
    with held(f"{uuid}-other", b"user x\n") as other:
        lease_path(uuid).symlink_to(other)
        assert machine.usage().gpus[0].lease is None
        lease_path(uuid).unlink()


@pytest.mark.parametrize(("table_", "name"), [("mi300x.json", "28851"), ("mi250-old.json", "card1")])
def test_leases_of_amd_cards_are_told(machine: Machine, tmp_path: Path, table_: str, name: str) -> None:
    mine = f"{os.getpid()}{os.urandom(2)[0]}" if name.isdigit() else name
    answer = tmp_path / "answer"
    answer.write_text((DATA / table_).read_text().replace(name, mine))
    machine.put("rocm-smi", f"cat {answer}")
    with held(mine, b"job train\n"):
        leases = {gpu.uuid: gpu.lease for gpu in machine.usage().gpus}
    assert [uuid for uuid, lease in leases.items() if lease] == [mine]
