"""Takes over what the original program (0.x) has left: machines and secrets, watches, transfers; and gives it back."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...config import original, paths
from ...config.original import DATABASE, JOURNAL, MACHINES_TAKEN, WATCHES_TAKEN
from ...config.schema import Configuration, read_entry
from ...config.secrets import LITERAL, resolve_secret
from ...core.address import plain_name
from ...core.errors import BadArgument, ConfigError
from ...core.jobs import watch as watching
from ...core.jobs.watch import Allowed, Status, Watch, WatchOrder, make_policy, permitted
from ...core.permission import Notify, allow_hook, allow_webhook
from ...core.resources.checkup import address
from ...core.sync.transfer import Order, Outcome, Place
from ...core.texts.text import counted
from ...local.processes.ownership import who_else
from ...local.processes.process import started
from ...local.store import original as rows
from ...local.store.database import STATE_FILE, Database
from ...local.store.transfers import FAILED, RUNNING, Transfer, TransferEnd, id_of
from ...local.store.watches import Watches
from ..transfers.records import TAIL_BYTES, TransferRecords
from . import config_file, files, keeping
from .journal import REMOVED, SECRET_FILE, SetupChange, SetupJournal
from .keeping import PASSPHRASE, PASSWORD, MachineSecret
from .undo import Others, Undone, undo

STATES = {"": "starting", "ssh_unreachable": "unreachable"}
# The event command that codex_wakeup made.
CODEX = '"$RSMCP_SUGGESTED_PROMPT"'
CUT_OFF = "it was cut off under 0.x; sync again, which sends only what is missing"
CONFIGURED = "it is configured already"
MOST = 1_000_000
PLAN = "resume_plan_json"


@dataclass(frozen=True)
class OldMachine:
    """A machine of the original. `why_not`: it is not taken, as the end of a sentence; empty if it is."""

    name: str
    address: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[MachineSecret, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class OldWatch:
    """A watch of the original by its number there, as it will be here."""

    number: int
    status: str
    watch: Watch
    events: tuple[rows.Row, ...]


@dataclass(frozen=True)
class Takeover:
    """Findings: all that the original has left. `problems` are sentences about what is not, or not wholly, taken over.

    `has_database`: there is one that can be read; `is_new`: that or a list of machines is not noted as taken.
    """

    state: Path
    lists: tuple[Path, ...] = ()
    machines: tuple[OldMachine, ...] = ()
    watches: tuple[OldWatch, ...] = ()
    transfers: tuple[rows.Row, ...] = ()
    heartbeat: float = 0.0
    problems: tuple[str, ...] = ()
    has_database: bool = False
    is_new: bool = False

    @property
    def database(self) -> Path:
        return self.state / DATABASE

    @property
    def new_machines(self) -> tuple[OldMachine, ...]:
        return tuple(machine for machine in self.machines if not machine.why_not)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to do, not even to note that there was nothing."""
        return not (self.new_machines or self.watches or self.transfers or self.is_new)


def look(configuration: Configuration, own: Path | None = None) -> Takeover:
    """Find what can be taken over. Raises ConfigError where the folder is not to be trusted."""
    state = paths.state_path()
    lists, database = tuple(original.machine_lists(own=own)), state / DATABASE
    _check_place([state, *lists, database])
    problems: list[str] = []
    found, has_database = rows.OriginalRows(), database.exists()
    if has_database:
        try:
            _finish(state)
            found = rows.read_rows(database)
        except ConfigError as problem:
            has_database = False
            problems.append(str(problem))
    machines: tuple[OldMachine, ...] = ()
    for file in lists:
        machines = machines_of(original.read(file)["sandboxes"], str(file), configuration, machines)
    names = {machine.name for machine in machines} | {machine.name for machine in configuration.machines}
    watches = _watches(state, found, configuration.settings.notify, names, problems)
    transfers = _transfers(state, found.transfers, problems)
    parts = {WATCHES_TAKEN} if has_database else set()
    parts |= {MACHINES_TAKEN} if lists else set()
    is_new = not parts <= original.kinds_taken(state)
    args = (machines, watches, transfers, found.heartbeat, tuple(problems), has_database, is_new)
    return Takeover(state, lists, *args)


def _check_place(taken_from: Sequence[Path]) -> None:
    """Raises ConfigError: what others could have put there must not become our machines and commands."""
    for path in filter(os.path.lexists, taken_from):
        seen = os.lstat(path)
        why = "belongs to another user" if seen.st_uid != os.geteuid() else who_else(seen, is_last=True)
        if why := "is a link" if stat.S_ISLNK(seen.st_mode) else why:
            raise ConfigError(
                f"{path} {why}, so nothing is taken over from it; put the original's own folder in its place, or name "
                f"that one with {paths.HOME}."
            )


# Machines


