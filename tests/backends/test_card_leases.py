"""Leases of GPUs on real machines: one owner for each card at each moment, whatever is killed, whoever interferes."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, Jobs, JobStarted, JobState, JobWait, NoCards
from remote_sandbox_mcp.core.jobs.placement import Place, count_free
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.far.jobs import cards as far
from remote_sandbox_mcp.services.probe.measure import measure
from tests.support.cards import StandInCards, stand_in_cards
from tests.support.jobs import clean, has_printed, look, not_running, order
from tests.support.pace import Deadline
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd
from tests.support.waiting import eventually

ONE = CardRequest(1)
WAITS = "echo begun $CUDA_VISIBLE_DEVICES; while :; do sleep 0.1; done"
# Says which card it sees; complains if another owner of it is there.
OWNS = "mkdir {0}/$CUDA_VISIBLE_DEVICES || echo two owners >>{0}/wrong; sleep 0.5; rmdir {0}/$CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module", params=["python", "shell"])
def kind(request: pytest.FixtureRequest) -> str:
    """With Python over there, and with a shell alone."""
    return str(request.param)


@pytest.fixture(scope="module")
def users(fleet: Fleet, kind: str) -> list[Sshd]:
    return [fleet.machine(f"{kind}-{name}", python=kind == "python", tmux=False) for name in ("alice", "bob", "carol")]


@pytest.fixture
def cards(fleet: Fleet, users: list[Sshd], request: pytest.FixtureRequest) -> Iterator[StandInCards]:
    """Four cards, of which both users are told."""
    with stand_in_cards(fleet.folder / f"cards-{os.urandom(4).hex()}", 4) as cards:
        for user in users:
            (user.home / ".bashrc").write_text(f"PATH={cards.bin}:$PATH; export PATH\n")
        yield cards


@pytest.fixture
async def sandboxes(users: list[Sshd], cards: StandInCards, tmp_path: Path) -> AsyncIterator[list[Sandbox]]:
    async with AsyncExitStack() as stack:
        opened = []
        for user in users:
            sandbox = await open_machine(user.machine(), tmp_path / "known_hosts")
            stack.push_async_callback(sandbox.close)
            opened.append(sandbox)
        yield opened
    for user in users:
        clean(user)


@pytest.fixture
def alice(sandboxes: list[Sandbox]) -> Jobs:
    return sandboxes[0].jobs


@pytest.fixture
def bob(sandboxes: list[Sandbox]) -> Jobs:
    return sandboxes[1].jobs


async def lease(
    jobs: Jobs, count: int = 1, session: str = "train", script: str = WAITS, **fields: object
) -> JobStarted:
    return await jobs.start(order(script, session, cards=CardRequest(count), **fields))


async def refused(jobs: Jobs, count: int = 1, memory_mb: int = 0) -> NoCards:
    with pytest.raises(NoCards) as refusal:
        await jobs.start(order(WAITS, "other", cards=CardRequest(count, memory_mb)))
    return refusal.value


async def free_again(jobs: Jobs, count: int) -> JobStarted:
    """The start of a job that takes this many cards, as soon as they can be had."""
    deadline, wanted = Deadline(60), order(WAITS, "next", cards=CardRequest(count))
    while True:
        try:
            return await jobs.start(wanted)
        except NoCards:
            if deadline.has_passed():
                raise


async def test_a_command_sees_its_cards_and_nobody_else_gets_them(
    alice: Jobs, bob: Jobs, cards: StandInCards, users: list[Sshd]
) -> None:
    mine = await lease(alice, 3, run_for_s=3600)
    assert mine.cards == tuple(cards.uuids[:3])
    await has_printed(alice, mine.job_id, f"begun {','.join(mine.cards)}\n".encode())
    refusal = await refused(bob, 2)
    assert str(refusal).endswith("2 GPUs cannot be had now: 1 of 4 are free")
    assert len(refusal.busy) == 3
    assert refusal.busy[0].startswith(f"GPU 0 is leased by {users[0].user} (job train) until ")
    assert (await lease(bob)).cards == (cards.uuids[3],)
    await alice.stop(JobQuery(job_id=mine.job_id), grace_s=1)
    assert (await free_again(bob, 3)).cards == mine.cards


async def test_a_refused_start_leaves_nothing_and_may_be_tried_again(
    alice: Jobs, bob: Jobs, cards: StandInCards
) -> None:
    first = await lease(alice, 4)
    wanted = order(WAITS, cards=ONE)
    for _ in range(2):
        with pytest.raises(NoCards):
            await bob.start(wanted)
        assert await bob.list() == []
    await alice.stop(JobQuery(job_id=first.job_id), grace_s=1)
    started = await bob.start(wanted)
    again = await bob.start(wanted)
    assert (again.recovered, again.cards) == (True, started.cards)


async def test_a_refusal_that_nobody_heard_is_no_start(
    alice: Jobs, cards: StandInCards, users: list[Sshd], kind: str
) -> None:
    """The request was killed after the keeper found no free card, and before it could tell and tidy up."""
    wanted = order("true", cards=ONE)
    await alice.start(wanted)
    await not_running(alice, wanted.job_id)
    folder = folder_of(users[0], wanted.job_id, kind)
    if kind == "python":
        (folder / "failed").write_text(json.dumps({"reason": "cards", "message": "1 GPU cannot be had now"}))
        (folder / "begun").rename(folder / "claim")
        (folder / "claim").write_text("")
    else:
        (folder / "busy").write_text("1 GPU cannot be had now\n")
        (folder / "claim").unlink()
        (folder / "claim").symlink_to("withdrawn 0")
        (folder / "pid").unlink()
    (folder / "end").unlink()
    assert not (await alice.start(wanted)).recovered
    assert (await not_running(alice, wanted.job_id)).exit_code == 0


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$"])
async def test_the_end_of_a_job_frees_its_cards(alice: Jobs, bob: Jobs, cards: StandInCards, end: str) -> None:
    """Also if a process of the command goes on, which has inherited the locks."""
    started = await lease(alice, 4, script=f"setsid sleep 600 & {end}")
    await not_running(alice, started.job_id)
    await free_again(bob, 4)


async def test_a_command_without_its_keeper_keeps_its_cards(
    alice: Jobs, bob: Jobs, users: list[Sshd], kind: str
) -> None:
    started = await lease(alice, 4, script=f"trap '' HUP; {WAITS}")
    await has_printed(alice, started.job_id, b"begun")
    os.kill(keeper_of(users[0], started.job_id, kind), signal.SIGKILL)
    await eventually(lambda: look(alice, started.job_id), lambda seen: bool(seen.reason), "the keeper's death")
    await refused(bob)
    await alice.stop(JobQuery(job_id=started.job_id), grace_s=1)
    await free_again(bob, 4)


async def test_what_is_killed_with_its_keeper_frees_its_cards(
    alice: Jobs, bob: Jobs, users: list[Sshd], kind: str
) -> None:
    await lease(alice, 4)
    users[0].reset()
    await free_again(bob, 4)


async def test_a_lease_outlives_the_connection(alice: Jobs, bob: Jobs, users: list[Sshd]) -> None:
    started = await lease(alice, 4)
    users[0].kill_sessions()
    await refused(bob)
    assert (await look(alice, started.job_id)).is_running


async def test_a_lease_outlives_the_process_that_asked_for_it(
    alice: Jobs, bob: Jobs, users: list[Sshd], tmp_path: Path
) -> None:
    """As when a hub is killed."""
    wanted = order(WAITS, cards=CardRequest(4))
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=start_and_stay, args=(users[0].machine(), tmp_path / "known", wanted))
    process.start()
    await eventually(lambda: look(alice, wanted.job_id), lambda seen: b"begun" in seen.log, "the job")
    process.kill()
    await asyncio.to_thread(process.join)
    await refused(bob)
    assert (await look(alice, wanted.job_id)).is_running
    assert len((await alice.start(wanted)).cards) == 4


def start_and_stay(machine: Machine, known_hosts: Path, wanted: JobOrder) -> None:
    async def start() -> None:
        await (await open_machine(machine, known_hosts)).jobs.start(wanted)
        await asyncio.Event().wait()

    asyncio.run(start())


async def test_a_resumed_job_leases_anew(alice: Jobs, bob: Jobs, users: list[Sshd], cards: StandInCards) -> None:
    started = await lease(alice, 2)
    users[0].reset()
    assert (await not_running(alice, started.job_id)).state is JobState.GONE
    assert (await free_again(bob, 1)).cards == (cards.uuids[0],)
    resumed = await alice.start(order(WAITS, instead_of=started.job_id))
    assert resumed.cards == tuple(cards.uuids[1:3])


async def test_twenty_starters_of_three_users_share_one_card(
    sandboxes: list[Sandbox], cards: StandInCards, users: list[Sshd], tmp_path: Path, fleet: Fleet
) -> None:
    """None of them waits in a line: each tries until it has the card, and in the end each had it, alone."""
    cards.tell([cards.row(0)])
    place = fleet.folder / f"fight-{os.urandom(4).hex()}"
    place.mkdir()
    place.chmod(0o777)
    tries = await asyncio.gather(
        *(fight(sandboxes[number % 3].jobs, f"job{number}", OWNS.format(place)) for number in range(20))
    )
    assert not (place / "wrong").exists()
    assert sum(tries) > 20, "nobody had to try again"


async def fight(jobs: Jobs, session: str, script: str) -> int:
    """Try until the card is ours, and see the job to its good end."""
    wanted, tries, deadline = order(script, session, cards=ONE), 0, Deadline(240)
    while True:
        tries += 1
        try:
            started = await jobs.start(wanted)
            break
        except NoCards:
            assert not deadline.has_passed()
            await asyncio.sleep(random.uniform(0.05, 0.5))
    waited = await jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=60))
    assert (waited.why, waited.seen.exit_code) == ("ended", 0), waited.seen.log
    return tries


async def test_two_who_want_all_cards_both_get_them_in_the_end(sandboxes: list[Sandbox], cards: StandInCards) -> None:
    scripts = [JobOrder(session="all", script="sleep 0.2", cards=CardRequest(4)) for _ in sandboxes]
    await asyncio.gather(
        *(fight_for_all(sandbox.jobs, wanted) for sandbox, wanted in zip(sandboxes, scripts, strict=True))
    )


async def fight_for_all(jobs: Jobs, wanted: JobOrder) -> None:
    deadline = Deadline(120)
    while True:
        try:
            started = await jobs.start(wanted)
            break
        except NoCards:
            assert not deadline.has_passed()
    assert len(started.cards) == 4
    await not_running(jobs, started.job_id)


# What is not free


@pytest.mark.parametrize(
    ("row", "apps", "why"),
    [
        ((0, 1002), ["{uuid}, {pid}"], "GPU 0 is used by {user}"),
        ((0, 1002), ["{uuid}, 4000000"], "GPU 0 is used by process 4000000"),
        ((0, 1002), [], "GPU 0 has 1002 MB in use by processes that are not shown"),
        ((0, 0, "Prohibited"), [], "GPU 0 admits no process (compute mode Prohibited)"),
        ((0, "[N/A]"), [], "GPU 0 has an unknown number of MB free"),
    ],
)
async def test_a_card_that_is_not_free_is_left_alone(
    alice: Jobs, cards: StandInCards, users: list[Sshd], row: tuple[int, str], apps: list[str], why: str
) -> None:
    values = {"uuid": cards.uuids[0], "pid": os.getpid(), "user": "root"}
    cards.tell([cards.row(*row), cards.row(1)], [app.format(**values) for app in apps])
    refusal = await refused(alice, 2, 143400)
    assert str(refusal).endswith("2 GPUs with 143400 MB free cannot be had now: 1 of 2 are free")
    assert refusal.busy == (why.format(**values),)
    assert (await alice.start(order(WAITS, cards=CardRequest(1, 143400)))).cards == (cards.uuids[1],)


async def test_a_card_that_is_too_small_is_left_alone(alice: Jobs, cards: StandInCards, users: list[Sshd]) -> None:
    """One that has a little less than it is called by, as all cards have, is large enough."""
    cards.tell([cards.row(0, 400), cards.row(1)], [])
    refusal = await refused(alice, 1, 143771 + 1025)
    assert refusal.busy == ("GPU 0 has 143371 MB free", "GPU 1 has 143771 MB free")
    assert len((await alice.start(order(WAITS, cards=CardRequest(2, 141 * 1024)))).cards) == 2


MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: {uuid})
  MIG 3g.20gb     Device  0: (UUID: MIG-{uuid}-a)
  MIG 1g.5gb      Device  1: (UUID: MIG-{uuid}-b)
  MIG 1g.5gb      Device  2: (UUID: MIG-{uuid}/7/0)
"""


