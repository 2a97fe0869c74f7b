"""Background jobs where there is no Python: each verb is one request to the shell program."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Sequence

from ...core.commands.command import Command, Environment
from ...core.errors import BadArgument, ConnectError, Unsupported
from ...core.jobs import job as jobs
from ...core.jobs.cards import card_names
from ...core.sandboxes.foreign import to_number, to_whole, understood
from ...far.outpost.place import to_bytes, to_text
from .patterns import search
from .program import JOBS, TOO_LONG, Shell, ShellAnswer, fits, start_values
from .transport import FULL, Gone, NoRoom, Paused, ShellPlace

MEND_S, SOON_S = 20.0, 0.1
# A long wait is split into requests of this length, so that a cut connection is noticed between them.
WAIT_S = 20.0
# Between two looks at a log that grows all the time.
PACE_S = 0.2
# More questions than this may not fit into the environment of one request.
MOST_QUERIES = 50
NO_TYPING = "nothing can be typed into its jobs, because that needs tmux and python3, and there is no python3"


class ShellJobs:
    """The jobs of a place with a POSIX shell. Stopping one reaches its session; a process that left it stays."""

    def __init__(self, shell: Shell, environment: Environment) -> None:
        self._shell = shell
        self._place = shell.place
        self._name = shell.place.name
        self._environment = environment

    @property
    def _kept(self) -> dict[str, str]:
        """The variable that says whether jobs are kept in the home folder."""
        return {"lasting": "yes" if self._place.jobs_at_home else ""}

    async def _ask(self, verb: str, queries: Sequence[jobs.JobQuery], **values: str) -> list[jobs.JobSeen]:
        most = sum(2 * min(query.most_bytes, MOST_LOG) + MOST_SAVED for query in queries)
        asked = query_values(queries) | values | self._kept
        return read_jobs(await self._shell.ask(JOBS, verb, asked, most), queries, self._place)

    async def start(self, order: jobs.JobOrder) -> jobs.JobStarted:
        check_order(order, self._name)
        if not self._shell.is_open:
            await self._shell.open()
        try:
            return await self._begin(order)
        except NoRoom:
            raise jobs.JobRefused(f"{self._name}: unable to make the job: {FULL}", "folder") from None

    async def _begin(self, order: jobs.JobOrder) -> jobs.JobStarted:
        """Raises JobRefused, NoRoom, and LostContact if the answer to the start was lost."""
        values, give_up = await self._describe(order), 0.0
        while True:
            try:
                # Repeating this is safe: the same id never starts twice.
                answer = await self._shell.ask_once(JOBS, "job_start", {**values, **self._kept})
                with understood(self._name):
                    return self._started(order, answer)
            except Gone:
                raise
            except ConnectError as problem:
                give_up = give_up or time.monotonic() + MEND_S
                # A paused container may handle the request when it is resumed.
                if time.monotonic() > give_up or isinstance(problem, Paused):
                    raise jobs.lost_start(self._name, order, str(problem)) from None
                await asyncio.sleep(SOON_S)

    async def _describe(self, order: jobs.JobOrder) -> dict[str, str]:
        """The variables for job_start. Raises JobRefused for what does not fit into variables."""
        environment = self._environment
        script = environment.source(order.script)
        given = Environment(environment.shell, env={**environment.env, **order.env})
        values = start_values(Command(order.script, order.cwd), given)
        if not fits(values["exports"]) or not fits(values["words"]):
            raise jobs.JobRefused(f"{self._name}: {TOO_LONG} {self._place.at}", "env")
        values |= {"id": order.job_id, "session": order.session, "log": order.log_file, "instead": order.instead_of}
        values["even_ended"] = "yes" if order.even_ended else ""
        values["shown"] = order.script[:2000]
        count, memory_mb = (order.cards.count, order.cards.memory_mb) if order.cards else ("", "")
        # Also if they are empty: a resumed job finds them there, and no command sees them.
        values |= {"cards": str(count), "card_mb": str(memory_mb), "run_for": str(round(order.run_for_s))}
        if fits(script):
            return {**values, "script": script}
        return {**values, "from": await self._shell.upload(f"{order.job_id}.script", to_bytes(script))}

    def _started(self, order: jobs.JobOrder, answer: ShellAnswer) -> jobs.JobStarted:
        if not answer.has("begun"):
            why = answer.data("why").decode("utf-8", "replace")
            if answer.text("reason") == "cards":
                raise jobs.no_cards(self._name, why)
            raise jobs.JobRefused(f"{self._name}: {why}", answer.text("reason"))
        return jobs.JobStarted(
            job_id=order.job_id,
            session=to_text(answer.data("session")),
            log_file=to_text(answer.data("log")),
            cwd=to_text(answer.data("cwd")),
            via="detached",
            recovered=answer.text("begun") == "again",
            cards=card_names(answer.text("cards").split(",") if answer.has("cards") else ()),
        )

    async def inspect(self, queries: Sequence[jobs.JobQuery]) -> list[jobs.JobSeen]:
        seen: list[jobs.JobSeen] = []
        for first in range(0, len(queries), MOST_QUERIES):
            some = queries[first : first + MOST_QUERIES]
            seen += await self._ask("job_look", some)
        return seen

    async def wait(self, query: jobs.JobQuery, wait: jobs.JobWait) -> jobs.JobWaited:
        search = LogSearch(wait.pattern, query) if wait.pattern else None
        until = time.monotonic() + wait.seconds
        # The job may have been silent for long enough already, so the first look does not wait.
        pause = 0.0 if wait.silence_s > 0 else WAIT_S
        while True:
            seen, line = await self._wait_once(query, search, min(pause, until - time.monotonic()))
            why = why_over(seen, line, wait.silence_s, search)
            left = until - time.monotonic()
            if search and search.is_behind and not why and left > -WAIT_S:
                continue
            if why or left <= 0:
                return jobs.JobWaited(why or "timeout", seen, line or "")
            pause = max(1.0, wait.silence_s + 1.0 - seen.silent_s) if wait.silence_s > 0 else WAIT_S
            if search:
                await asyncio.sleep(min(PACE_S, left))

    async def _wait_once(
        self, query: jobs.JobQuery, search: LogSearch | None, seconds: float
    ) -> tuple[jobs.JobSeen, str | None]:
        """Wait until something happens, for as long as one request may take."""
        queries = [query, search.query] if search else [query]
        values = {"ticks": _ticks(min(seconds, WAIT_S))}
        if search:
            values |= {"1_cursor": search.cursor, "seen": search.size}
        seen, *searched = await self._ask("job_wait", queries, **values)
        return seen, await search.take(searched[0]) if search else None

    async def stop(self, query: jobs.JobQuery, grace_s: float = 10.0) -> jobs.JobSeen:
        until = time.monotonic() + grace_s + 12.0
        values = {"grace": _ticks(grace_s), "ticks": _ticks(min(grace_s + 8.0, WAIT_S))}
        while True:
            (seen,) = await self._ask("job_stop", [query], **values)
            if not seen.is_running or time.monotonic() >= until:
                return seen

    async def list(self, limit: int = 100) -> list[jobs.JobSeen]:
        limit = max(0, limit)
        answer = await self._shell.ask(JOBS, "job_list", {"count": str(limit), **self._kept}, limit * MOST_SAVED)
        return read_jobs(answer, [jobs.JobQuery(lines=0)] * min(answer.number("jobs"), limit), self._place)

    async def send(self, query: jobs.JobQuery, *, text: str = "", keys: Sequence[str] = ()) -> None:
        raise Unsupported(f"{self._name}: {NO_TYPING} {self._place.at}")


def check_order(order: jobs.JobOrder, name: str) -> None:
    """Raises JobRefused for invalid names, text that no program can be given, and what a shell cannot submit."""
    if order.submission:
        raise jobs.JobRefused(
            f"{name}: jobs are submitted to a cluster's queue by Python 3.6, which is not there", "python"
        )
    if not jobs.JOB_ID.match(order.job_id):
        raise jobs.JobRefused(f"{name}: {order.job_id!r} is not the name of a job", "id")
    if order.instead_of and not jobs.JOB_ID.match(order.instead_of):
        raise jobs.JobRefused(f"{name}: {order.instead_of!r} is not the name of a job", "missing")
    if not SESSION.match(order.session):
        raise jobs.JobRefused(f"{name}: {order.session!r} cannot be the name of a session", "session")
    if "\0" in order.script + order.cwd + order.log_file:
        raise jobs.JobRefused(f"{name}: a command, folder or log with a NUL cannot be used", "text")
    for variable, value in order.env.items():
        if not variable or "=" in variable or "\0" in variable + value:
            words = f"{variable[:100]!r} cannot be the name of a variable, or its value has a NUL"
            raise jobs.JobRefused(f"{name}: {words}", "env")


def why_over(seen: jobs.JobSeen, line: str | None, silence_s: float, search: LogSearch | None) -> str:
    if line is not None:
        return "pattern"
    if not seen.is_running:
        return "" if search and search.is_behind else "ended"
    # The shell knows times in whole seconds only.
    return "silence" if silence_s > 0 and seen.silent_s >= silence_s + 1.0 else ""


def _ticks(seconds: float) -> str:
    return str(int(max(0.0, seconds) * 100))


MOST_LOG = 4 << 20
SESSION = re.compile(r"[\w,][\w@%+=,-]{0,59}\Z")
# The most bytes of an answer for a checkpoint, a command and its paths.
MOST_SAVED = 128 << 10
REASONS = {
    "restarted": "the {noun} was restarted",
    "orphaned": "its keeper was killed; its processes live",
    "killed": "its keeper was killed",
    "never": "it was never begun",
    "foreign": "its log has no exit code",
    "elsewhere": "it was started on another machine that has the same home folder",
}


def query_values(queries: Sequence[jobs.JobQuery]) -> dict[str, str]:
    """The variables of looks.sh for these questions."""
    values = {"looks": str(len(queries))}
    for number, query in enumerate(queries):
        asked = {
            # An invalid id must not become a path; "none" is the id of no job.
            "id": query.job_id if jobs.JOB_ID.match(query.job_id) else "none" if query.job_id else "",
            "session": query.session if SESSION.match(query.session) else "",
            "log": query.log_file,
            "cursor": "" if query.cursor is None else str(max(0, query.cursor)),
            "lines": str(max(0, query.lines)),
            "most": str(min(max(0, query.most_bytes), MOST_LOG)),
            "path": query.checkpoint_path,
            "command": "" if query.checkpoint_path else query.checkpoint_command,
            "cwd": query.cwd,
            "usage": "yes" if query.usage else "",
        }
        values |= {f"{number}_{name}": value for name, value in asked.items() if value}
    return values


def read_jobs(answer: ShellAnswer, queries: Sequence[jobs.JobQuery], place: ShellPlace) -> list[jobs.JobSeen]:
    """The jobs of an answer. Raises BrokenRules: another machine may print anything."""
    with understood(place.name):
        parts = [answer.part(str(number)) for number in range(len(queries))]
        return [_read_job(part, query, answer, place) for part, query in zip(parts, queries, strict=True)]


def _read_job(job: ShellAnswer, query: jobs.JobQuery, answer: ShellAnswer, place: ShellPlace) -> jobs.JobSeen:
    uptime, epoch = answer.numbers("clock")
    state, why = jobs.JobState(job.text("state") or "missing"), job.text("why")
    log, size, started = job.data("data"), job.number("size"), float(job.number("ordered"))
    ending, code, ended, *living = job.text("end").split() or ("", "", uptime)
    grown, begun, is_stopped = job.number("grown"), job.numbers("begun"), ending == "stopped"
    return jobs.JobSeen(
        state=state,
        job_id=job.text("id") or (query.job_id if state is jobs.JobState.MISSING else ""),
        session=to_text(job.data("session")) or query.session,
        log_file=to_text(job.data("log") or job.data("foreign")),
        cwd=to_text(job.data("cwd")),
        command=to_text(job.data("command")),
        via="detached" if begun else "",
        exit_code=to_whole(int(code)) if ending else None,
        signal=_signal(int(code)) if is_stopped else "",
        ending=ending,
        reason=_reason(state, why, place),
        rebooted=why == "restarted",
        started=started,
        seconds=round(max(0.0, to_number(float(ended)) - begun[0]), 2) if begun else 0.0,
        log=log,
        log_size=size,
        cursor=job.number("start") + len(log) if job.has("start") else size,
        silent_s=max(0.0, epoch - max(grown, started)) if grown or started else 0.0,
        checkpoint=_checkpoint(job),
        usage=_usage(job),
        survivors=tuple(to_whole(int(word)) for word in living) if is_stopped else (),
        foreign=job.has("foreign"),
    )


def _reason(state: jobs.JobState, why: str, place: ShellPlace) -> str:
    if state is jobs.JobState.MISSING and not why:
        return f"nothing is known of it {place.at.replace('the', 'this')}"
    return REASONS.get(why, why).format(noun=place.noun)


def _signal(code: int) -> str:
    """The signal behind an exit code above 128. A command may use such codes itself, so only for jobs we stopped."""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


def _checkpoint(job: ShellAnswer) -> jobs.Checkpoint | None:
    if job.has("trouble"):
        return jobs.Checkpoint(problem=job.data("trouble").decode("utf-8", "replace").strip())
    if job.has("saved"):
        return jobs.Checkpoint(text=job.data("checkpoint"), mtime=float(job.number("saved")))
    return None


def _usage(job: ShellAnswer) -> jobs.JobUsage | None:
    if not job.has("usage"):
        return None
    processes, pages, ticks, page = job.numbers("usage")
    return jobs.JobUsage(
        processes=int(processes), memory_mb=round(pages * page / 1048576, 1), cpu_s=round(ticks / 100, 2)
    )


BLOCK = 1 << 20


class LogSearch:
    """Searches a job's log for a pattern: complete lines once, a last line that may still grow again."""

    def __init__(self, pattern: str, query: jobs.JobQuery) -> None:
        """Raises BadArgument for a pattern that is not a regular expression."""
        try:
            re.compile(to_bytes(pattern))
        except (re.error, OverflowError, RecursionError) as problem:
            raise BadArgument(f"the pattern {pattern[:200]!r} is not a regular expression: {problem}") from None
        self._pattern = pattern
        self._query = query
        # A log may hold the output of earlier jobs: without a cursor the search begins where this job's output does.
        self.cursor = "start" if query.cursor is None else str(max(0, query.cursor))
        # The log's size when all of it was searched, "" while it was not; another size means new output.
        self.size = ""

    @property
    def query(self) -> jobs.JobQuery:
        """The question for the part of the log that is searched next, from `cursor` on."""
        query = self._query
        return jobs.JobQuery(job_id=query.job_id, session=query.session, log_file=query.log_file, most_bytes=BLOCK)

    @property
    def is_behind(self) -> bool:
        return not self.size

    async def take(self, seen: jobs.JobSeen) -> str | None:
        """The first line that matches in the part of the log that came. Raises BadArgument for a slow pattern."""
        done, line = await self._search(seen.log) if seen.log else (0, None)
        self.cursor = str(seen.cursor - len(seen.log) + done)
        self.size = str(seen.log_size) if seen.cursor >= seen.log_size else ""
        return line

    async def _search(self, block: bytes) -> tuple[int, str | None]:
        printed = await search("first", self._pattern, block)
        done, _, line = printed.partition(b"\n")
        return int(done), line[1:].decode("utf-8", "replace").rstrip("\r") if line else None