def machines_of(
    raws: Iterable[object], where: str, configuration: Configuration, found: Collection[OldMachine] = ()
) -> tuple[OldMachine, ...]:
    """Machines as the original's file or REMOTE_SANDBOX_LIST names them, after those that were `found`."""
    there = {it.name: address(it.login.user, it.host, it.port) for it in configuration.machines}
    by_name = {machine.name: machine for machine in found}
    for number, raw in enumerate(raws, 1):
        machine = _machine(raw if isinstance(raw, Mapping) else {}, f"entry {number} of {where}", there)
        by_name.setdefault(machine.name, machine)
    return tuple(by_name.values())


def _machine(raw: Mapping[str, Any], where: str, there: Mapping[str, str]) -> OldMachine:
    faults: list[str] = []
    fields = {key: value for key, value in raw.items() if value not in ("", None)}
    literal = {key: f"{LITERAL}{fields[key]}" for key in (PASSWORD, PASSPHRASE) if key in fields}
    name = _name(fields) or where
    entry = read_entry({**fields, "name": name, **literal}, where, {}, faults.append)
    if entry is None:
        return OldMachine(name, why_not=" ".join(faults))
    at, known = address(entry.user, entry.host, entry.port or 22), there.get(name)
    why_not = CONFIGURED if known == at else f"another machine has its name here ({known})"
    chosen: dict[str, Any] = {key: fields[key] for key in ("host", "port", "user", "key_file") if key in fields}
    secrets = tuple(MachineSecret(key, str(fields[key])) for key in literal)
    return OldMachine(name, at, chosen, secrets, why_not if known else "")


def _name(raw: Mapping[str, Any]) -> str:
    return plain_name(str(raw.get("name") or raw.get("host") or "").strip())


# Watches


def _watches(
    state: Path, found: rows.OriginalRows, notify: Notify, names: set[str], problems: list[str]
) -> tuple[OldWatch, ...]:
    left = [row for row in found.watches if row["status"] != rows.IMPORTED]
    allowed = Allowed(lambda url: allow_webhook(url, notify.webhooks), lambda name: allow_hook(name, notify.hooks))
    ours = _ours(state)
    highest = max([0, *ours, *(int(row["id"]) for row in left)])
    watched = {(it.sandbox, it.session) for it in ours.values() if it.status is Status.ACTIVE}
    chosen: list[OldWatch] = []
    # Newest first: of two over one session, the newer one stays active.
    for row in reversed(left):
        try:
            watch = _watch(row, allowed, problems)
        except (BadArgument, ValueError, TypeError, KeyError) as problem:
            problems.append(f"watch {row['id']} is left where it is: {problem}.")
            continue
        if watch.id in ours:
            highest += 1
            problems.append(f"watch {watch.id} becomes watch {highest}, because there is another watch {watch.id}.")
            watch = replace(watch, id=highest)
        events = tuple(event for event in found.events if event["watch_id"] == row["id"])
        chosen.append(OldWatch(int(row["id"]), row["status"], _once(watch, watched, names, problems), events))
    return tuple(reversed(chosen))


def _ours(state: Path) -> dict[int, Watch]:
    """Our watches by number; makes no database for that."""
    if not (state / STATE_FILE).exists():
        return {}
    with closing(Database(state / STATE_FILE)) as database:
        return {it.id: it for it in Watches(database).list(limit=MOST)}


def _once(watch: Watch, watched: set[tuple[str, str]], names: set[str], problems: list[str]) -> Watch:
    """The watch; not active where another one looks after its session, because both would resume it."""
    if watch.status is not Status.ACTIVE:
        return watch
    if (watch.sandbox, watch.session) in watched:
        problems.append(f"watch {watch.id} is cancelled, because a newer one has the session {watch.session}.")
        return replace(watch, status=Status.CANCELLED, last_state="cancelled")
    watched.add((watch.sandbox, watch.session))
    if watch.sandbox not in names:
        problems.append(f"watch {watch.id} needs {watch.sandbox}, which is not configured; add it to config.toml.")
    return watch


def _watch(row: rows.Row, allowed: Allowed, problems: list[str]) -> Watch:
    """Raises BadArgument, ValueError, TypeError, KeyError."""
    now, code, cwd, state = time.time(), row["last_exit_code"], row["cwd"], row["last_state"]
    known = {"active": Status.ACTIVE, "completed": Status.COMPLETED}
    status = known.get(row["status"], Status.CANCELLED)
    if status is not Status.ACTIVE:
        state = "cancelled" if status is Status.CANCELLED else "failed" if code else "completed"
    order, notes = permitted(_order(row), allowed)
    problems += [f"watch {row['id']}: {note}" for note in notes if status is Status.ACTIVE]
    same = ("id", "run_id", "log_file", "cwd", "last_summary", "last_error", "last_log_tail", "resume_attempts")
    return Watch(
        **{name: row[name] for name in same},
        name=row["name"] or row["tmux_session"],
        sandbox=plain_name(row["sandbox_name"]),
        session=row["tmux_session"],
        command=row["launch_command"],
        policy=make_policy(order, cwd, allowed),
        metadata=watching.facts(rows.parsed(row, "metadata_json"), watching.beside_plan(rows.parsed(row, PLAN))),
        status=status,
        last_state=STATES.get(state) or state,
        last_exit_code=code,
        last_checkpoint=row["last_checkpoint_text"],
        interrupted_at=float(row["interrupted_ts"]),
        created=float(row["created_ts"]),
        updated=now,
        checked=float(row["last_checked_ts"]),
        due=now,
    )


