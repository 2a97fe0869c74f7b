"""`completion`: scripts for bash, zsh and fish, and the answers for which they call back."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .verb import add_json

if TYPE_CHECKING:
    from ..local.store.database import Database

T = TypeVar("T")

SHELLS = ("bash", "zsh", "fish")
# The hidden first word with which the scripts call back, followed by the words before the cursor and the one at it.
CALL_BACK = "__complete"
# An answer that lets the shell complete names of files.
FILES = ":files"
MOST_NAMES = 200
# What a value is, by its option or its metavar, where `verb action` begins with the first word; see `kind_of`.
OPTIONS = {"--sandbox": "sandboxes", "--on": "sandboxes", "--config": "files", "--exclude-file": "files"}
OPTIONS |= {"--projects": "files"}
POSITIONALS = {
    **dict.fromkeys(((verb, "NAME") for verb in ("doctor", "clean", "login", "hosts")), "sandboxes"),
    **{("forward", "SANDBOX"): "sandboxes", ("jobs", "NAME"): "jobs", ("sessions", "HANDLE"): "sessions"},
    **{("push", "LOCAL"): "files", ("push", "REMOTE"): "places", ("pull", "LOCAL"): "files"},
    **{("pull", "REMOTE"): "places", ("config", "PATH"): "files", ("allow", "PATH"): "files"},
    **{("disallow", "PATH"): "allowed", ("delete", "ID"): "disposables"},
}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        description="Prints a script. bash: add  source <(remote-sandbox-mcp completion bash)  to ~/.bashrc. zsh: the "
        "same with zsh, in ~/.zshrc after compinit. fish: remote-sandbox-mcp completion fish | source, in config.fish.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    add_json(parser)


async def run(options: argparse.Namespace) -> int:
    from importlib import resources

    from .render import print_json, write

    script = resources.files(__package__).joinpath(f"completion.{options.shell}").read_text(encoding="utf-8")
    print_json({"shell": options.shell, "script": script}) if options.json else write(script)
    return 0


def answer(words: Sequence[str]) -> int:
    """Print what may stand at the last of the words, one on each line, with a tab and what it is.

    Prints nothing where something fails: a person is typing, and wants no message in between.
    """
    from ..core.errors import SandboxError
    from .main import VERBS, parser
    from .render import write

    *before, at = words or ("",)
    verbs = [word for word in before if word in VERBS][:1]
    try:
        found = [*candidates(parser(verbs), before, at)]
    except (SandboxError, OSError):
        return 1
    described = (f"{word}\t{' '.join(description.split())}".rstrip("\t") for word, description in found)
    write("".join(f"{line}\n" for line in described))
    return 0


Candidate = tuple[str, str]


def candidates(top: argparse.ArgumentParser, before: Sequence[str], at: str) -> Iterator[Candidate]:
    """The words that fit, each with what it is."""
    place = Cursor(top)
    for word in before:
        place.pass_by(word)
    if place.is_over:
        return
    names = Names(place.config)
    if place.expects is not None:
        yield from fitting(names.of(place.expects, place.verb), at)
    elif at.startswith("--") and "=" in at:
        option, _, value = at.partition("=")
        action = place.options.get(option)
        found = names.of(action, place.verb) if action else ()
        yield from ((f"{option}={word}", description) for word, description in fitting(found, value))
    elif at.startswith("-"):
        yield from fitting(options_of(place.parser, at), at)
    else:
        yield from fitting(place.following(names), at)


def fitting(found: Iterable[Candidate], at: str) -> Iterator[Candidate]:
    return ((word, description) for word, description in found if word == FILES or word.startswith(at))


def options_of(parser: argparse.ArgumentParser, at: str) -> Iterator[Candidate]:
    """Long names, and short ones where only a dash was typed or there is no long one."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        for name in action.option_strings:
            if name.startswith("--") or at == "-" or len(action.option_strings) == 1:
                yield name, action.help or ""


