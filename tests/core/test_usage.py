from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.resources.report import parse_usage
from remote_sandbox_mcp.core.resources.usage import Cpu, Disk, Gpu, GpuProcess, Memory, Usage, as_resources, gpu_state

COLUMNS = (
    "index,uuid,name,driver_version,utilization.gpu,utilization.memory,memory.total,memory.used,memory.free,"
    "temperature.gpu,power.draw,power.limit,compute_mode,mig.mode.current"
)
APPS = "gpu_uuid,pid,used_memory,process_name"
LINUX = """\
Welcome to gpu1!
@@ probe 1
@@ clock
 1700000000
@@ load
 1.50 2.50 3.50 3/1234 5678
@@ memory
 MemTotal:       1048576 kB
 MemFree:          10240 kB
 MemAvailable:    524288 kB
 Buffers:           1024 kB
@@ cpus
 online: 64
 usable: 64
 quota: none
 period: none
"""
DISKS = """\
@@ disk root
 Filesystem     1024-blocks      Used Available Capacity Mounted on
 /dev/sda1        104857600  52428800  52428800      50% /
@@ disk home
 Filesystem     1024-blocks      Used Available Capacity Mounted on
 nas:/home       1073741824 536870912 536870912      50% /home
"""
END = "@@ end\n"


def nvidia(*rows: str, status: int = 0, columns: str = COLUMNS) -> str:
    return f"@@ asking nvidia-smi\n@@ nvidia {status} {columns}\n" + "".join(f" {row}\n" for row in rows)


def apps(*rows: str, owners: tuple[str, ...] = (), status: int = 0) -> str:
    listed = f"@@ apps {status} {APPS}\n" + "".join(f" {row}\n" for row in rows)
    return listed + "".join(["@@ owners\n", *(f" {owner}\n" for owner in owners)])


def card(index: int = 0, util: str = "0", used: str = "0", mig: str = "Disabled", total: str = "81920") -> str:
    return (
        f"{index}, GPU-{index}, NVIDIA A100-SXM4-80GB, 550.54.15, {util}, 0, {total}, {used}, 0, 40, 61.20, 400.00, "
        f"Default, {mig}"
    )


def with_gpus(text: str) -> Usage:
    return parse_usage(LINUX + text + DISKS + END)


def processes(text: str) -> list[GpuProcess]:
    return [process for gpu in with_gpus(text).gpus for process in gpu.processes]


def test_a_linux_machine_is_read_whole() -> None:
    assert parse_usage(LINUX + DISKS + END) == Usage(
        cpu=Cpu(1.5, 2.5, 3.5, count=64, online=64),
        memory=Memory(total_mb=1024, available_mb=512),
        disks=(Disk("/home", 1024, 512, 512), Disk("/", 100, 50, 50)),
        clock=1700000000,
    )


MEMORY = [
    pytest.param("MemTotal: 1048576 kB\n MemAvailable: 524288 kB", Memory(1024, 512), id="available"),
    pytest.param(
        "MemTotal: 1048576 kB\n MemFree: 102400 kB\n Buffers: 10240 kB\n Cached: 204800 kB\n Shmem: 20480 kB",
        Memory(1024, 290),
        id="old kernel without MemAvailable",
    ),
    pytest.param("MemTotal: 1048576 kB", None, id="only the total"),
    pytest.param("MemAvailable: 1048576 kB", None, id="no total"),
    pytest.param(
        "MemTotal: 1048576 kB\n MemAvailable: 524288 kB\n memory.limit_in_bytes: 9223372036854771712\n"
        " memory.usage_in_bytes: 104857600",
        Memory(1024, 512),
        id="cgroup without a limit",
    ),
    pytest.param(
        "MemTotal: 1048576 kB\n MemAvailable: 524288 kB\n memory.max: 209715200\n memory.current: 157286400\n"
        " inactive_file: 52428800",
        Memory(200, 100),
        id="container with a limit",
    ),
    pytest.param(
        "MemTotal: 1048576 kB\n MemAvailable: 10240 kB\n memory.max: 209715200\n memory.current: 0",
        Memory(200, 10),
        id="container on a machine that is full",
    ),
    pytest.param(
        "MemTotal: 1048576 kB\n MemAvailable: 524288 kB\n memory.max: max", Memory(1024, 512), id="cgroup says max"
    ),
    pytest.param(
        "hw.memsize: 17179869184\n hw.pagesize: 16384\n Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        " Pages free:                              65536.\n Pages active:                           300000.\n"
        " Pages inactive:                         131072.\n Pages speculative:                       65536.",
        Memory(16384, 4096),
        id="macOS",
    ),
    pytest.param(
        "hw.physmem: 8589934592\n hw.pagesize: 4096\n vm.stats.vm.v_free_count: 262144\n"
        " vm.stats.vm.v_inactive_count: 262144",
        Memory(8192, 2048),
        id="FreeBSD",
    ),
]