def _order(row: rows.Row) -> WatchOrder:
    """The original's policy, within our limits."""
    planned = rows.parsed(row, PLAN).get("resume_command")
    most = min(row["max_resume_attempts"], watching.MOST_ATTEMPTS)
    is_codex = CODEX in row["event_command"]
    texts = ("checkpoint_path", "checkpoint_command", "checkpoint_format", "webhook_url")
    return WatchOrder(
        **{name: row[name] for name in texts},
        resume_command=planned or row["resume_command"] or row["launch_command"],
        auto_resume=bool(row["auto_resume"]) and most > 0,
        max_resume_attempts=most,
        interval_s=min(row["interval_s"], watching.LONGEST_S),
        alert_after_failures=min(row["alert_after_failures"], 1000),
        resume_delay_s=min(row["resume_delay_s"], watching.LONGEST_S),
        log_lines=min(row["max_log_lines"], 1000),
        notify_local=bool(row["notify_local"]),
        event_command="" if is_codex else row["event_command"],
        codex_wakeup=is_codex,
    )


# Transfers, which keep the original's numbers: callers go on to ask by them


def _transfers(state: Path, found: Sequence[rows.Row], problems: list[str]) -> tuple[rows.Row, ...]:
    if not found:
        return ()
    known: set[str] = set()
    if (state / STATE_FILE).exists():
        with closing(TransferRecords(state)) as records:
            known = {transfer.id for transfer in records.ledger.latest(MOST)}
    running = [row for row in found if row["status"] in ("queued", "running") and started(row["pid"])]
    problems += [f"transfer {it['id']} runs in process {it['pid']}; run this again after its end." for it in running]
    return tuple(row for row in found if row not in running and id_of(row["id"]) not in known)


def _take_transfer(row: rows.Row, records: TransferRecords) -> None:
    log = records.log(id_of(row["id"]))
    target = Place(plain_name(row["sandbox_name"]), row["remote_path"])
    order = Order(source=Place("", row["local_path"]), target=target, delete_extras=bool(row["delete_extras"]))
    times = {"created": row["created_ts"], "started": row["started_ts"], "updated": time.time()}
    records.ledger.add(Transfer(id=id_of(row["id"]), order=order, status=RUNNING, log_file=str(log.file), **times))
    records.ledger.end(id_of(row["id"]), _end_of(row))
    old = Path(row["log_file"])
    if old.parent == log.file.parent and old.is_file() and not old.is_symlink():
        with open(log.open(), "ab") as copy:
            copy.write(old.read_bytes()[-TAIL_BYTES:])


def _end_of(row: rows.Row) -> TransferEnd:
    if row["status"] in ("queued", "running"):
        return TransferEnd(FAILED, None, CUT_OFF)
    result = rows.parsed(row, "result_json")
    files = {"sent_files": result.get("uploaded_files", 0), "skipped_files": result.get("skipped_files", 0)}
    outcome = Outcome(synced_type=result.get("synced_type", "directory"), **files) if result else None
    return TransferEnd(row["status"], outcome, row["last_error"])


# Taking


def take_machines(found: Takeover, config: Path | None, journal: SetupJournal | None = None) -> list[str]:
    """Configure them, and keep their secrets; returns warnings. Raises ConfigError; then nothing of it is kept."""
    journal, target = journal or SetupJournal(found.state, JOURNAL), config or paths.config_file()
    changes: list[SetupChange] = []
    machines = []
    try:
        for machine in found.new_machines:
            kept = {it.key: keeping.keep(machine.name, it, target, is_written=True) for it in machine.secrets}
            changes += kept.values()
            references = {key: keeping.reference_of(secret) for key, secret in kept.items()}
            machines.append(config_file.NewMachine(machine.name, {**machine.fields, **references}))
        if machines:
            # A key that is not there any more is no reason to lose a machine.
            changes.append(config_file.carry_out(config_file.plan(target, machines), config, with_problems=True))
    except BaseException:
        for change in changes:
            keeping.forget(change)
        raise
    taken = {it.path for it in journal.changes() if it.kind == MACHINES_TAKEN}
    lists = [str(file) for file in found.lists if str(file) not in taken]
    changes += [SetupChange(MACHINES_TAKEN, f"what was taken from {file}", file) for file in lists]
    for change in changes:
        journal.add(change)
    plain = [change.path for change in changes if change.kind == SECRET_FILE]
    sentence = f"There is no keyring here, so these files have the secrets, for you alone: {', '.join(plain)}."
    return [sentence] if plain else []


