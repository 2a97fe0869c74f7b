"""Rows of watches, their events and pending effects; every change is one transaction."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...core.jobs.alerts import Alerts
from ...core.jobs.job import JobStarted
from ...core.jobs.lifecycle import LONGEST_CHECKPOINT, LONGEST_TAIL, announcements, told_by
from ...core.jobs.watch import WAKING, Decision, Event, EventType, Policy, Resume, Status, Watch
from .database import Database, Rows
from .keeping import NEEDED_LATER, TRUE_TEXTS, Keeper, TrueTexts, clean, fields_of, read_json
from .library import sqlite3
from .original import Row, parsed
from .subscriptions import Subscriptions

PENDING, TAKEN, DONE, FAILED = "pending", "taken", "done", "failed"
# States of what a session is to be told, besides TAKEN.
WAITING, TOLD = "waiting", "told"
# Nothing is postponed for longer; a later due time was written before the clock was put back.
LONGEST_WAIT_S = 300.0
# Parts of a watch that do not change, except for where its log is and its resume command. JSON also holds names that
# are not valid UTF-8.
_SESSION = ("client", "folder", "home", "seat")
_WANTED = ("run_id", "name", "log_file", "cwd", "command", "metadata", "configuration", *_SESSION)
_TEXTS = ("last_state", "last_summary", "last_error")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Task for a watch: resume its job if `resume` is set, else announce an event on a channel."""

    id: int
    watch_id: int
    sandbox: str
    event_id: int = 0
    channel: str = ""
    resume: Resume | None = None
    attempts: int = 0
    state: str = PENDING


@dataclass(frozen=True)
class Wake:
    """An event that a session is to be told of; `seat` is the one that began its watch."""

    event_id: int
    watch_id: int
    seat: str


@dataclass(frozen=True)
class Heartbeat:
    """Time of the watchdog's last sign of life."""

    pid: int
    at: float


