"""The queue of a cluster, asked for all of the user's jobs at once, no more often than its operator allows."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace

from ...core.commands.shell import join
from ...core.errors import ConnectError, SandboxError
from ...core.jobs.queue import CANCELLED, ENDED, ENVIRON, SACCT_FIELDS, SQUEUE_FORMAT, Queued, read_sacct, read_squeue
from ...core.sandboxes.slurm import Cluster
from ..command.console import Console, ConsoleOutput
from ..command.way import Way, last_words
from .order import read_version, sign_of

# Where a sandbox does not answer, what was heard longer ago than this would not say why.
DOUBT_S = 2.0
# Clocks differ by less than it takes to ask.
CLOCKS_S = 3.0
SETTINGS = " ".join(f"{name}={value}" for name, value in ENVIRON.items())
ME = '--user="$(id -un)"'
NOT_FOUND = 127
# Seconds since the epoch, or a user id.
COUNT = re.compile(r"[0-9]{1,10}\Z")


def by_our_clock(job: Queued, offset_s: float) -> Queued:
    """The job with its times as our clock has them, where the cluster's is so much ahead: leases are counted here."""
    if abs(offset_s) < CLOCKS_S:
        return job
    return replace(job, start=job.start and job.start - offset_s, end=job.end and job.end - offset_s)


class ClusterQueue:
    """One for each login node, shared by all who use it."""

    def __init__(self, machine: str, cluster: Cluster, way: Way) -> None:
        self.cluster = cluster
        self.console = Console(machine, way, f"the queue of {machine}")
        self._jobs: Mapping[str, Queued] = {}
        self._asked_at = -math.inf
        self._trouble: BaseException | None = None
        self._asking: asyncio.Task[Mapping[str, Queued]] | None = None
        # What the accounting has said of the ends of jobs, and when it was asked; the queue itself soon forgets them.
        self._accounts: dict[str, tuple[float, Queued | None]] = {}
        self._has_accounting = True
        self._version: tuple[int, int] | None = None
        # The user's own id there, where it was asked.
        self.uid: int | None = None

    @property
    def machine(self) -> str:
        return self.console.machine

    async def jobs(self, *, within_s: float | None = None) -> Mapping[str, Queued]:
        """All of the user's jobs by number, at most `within_s` old; else as the rate allows. Raises SandboxError."""
        age = time.monotonic() - self._asked_at
        rate_s = self.cluster.rate_s
        if self._asking is None and age < (rate_s if within_s is None else min(within_s, rate_s)):
            if self._trouble is not None:
                raise self._trouble
            return self._jobs
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    def _asked(self, asking: asyncio.Task[Mapping[str, Queued]]) -> None:
        self._asking = None
        if asking.cancelled():
            return
        # What does not answer is not asked more often for that; and nothing is taken for gone that it has not said.
        self._trouble = asking.exception()
        if self._trouble is None:
            self._jobs = asking.result()
        elif isinstance(self._trouble, ConnectError):
            # It has not been asked at all.
            self._asked_at = -math.inf

    async def _ask(self) -> Mapping[str, Queued]:
        # Before the answer: what happens meanwhile is not in it.
        self._asked_at = time.monotonic()
        squeue = f"{SETTINGS} squeue {ME} --states=all --noheader {join(['-o', SQUEUE_FORMAT])}"
        said = await self.console.run(f"{{ date +%s && {squeue}; }}")
        if said.status:
            raise self.problem(f"unable to ask the queue of {self.machine}", said)
        clock, _, lines = said.out.partition("\n")
        offset_s = float(clock) - time.time() if COUNT.match(clock.strip()) else 0.0
        return {number: by_our_clock(job, offset_s) for number, job in read_squeue(lines).items()}

    async def job(self, number: str, *, within_s: float | None = None) -> Queued | None:
        """One job; where the queue has forgotten it, or it was cancelled, with what the accounting knows; else None."""
        begun = time.monotonic()
        found = (await self.jobs(within_s=within_s)).get(number)
        if found is None and self._asked_at < begun:
            # It may be newer than what was heard last.
            found = (await self.jobs(within_s=0.0)).get(number)
        if found is not None and found.fate != CANCELLED:
            return found
        account = await self._account(number)
        if account is None or found is None:
            return account or found
        return replace(found, by_uid=account.by_uid)

    async def has_begun(self, disposable_id: str) -> bool:
        """Whether an allocation has left its sign in the home folder; the queue is not asked. Raises ConnectError."""
        return not (await self.console.run(f"[ -e {sign_of(disposable_id)} ]")).status

    async def _account(self, number: str) -> Queued | None:
        """Ask the accounting for the job's end; None where it has none. It is updated later than the queue."""
        before, now = self._accounts.get(number, (-math.inf, None)), time.monotonic()
        is_final = before[1] is not None and bool(before[1].partition)
        if self._has_accounting and not is_final and now - before[0] >= self.cluster.rate_s:
            sacct = f"sacct --noheader --parsable2 --allocations --jobs={number} --format={SACCT_FIELDS}"
            said = await self.console.run(f"{{ {SETTINGS} {sacct} && id -u; }}")
            self._has_accounting = not said.status
            uid, found = said.out.rpartition("\n")[2], read_sacct(said.out).get(number)
            self.uid = int(uid) if COUNT.match(uid) else self.uid
            self._accounts[number] = before = now, found if found and found.state == ENDED else None
        return before[1]

    async def version(self) -> tuple[int, int]:
        """Return the version of Slurm; asked once."""
        if self._version is None:
            self._version = read_version((await self.console.ask(["srun", "--version"])).out)
        return self._version

    def problem(self, doing: str, said: ConsoleOutput) -> SandboxError:
        """Explain why a command of Slurm failed."""
        if said.status == NOT_FOUND:
            found = f"there are no commands of Slurm on {self.machine}"
            return SandboxError.of_parts(doing, found, "load them in `init` of its table, or take `slurm` out of it")
        words = last_words(said.err) or f"it ended with status {said.status}"
        return SandboxError.of_parts(doing, f"the queue of {self.machine} said: {words}")
