"""Starting a job: refused before anything happens, or recorded first and then started."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...config import paths
from ...config.schema import NO_ORIGIN, Origin
from ...core import check
from ...core.client import is_again, name_for_call
from ...core.errors import BadArgument, LostContact, SandboxError
from ...core.jobs.alerts import NO_ALERTS, Alerts
from ...core.jobs.job import JobOrder, Submission, new_job_id, session_name
from ...core.jobs.watch import Allowed, Watch, WatchOrder, facts, make_policy, permitted, read_object, read_plan
from ...core.permission import Notify, allow_hook, allow_webhook
from ...core.sandboxes.slurm import Cluster, in_slurms_words, read_options, words
from ..fleet import Fleet, Member
from ..session import client_folder, current
from .records import JobRegistry
from .values import Begun, Ensure, Wanted

# The first look comes soon, to notice a job that ends at once; later ones keep the watch's interval.
FIRST_CHECK_S = 20.0
# The interval of a watch whose session waits to be told, where its caller chose none.
WOKEN_INTERVAL_S = 60.0


class Starting:
    """Validates a request, records it, then starts the job."""

    def __init__(
        self,
        fleet: Fleet,
        notify: Notify,
        registry: JobRegistry,
        origin: Origin = NO_ORIGIN,
        alerts: Alerts = NO_ALERTS,
    ) -> None:
        self._fleet = fleet
        self._origin = origin
        self.notify = notify
        self.alerts = alerts
        self._registry = registry

    async def start(self, wanted: Wanted, ensure: Ensure | None) -> Begun:
        """Start a job, and watch it if that is wanted. Mistakes are refused before anything starts."""
        return await self.begin(wanted, make_order(wanted), ensure, again=is_again())

    async def begin(
        self, wanted: Wanted, order: JobOrder, ensure: Ensure | None, *, again: bool, configuration: str = ""
    ) -> Begun:
        """Start this order. `again`: it may have been begun before; `configuration`: whose job it is, if not ours."""
        member = self._fleet.member(wanted.sandbox)
        order = replace(order, submission=submission(wanted, member))
        unmet = left_to_slurm(wanted) if order.submission else ()
        if order.submission:
            # Cards and time are its queue's matter.
            order = replace(order, cards=None, run_for_s=0.0)
        recorded = await asyncio.to_thread(self._registry.begun, order.job_id) if again else None
        if recorded is not None:
            order = replace(order, session=recorded.session)
        watch, left_out = self.make_watch(wanted.watch, member.name, order) if wanted.watch else (None, ())
        watch = replace(watch, configuration=configuration) if watch else None
        sandbox = await member.open()
        if not sandbox.description.capabilities.survives_disconnect:
            # The job ends with this process, so there is nothing that a watchdog could do for it.
            refuse_resume(watch, member.name)
            watch = None
        hand_over_problem = await self.hand_over([member.name]) if watch and ensure else ""
        # Recorded first: should this process die now, all others still know the job.
        watch_id = recorded.watch_id if recorded is not None and (recorded.watch_id or not watch) else None
        if watch_id is None:
            write = functools.partial(self._registry.write_down, again=again, configuration=configuration)
            watch_id = await asyncio.to_thread(write, member.name, order, watch, wanted.app)
        try:
            started = await sandbox.jobs.start(order)
        except SandboxError as problem:
            # After lost contact it may be running, so its record stays.
            if not isinstance(problem, LostContact):
                await asyncio.to_thread(self._registry.strike_out, order.job_id, watch_id)
            raise
        await asyncio.to_thread(self._registry.complete, member.name, watch_id, started)
        trouble = await begin_watching(hand_over_problem, ensure if watch else None)
        return Begun(started, member.name, watch_id, (*started.notes, *unmet, *left_out, *trouble))

    def make_watch(self, order: WatchOrder, sandbox: str, job: JobOrder) -> tuple[Watch, tuple[str, ...]]:
        """The watch, and sentences on what was left out of it. Raises BadArgument."""
        order, left_out = permitted(order, self._allowed())
        now, session = time.time(), current()
        policy = make_policy(order, job.cwd, self._allowed(), self.alerts)
        if session.home and policy.interval_s == WatchOrder.interval_s:
            policy = replace(policy, interval_s=WOKEN_INTERVAL_S)
        watch = Watch(
            run_id=order.run_id, name=order.name or job.session, sandbox=sandbox, session=job.session,
            log_file=job.log_file, cwd=job.cwd, command=job.script, job_id=job.job_id, policy=policy,
            metadata=facts(read_object("metadata_json", order.metadata_json), read_plan(order.resume_plan_json).more),
            created=now, updated=now, due=now + min(policy.interval_s, FIRST_CHECK_S), client=session.client,
            folder="" if session.is_over_http else client_folder(), home=session.home, seat=session.seat,
        )  # fmt: skip
        return watch, left_out

    def _allowed(self) -> Allowed:
        notify = self.notify
        return Allowed(lambda url: allow_webhook(url, notify.webhooks), lambda name: allow_hook(name, notify.hooks))

    async def hand_over(self, sandboxes: Sequence[str]) -> str:
        """Give the watchdog what it needs to reach the sandboxes; returns what their owner should know of that.

        Before the watch is recorded: a watchdog that runs already looks at it as soon as it is due.
        """
        from ...config.inherited import PLATFORM, hand_over

        of_each = [self._fleet.member(sandbox).describe().capabilities for sandbox in sandboxes]
        names = [*sandboxes, *([PLATFORM] if any(it.through_platform for it in of_each) else [])]
        names += [it.on_machine for it in of_each if it.on_machine]
        try:
            return await asyncio.to_thread(hand_over, names, current().environ, paths.state_folder(), self._origin)
        except (SandboxError, OSError) as problem:
            return f"the watchdog could not be prepared: {problem}"


def refuse_resume(watch: Watch | None, sandbox: str) -> None:
    """Raises BadArgument where a job is to be resumed in a sandbox whose jobs nobody watches."""
    if watch and (watch.policy.auto_resume or watch.policy.resume_command):
        raise BadArgument(
            f"a job in {sandbox} ends with this server and is not watched, so it cannot be resumed; leave the resume "
            "command out, or start the job on a machine"
        )


async def begin_watching(hand_over_problem: str, ensure: Ensure | None) -> tuple[str, ...]:
    """Make sure that a watchdog runs; returns what was said of the hand-over, and what prevents it, as sentences."""
    if ensure is None:
        return ()
    try:
        return tuple(filter(None, (hand_over_problem, await ensure())))
    except (SandboxError, OSError) as problem:
        return tuple(filter(None, (hand_over_problem, f"the watchdog could not be started: {problem}")))


def make_order(wanted: Wanted) -> JobOrder:
    """Raises BadArgument."""
    check.text_argument("command", wanted.command)
    for name in ("cwd", "log_file"):
        check.text_argument(name, getattr(wanted, name), required=False)
    job_id = name_for_call("job") or new_job_id()
    session = wanted.session or f"bg-{time.strftime('%m%d-%H%M%S')}-{job_id[-8:]}"
    return JobOrder(
        job_id=job_id, session=session_name(check.text_argument("session_name", session)), script=wanted.command,
        cwd=wanted.cwd, log_file=wanted.log_file, cards=wanted.cards, run_for_s=wanted.run_for_s,
    )  # fmt: skip


def submission(wanted: Wanted, member: Member) -> Submission | None:
    """Build the submission to the queue of a cluster; None where the job runs in the sandbox itself.

    Raises BadArgument.
    """
    cluster, name = member.slurm, member.name
    if cluster is None:
        if wanted.slurm not in (None, False):
            raise BadArgument(f"slurm is for the queue of a cluster, and {name} is none: leave it out")
        return None
    # An app is reached by a port of the machine that was named, so it cannot go to a queue.
    if wanted.app is not None or wanted.slurm is False:
        check_login_jobs(cluster, name, is_app=wanted.app is not None)
        return None
    given = wanted.slurm if isinstance(wanted.slurm, Mapping) else {}
    asked = in_slurms_words(wanted.cards.count if wanted.cards else 0, wanted.run_for_s, wanted.priority)
    # What a call says in Slurm's own words comes before what it says in ours.
    options = replace(cluster, defaults=cluster.options(asked)).options(read_options(given))
    return Submission(tuple(words(options)), cluster.rate_s)


def left_to_slurm(wanted: Wanted) -> tuple[str, ...]:
    """Sentences on what Slurm has no option for."""
    memory = wanted.cards.memory_mb if wanted.cards else 0
    return (
        *(["gpu_memory has no option in Slurm: name a type of GPU, as slurm={'gpus': 'a100:2'}"] if memory else []),
        *(["a higher priority is given by the cluster's administrator"] if wanted.priority > 0 else []),
    )


def check_login_jobs(cluster: Cluster, name: str, *, is_app: bool) -> None:
    """Raises BadArgument where the operator allows no jobs on the login node."""
    if cluster.login_jobs:
        return
    instead = (
        f"make an allocation with create_sandbox(on={name!r}), and deploy it there"
        if is_app
        else "leave slurm out to submit it to the queue, or run something short with exec_bash"
    )
    raise BadArgument(
        f"{name} is the login node of a Slurm cluster, and its operator allows no jobs there (login_jobs): {instead}"
    )