@pytest.mark.parametrize(("lines", "expected"), MEMORY)
def test_memory_means_what_a_new_process_could_get(lines: str, expected: Memory | None) -> None:
    assert parse_usage(f"@@ load\n 0 0 0\n@@ memory\n {lines}\n").memory == expected


CPUS = [
    pytest.param("1.00 2.00 3.00 1/2 3", "online: 8\n usable: 8", Cpu(1, 2, 3, 8, 8), id="linux"),
    pytest.param("{ 1.00 2.00 3.00 }", "online: 8\n usable: 8", Cpu(1, 2, 3, 8, 8), id="macOS"),
    pytest.param("1 2 3", "online: 128\n usable: 16", Cpu(1, 2, 3, 16, 128), id="affinity"),
    pytest.param(
        "1 2 3", "online: 128\n usable: 128\n quota: 350000\n period: 100000", Cpu(1, 2, 3, 4, 128), id="quota"
    ),
    pytest.param("1 2 3", "online: 8\n usable: 8\n quota: -1\n period: 100000", Cpu(1, 2, 3, 8, 8), id="no quota"),
    pytest.param("1 2 3", "online: \n usable: x", Cpu(1, 2, 3), id="unknown count"),
    pytest.param("1 2", "online: 8", None, id="two averages"),
    pytest.param("nan inf -1", "online: 8", None, id="no numbers"),
]


@pytest.mark.parametrize(("load", "cpus", "expected"), CPUS)
def test_load_and_cpus_are_read(load: str, cpus: str, expected: Cpu | None) -> None:
    text = f"@@ memory\n MemTotal: 1 kB\n MemAvailable: 1 kB\n@@ load\n {load}\n@@ cpus\n {cpus}\n"
    assert parse_usage(text).cpu == expected


# Of `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL GUEST GUEST_NICE`.
STATS = [
    pytest.param(("100 0 0 900 0 0 0 0 0 0", "175 0 0 925 0 0 0 0 0 0"), 75, id="part"),
    pytest.param(("0 0 0 0 0 0 0 0 0 0", "10 10 10 50 10 5 5 0 0 0"), 40, id="waiting for a disk is no work"),
    pytest.param(("0 0 0 0 0 0 0 0 0 0", "100 0 0 0 0 0 0 0 100 0"), 100, id="guests are counted once"),
    pytest.param(("500 0 0 900 0 0 0 0 0 0", "400 0 0 1900 0 0 0 0 0 0"), 0, id="a counter stepped back"),
    pytest.param(("500 0 0 900 0 0 0 0 0 0", "600 0 0 890 0 0 0 0 0 0"), 100, id="never above all"),
    pytest.param(("500 0 0 900 0 0 0 0 0 0", "501 0 0 900 0 0 0 0 0 0"), None, id="too few ticks"),
    pytest.param(("500 0 0 900 0 0 0 0 0 0",), None, id="once"),
    pytest.param(("", ""), None, id="no /proc/stat"),
    pytest.param(("1 2 3", "4 5 6"), None, id="an old kernel"),
]


@pytest.mark.parametrize(("ticks", "expected"), STATS)
def test_cpu_use_is_the_share_of_time_between_two_samples(ticks: tuple[str, ...], expected: float | None) -> None:
    stats = "".join(f"@@ stat\n cpu  {each}\n" for each in ticks)
    cpu = parse_usage(f"{LINUX}{stats}{END}").cpu
    assert cpu is not None
    assert (cpu.load_1m, cpu.used_pct) == (1.5, expected)


def test_a_home_on_the_root_disk_is_listed_once() -> None:
    row = " /dev/sda1  104857600 52428800 52428800 50% /\n"
    assert parse_usage(f"@@ disk root\n{row}@@ disk home\n{row}@@ end\n").disks == (Disk("/", 100, 50, 50),)


