"""`doctor`: checks each machine step by step and says what to do about what is wrong."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import paths
from ..config.load import load
from ..config.machines import completed
from ..local.store.mark import STATE_FILE
from ..local.store.trouble import DAMAGED, standing_problem
from ..services.gate.allowing import Use, use_here
from ..services.gate.paths import Gate, private_files
from ..services.platform_server.life import find_usual
from ..services.probe.doctor import Visit, examine, examine_command, examine_local
from .hub import all_facts
from .render import Page, count, one_line, print_json, shown_file, styled
from .verb import add_json

if TYPE_CHECKING:
    from rich.text import Text

    from ..config.schema import Configuration
    from ..core.resources.checkup import Checkup, Step

NOTHING = (
    "No SSH machine is configured. Run remote-sandbox-mcp setup, which finds those of ~/.ssh/config; or set "
    "REMOTE_HOST or REMOTE_SANDBOX_LIST, or write the config file named above."
)

OFFER = (
    "An OpenSandbox server answers at {url}. To use it for disposable sandboxes, run remote-sandbox-mcp setup, or "
    'write server_url = "{url}" under [opensandbox] in config.toml.'
)
NOWHERE = "No command can run anywhere: configure a machine, or make the local sandbox work as said above."
UNUSABLE = "No machine that is configured can be used, so nothing runs unless its sandbox is named."


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="Checks each machine from its name to the PATH that commands see there, all machines at once. "
        "Ends with 0 if all is well, with 1 if a step failed, something that is configured cannot be used, or no "
        "command can run anywhere.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these sandboxes (default: all)")
    parser.add_argument("--repair", action="store_true", help="repair the state file if it is damaged; a copy is kept")
    add_json(parser)


@dataclass(frozen=True)
class Practice:
    """The check-ups that were started, the configuration, and where our own files are."""

    configuration: Configuration
    config_file: Path
    state_folder: Path
    work: tuple[tuple[str, asyncio.Task[Checkup]], ...]
    # Why the state file cannot be used; empty if it can, or there is none yet.
    trouble: str = ""

    async def offers(self) -> list[str]:
        """List what could be configured, as sentences."""
        url = await find_usual(self.configuration)
        return [OFFER.format(url=url)] if url else []


async def run(options: argparse.Namespace) -> int:
    if options.repair:
        return await asyncio.to_thread(_repair, bool(options.json))
    practice = _begin(options)
    checkups = await (_report_json(practice) if options.json else _report(practice, bool(options.names)))
    return 0 if _is_well(practice, checkups) else 1


def _is_well(practice: Practice, checkups: Sequence[Checkup]) -> bool:
    if any(checkup.failed for checkup in checkups) or practice.configuration.faults or practice.trouble:
        return False
    return not _is_nowhere(checkups)


def _is_nowhere(checkups: Sequence[Checkup]) -> bool:
    """Whether no command could run anywhere."""
    return all(checkup.failed or checkup.not_offered for checkup in checkups)


def _state_trouble(folder: Path) -> str:
    """Explain why state cannot be kept; makes no file for that."""
    from ..local.store.repair import find_trouble

    file = folder / STATE_FILE
    return str(find_trouble(file) or "") if file.exists() else standing_problem(file)


def _repair(as_json: bool) -> int:
    """Mend the state file. Raises StateError."""
    from ..local.store.repair import Repaired, find_trouble, repair

    file = paths.state_folder() / STATE_FILE
    problem = find_trouble(file) if file.exists() else None
    done, why = Repaired(), str(problem or "")
    if problem and problem.reason == DAMAGED and (pids := [str(it["pid"]) for it in all_facts()]):
        why = f"{why}; first end the hub (process {', '.join(pids)}): remote-sandbox-mcp hub stop --all"
    elif problem and problem.reason == DAMAGED:
        done, why = repair(file), ""
    saved = ", ".join(f"{count} of {table}" for table, count in done.rows.items()) or "nothing that could be read"
    if as_json:
        print_json({"ok": not why, "file": str(file), "problem": why, "copy": str(done.copy or ""), "rows": done.rows})
    elif done.copy:
        print(f"{file} was damaged. A copy is {done.copy}; saved from it: {saved}.")
    else:
        print(why or f"{file} is sound: there is nothing to repair.")
    return 1 if why else 0


def _begin(options: argparse.Namespace) -> Practice:
    """Start all check-ups at once. Raises UnknownSandbox, ConfigError."""
    from ..app import compose

    configuration = completed(load(options.config))
    fleet = compose(configuration).fleet
    wanted = {fleet.member(name).name for name in options.names}
    state = paths.state_folder()
    work = {machine.name: examine(Visit(machine, paths.known_hosts_file())) for machine in configuration.machines}
    work |= {place.name: examine_command(place) for place in configuration.commands}
    if configuration.local:
        work[configuration.local.name] = examine_local(configuration.local, state)
    tasks = []
    for name, examination in work.items():
        if wanted and name not in wanted:
            # A coroutine that is never awaited would warn at the end.
            examination.close()
        else:
            tasks.append((name, asyncio.ensure_future(examination)))
    return Practice(configuration, options.config or paths.config_file(), state, tuple(tasks), _state_trouble(state))


async def _report_json(practice: Practice) -> list[Checkup]:
    checkups = [await task for _, task in practice.work]
    print_json(
        {
            "ok": _is_well(practice, checkups),
            "config_file": str(practice.config_file),
            "config_file_read": bool(practice.configuration.file),
            "state_folder": str(practice.state_folder),
            "state_problem": practice.trouble,
            "hub": await asyncio.to_thread(_hub_fields),
            "agents_may_use": _use_fields(practice.configuration),
            "problems": list(practice.configuration.problems),
            "offers": await practice.offers(),
            "sandboxes": [_fields(checkup) for checkup in checkups],
        }
    )
    return checkups


def _hub() -> str:
    """One line about the hub."""
    hubs = all_facts()
    lines = [
        f"process {it['pid']} serves {count(len(it.get('clients', ())), 'client')}"
        if it["answers"]
        else f"process {it['pid']} does not answer; to end it: kill -9 {it['pid']}"
        for it in sorted(hubs, key=lambda it: not it["answers"])
    ]
    return ", ".join(lines) or "does not run; the next client starts it"


def _hub_fields() -> dict[str, Any]:
    hubs = all_facts()
    return {"running": bool(hubs)} | ({"pid": hubs[0]["pid"], "answers": hubs[0]["answers"]} if hubs else {})


def _use(configuration: Configuration) -> Use:
    """Places of this computer that agents may use, if their client starts us here."""
    return use_here(Gate(configuration.settings, private_files(configuration)), configuration.settings)


def _use_fields(configuration: Configuration) -> dict[str, Any]:
    use = _use(configuration)
    roots = [{"path": it.path, "key": it.by} for it in use.configured]
    return {"project": use.project, "why_none": use.why_none, "configured": roots, "allowed": len(use.allowed)}


def _fields(checkup: Checkup) -> dict[str, Any]:
    fields = asdict(checkup)
    steps = [{**step, "mark": step["mark"].value} for step in fields.pop("steps")]
    return fields | {"seconds": round(checkup.seconds, 2), "ok": not checkup.failed, "steps": steps}


async def _report(practice: Practice, chosen: bool) -> list[Checkup]:
    """Print each sandbox as soon as it and those before it are done."""
    page = Page()
    configuration = practice.configuration
    file = shown_file(practice.config_file, is_read=bool(configuration.file))
    # In a thread: a hub that hangs would delay the check-ups that already run.
    hub = await asyncio.to_thread(_hub)
    folder = styled((str(practice.state_folder), ""), (practice.trouble and f"\n{practice.trouble}", "red"))
    use = styled((one_line(_use(configuration).line), ""))
    page.rows(
        [("config file", file), ("state folder", folder), ("hub", styled((hub, ""))), ("agents use", use)], indent=0
    )
    page.problems(configuration.problems)
    if not (configuration.machines or configuration.commands):
        page.print(styled((UNUSABLE, "red bold") if configuration.refusal else (NOTHING, "yellow")))
        page.print(*await practice.offers())
    if configuration.local is None and not chosen:
        page.print("The local sandbox is switched off in the configuration.")
    checkups = []
    with page.waiting("") as status:
        for place, (_, task) in enumerate(practice.work):
            if status:
                status.update(text=_waiting(practice.work[place:]))
            checkups.append(await task)
            _show(page, checkups[-1])
    _sum_up(page, checkups, configuration)
    return checkups


def _waiting(work: Sequence[tuple[str, asyncio.Task[Checkup]]]) -> str:
    names = [name for name, task in work if not task.done()]
    return f"waiting for {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def _show(page: Page, checkup: Checkup) -> None:
    page.heading(checkup.name, f"{checkup.kind} {checkup.address}".strip() + f"  {checkup.seconds:.1f} s")
    # Steps that were skipped for a reason are listed with it; the others come together in one row.
    rows = [_row(page, step) for step in checkup.steps if step.mark.value != "skipped" or step.said]
    skipped = [step.name for step in checkup.steps if step.mark.value == "skipped" and not step.said]
    if skipped:
        rows.append((page.mark("skipped"), "skipped", styled((", ".join(skipped), "dim"))))
    page.rows(rows)


def _row(page: Page, step: Step) -> tuple[Text | str, ...]:
    remedy = f"\n→ {step.remedy}" if step.remedy else ""
    said = styled((step.said, "dim" if step.mark.value == "skipped" else ""), (remedy, "cyan"))
    return page.mark(step.mark.value), step.name, said


def _sum_up(page: Page, checkups: Sequence[Checkup], configuration: Configuration) -> None:
    bad = [checkup.name for checkup in checkups if checkup.failed]
    warned = any(step.mark.value == "warning" for checkup in checkups for step in checkup.steps)
    warned = warned or bool(configuration.problems)
    if bad:
        page.print("", styled((f"Not usable: {', '.join(bad)}.", "red bold")))
    elif _is_nowhere(checkups):
        page.print("", styled((NOWHERE, "red bold")))
    if configuration.faults:
        page.print("", styled(("The configuration has mistakes, told above: correct them.", "red bold")))
    elif not bad and not _is_nowhere(checkups):
        page.print("", styled((f"All is well{', apart from the warnings' if warned else ''}.", "green bold")))
