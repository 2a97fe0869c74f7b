"""Dialogue of setup: a row for each machine that it tries, and questions to a person, or to the options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..services.setup.machines import Candidate, Standing, Trial
from . import asker
from .render import Page, styled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from ..core.sandboxes.machine import Machine

DRAWN_PER_S = 10
LONGEST_SAID = 90
NO_FOLDER = ("-", "none", "no", "n")


def way_in(machine: Machine) -> str:
    """Describe how the login is made."""
    login = machine.login
    ways = [("password", login.password), ("key", login.key_files), ("agent", login.agent)]
    return " or ".join(name for name, has in ways if has) or "nothing"


def said(trial: Trial) -> str:
    """Describe how a machine stands, in some words."""
    if trial.standing is Standing.READY:
        gpus = f", GPUs: {trial.gpus}" if trial.gpus else ""
        slurm = ", Slurm" if trial.has_slurm else ""
        done = ", configured" if trial.candidate.is_configured else ""
        return f"works, by {way_in(trial.candidate.machine)}{gpus}{slurm}{done}"
    if trial.standing is Standing.PASSWORD:
        return "asks for a password"
    if trial.standing is Standing.PASSPHRASE:
        return f"needs the passphrase of {trial.locked_key}"
    if trial.standing is Standing.HOST_KEY:
        return "is new: its host key has never been seen"
    if trial.standing is Standing.CODE:
        return "asks for a one-time code at each login"
    return trial.trouble.said if trial.trouble else "does not work"


def why_left(trial: Trial) -> str:
    """Explain why a machine is not configured, and what to do about it, as the end of a sentence."""
    again = "run setup at a terminal"
    if trial.standing is Standing.PASSWORD:
        return f"it asks for a password; {again}, which asks for it and keeps it in the keyring."
    if trial.standing is Standing.PASSPHRASE:
        unlock = f"ssh-add {shlex.quote(trial.locked_key)}"
        return f"its key is encrypted; run {unlock}, or {again}, which asks for the passphrase."
    if trial.unseen:
        return f"its host key {trial.unseen.fingerprint} has never been seen; {again}, or ssh to it once."
    return trouble_of(trial) or "it works, and was not asked for; name it with --hosts, or pass --yes."


def trouble_of(trial: Trial) -> str:
    """The step that failed, and what to do about it, as the end of a sentence; empty where none did."""
    step = trial.trouble
    return f"{step.said}. {step.remedy}".rstrip(". ") + "." if step else ""


def mark(trial: Trial) -> str:
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
        address, stands = styled((candidate.address, "dim")), styled((said(heard), ""))
        return self._page.mark(mark(heard)), candidate.name, address, stands


class SetupAnswers:
    """Decides what setup does, without asking anybody: an answer that nobody can give is a no.

    `names` are the machines of --hosts, `is_yes` means all that works.
    """

    is_person = False

    def __init__(self, is_yes: bool, names: Sequence[str]) -> None:
        self._is_yes = is_yes
        self._names = names

    def choose(self, trials: Sequence[Trial]) -> list[Trial]:
        # All that were tried are those that were named.
        if self._names:
            return list(trials)
        return [trial for trial in trials if trial.standing is Standing.READY] if self._is_yes else []

    def another(self, *, has_any: bool) -> str:
        """A further machine as user@host:port; empty for none."""
        return ""

    def projects(self, usual: str) -> str:
        """The folder where projects are, which may be the `usual` one; empty for none."""
        return ""

    def accepts_key(self, trial: Trial) -> bool:
        return False

    def password(self, trial: Trial) -> str:
        return ""

    def passphrase(self, trial: Trial, use: str) -> str:
        """The passphrase of its key; `use` says what is done with it."""
        return ""

    def keeps(self, trial: Trial) -> bool:
        """Whether a machine that does not work now is configured nevertheless."""
        return False

    def wants_slurm(self, trial: Trial) -> bool:
        return False

    def confirms(self, question: str, *, is_named: bool) -> bool:
        """Whether a change that was shown is made; `is_named`: the command line asks for it."""
        return self._is_yes or is_named

    def replaces(self, title: str, there: str) -> bool:
        """Whether we take the place of another command in a client."""
        return False


class FromPerson(SetupAnswers):
    """Asks at the terminal."""

    is_person = True

    def __init__(self, page: Page) -> None:
        super().__init__(False, ())
        self._page = page

    def choose(self, trials: Sequence[Trial]) -> list[Trial]:
        ready = {place for place, trial in enumerate(trials) if trial.standing is not Standing.FAILED}
        self._page.print("", styled(("Which of them may agents use?", "bold")))
        places = asker.choose(self._page, row_texts(trials), ready)
        chosen = [trial for place, trial in enumerate(trials) if place in places]
        self._page.print(f"  {', '.join(trial.name for trial in chosen) or 'none'}")
        return chosen

    def another(self, *, has_any: bool) -> str:
        return asker.line(f"{'Another' if has_any else 'A'} machine? user@host[:port], or Enter to go on:")

    def projects(self, usual: str) -> str:
        way_out = f"[{usual}], or - for none" if usual else "A folder, or Enter for none"
        answer = asker.line(f"Where are your projects? {way_out}:")
        return "" if answer in NO_FOLDER else answer or usual

    def accepts_key(self, trial: Trial) -> bool:
        unseen = trial.unseen
        assert unseen is not None
        self._page.print(
            "",
            f"{trial.name} is new: the {unseen.kind} key of {unseen.host} has the fingerprint",
            styled((f"  {unseen.fingerprint}", "bold")),
        )
        return asker.agrees("Is that the right one?", otherwise=False)

    def password(self, trial: Trial) -> str:
        return asker.hidden(f"Password of {trial.candidate.address} (Enter leaves {trial.name} out):")

    def passphrase(self, trial: Trial, use: str) -> str:
        return asker.hidden(f"Passphrase of {trial.locked_key}, {use} (Enter leaves {trial.name} out):")

    def keeps(self, trial: Trial) -> bool:
        step = trial.trouble
        self._page.problems([f"{trial.name}: {step.said if step else 'it cannot be used now'}"])
        return asker.agrees(f"Configure {trial.name} nevertheless?", otherwise=False)

    def wants_slurm(self, trial: Trial) -> bool:
        return asker.agrees(f"{trial.name} has Slurm. Send background jobs to its queue (slurm = true)?")

    def confirms(self, question: str, *, is_named: bool) -> bool:
        return asker.agrees(question)

    def replaces(self, title: str, there: str) -> bool:
        self._page.problems([f"{title}: {there}"])
        return asker.agrees("Put this program in its place?", otherwise=False)