def test_a_file_system_with_spaces_in_its_name_is_read() -> None:
    usage = parse_usage("@@ disk home\n map auto_home  1048576 524288 524288 50% /System/Volumes/Data/my home\n")
    assert usage.disks == (Disk("/System/Volumes/Data/my home", 1, 0.5, 0.5),)


def test_a_gpu_row_is_read() -> None:
    row = "3, GPU-d4de, NVIDIA H200, 580.159.04, 96, 22, 143771, 1011, 142146, 57, 692.43, 700.00, Default, Disabled"
    assert with_gpus(nvidia(row) + apps()).gpus == (
        Gpu(
            index=3,
            name="NVIDIA H200",
            uuid="GPU-d4de",
            util_pct=96,
            mem_total_mb=143771,
            mem_used_mb=1011,
            temperature_c=57,
            power_w=692.43,
            compute_mode="Default",
        ),
    )


UNTOLD = ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", "ERR!", "[GPU requires reset]", ""]


@pytest.mark.parametrize("word", UNTOLD)
def test_values_that_the_driver_does_not_report_are_absent(word: str) -> None:
    (gpu,) = with_gpus(nvidia(", ".join(["0", "GPU-0", "NVIDIA GB10", *[word] * 11])) + apps()).gpus
    assert (gpu.util_pct, gpu.mem_total_mb, gpu.mem_used_mb, gpu.mem_used_pct, gpu.temperature_c, gpu.power_w) == (
        (None,) * 6
    )


def test_an_older_driver_answers_with_fewer_columns() -> None:
    columns = COLUMNS.removesuffix(",mig.mode.current")
    (gpu,) = with_gpus(nvidia(card().removesuffix(", Disabled"), columns=columns)).gpus
    assert (gpu.name, gpu.mig) == ("NVIDIA A100-SXM4-80GB", False)


MISMATCH = ("Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 535.161")
GPU_ERRORS = [
    pytest.param(
        nvidia(*MISMATCH, status=18) + apps(*MISMATCH, status=18),
        f"nvidia-smi failed with exit code 18: {MISMATCH[0]} {MISMATCH[1]}",
        id="driver mismatch",
    ),
    pytest.param(
        nvidia("No devices were found", status=6),
        "nvidia-smi failed with exit code 6: No devices were found",
        id="no devices",
    ),
    pytest.param(nvidia("No devices were found"), "nvidia-smi: No devices were found", id="no devices, status 0"),
    pytest.param(nvidia(), "nvidia-smi: it lists no GPU", id="no rows"),
    pytest.param(nvidia(status=124), "nvidia-smi did not answer in time; the driver may hang", id="out of time"),
    pytest.param(
        "@@ asking nvidia-smi\n", "nvidia-smi did not answer in time; the driver may hang", id="cut off while asked"
    ),
    pytest.param(
        "@@ asking rocm-smi\n@@ rocm 1\n ERROR:root:Driver not initialized (amdgpu not found in modules)\n",
        "rocm-smi failed with exit code 1: ERROR:root:Driver not initialized (amdgpu not found in modules)",
        id="rocm without a driver",
    ),
    pytest.param("", "", id="no GPU tools"),
]


@pytest.mark.parametrize(("text", "expected"), GPU_ERRORS)
def test_failing_gpu_tools_are_reported_and_the_rest_is_there(text: str, expected: str) -> None:
    usage = with_gpus(text)
    assert (usage.gpu_error, usage.gpus) == (expected, ())
    assert usage.memory == Memory(1024, 512)


def test_a_lost_gpu_is_reported_beside_those_that_work() -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost. Reboot the system, please"
    usage = with_gpus(nvidia(card(0), lost, status=15))
    assert [gpu.index for gpu in usage.gpus] == [0]
    assert usage.gpu_error == f"nvidia-smi failed with exit code 15: {lost}"


def test_a_warning_behind_good_rows_is_a_problem_and_no_error() -> None:
    usage = with_gpus(nvidia(card(), "WARNING: infoROM is corrupted at gpu 0000:00:06.0"))
    assert usage.gpu_error == ""
    assert usage.problems == ("nvidia-smi: WARNING: infoROM is corrupted at gpu 0000:00:06.0",)


def test_a_leftover_rocm_smi_beside_nvidia_cards_is_no_error() -> None:
    assert with_gpus(nvidia(card()) + "@@ asking rocm-smi\n@@ rocm 1\n no driver\n").gpu_error == ""


