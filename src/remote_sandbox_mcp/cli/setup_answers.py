"""What setup asks: answered by a person at a terminal, or by the options where nobody is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from . import asker
from .render import Page, styled
from .setup_rows import row_texts

if TYPE_CHECKING:
    from ..setup.machines import Trial


class Answers(Protocol):
    """Decides what setup does; an answer that nobody can give is a no."""

    @property
    def is_person(self) -> bool: ...

    def choose(self, trials: Sequence[Trial]) -> list[Trial]: ...

    def another(self, *, has_any: bool) -> str:
        """A further machine as user@host:port; empty for none."""
        ...

    def accepts_key(self, trial: Trial) -> bool: ...

    def password(self, trial: Trial) -> str: ...

    def keeps(self, trial: Trial) -> bool:
        """Whether a machine that does not work now is configured nevertheless."""
        ...

    def wants_slurm(self, trial: Trial) -> bool: ...

    def confirms(self, question: str, *, is_named: bool) -> bool:
        """Whether a change that was shown is made; `is_named`: the command line asks for it."""
        ...

    def replaces(self, title: str, there: str) -> bool:
        """Whether we take the place of another command in a client."""
        ...


class FromPerson:
    """Asks at the terminal."""

    is_person = True

    def __init__(self, page: Page) -> None:
        self._page = page

    def choose(self, trials: Sequence[Trial]) -> list[Trial]:
        from ..setup.machines import Standing

        ready = {place for place, trial in enumerate(trials) if trial.standing is not Standing.FAILED}
        self._page.print("", styled(("Which of them may agents use?", "bold")))
        places = asker.choose(self._page, row_texts(trials), ready)
        chosen = [trial for place, trial in enumerate(trials) if place in places]
        self._page.print(f"  {', '.join(trial.name for trial in chosen) or 'none'}")
        return chosen

    def another(self, *, has_any: bool) -> str:
        return asker.line(f"{'Another' if has_any else 'A'} machine? user@host[:port], or Enter to go on:")

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


class FromOptions:
    """Asks nobody: `names` are the machines of --hosts, `is_yes` means all that works."""

    is_person = False

    def __init__(self, is_yes: bool, names: Sequence[str]) -> None:
        self._is_yes = is_yes
        self._names = names

    def choose(self, trials: Sequence[Trial]) -> list[Trial]:
        from ..setup.machines import Standing

        # All that were tried are those that were named.
        if self._names:
            return list(trials)
        return [trial for trial in trials if trial.standing is Standing.READY] if self._is_yes else []

    def another(self, *, has_any: bool) -> str:
        return ""

    def accepts_key(self, trial: Trial) -> bool:
        return False

    def password(self, trial: Trial) -> str:
        return ""

    def keeps(self, trial: Trial) -> bool:
        return False

    def wants_slurm(self, trial: Trial) -> bool:
        return False

    def confirms(self, question: str, *, is_named: bool) -> bool:
        return self._is_yes or is_named

    def replaces(self, title: str, there: str) -> bool:
        return False