class Watches(Rows[Watch]):
    """The rows."""

    name = "watches"

    def __init__(self, database: Database, keeper: Keeper | None = None) -> None:
        super().__init__(database, keeper)
        self._truths = TrueTexts(database.file.with_name(TRUE_TEXTS))
        self._subscriptions = Subscriptions(database.file.parent)

    # Watches

    def add(self, watch: Watch) -> Watch:
        """Write a new one; returns it with its number, which is the next one unless it has one already."""
        wanted, apart = self._wanted(watch)
        with self.database.writing() as connection:
            fields = _fields(watch, self._keeper)
            added = self._execute(connection, "add", id=watch.id, **fields, wanted=wanted).lastrowid or 0
            self._truths.put(added, apart)
        return replace(watch, id=added, configuration=watch.configuration or self._keeper.configuration)

    def get(self, watch_id: int) -> Watch | None:
        return self._first("get", id=watch_id)

    def list(self, status: Status | None = None, limit: int = 100) -> tuple[Watch, ...]:
        """Newest first."""
        return self._select("list", status=status.value if status else "", limit=limit)

    def of_session(self, sandbox: str, session: str, limit: int = 100) -> tuple[Watch, ...]:
        """List the watches of one session, newest first."""
        return self._select("of_session", sandbox=sandbox, session=session, limit=limit)

    def due(self, now: float, limit: int = 1000) -> tuple[Watch, ...]:
        """Watches to look at now; not those whose resume is pending."""
        return self._select("due", now=now, limit=limit)

    def next_due(self) -> float | None:
        """Return when the next watch or effect is due; None for never."""
        due: float | None = self._found("next_due")[0][0]
        return due

    def counts(self) -> Mapping[str, int]:
        """Return how many there are, by status."""
        return dict(map(tuple, self._found("counts")))

    def started(self, watch_id: int, started: JobStarted) -> None:
        """Record what is known only after the start: where the log is."""
        with self.database.writing() as connection:
            row = self._execute(connection, "get", id=watch_id).fetchone()
            if row is not None:
                placed = json.loads(row["wanted"]) | {"log_file": started.log_file, "cwd": started.cwd}
                self._execute(connection, "place", id=watch_id, wanted=json.dumps(placed), now=time.time())

    def commit(self, decision: Decision, now: float, *, settles: Effect | None = None, rewrites: bool = False) -> bool:
        """Write a decision with its events and effects; False, with nothing written, if the row has changed.

        With `settles`, the effect is marked as done in the same transaction, so its result is recorded once. With
        `rewrites`, the watch's policy is written, too.
        """
        watch = decision.watch
        fields = {**_fields(watch, self._keeper), "id": watch.id, "updated": now}
        events = [_event_fields(event, self._keeper) for event in decision.events]
        with self.database.writing() as connection:
            if not self._execute(connection, "change", **fields).rowcount:
                return False
            if rewrites:
                wanted, apart = self._wanted(watch)
                self._truths.put(watch.id, apart)
                self._execute(connection, "place", id=watch.id, wanted=wanted, now=now)
            if settles is not None:
                self._execute(connection, "settle", id=settles.id, state=DONE, problem="", due=now)
            if watch.status is not Status.ACTIVE:
                self._execute(connection, "drop_resumes", id=watch.id, problem=f"the watch is {watch.status.value}")
            for event, values in zip(decision.events, events, strict=True):
                self._add_event(connection, watch, event, values, now)
            if decision.resume is not None:
                resume = decision.resume
                fields = {"before": resume.before.value, "asked_by": clean(resume.asked_by)}
                self._add_effect(connection, watch.id, now, kind="resume", **{**dataclasses.asdict(resume), **fields})
        if watch.status is not Status.ACTIVE:
            self._forget_truth(watch.id)
        return True

    def _add_event(
        self, connection: sqlite3.Connection, watch: Watch, event: Event, values: Mapping[str, object], now: float
    ) -> None:
        """Write an event, and an effect for each channel on which it is announced, and for each that subscribed."""
        event_id = self._execute(connection, "add_event", id=0, watch_id=watch.id, created=now, **values).lastrowid
        for channel in (*announcements(watch, event), *self._subscriptions.channels(watch, event)):
            self._add_effect(connection, watch.id, now, kind="announce", event_id=event_id, channel=channel)
        if watch.home and event.type in WAKING:
            seat = {"home": watch.home, "seat": watch.seat, "covers": told_by(watch, event)}
            self._execute(connection, "add_wake", event_id=event_id, watch_id=watch.id, **seat)

    def _add_effect(self, connection: sqlite3.Connection, watch_id: int, now: float, **values: object) -> None:
        nothing = {"event_id": 0, "channel": "", "job_id": "", "instead_of": "", "asked_by": "", "before": "active"}
        self._execute(connection, "add_effect", watch_id=watch_id, due=now, **{**nothing, **values})

    def _forget_truth(self, watch_id: int) -> None:
        """After a watch's end nothing of it is run again; its end is announced."""
        texts = self._truths.get(watch_id)
        self._truths.put(watch_id, {name: text for name, text in texts.items() if name == NEEDED_LATER})

    def cancel(self, watch_id: int) -> Watch | None:
        """Stop looking after it; None if it is over or unknown."""
        with self.database.writing() as connection:
            if not self._execute(connection, "cancel", id=watch_id, now=time.time()).rowcount:
                return None
            self._execute(connection, "drop_resumes", id=watch_id, problem="the watch was cancelled")
        self._forget_truth(watch_id)
        return self.get(watch_id)

    def remove(self, watch_id: int) -> None:
        """Remove it."""
        with self.database.writing() as connection:
            for name in ("remove_effects", "remove_events", "remove"):
                self._execute(connection, name, id=watch_id)
        self._truths.drop(watch_id)

    def prune(self, before: float) -> None:
        """Drop events from before, and watches that were over before, with all that belongs to them."""
        with self.database.writing() as connection:
            for name in ("prune_watches", "prune_events"):
                self._execute(connection, name, before=before)
            for name in ("prune_effects", "prune_wakes"):
                self._execute(connection, name)
        for number in self._truths.numbers():
            if self.get(number) is None:
                self._truths.drop(number)

    # Events

    def add_past(self, watch_id: int, row: Row) -> None:
        """Write an event of the original, under its number if no other has that; it is not announced again."""
        if row["event_type"] in EventType._value2member_map_:
            kind, payload = EventType(row["event_type"]), parsed(row, "payload_json")
            values = _event_fields(Event(type=kind, summary=row["summary"], payload=payload), self._keeper)
            number = 0 if self.event(row["id"]) else row["id"]
            with self.database.writing() as connection:
                self._execute(
                    connection, "add_event", id=number, watch_id=watch_id, created=row["created_ts"], **values
                )

    def event(self, event_id: int) -> Event | None:
        return next(map(_event, self._found("event", id=event_id)), None)

    def events(
        self, watch_id: int | None = None, after: int = 0, limit: int = 100, *, newest: bool = False, before: int = 0
    ) -> tuple[Event, ...]:
        """List events with a higher number than `after`, in their order: the first of them, or else the newest.

        `before`: of the newest, only those with a lower number.
        """
        name = "newest_events" if newest else "events"
        return tuple(map(_event, self._found(name, watch_id=watch_id, after=after, before=before, limit=limit)))

    # What is to be done

    def pending(self, now: float, *, sandbox: str = "", limit: int = 10_000) -> tuple[Effect, ...]:
        """List the effects that are due, of one sandbox or of all, in the order in which they were decided."""
        found = self._found("pending", now=now, longest=LONGEST_WAIT_S, sandbox=sandbox, limit=limit)
        return tuple(map(_effect, found))

    def open_resume(self, watch_id: int) -> Effect | None:
        """The resume of a watch's job that is to be done, or is being done now."""
        return self._one_effect("open_resume", watch_id=watch_id)

    def newest_resume(self, watch_id: int) -> Effect | None:
        """The last resume of a watch's job that was wanted, whether or not it has been done."""
        return self._one_effect("newest_resume", watch_id=watch_id)

    def effect(self, effect_id: int) -> Effect | None:
        return self._one_effect("effect", id=effect_id)

    def take(self, effect: Effect) -> bool:
        """Mark an effect as taken before it is carried out, so that no other process repeats it."""
        return self._change("take", id=effect.id)

    def settle(self, effect: Effect, state: str, *, problem: str = "", due: float = 0.0) -> None:
        """Mark a taken effect as done, failed, or to be tried again at `due`."""
        self._change("settle", id=effect.id, state=state, problem=self._keeper.stored(problem), due=due)

    def recover(self, now: float, in_hand: Collection[int] = ()) -> None:
        """At the watchdog's start of a round: effects that were taken but are not `in_hand` were left by one that died.

        A resume is repeated, which the job's id makes harmless; a notification is not, because it may have arrived.
        """
        left = [row for row in self._found("taken") if row["id"] not in in_hand]
        if not left:
            return
        with self.database.writing() as connection:
            for row in left:
                state = PENDING if row["kind"] == "resume" else FAILED
                self._execute(connection, "settle", id=row["id"], state=state, problem="it was left undone", due=now)

    # Sessions that are told

    def waiting(self, home: str, limit: int = 20) -> tuple[Wake, ...]:
        """List what is to be told to a session of this home, in the order in which it happened."""
        return tuple(Wake(**dict(row)) for row in self._found("waiting_wakes", home=home, limit=limit))

    def move_wake(self, wake: Wake, before: str, state: str) -> bool:
        """Change what became of it; False if it is not `before`. Taken first, then told: never told twice."""
        return self._change("move_wake", event_id=wake.event_id, before=before, state=state)

    def show(self, watch: Watch, shown: str) -> None:
        """Note what its session was shown: what it would be told of that, it knows already."""
        with self.database.writing() as connection:
            self._execute(connection, "show_watch", watch_id=watch.id, shown=shown)
            self._execute(connection, "show_wakes", watch_id=watch.id, home=watch.home)

    # The watchdog

    def beat(self, pid: int, now: float) -> None:
        """Record that the watchdog is alive."""
        self._change("beat", pid=pid, at=now)

    def last_beat(self) -> Heartbeat | None:
        return next((Heartbeat(row["pid"], row["at"]) for row in self._found("last_beat")), None)

    def _one_effect(self, name: str, **values: object) -> Effect | None:
        return next(map(_effect, self._found(name, **values)), None)

    def _wanted(self, watch: Watch) -> tuple[str, dict[str, Any]]:
        """Split the fixed part of a watch into JSON without secrets and the texts that are needed as they are."""
        fields = {name: getattr(watch, name) for name in _WANTED}
        fields |= {"metadata": dict(watch.metadata), "policy": dataclasses.asdict(watch.policy)}
        kept, apart = self._keeper.wanted(fields)
        return json.dumps(kept | {"configuration": watch.configuration or self._keeper.configuration}), apart

    def _read(self, row: sqlite3.Row) -> Watch:
        fields = {name: row[name] for name in row.keys() if name not in ("wanted", "interval_s")}  # noqa: SIM118
        wanted = json.loads(row["wanted"])
        policy = fields_of(Policy, wanted.pop("policy"))
        if wanted.get("apart"):
            policy |= self._apart(row["id"], wanted["apart"])
        return Watch(
            **{
                **fields_of(Watch, {**wanted, **fields}),
                "policy": Policy(**{**policy, "hooks": tuple(policy["hooks"]), "alerts": _alerts(policy)}),
                "status": Status(row["status"]),
                "alerted": bool(row["alerted"]),
            }
        )

    def _apart(self, watch_id: int, names: Collection[str]) -> dict[str, Any]:
        """The true texts of a policy. Of those that are gone, only the resume command is shown, without its secrets."""
        texts = self._truths.get(watch_id)
        gone = {name: "" for name in names if name not in texts and name in ("checkpoint_command", "webhook_url")}
        return {name: texts[name] for name in names if name in texts} | gone