async def test_slices_of_a_card_are_leased_each(alice: Jobs, bob: Jobs, cards: StandInCards, users: list[Sshd]) -> None:
    uuid = cards.uuids[0]
    cards.uuids += [f"MIG-{uuid}-a", f"MIG-{uuid}-b", f"MIG-{uuid}/7/0"]
    cards.tell([cards.row(0, mig="Enabled")], [f"MIG-{uuid}-b, {os.getpid()}"], MIG.format(uuid=uuid))
    small = await lease(alice)
    assert small.cards == (f"MIG-{uuid}/7/0",)
    assert (await bob.start(order(WAITS, cards=CardRequest(1, 8000)))).cards == (f"MIG-{uuid}-a",)
    refusal = await refused(bob)
    assert [line.partition(" is ")[0] for line in refusal.busy] == [f"MIG {n} of GPU 0" for n in range(3)]


@pytest.mark.parametrize("memory_mb", [0, 8000])
async def test_the_list_counts_as_free_what_the_machine_would_lease(
    sandboxes: list[Sandbox], cards: StandInCards, memory_mb: int
) -> None:
    """Otherwise a job would wait for what it could have, or be tried again and again in vain."""
    alice, bob, _ = (sandbox.jobs for sandbox in sandboxes)
    uuid = cards.uuids[0]
    used = f"MIG-{uuid}-b, {os.getpid()}"
    rows = [cards.row(0, mig="Enabled"), cards.row(1), cards.row(2, 1002), cards.row(3, 0, "Prohibited")]
    cards.tell(rows, [used], MIG.format(uuid=uuid))
    for leased in range(3):
        usage = await measure(sandboxes[0])
        assert len(usage.gpus) == 6
        counted = count_free(Place("gpu1", usage), CardRequest(1, memory_mb))
        assert str(await refused(bob, 64, memory_mb)).endswith(f": {counted} of 6 are free")
        cards.uuids += [card.uuid for card in usage.gpus if card.uuid not in cards.uuids]
        await lease(alice, session=f"train{leased}")
    usage = await measure(sandboxes[0])
    assert count_free(Place("gpu1", usage), CardRequest(1)) == 0
    assert [card.lease.job for card in usage.gpus if card.lease] == ["train1", "train0", "train2"]