PROCESSES = [
    pytest.param(
        nvidia(card()) + apps("GPU-0, 497, 1002, python3", owners=("497 alice 2-03:04:05 python3",)),
        [GpuProcess(497, "alice", "python3", 1002, 183845)],
        id="owner and time",
    ),
    pytest.param(
        nvidia(card())
        + apps("GPU-0, 497, 1002, /opt/env, v2/bin/python", owners=("497 a-very-long-user-name 01:02 x",)),
        [GpuProcess(497, "a-very-long-user-name", "python", 1002, 62)],
        id="path with a comma, long user",
    ),
    pytest.param(
        nvidia(card()) + apps("GPU-0, 497, [N/A], python3", owners=("497 alice - python3",)),
        [GpuProcess(497, "alice", "python3")],
        id="memory not told, time not told",
    ),
    pytest.param(
        nvidia(card()) + apps("GPU-0, 497, 5, python3"), [GpuProcess(497, "", "python3", 5)], id="hidden owner"
    ),
    pytest.param(
        nvidia(card()) + apps("GPU-0, 497, 5, [Not Found]", owners=("497 root 01:02 sshd",)),
        [GpuProcess(497, "", "", 5)],
        id="another container's pid is not ours",
    ),
    pytest.param(nvidia(card()) + apps(), [], id="container: empty list"),
    pytest.param(nvidia(card()) + apps("No devices were found"), [], id="no list"),
    pytest.param(
        nvidia(card()) + apps("GPU-0, 1, 5, a", "GPU-0, 2, 50, b", "GPU-0, 3, [N/A], c"),
        [GpuProcess(2, "", "b", 50), GpuProcess(1, "", "a", 5), GpuProcess(3, "", "c")],
        id="largest first",
    ),
    pytest.param(
        nvidia(card(0), card(1, mig="Enabled", util="[N/A]")) + apps("MIG-GPU-1/3/0, 7, 5, a"),
        [GpuProcess(7, "", "a", 5)],
        id="MIG, older driver",
    ),
    pytest.param(
        nvidia(card(0), card(1, mig="Enabled", util="[N/A]")) + apps("MIG-0f1e-22, 7, 5, a"),
        [GpuProcess(7, "", "a", 5)],
        id="MIG, one card with slices",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROCESSES)
def test_gpu_processes_have_owners(text: str, expected: list[GpuProcess]) -> None:
    assert processes(text) == expected


SLICES = """@@ slices
 GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)
 GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)
   MIG 3g.40gb     Device  0: (UUID: MIG-0f1e-22)
   MIG 1g.10gb     Device  1: (UUID: MIG-GPU-1/7/0)
 GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-2)
   MIG 7g.80gb     Device  0: (UUID: MIG-aaaa)
"""
LEASE = "@@ lease MIG-GPU-1_7_0 bob\n user bob\n job train\n"


def test_a_card_that_is_partitioned_counts_as_its_slices() -> None:
    """Jobs lease slices, so each has a state, processes and a lease of its own."""
    cards = (card(0), *(card(number, mig="Enabled", util="[N/A]", used="900") for number in (1, 2)))
    listed = apps("MIG-0f1e-22, 7, 500, a", "GPU-2, 8, [N/A], b", owners=("7 alice 01:00 a",))
    usage = with_gpus(nvidia(*cards) + SLICES + listed + LEASE)
    assert [(gpu.index, gpu.name, gpu.uuid, gpu.mem_total_mb) for gpu in usage.gpus] == [
        (0, "NVIDIA A100-SXM4-80GB", "GPU-0", 81920),
        (1, "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "MIG-0f1e-22", 40960),
        (1, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "MIG-GPU-1/7/0", 10240),
        (2, "NVIDIA A100-SXM4-80GB MIG 7g.80gb", "MIG-aaaa", 81920),
    ]
    assert [[process.pid for process in gpu.processes] for gpu in usage.gpus] == [[], [7], [], [8]]
    assert [gpu_state(gpu) for gpu in usage.gpus] == ["free", "held", "held", "held"]
    assert [gpu.lease.job for gpu in usage.gpus if gpu.lease] == ["train"]
    assert usage.problems == ()


def test_processes_are_on_their_own_gpus() -> None:
    usage = with_gpus(nvidia(*map(card, range(8))) + apps("GPU-6, 61, 1, a", "GPU-2, 21, 1, b", "GPU-6, 62, 1, c"))
    assert {gpu.index: [p.pid for p in gpu.processes] for gpu in usage.gpus if gpu.processes} == {2: [21], 6: [61, 62]}


def test_a_process_without_a_gpu_is_a_problem() -> None:
    usage = with_gpus(nvidia(card(0, mig="Enabled"), card(1, mig="Enabled")) + apps("MIG-0f1e-22, 7, 5, a"))
    assert usage.problems == ("1 GPU processes could not be matched to a GPU",)


def test_a_process_name_cannot_open_a_section() -> None:
    evil = "x\r@@ memory\x0b@@ load\u2028@@ end\x1b[31m"
    usage = with_gpus(nvidia(card()) + apps(f"GPU-0, 7, 5, {evil}"))
    assert usage.memory == Memory(1024, 512)
    assert usage.gpus[0].processes[0].name == "x @@ memory @@ load @@ end [31m"


ROCM = """\
@@ asking rocm-smi
@@ rocm 0
 WARNING: AMD GPU device(s) is/are in a low-power state

 {"card0": {"GUID": "100", "Card Series": "AMD Instinct MI300X", "Card Model": "0x74a1", "GPU use (%)": "97",
 "VRAM Total Memory (B)": "206158430208", "VRAM Total Used Memory (B)": "103079215104",
 "Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": "61.0",
 "Max Graphics Package Power (W)": "750.0", "Current Socket Graphics Package Power (W)": "612.5"},
 "card1": {"GUID": "200", "Card series": "N/A", "Card model": "0x0b0c", "GPU use (%)": "N/A",
 "Average Graphics Package Power (W)": "N/A (Secondary die)", "VRAM Total Memory (B)": 68702699520},
 "system": {"Driver version": "6.10.5"}}
@@ kfd
 100 4242 1073741824
 200 4242 0
@@ owners
 4242 bob 10:00 python
"""


def test_amd_cards_are_read_whatever_their_release_calls_things() -> None:
    first, second = with_gpus(ROCM).gpus
    assert first == Gpu(
        index=0,
        name="AMD Instinct MI300X",
        uuid="100",
        util_pct=97,
        mem_total_mb=196608,
        mem_used_mb=98304,
        temperature_c=61,
        power_w=612.5,
        processes=(GpuProcess(4242, "bob", "python", 1024, 600),),
    )
    assert (second.name, second.util_pct, second.power_w, second.processes) == ("AMD GPU", None, None, ())


def test_the_processes_of_an_only_amd_card_need_no_id() -> None:
    text = '@@ rocm 0\n {"card0": {"Card series": "Vega 20"}}\n@@ kfd\n 999 4242 1048576\n'
    assert with_gpus(text).gpus[0].processes == (GpuProcess(4242, mem_mb=1),)


@pytest.mark.parametrize("answer", ["{", '{"card0": [1]}', '{"card0": {"a": ' + "[" * 5000, "[]", "null", '{"a": {}}'])
def test_broken_json_is_an_error_of_the_tool(answer: str) -> None:
    usage = with_gpus(f"@@ rocm 0\n {answer}\n")
    assert usage.gpus == ()
    assert usage.gpu_error.startswith("rocm-smi: ")


def test_truncated_output_is_reported() -> None:
    assert parse_usage(LINUX).problems == (
        "the machine did not tell its disk space",
        "the machine's answer was cut off",
    )


@pytest.mark.parametrize(
    "text", ["", "sh: not found", "@@ probe 1\n@@ end\n", "@@ ", "@@ load\nx\n", "@@ clock\n 17\n"]
)
def test_an_answer_that_holds_nothing_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"holds nothing that can be read: .{2}"):
        parse_usage(text)


WHOLE = (
    LINUX
    + nvidia(card(0, "12", "500"), card(1))
    + apps("GPU-0, 4, 5, a", owners=("4 eve 01:00 a",))
    + ROCM
    + DISKS
    + END
)


def parse_or_refuse(text: str) -> None:
    try:
        usage = parse_usage(text)
    except ValueError as error:
        if "holds nothing" not in str(error):
            raise
    else:
        as_resources(usage, 0.5)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_or_refuse(text)


@given(st.lists(st.sampled_from([*WHOLE.splitlines(keepends=True), "@@ ", " ", " 9" * 99 + "\n"]) | st.text()))
def test_no_mixture_of_lines_breaks_the_parser(lines: list[str]) -> None:
    parse_or_refuse("".join(lines))


@given(st.integers(0, len(WHOLE)), st.integers(0, 40), st.text(max_size=20))
def test_no_damage_breaks_the_parser(start: int, length: int, text: str) -> None:
    parse_or_refuse(WHOLE[:start] + text + WHOLE[start + length :])


def test_resources_have_the_shape_that_clients_know() -> None:
    text = nvidia(card(0, "96", "40960"), card(1)) + apps(
        "GPU-0, 497, 40000, python3", owners=("497 alice 5-01:02:03 p",)
    )
    assert as_resources(with_gpus(text), 0.512) == {
        "cpu": {"load_1m": 1.5, "load_5m": 2.5, "load_15m": 3.5, "count": 64},
        "memory": {"total_mb": 1024, "used_mb": 512, "free_mb": 512, "used_pct": 50},
        "gpu": [
            {
                "index": 0,
                "name": "NVIDIA A100-SXM4-80GB",
                "state": "busy",
                "util_pct": 96,
                "mem_used_mb": 40960,
                "mem_total_mb": 81920,
                "mem_used_pct": 50,
                "temperature_c": 40,
                "power_w": 61.2,
                "processes": [{"pid": 497, "user": "alice", "mem_mb": 40000, "name": "python3", "elapsed": "5d 1h"}],
            },
            {
                "index": 1,
                "name": "NVIDIA A100-SXM4-80GB",
                "state": "free",
                "util_pct": 0,
                "mem_used_mb": 0,
                "mem_total_mb": 81920,
                "mem_used_pct": 0,
                "temperature_c": 40,
                "power_w": 61.2,
            },
        ],
        "disk": {"path": "/home", "total_gb": 1024, "free_gb": 512, "used_pct": 50},
        "idle_score": 0.512,
    }


def test_resources_leave_out_what_is_unknown() -> None:
    usage = Usage(gpus=(Gpu(0, "NVIDIA GB10", processes=(GpuProcess(7),)),))
    assert as_resources(usage, 0.0) == {
        "gpu": [{"index": 0, "name": "NVIDIA GB10", "state": "held", "processes": [{"pid": 7}]}],
        "idle_score": 0.0,
    }


def test_resources_show_unusual_settings() -> None:
    usage = Usage(
        cpu=Cpu(1, 1, 1, count=8, online=128),
        gpus=(Gpu(0, "A30", mig=True, compute_mode="Prohibited"),),
        disks=(Disk("/home", 100, 10, 90), Disk("/", 100, 95, 5)),
        gpu_error="nvidia-smi failed",
        problems=("a", "b", "c", "d"),
    )
    assert as_resources(usage, 0.1) == {
        "cpu": {"load_1m": 1, "load_5m": 1, "load_15m": 1, "count": 8, "machine_count": 128},
        "gpu": [{"index": 0, "name": "A30", "state": "busy", "mig": True, "compute_mode": "Prohibited"}],
        "disk": {"path": "/home", "total_gb": 100, "free_gb": 90, "used_pct": 10},
        "root_disk": {"path": "/", "total_gb": 100, "free_gb": 5, "used_pct": 95},
        "gpu_error": "nvidia-smi failed",
        "problems": ["a", "b", "c"],
        "idle_score": 0.1,
    }


def test_a_crowd_of_processes_is_counted_and_not_listed() -> None:
    crowd = tuple(GpuProcess(pid, mem_mb=1) for pid in range(1, 21))
    (gpu,) = as_resources(Usage(gpus=(Gpu(0, "H100", processes=crowd),)), 0.5)["gpu"]  # type: ignore[misc]
    assert (len(gpu["processes"]), gpu["more_processes"]) == (8, 12)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0s"), (59, "59s"), (62, "1m 2s"), (3600, "1h"), (7380, "2h 3m"), (183845, "2d 3h"), (864000, "10d")],
    ids=str,
)
def test_elapsed_time_is_shown_in_two_units(seconds: int, expected: str) -> None:
    usage = Usage(gpus=(Gpu(0, "H100", processes=(GpuProcess(7, elapsed_s=seconds),)),))
    (gpu,) = as_resources(usage, 0.5)["gpu"]  # type: ignore[misc]
    assert gpu["processes"] == [{"pid": 7, "elapsed": expected}]


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Usage().gpu_error = "x"  # type: ignore[misc]
