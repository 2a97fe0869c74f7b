"""A login node whose programs of Slurm lie: each call ends in a value or a sentence, and no other job is stopped."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.link.jobs import OutpostJobs, question_of
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobSeen, JobState, Submission, new_job_id
from remote_sandbox_mcp.far.jobs import fate as jobfate
from remote_sandbox_mcp.far.jobs import queue as jobqueue
from remote_sandbox_mcp.far.jobs import tools as jobtools
from remote_sandbox_mcp.views.job_results import seen_fields
from tests.support.lying_slurm import ENDLESS, FAILS, HANGS, ROW, UNIT, Lie, LoginNode, login_node, row_of
from tests.support.tormentor import MEGABYTE, check_value, counted_memory, ends_well, torment

pytestmark = pytest.mark.anyio

# A process of the far side that ends without an answer has met an exception that nobody expected.
CRASHED = "given up on the machine: its process was killed"
MARK, SESSION = "rsmcp:{id}", "{session}"
# Each is a job that is submitted, looked at, listed and stopped: some twenty processes.
few = settings(torment, max_examples=max(12, torment.max_examples // 4))


@pytest.fixture(scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LoginNode]:
    async with login_node(tmp_path_factory.mktemp("login")) as node:
        yield node


def new_order() -> JobOrder:
    job_id = new_job_id()
    return JobOrder(session=job_id[-12:], script="true", job_id=job_id, submission=Submission((), 0.5))


def shown(value: Any) -> Iterator[str]:
    """Every text in a result."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from shown(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from shown(inner)
    elif isinstance(value, str):
        yield value


def check_seen(seen: Any) -> None:
    if isinstance(seen, SandboxError):
        assert CRASHED not in str(seen)
        return
    for job in seen if isinstance(seen, list) else [seen]:
        fields = seen_fields(job)
        check_value(fields)
        json.dumps(fields, allow_nan=False)
        assert all(text.replace("\n", "").replace("\t", "").isprintable() for text in shown(fields)), fields


async def stop_once(jobs: OutpostJobs, look: JobQuery) -> JobSeen:
    """As `stop` asks, but once, and with so little grace that all ways to cancel are tried at once."""
    order: Any = {"verb": "job_stop", "job": question_of(look), "grace": -7.7, "queue_rate": 0.5}
    return jobs._read_one(*await jobs._ask(order, 1 << 20))


async def lead(node: LoginNode, order: JobOrder, lies: dict[str, Lie]) -> list[Any]:
    """The life of one job, in each part of which the programs lie; what came of each."""
    words = {"{id}": order.job_id, "{session}": order.session}
    told = {
        name: Lie(re.sub(rb"\{(id|session)\}", lambda found: words[found[0].decode()].encode(), lie.out), lie.then)
        for name, lie in lies.items()
    }
    node.lie(**told)
    jobs, look = node.sandbox.jobs, JobQuery(job_id=order.job_id)
    calls = (jobs.start(order), jobs.inspect([look]), jobs.list(), stop_once(jobs, look))
    seen = [await ends_well(call) for call in calls]
    assert not any(isinstance(each, SandboxError) and CRASHED in str(each) for each in seen), seen
    for each in seen[1:]:
        check_seen(each)
    check_cancelled(node, order, told.get("squeue", Lie()).out)
    return seen


def check_cancelled(node: LoginNode, order: JobOrder, queue: bytes) -> None:
    """scancel was given what the queue has as this very job, or a number together with the job's name."""
    rows = [line.split(UNIT, 13) for line in queue.decode("utf-8", "surrogateescape").split("\n")]
    whole = [row for row in rows if len(row) == 14]
    own = {row[0] for row in whole if row[12].split(" ")[0] == f"rsmcp:{order.job_id}" or row[13] == order.session}
    own |= {number.partition("_")[0] for number in own}
    for words in node.calls("scancel"):
        *options, number = words
        assert re.fullmatch(r"[0-9]{1,12}(_[0-9]{1,9})?", number), words
        assert all(re.match(r"--(state=PENDING|signal=TERM|batch|name=)", option) for option in options), words
        assert number in own or f"--name={order.session}" in options, (words, rows)


async def test_an_honest_login_node_is_believed(node: LoginNode) -> None:
    order = new_order()
    queue = Lie(row_of(comment=MARK, name=SESSION).encode() + b"\n")
    started, (seen,), listed, _ = await lead(node, order, {"sbatch": Lie(b"41\n"), "squeue": queue})
    assert started.via == "slurm"
    assert (seen.state, seen.queue.number, seen.queue.reason) == (JobState.PENDING, "41", "Priority")
    assert order.job_id in {job.job_id for job in listed}
    assert ["--state=PENDING", "41"] in node.calls("scancel")