def take_watches(found: Takeover) -> None:
    """Write them under their numbers, then mark them as ours in the original's database. Raises ConfigError."""
    taken = [(it.number, it.watch.id, it.status, it.watch.status.value) for it in found.watches]
    value = json.dumps({"watches": taken, "transfers": [id_of(row["id"]) for row in found.transfers]})
    what = f"{counted(len(taken), 'watch', 'watches')} and {counted(len(found.transfers), 'transfer')} of 0.x"
    # First: should this process die now, the next one knows which of our rows are the original's.
    SetupJournal(found.state, JOURNAL).add(SetupChange(WATCHES_TAKEN, what, str(found.database), value=value))
    with closing(Database(found.state / STATE_FILE)) as database, closing(TransferRecords(found.state)) as records:
        watches = Watches(database)
        for it in found.watches:
            watches.add(it.watch)
            for event in it.events:
                watches.add_past(it.watch.id, event)
        rows.change(found.database, {number: rows.IMPORTED for number, *_ in taken})
        for row in found.transfers:
            _take_transfer(row, records)


def _finish(state: Path) -> None:
    """Mark what an import that was cut off has written already: it is not taken twice."""
    ours = _ours(state)
    for change in SetupJournal(state, JOURNAL).changes():
        if change.kind == WATCHES_TAKEN:
            there = [old for old, new, *_ in json.loads(change.value)["watches"] if new in ours]
            rows.change(Path(change.path), dict.fromkeys(there, rows.IMPORTED))


def remove_list(state: Path, file: Path, config: Path | None) -> None:
    """Remove the file with passwords in plain text; it can be put together again.

    Raises ConfigError where it has a secret that was not kept.
    """
    document, target = original.read(file), config or paths.config_file()
    for raw, key in _secrets_in(document):
        reference = keeping.reference_for(_name(raw), key, target)
        if resolve_secret(reference).reveal() != raw[key]:
            raise ConfigError(f"{file} stays: its {key} of {_name(raw)} is another one than that which was kept.")
        raw[key] = reference
    note_removed(state, file, json.dumps(document))
    os.unlink(file)


def note_removed(state: Path, file: Path, text: str) -> None:
    """Remember the text of a file that is removed."""
    SetupJournal(state, JOURNAL).add(SetupChange(REMOVED, str(file), str(file), value=text))


def _secrets_in(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    for raw in document["sandboxes"]:
        yield from ((raw, key) for key in (PASSWORD, PASSPHRASE) if isinstance(raw, dict) and raw.get(key))


# Giving back


def give_back(state: Path, *, is_dry: bool = False) -> list[Undone]:
    """Undo the import, newest first. Raises ConfigError."""
    ways: Others = {
        WATCHES_TAKEN: partial(_give_back_watches, state),
        MACHINES_TAKEN: lambda change: f"{change.path} counts as not taken over again.",
        REMOVED: _put_back,
    }
    return undo(state, is_dry=is_dry, name=JOURNAL, others=ways)


def _give_back_watches(state: Path, change: SetupChange) -> str:
    value, ours = json.loads(change.value), _ours(state)
    with closing(Database(state / STATE_FILE)) as database, closing(TransferRecords(state)) as records:
        for _, new, *_ in value["watches"]:
            Watches(database).remove(new)
        # What has ended meanwhile must not be begun again by the original.
        rows.change(Path(change.path), {old: _status(ours.get(new), *was) for old, new, *was in value["watches"]})
        for task in value["transfers"]:
            records.ledger.remove(task)
            records.log(task).file.unlink(missing_ok=True)
    return f"{change.what} are the original's again."


def _status(ours: Watch | None, before: str, taken_as: str) -> str:
    if ours is None or ours.status.value == taken_as:
        return before
    return "completed" if ours.status is Status.COMPLETED else "cancelled"


def _put_back(change: SetupChange) -> str:
    path, text, how = Path(change.path), change.value, "; launchd loads it at the next login"
    if path.exists():
        return f"{path} is there again already."
    # Whatever its name was; the file of an agent is XML.
    if text.startswith("{"):
        document = json.loads(text)
        for raw, key in _secrets_in(document):
            raw[key] = resolve_secret(raw[key]).reveal()
        text, how = json.dumps(document, indent=2), ", with its passwords in plain text"
    files.write(path, text, None, files.OWNER_ONLY)
    return f"{path} is put back{how}."
