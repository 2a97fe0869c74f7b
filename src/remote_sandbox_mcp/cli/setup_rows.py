"""A machine that setup tries, as one row: what it is doing, or how it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .render import Page, styled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from ..core.machine import Machine
    from ..setup.machines import Candidate, Trial

DRAWN_PER_S = 10
LONGEST_SAID = 90


def way_in(machine: Machine) -> str:
    """How the login is made."""
    login = machine.login
    ways = [("password", login.password), ("key", login.key_files), ("agent", login.agent)]
    return " or ".join(name for name, has in ways if has) or "nothing"


def said(trial: Trial) -> str:
    """How a machine stands, in some words."""
    from ..setup.machines import Standing

    if trial.standing is Standing.READY:
        gpus = f", GPUs: {trial.gpus}" if trial.gpus else ""
        slurm = ", Slurm" if trial.has_slurm else ""
        done = ", configured" if trial.candidate.is_configured else ""
        return f"works, by {way_in(trial.candidate.machine)}{gpus}{slurm}{done}"
    if trial.standing is Standing.PASSWORD:
        return "asks for a password"
    if trial.standing is Standing.HOST_KEY:
        return "is new: its host key has never been seen"
    if trial.standing is Standing.CODE:
        return "asks for a one-time code at each login"
    return trial.trouble.said if trial.trouble else "does not work"


def why_left(trial: Trial) -> str:
    """Why a machine is not configured, and what to do about it, as the end of a sentence."""
    from ..setup.machines import Standing

    again = "run setup at a terminal"
    if trial.standing is Standing.PASSWORD:
        return f"it asks for a password; {again}, which asks for it and keeps it in the keyring."
    if trial.unseen:
        return f"its host key {trial.unseen.fingerprint} has never been seen; {again}, or ssh to it once."
    return trouble_of(trial) or "it works, and was not asked for; name it with --hosts, or pass --yes."


def trouble_of(trial: Trial) -> str:
    """The step that failed, and what to do about it, as the end of a sentence; empty where none did."""
    step = trial.trouble
    return f"{step.said}. {step.remedy}".rstrip(". ") + "." if step else ""


def mark(trial: Trial) -> str:
    from ..setup.machines import Standing

    usable = {Standing.READY: "ok", Standing.FAILED: "failed"}
    return usable.get(trial.standing, "warning")


def row_texts(trials: Sequence[Trial]) -> list[Text]:
    """One line for each, in columns."""
    names = max(len(trial.name) for trial in trials)
    addresses = max(len(trial.candidate.address) for trial in trials)
    return [_row_text(trial, names, addresses) for trial in trials]


def _row_text(trial: Trial, names: int, addresses: int) -> Text:
    name, where = f"{trial.name:<{names}}  ", f"{trial.candidate.address:<{addresses}}  "
    return styled((name, "bold"), (where, "dim"), (said(trial)[:LONGEST_SAID], ""))


class LiveRows:
    """One row for each machine, all of them changing at once on a terminal; elsewhere they are printed at the end."""

    def __init__(self, page: Page, candidates: Sequence[Candidate]) -> None:
        self._page = page
        self._candidates = candidates
        self._heard: dict[str, str | Trial] = {}
        self._live: Live | None = None

    def hear(self, name: str, what: str | Trial) -> None:
        self._heard[name] = what
        if self._live:
            self._live.update(self._drawn())

    def __enter__(self) -> LiveRows:
        if self._page.is_terminal and self._candidates:
            from rich.live import Live

            self._page.print("")
            self._live = Live(self._drawn(), console=self._page.console, refresh_per_second=DRAWN_PER_S, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._live:
            self._live.stop()
        # What was given up has nothing to show.
        if kind is None:
            self._page.rows(self._row(candidate) for candidate in self._candidates)

    def _drawn(self) -> RenderableType:
        from rich.table import Table

        grid = Table.grid(padding=(0, 2, 0, 0))
        room = max(1, self._page.console.size.height - 3)
        # Those that are still at it are what changes, so they come first where not all fit.
        waiting = [it for it in self._candidates if isinstance(self._heard.get(it.name, ""), str)]
        shown = self._candidates if len(self._candidates) <= room else (waiting or self._candidates)[:room]
        for candidate in shown:
            grid.add_row("", *self._row(candidate))
        return grid

    def _row(self, candidate: Candidate) -> tuple[RenderableType, ...]:
        heard = self._heard.get(candidate.name, "")
        if isinstance(heard, str):
            from rich.spinner import Spinner

            doing: RenderableType = Spinner("dots") if self._live else ""
            return doing, candidate.name, styled((candidate.address, "dim")), styled((heard or "waiting", "dim"))
        return (
            self._page.mark(mark(heard)),
            candidate.name,
            styled((candidate.address, "dim")),
            styled((said(heard), "")),
        )