async def test_a_driver_that_fails_is_told(alice: Jobs, cards: StandInCards) -> None:
    (cards.bin / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML: version mismatch'; exit 18\n")
    assert "nvidia-smi failed: Failed to initialize NVML: version mismatch" in str(await refused(alice))


# Attacks on the folder that all users share


def plant(user: Sshd, script: str, path: Path) -> None:
    run_as_root(
        "setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--clear-groups", "sh", "-c", script, "sh", str(path)
    )


@pytest.mark.parametrize(
    "script",
    [
        'ln -s /etc/passwd "$1"',
        'ln -s "$1.nowhere" "$1"',
        'mkdir "$1"',
        'mkfifo "$1"',
        '(umask 077; : >"$1")',
        'ln -s "$1" "$1"',
    ],
)
async def test_what_is_no_lease_file_is_never_followed_and_its_card_is_named(
    alice: Jobs, cards: StandInCards, users: list[Sshd], script: str
) -> None:
    cards.tell([cards.row(0), cards.row(1)])
    plant(users[1], script, cards.files[0])
    before = os.lstat(cards.files[0])
    assert (await lease(alice)).cards == (cards.uuids[1],)
    refusal = await refused(alice)
    assert refusal.busy[0].startswith(f"GPU 0 cannot be leased: {cards.files[0]}: ")
    assert os.path.samestat(before, os.lstat(cards.files[0]))
    assert not cards.files[0].with_name(cards.files[0].name + ".nowhere").exists()


async def test_a_file_of_another_user_serves_as_well(
    alice: Jobs, bob: Jobs, cards: StandInCards, users: list[Sshd], kind: str
) -> None:
    """One may lock a file that one does not own, nor write; what is written there is taken as the data that it is."""
    cards.tell([cards.row(0)])
    plant(
        users[1],
        'printf "user root\\njob \\033[31mx\\nuntil 99999999999999999999\\n" >"$1"; chmod 644 "$1"',
        cards.files[0],
    )
    assert (await lease(alice)).cards == (cards.uuids[0],)
    (busy,) = (await refused(bob)).busy
    # The kernel knows the process that took the lock; flock(1) has ended by now.
    assert busy == f"GPU 0 is leased by {users[0].user if kind == 'python' else 'root'}"


async def test_a_file_that_has_a_second_name_is_not_written(
    alice: Jobs, cards: StandInCards, users: list[Sshd]
) -> None:
    cards.tell([cards.row(0)])
    victim = users[0].home / "victim"
    victim.write_text("precious")
    run_as_root("ln", str(victim), str(cards.files[0]))
    assert "cannot be leased" in (await refused(alice)).busy[0]
    assert victim.read_text() == "precious"


async def test_garbage_and_names_of_no_card_are_ignored(alice: Jobs, cards: StandInCards, users: list[Sshd]) -> None:
    cards.tell([cards.row(0)])
    plant(users[1], 'head -c 100000 /dev/urandom >"$1"; chmod 666 "$1"', cards.files[0])
    extra = far.lease_file(far.lease_folder(), f"GPU-{os.urandom(8).hex()}").decode()
    plant(users[1], ': >"$1"', Path(extra))
    try:
        assert (await lease(alice)).cards == (cards.uuids[0],)
        assert cards.files[0].read_text().splitlines()[:2] == [f"user {users[0].user}", "job train"]
    finally:
        os.unlink(extra)


def folder_of(user: Sshd, job_id: str, kind: str) -> Path:
    shelf = "jobs" if kind == "python" else "shell"
    (folder,) = (user.home / ".local/state/remote-sandbox" / shelf).glob(f"*/{job_id}")
    return folder


def keeper_of(user: Sshd, job_id: str, kind: str) -> int:
    folder = folder_of(user, job_id, kind)
    if kind == "python":
        return int(json.loads((folder / "begun").read_text())["keeper"])
    return int((folder / "pid").read_text().split()[2])
