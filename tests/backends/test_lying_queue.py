"""A cluster's queue and srun that lie to the near side: allocations end in a value or a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.command.way import LocalCommand
from remote_sandbox_mcp.backends.slurm import allocation
from remote_sandbox_mcp.backends.slurm import provider as provider_module
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.slurm.queue import ClusterQueue
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import SandboxError, UnknownSandbox
from remote_sandbox_mcp.core.jobs.queue import SEPARATOR, read_sacct, read_squeue
from remote_sandbox_mcp.core.sandboxes.cluster import Section, cluster_fields, cluster_score, read_cluster
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster
from tests.support.lying_slurm import ENDLESS, FAILS, HANGS, Lie, LyingPrograms
from tests.support.tormentor import MEGABYTE, check_value, counted_memory, ends_well, torment

pytestmark = pytest.mark.anyio

MARK, ID = "0123456789abcdef", "sb-0123456789ab"
OURS = f"rsmcp-{MARK}-{ID}"
BOX = Disposable(id=ID, provider="slurm:cluster", key="41", created=1.0, expires=2.0)
# Each starts some ten processes.
few = settings(torment, max_examples=max(10, torment.max_examples // 5))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "OPEN_S", 0.5)
    monkeypatch.setattr(provider_module, "COMPLETING_S", 0.2)
    monkeypatch.setattr(provider_module, "RENEW_S", 0.3)
    monkeypatch.setattr(provider_module, "SUBMIT_S", 1.0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> LyingPrograms:
    return LyingPrograms(tmp_path_factory.mktemp("cluster"))


def provider_on(programs: LyingPrograms) -> SlurmProvider:
    way = LocalCommand(("sh", "-c"), programs.environ)
    queue = ClusterQueue("cluster", Cluster(rate_s=0.0), way)
    return SlurmProvider(queue, Environment(), DisposableRules(), MARK)


def squeue_row(**fields: str) -> str:
    usual = {"number": "41", "state": "RUNNING", "reason": "None", "start": "2026-11-16T21:39:16", "end": "N/A"}
    return SEPARATOR.join({**usual, "partition": "main", "nodes": "n1", "name": OURS, **fields}.values())


def check_box(seen: Any) -> None:
    """What is told of a sandbox can be handed on, and its texts are harmless."""
    if isinstance(seen, list):
        for each in seen:
            check_box(each)
    elif isinstance(seen, Disposable):
        check_value(seen)
        json.dumps([seen.expires, seen.started, seen.ends_by], allow_nan=False)
        assert all(text.isprintable() for text in (seen.id, seen.key, seen.reason, *seen.notes)), seen
    elif not isinstance(seen, SandboxError):
        assert seen is None or hasattr(seen, "description")


async def lead(programs: LyingPrograms, lies: dict[str, Lie]) -> dict[str, Any]:
    """The life of an allocation, in each part of which the programs lie."""
    programs.lie(**lies)
    provider = provider_on(programs)
    calls = {
        "create": lambda: provider.create(ID, SandboxOrder(timeout_s=600.0)),
        "look": lambda: provider.inspect(BOX),
        "list": provider.list,
        "renew": lambda: provider.renew(BOX, 600.0),
        "open": lambda: opened(provider),
        "delete": lambda: provider.delete(BOX),
    }
    try:
        seen = {name: await ends_well(call(), 30) for name, call in calls.items()}
    finally:
        await provider.close()
    for each in seen.values():
        check_box(each)
    for words in programs.calls("scancel"):
        assert words == [f"--name={OURS}"]
    # A step is made in a job that the queue has under this very name alone.
    queue = lies.get("squeue", Lie()).out.decode("utf-8", "surrogateescape")
    assert not programs.calls("srun") or re.search(rf"(?m)^\s*41\s*{SEPARATOR}.*{OURS}\s*$", queue), queue
    return seen


async def opened(provider: SlurmProvider) -> None:
    sandbox: Sandbox = await provider.open(BOX)
    await sandbox.close()


async def test_an_honest_queue_is_believed(programs: LyingPrograms) -> None:
    seen = await lead(programs, {"sbatch": Lie(b"41\n"), "squeue": Lie(squeue_row().encode())})
    assert (seen["create"].key, seen["look"].status) == ("41", "running")
    assert [box.id for box in seen["list"]] == [ID]


@pytest.mark.parametrize("number", ["-41", "41 99", "--me", "", "\x1b[2J", "41\n$(touch x)", "9" * 5000, "４１"])
async def test_a_number_that_is_none_makes_no_sandbox(programs: LyingPrograms, number: str) -> None:
    seen = await lead(programs, {"sbatch": Lie(f"{number}\n".encode())})
    assert isinstance(seen["create"], SandboxError)


async def test_the_number_of_another_job_is_neither_entered_nor_cancelled(programs: LyingPrograms) -> None:
    seen = await lead(programs, {"sbatch": Lie(b"41\n"), "squeue": Lie(squeue_row(name="thesis").encode())})
    assert seen["look"].status == "gone"
    assert isinstance(seen["open"], UnknownSandbox)


SRUN = {
    "garbage": Lie(bytes(range(256)) * 100),
    "garbage, and it hangs": Lie(b"\x1b[2Jnoise\n" * 1000, HANGS),
    "silence": Lie(b"", HANGS),
    "the end": Lie(b"", FAILS),
    "a flood": Lie(b"x" * 100, ENDLESS),
    "a greeting of its own": Lie(b"\n" + b"0" * 32 + b"\n\x00\x00\x00\x02\x0a\x00\x00\x00\x00{}", HANGS),
}


@pytest.mark.parametrize("srun", SRUN.values(), ids=SRUN)
async def test_an_srun_that_lies_opens_nothing(programs: LyingPrograms, srun: Lie) -> None:
    with counted_memory() as check:
        seen = await lead(programs, {"sbatch": Lie(b"41\n"), "squeue": Lie(squeue_row().encode()), "srun": srun})
        assert isinstance(seen["open"], SandboxError)
        check(64 * MEGABYTE)


ODD = [
    "", "-1", "²", "9" * 400, "nan", "N/A", "\x1b[31mred\x1b[0m", "\x00", "\u202ereversed", "x" * 3000, "7",
    "9999-12-31T23:59:59", "10000-01-01T00:00:00", "0001-01-01T00:00:00", "999999999999999999", "[0-999999999]", "\r",
]  # fmt: skip
STATES = ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED by 0"]
NUMBERS = ["41", "41_1", "99", "41_[0-999999999]", "²", "--me", "9" * 400]
cells = [
    st.sampled_from(NUMBERS), st.sampled_from([*STATES, "CANCELLED by ²", f"CANCELLED by {'9' * 5000}", *ODD]),
    *[st.sampled_from(ODD)] * 5, st.sampled_from([OURS, "thesis", f"rsmcp-{MARK}-sb-ffffffffffff", *ODD]),
]  # fmt: skip


def printed(separator: str) -> st.SearchStrategy[str]:
    whole = st.tuples(*cells).map(separator.join)
    own = st.tuples(*cells).map(lambda row: separator.join(("41", *row[1:7], OURS)))
    noise = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    clocks = st.sampled_from(["1794865309", "9" * 400, "0", "²", "x"])
    return st.tuples(clocks, st.lists(st.one_of(whole, own, noise), max_size=4)).map(
        lambda it: "\n".join((it[0], *it[1]))
    )


endings = st.sampled_from(["exit 0"] * 5 + [FAILS, "exit 127", "kill -9 $$"])
lies = st.fixed_dictionaries(
    {
        "sbatch": st.builds(Lie, st.sampled_from([b"41\n", b"99;c\n", b"\xff", b""]), endings),
        "squeue": st.builds(Lie, printed(SEPARATOR).map(str.encode), endings),
        "sacct": st.builds(Lie, printed("|").map(str.encode), endings),
        "scontrol": st.builds(Lie, st.binary(max_size=20), endings),
        "scancel": st.builds(Lie, st.binary(max_size=20), endings),
    }
)


@few
@given(lies=lies)
async def test_whatever_the_queue_says_an_allocation_ends_in_a_value_or_a_sentence(
    programs: LyingPrograms, lies: dict[str, Lie]
) -> None:
    await lead(programs, lies)


@torment
@given(text=printed(SEPARATOR), accounts=printed("|"))
def test_whatever_squeue_and_sacct_print_is_read_as_harmless_values(text: str, accounts: str) -> None:
    for job in (*read_squeue(text).values(), *read_sacct(accounts).values()):
        check_value(replace(job, name=""))
        assert all(it.isprintable() for it in (job.number, job.word, job.reason, job.partition, job.nodes)), job
        assert len(job.nodes) < 1000


# The survey of a cluster

WORDS = [*ODD, "1", "999999999999", "main*", "up", "idle", "mixed-", "gpu:a100:999999", "gpu:²:1", "PENDING", "oldest"]
lines = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=10).flatmap(
        lambda row: st.sampled_from([" ".join(row), "|".join(row), "\x1f".join(row)])
    ),
    max_size=6,
).map(tuple)
replies = st.dictionaries(
    st.sampled_from(["nodes", "mine", "waiting", "limits", "qos"]),
    st.builds(Section, st.sampled_from(["0", "0", "1", "", "127", "²"]), lines),
)


@settings(torment, max_examples=4 * torment.max_examples)
@given(age=st.sampled_from(WORDS), answers=replies, is_whole=st.booleans())
def test_whatever_a_cluster_says_of_itself_is_a_survey(age: str, answers: dict[str, Section], is_whole: bool) -> None:
    usage = read_cluster(age, answers, is_whole)
    fields = cluster_fields(usage)
    check_value(fields)
    assert 0.0 <= cluster_score(usage) <= 1.0
    assert all(text.isprintable() and len(text) < 500 for text in texts(fields)), fields


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def test_a_cluster_of_more_than_there_can_be_has_numbers_that_others_can_hold() -> None:
    for digits, cards in ((12, 6), (9, 4)):
        line = " ".join(["9" * digits] * 3 + ["main up infinite idle gpu:a100:" + "9" * cards])
        usage = read_cluster("0", {"nodes": Section("0", (line,) * 10_000)}, True)
        check_value(cluster_fields(usage))


def test_a_time_far_away_is_a_time() -> None:
    line = f"oldest 7 main PENDING {'9' * 11} {'9' * 11} Priority"
    check_value(cluster_fields(read_cluster("0", {"mine": Section("0", (line,))}, True)))