class Cursor:
    """Position in a line of words: the parser of the verb or action, and what it expects next."""

    def __init__(self, top: argparse.ArgumentParser) -> None:
        self.parser = top
        self.verb = ""
        self.config = ""
        # The option whose value comes next.
        self.expects: argparse.Action | None = None
        # Inside of a command of the user's own, which is not ours to complete.
        self.is_over = False
        self._given = 0

    @property
    def options(self) -> dict[str, argparse.Action]:
        return self.parser._option_string_actions

    @property
    def positionals(self) -> list[argparse.Action]:
        return self.parser._get_positional_actions()

    def pass_by(self, word: str) -> None:
        if self.expects is not None:
            self.config = word if self.expects.dest == "config" else self.config
            self.expects = None
        elif word == "--":
            self.is_over = True
        elif word in self.options:
            action = self.options[word]
            self.expects = action if action.nargs != 0 else None
        elif not word.startswith("-"):
            self._pass_positional(word)

    def _pass_positional(self, word: str) -> None:
        expected = self._next()
        if isinstance(expected, argparse._SubParsersAction):
            inner = expected.choices.get(word)
            if inner is None:
                self.is_over = True
                return
            self.verb, self.parser, self._given = self.verb or word, inner, 0
        elif expected is not None and expected.nargs == argparse.REMAINDER:
            self.is_over = True
        else:
            self._given += 1

    def _next(self) -> argparse.Action | None:
        found = self.positionals
        if self._given < len(found):
            return found[self._given]
        # The last one may take any number.
        return found[-1] if found and found[-1].nargs in ("*", "+", argparse.REMAINDER) else None

    def following(self, names: Names) -> Iterable[Candidate]:
        expected = self._next()
        if isinstance(expected, argparse._SubParsersAction):
            return [(choice.dest, choice.help or "") for choice in expected._choices_actions]
        return names.of(expected, self.verb) if expected is not None else ()


class Names:
    """Names that are completed: from the configuration and the records, without a connection to anything."""

    def __init__(self, config: str) -> None:
        self._config = config

    def of(self, action: argparse.Action, verb: str) -> Iterable[Candidate]:
        if action.choices is not None:
            return [(str(choice), "") for choice in action.choices]
        ways: dict[str, Callable[[], Iterable[Candidate]]] = {
            "sandboxes": self.sandboxes,
            "jobs": self.jobs,
            "sessions": self.sessions,
            "disposables": self.disposables,
            "places": self.places,
            "allowed": self.allowed,
            "files": lambda: [(FILES, "")],
            "": lambda: (),
        }
        return ways[kind_of(action, verb)]()

    def sandboxes(self) -> Iterator[Candidate]:
        from ..config.load import load
        from ..services.session import absolute, client_folder
        from .streams import caller

        config = Path(absolute(self._config)) if self._config else None
        configuration = load(config, caller().environ, client_folder())
        yield from ((machine.name, machine.host) for machine in configuration.machines)
        yield from ((place.name, "behind a command") for place in configuration.commands)
        if configuration.local:
            yield configuration.local.name, "this computer"
        yield from self.disposables()

    def places(self) -> Iterator[Candidate]:
        yield from ((f"{name}:", description) for name, description in self.sandboxes())

    def allowed(self) -> Iterator[Candidate]:
        from ..config.allowances import allowances
        from ..services.gate.allowing import until

        # The answer has one line for each.
        yield from ((it.path, until(it)) for it in allowances()[-MOST_NAMES:] if it.path.isprintable())

    def jobs(self) -> Iterator[Candidate]:
        from ..local.store.jobs import JobRecords

        found = recorded(lambda database: JobRecords(database).list(limit=MOST_NAMES))
        yield from {job.session: (job.session, f"{job.state} on {job.sandbox}") for job in reversed(found)}.values()

    def sessions(self) -> Iterator[Candidate]:
        from ..core.commands.session_handle import PYTHON, SHELL
        from ..local.store.sessions import KeptSessionRows

        kinds = (SHELL, PYTHON)
        found = recorded(lambda database: [it for kind in kinds for it in KeptSessionRows(database, kind).list()])
        yield from {f"{it.kind}:{it.name}": f"on {it.sandbox}" for it in found[:MOST_NAMES]}.items()

    def disposables(self) -> Iterator[Candidate]:
        from ..local.store.disposables import DisposableRows

        # Not those that wait for a first use.
        living = [it.disposable for it in recorded(lambda database: DisposableRows(database).living()) if not it.pool]
        yield from ((it.id, it.name or it.image or "disposable") for it in living[:MOST_NAMES])


def kind_of(action: argparse.Action, verb: str) -> str:
    """Return the kind of value that an option, or a word without one, takes."""
    if kinds := [OPTIONS[name] for name in action.option_strings if name in OPTIONS]:
        return kinds[0]
    return "" if action.option_strings else POSITIONALS.get((verb, str(action.metavar)), "")


def recorded(read: Callable[[Database], Sequence[T]]) -> Sequence[T]:
    """Read rows of the database, if there is one: none is made for a completion."""
    from ..config import paths
    from ..local.store.database import STATE_FILE, Database

    file = paths.state_path() / STATE_FILE
    if not file.exists():
        return ()
    database = Database(file)
    try:
        return read(database)
    finally:
        database.close()