def _event_fields(event: Event, keeper: Keeper) -> dict[str, object]:
    payload = json.dumps(keeper.values(dict(event.payload)))
    return {"type": event.type.value, "summary": keeper.stored(event.summary), "payload": payload}


def _alerts(policy: Mapping[str, Any]) -> Alerts:
    return Alerts(**fields_of(Alerts, policy.get("alerts") or {}))


def _fields(watch: Watch, keeper: Keeper) -> dict[str, object]:
    """A watch as the columns of its row, but for its number and for what is fixed."""
    fields = {field.name: getattr(watch, field.name) for field in dataclasses.fields(watch)}
    for name in ("id", "policy", *_WANTED):
        del fields[name]
    texts = {name: keeper.stored(fields[name]) for name in _TEXTS}
    texts |= {
        "last_log_tail": keeper.output(watch.last_log_tail, LONGEST_TAIL),
        "last_checkpoint": _checkpoint(watch, keeper),
    }
    return {**fields, **texts, "status": watch.status.value, "interval_s": watch.policy.interval_s}


def _checkpoint(watch: Watch, keeper: Keeper) -> str:
    if watch.policy.checkpoint_format != "json":
        return keeper.stored(watch.last_checkpoint, LONGEST_CHECKPOINT)
    if not watch.last_checkpoint:
        return ""
    return json.dumps(keeper.values(read_json(watch.last_checkpoint)), separators=(",", ":"), ensure_ascii=False)


def _event(row: sqlite3.Row) -> Event:
    fields = {name: row[name] for name in ("id", "watch_id", "summary", "created")}
    return Event(type=EventType(row["type"]), payload=json.loads(row["payload"]), **fields)


def _effect(row: sqlite3.Row) -> Effect:
    fields = {name: row[name] for name in ("id", "watch_id", "sandbox", "event_id", "channel", "attempts", "state")}
    resume = Resume(row["job_id"], row["instead_of"], row["asked_by"], Status(row["before"]))
    return Effect(resume=resume if row["kind"] == "resume" else None, **fields)