# The job of somebody who shares the account, and what a lie would make of it.
VICTIM = row_of(number="99", job="99", state="RUNNING", name="thesis", comment="important")
WRONG_NUMBERS = {
    "it is that of another job": (Lie(b"99\n"), VICTIM),
    "a banner has a number": (Lie(b"99\nMaintenance on day\n99\n"), VICTIM),
    "another job of ours has it": (
        Lie(b"99\n"),
        row_of(number="99", job="99", state="COMPLETED", comment="rsmcp:job-0123456789abcdef", name=SESSION),
    ),
}


@pytest.mark.parametrize(("sbatch", "row"), WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
async def test_a_wrong_number_of_sbatch_stops_no_other_job_and_tells_no_others_end(
    node: LoginNode, sbatch: Lie, row: str
) -> None:
    _, (seen,), _, stopped = await lead(node, new_order(), {"sbatch": sbatch, "squeue": Lie(row.encode() + b"\n")})
    assert seen.state is JobState.PENDING
    assert node.calls("scancel") == []
    assert isinstance(stopped, JobSeen)
    assert stopped.exit_code is None


async def test_a_wrong_number_of_sbatch_is_put_right_by_the_mark_in_the_queue(node: LoginNode) -> None:
    own = row_of(number="55", job="55", state="RUNNING", comment=MARK, name=SESSION)
    queue = Lie(f"{VICTIM}\n{own}\n".encode())
    _, (seen,), _, _ = await lead(node, new_order(), {"sbatch": Lie(b"99\n"), "squeue": queue})
    assert (seen.state, seen.queue.number) == (JobState.RUNNING, "55")
    assert {words[-1] for words in node.calls("scancel")} == {"55"}


async def test_a_job_that_the_queue_hides_is_cancelled_by_its_number_and_its_name_together(node: LoginNode) -> None:
    order = new_order()
    await lead(node, order, {"sbatch": Lie(b"99\n")})
    assert node.calls("scancel")
    assert all(f"--name={order.session}" in words for words in node.calls("scancel"))


@pytest.mark.parametrize("job", ["--user=root", "-u", "", "99", "41 99", "41\t--me", "４１", "41\n--me"])
async def test_a_row_whose_job_is_none_is_no_row(node: LoginNode, job: str) -> None:
    queue = Lie(row_of(number="41", job=job, comment=MARK, name=SESSION).encode() + b"\n")
    await lead(node, new_order(), {"sbatch": Lie(b"", FAILS.replace("1", "0")), "squeue": queue})
    assert node.calls("scancel") == []


async def test_a_job_of_another_that_bears_our_mark_is_not_taken_for_ours(node: LoginNode) -> None:
    """Who asks to stop slurm-99 stops no job of ours, whatever the queue says of 99."""
    order = new_order()
    own = row_of(number="41", job="41", state="RUNNING", comment=MARK, name=SESSION)
    forged = row_of(number="99", job="99", state="RUNNING", comment=MARK, name="thesis")
    await lead(node, order, {"sbatch": Lie(b"41\n"), "squeue": Lie(f"{own}\n{forged}\n".encode())})
    queue = f"{own}\n{forged}\n".replace("{id}", order.job_id).replace("{session}", order.session)
    node.lie(squeue=Lie(queue.encode()))
    (seen,) = await node.sandbox.jobs.inspect([JobQuery(session="slurm-99")])
    assert (seen.job_id, seen.foreign) == ("slurm-99", True)


# What each program may say, besides anything at all.
NOTHING_MORE = ["exit 0", FAILS, "exit 127", "kill -9 $$"]
SBATCH = [
    b"41\n", b"41", b"41;cluster\n", b"-41\n", b"0\n", b"99\n", b"9" * 5000 + b"\n", b"Submitted batch job 41\n",
    b"\x1b[2J\x1b]0;x\x07 41\n", b"\xff\xfe\x00\n", "４１\n²\n".encode(), b"41\n--me\n", b"\n" * 70_000,
    b"sbatch: error: Socket timed out\n41\n",
]  # fmt: skip
ODD = [
    "", "-1", "²", "9" * 400, "1e999", "nan", "N/A", "\x1b[31mred\x1b[0m", "\x00", "\u202ereversed", "x" * 3000, "7",
    "9999-12-31T23:59:59", "10000-01-01T00:00:00", "0001-01-01T00:00:00", "999999999999999999", "[0-999999999]", "\r",
]  # fmt: skip
STATES = ["PENDING", "RUNNING", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED by 0", "CANCELLED by ²", "?"]
FIELDS: dict[str, list[str]] = {
    "number": ["41", "41_1", "99", "41_[0-999999999]", "41+0", "-41", "²", "041"],
    "job": ["41", "99", "--me", "²", ""],
    "element": ["N/A", "1", "²", "--me", "999999999999"],
    "state": [*STATES, *ODD],
    "command": ["/elsewhere/script", "/tmp/{id}/script", *ODD],
    "comment": [MARK, f"{MARK} x", "rsmcp:../../etc", "rsmcp:job-0123456789abcdef", *ODD],
    "name": [SESSION, "thesis", "rsmcp-x", *ODD],
}
row_fields = st.fixed_dictionaries({}, optional={name: st.sampled_from(FIELDS.get(name, ODD)) for name in ROW})
rows = st.one_of(
    row_fields.map(lambda fields: row_of(**fields).encode()),
    # As ours, so that what else it says is read.
    row_fields.map(lambda fields: row_of(**{**fields, "number": "41", "job": "41", "comment": MARK}).encode()),
    st.binary(max_size=60),
    st.just(b"\x1f" * 13),
)
accounts = st.tuples(
    st.sampled_from(["41", "41_1", "99", "²", "--me", "41.batch"]),
    st.sampled_from([*STATES, *ODD]),
    st.sampled_from(["0:0", "1:0", "0:9", "²:²", ":", "-1:-1", "9" * 300, "256:0"]),
    st.sampled_from(ODD),
).map(lambda cells: "|".join(cells).encode())
jobs_shown = st.sampled_from([*ODD, "0:0", "²:0", "9" * 5000, "0:²", "999999999999999999999:0"]).map(
    lambda word: f"JobId=41 ExitCode={word} StdOut=/proc/self/environ\nStdOut={word}".encode()
)


def lie(out: st.SearchStrategy[bytes]) -> st.SearchStrategy[Lie]:
    return st.builds(Lie, out, st.sampled_from(NOTHING_MORE[:1] * 4 + NOTHING_MORE))


lies = st.fixed_dictionaries(
    {
        "sbatch": lie(st.one_of(st.sampled_from(SBATCH), st.just(b"41\n"), st.binary(max_size=50))),
        "squeue": lie(st.lists(rows, max_size=5).map(b"\n".join)),
        "sacct": lie(st.lists(accounts, max_size=3).map(b"\n".join)),
        "scontrol": lie(jobs_shown),
        "scancel": lie(st.binary(max_size=50)),
    }
)


@few
@given(lies=lies)
async def test_whatever_slurms_programs_say_a_job_ends_in_a_value_or_a_sentence(
    node: LoginNode, lies: dict[str, Lie]
) -> None:
    await lead(node, new_order(), lies)
    # And it harms nobody else there.
    node.lie()
    assert (await node.sandbox.jobs.inspect([JobQuery(session="nobody")]))[0].state is JobState.MISSING


SLOW = {
    "sbatch hangs": {"sbatch": Lie(b"41\n", HANGS)},
    "squeue hangs": {"sbatch": Lie(b"41\n"), "squeue": Lie(b"x", HANGS)},
    "all hang": {name: Lie(b"", HANGS) for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel")},
    "sbatch has no end": {"sbatch": Lie(b"41", ENDLESS)},
    "squeue has no end": {"sbatch": Lie(b"41\n"), "squeue": Lie(row_of(comment=MARK).encode(), ENDLESS)},
    "all have no end": {
        name: Lie(VICTIM.encode(), ENDLESS) for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel")
    },
}


@pytest.mark.parametrize("lies", SLOW.values(), ids=SLOW)
async def test_programs_that_hang_or_have_no_end_are_cut_off(node: LoginNode, lies: dict[str, Lie]) -> None:
    seen = await lead(node, new_order(), lies)
    assert len(repr(seen)) < 200_000
    assert not left_behind(node)


def left_behind(node: LoginNode) -> list[str]:
    """Programs of the login node that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environ, command = path.read_bytes(), path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if f"HOME={node.folder}".encode() in environ and command.startswith((b"/bin/sh", b"sleep", b"yes")):
            found.append(command.decode("utf-8", "replace"))
    return found


def test_of_what_a_program_prints_without_end_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # They would be those of the tests.
    monkeypatch.setattr(jobtools, "descendants", lambda root, group: [])
    with counted_memory() as check:
        said = jobtools.call(["yes", "x" * 1000], 0.3, most=1 << 16)
        check(2 * MEGABYTE)
    assert (said.code, len(said.text)) == (None, 1 << 16)


# What has broken the far program: each was an exception there, and no answer.


@pytest.mark.parametrize("said", ["²", "²:0", "0:²", "9" * 5000, "99999999999999999999:0", "-1:0", "", ":"])
def test_an_exit_code_that_is_none_is_not_known(said: str) -> None:
    assert jobfate.read_exit(said) == (1, False)


@pytest.mark.parametrize("said", ["²", "-1", "1e9", "９９", "10000-01-01T00:00:00", "x" * 5000, "\0"])
def test_a_time_that_is_none_is_none(said: str) -> None:
    assert jobqueue.read_time(said) == 0.0
