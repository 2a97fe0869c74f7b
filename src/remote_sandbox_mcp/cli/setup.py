"""`setup`: from nothing to a first command: machines tested and configured, clients told; and undoing that."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..backends.bubblewrap import local
from ..backends.ssh.connection import give_to_agent
from ..config import keyring_store, paths
from ..config.load import LIST, SINGLE_KEYS, listed, single
from ..config.original import IMPORT
from ..config.schema import Configuration
from ..config.services import is_json
from ..core.commands.command import Completed
from ..core.errors import BadArgument, ConfigError, SandboxError
from ..local.processes.process import is_in_cache
from ..services.gate.paths import Gate
from ..services.platform_server import life
from ..services.setup import clients, config_file, keeping
from ..services.setup.clients import State
from ..services.setup.journal import SetupChange, SetupJournal
from ..services.setup.keeping import PASSPHRASE, PASSWORD, MachineSecret
from ..services.setup.machines import (
    Candidate,
    Finder,
    Standing,
    Trial,
    accept_key,
    fields_of,
    is_plain_alias,
    named,
    try_all,
)
from ..services.setup.takeover import CONFIGURED, Takeover, machines_of, take_machines
from ..services.setup.undo import undo
from .render import COMMAND, Page, command_path, print_json, styled, whole_command_path
from .setup_dialogue import FromPerson, LiveRows, SetupAnswers, trouble_of, way_in, why_left
from .taking_over import Taking, show_undone
from .verb import NO_CONNECTION, add_json, no_choice

FIRST = "nvidia-smi -L 2>/dev/null || hostname; uptime"
FIRST_S = 20.0
# Exit code where something that was named was left out.
LEFT = 1
# Variables of a client that name machines.
MACHINE_VARIABLES = (LIST, *(f"REMOTE_{key.upper()}" for key in SINGLE_KEYS))
# How often a password or passphrase may be mistyped.
MOST_TRIES = 3
CACHED = (
    "Clients start this program from the cache of uvx, and no more when that is cleaned; to keep it, install it with "
    "uv tool install and what you gave to uvx --from, and then run at a terminal: remote-sandbox-mcp setup"
)
WHY_PROJECTS = (
    "Agents use the folder that their client was started in. Clients such as Claude Desktop start us in /; name the "
    "folder where your projects are, and they may use that, too."
)
NEEDS_TOML = "setup writes config.toml, and the file that --config names is a config.json; name a config.toml."


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "setup",
        description="Tests the hosts of ~/.ssh/config side by side, writes config.toml, registers with the MCP clients "
        "that it finds, and runs a first command. Each change is shown before it is made, and has a backup. Without "
        "a terminal, or with --yes or --json, it asks nothing: --hosts and --clients name what to set up, --yes "
        "takes all that works, and what was skipped is reported.",
    )
    parser.add_argument("--hosts", metavar="NAMES", help="only these: hosts of ~/.ssh/config, or user@host:port, ...")
    parser.add_argument("--projects", metavar="PATH", help="the folder of your projects, which agents may use")
    parser.add_argument("--clients", metavar="NAMES", help="only these clients: claude-code, codex, cursor, ...")
    parser.add_argument("--no-clients", action="store_true", help="register with no client")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and take all that works")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    undo = actions.add_parser("undo", help="undo what setup has changed, unless it was changed again since")
    for one in (parser, undo):
        one.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS, help="change nothing, only show")
    add_json(parser, undo)


async def run(options: argparse.Namespace) -> int:
    """Raises ConfigError."""
    options.dry_run = getattr(options, "dry_run", False)
    if options.action == "undo":
        results = undo(paths.state_folder(), is_dry=options.dry_run)
        return show_undone(results, as_json=options.json, nothing="Setup has changed nothing that could be undone.")
    if is_json(options.config):
        raise ConfigError(NEEDS_TOML)
    page = Page.silent() if options.json else Page()
    is_asked = sys.stdin.isatty() and page.is_terminal and not (options.yes or options.json)
    answers = FromPerson(page) if is_asked else SetupAnswers(options.yes, _words(options.hosts))
    return await Setup(options, page, answers).run()


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


@dataclass
class Done:
    """Result of setup, for the end and for --json."""

    machines: list[dict[str, Any]] = field(default_factory=list)
    projects: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    clients: list[dict[str, Any]] = field(default_factory=list)
    first_command: dict[str, Any] | None = None
    imported: dict[str, Any] | None = None
    left: list[str] = field(default_factory=list)
    # The exit code: 255 where a named machine cannot be reached, else 1 where something named was left out.
    code: int = 0

    def leave(self, sentence: str, code: int = 0) -> None:
        self.left.append(sentence)
        self.code = max(self.code, code)


@dataclass(frozen=True)
class Chosen:
    """A machine that is to be configured, with what was typed for it and whether it is a cluster."""

    trial: Trial
    secrets: tuple[MachineSecret, ...] = ()
    slurm: bool = False


class Setup:
    """One run of setup; each step leaves everything as it was if it is given up."""

    def __init__(self, options: argparse.Namespace, page: Page, answers: SetupAnswers) -> None:
        self._options = options
        self._page = page
        self._answers = answers
        self._file: Path = options.config or paths.config_file()
        self._known_hosts = paths.known_hosts_file()
        self._journal = SetupJournal(paths.state_folder())
        self._done = Done()

    async def run(self) -> int:
        """Raises ConfigError."""
        # Mistakes in the options, and a file that cannot be changed, are told before anything is tested or asked.
        _check_names(_words(self._options.clients), [client.key for client in clients.find()])
        configuration = await asyncio.to_thread(config_file.read, self._options.config)
        finder, gate = await asyncio.to_thread(Finder, configuration), Gate(configuration.settings)
        named = config_file.checked_projects(self._options.projects, gate) if self._options.projects else ""
        config_file.plan(self._file, [])
        self._greet()
        if await self._take_over(configuration):
            configuration = await asyncio.to_thread(config_file.read, self._options.config)
            finder = await asyncio.to_thread(Finder, configuration)
        trials = await self._try(await asyncio.to_thread(self._candidates, finder))
        chosen = await self._choose(trials, finder)
        self._done.projects = self._new_projects(named, configuration.settings.allowed_roots, gate)
        await self._configure(chosen, self._done.projects, await self._server(configuration))
        if not self._options.no_clients:
            await self._register()
        await self._first_command([*(it.trial for it in chosen), *(it for it in trials if it.candidate.is_configured)])
        return self._end()

    async def _take_over(self, configuration: Configuration) -> bool:
        """Offer what 0.x has left before all else: its machines are configured then."""
        if not (left := next((problem for problem in configuration.problems if IMPORT in problem), "")):
            return False
        taking = Taking(self._options.config, self._page, is_yes=self._options.yes, is_dry=self._options.dry_run)
        await taking.run()
        self._done.imported = taking.fields()
        if not taking.is_done:
            self._done.leave(left)
        return taking.is_done

    async def _server(self, configuration: Configuration) -> str:
        """The OpenSandbox server on this computer, if it is wanted."""
        url = "" if self._options.hosts else await life.find_usual(configuration)
        question = f"An OpenSandbox server answers at {url}. Use it for disposable sandboxes?"
        return url if url and self._answers.confirms(question, is_named=False) else ""

    # Machines

    def _greet(self) -> None:
        self._page.print(
            styled((f"{COMMAND} {__version__}", "bold"), (": your machines for coding agents.", "")),
            "Each change is shown before it is made; Ctrl-C leaves things as they are. ~/.ssh/config is only read.",
        )

    def _candidates(self, finder: Finder) -> list[Candidate]:
        """Raises ConfigError."""
        configured, hosts = finder.configured(), finder.hosts()
        if names := _words(self._options.hosts):
            return named([*configured, *hosts], finder, names)
        return [*configured, *hosts]

    async def _try(self, candidates: Sequence[Candidate]) -> list[Trial]:
        with LiveRows(self._page, candidates) as rows:
            return await try_all(candidates, self._known_hosts, rows.hear)

    async def _choose(self, trials: Sequence[Trial], finder: Finder) -> list[Chosen]:
        fresh = [trial for trial in trials if not trial.candidate.is_configured]
        if self._options.hosts:
            self._check_named(trials)
        if not fresh:
            self._page.print("", self._nothing_new(bool(trials)))
        wanted = self._answers.choose(fresh) if fresh else []
        for trial in fresh:
            # A person has seen the choice.
            if trial not in wanted and not self._answers.is_person:
                self._leave(trial)
        chosen = [one for trial in wanted if (one := await self._settle(trial, finder))]
        while text := self._answers.another(has_any=bool(trials or chosen)):
            chosen += await self._typed(text, finder, {one.trial.name for one in chosen})
        self._done.machines = [self._fields(trial, chosen) for trial in trials]
        names = {trial.name for trial in trials}
        self._done.machines += [self._fields(one.trial, chosen) for one in chosen if one.trial.name not in names]
        return chosen

    def _check_named(self, trials: Sequence[Trial]) -> None:
        """Note machines that cannot be reached, whatever is chosen, and tell of those that are configured."""
        for trial in trials:
            is_broken = trial.standing in (Standing.FAILED, Standing.PASSWORD, Standing.PASSPHRASE)
            if trial.standing is Standing.FAILED:
                self._done.code = NO_CONNECTION
            if trial.candidate.is_configured and is_broken:
                self._done.leave(f"{trial.name} is configured, but does not work: {trouble_of(trial)}", _code(trial))

    def _nothing_new(self, has_any: bool) -> str:
        if self._options.hosts:
            return "All that were named are configured."
        return "All hosts of ~/.ssh/config are configured." if has_any else "~/.ssh/config names no host."

    async def _typed(self, text: str, finder: Finder, taken: set[str]) -> list[Chosen]:
        try:
            candidate = await asyncio.to_thread(finder.typed, text, taken)
        except ConfigError as problem:
            self._page.problems([str(problem)])
            return []
        (trial,) = await self._try([candidate])
        settled = await self._settle(trial, finder)
        return [settled] if settled else []

    async def _settle(self, trial: Trial, finder: Finder) -> Chosen | None:
        """Ask what a machine needs: its host key accepted, a password. None where it is left out."""
        trial, secrets = await self._enter(trial, finder)
        is_usable = trial.standing in (Standing.READY, Standing.CODE)
        if trial.standing is Standing.FAILED and self._options.hosts:
            self._done.code = NO_CONNECTION
        if not is_usable and not (trial.standing is Standing.FAILED and self._answers.keeps(trial)):
            self._leave(trial)
            return None
        if trial.standing is Standing.CODE and trial.trouble:
            self._done.leave(f"{trial.name}: {trial.trouble.said}. {trial.trouble.remedy}.")
        return Chosen(trial, secrets, trial.has_slurm and self._answers.wants_slurm(trial))

    async def _enter(self, trial: Trial, finder: Finder) -> tuple[Trial, tuple[MachineSecret, ...]]:
        """Try again with what a person has answered, as long as that helps."""
        secrets: tuple[MachineSecret, ...] = ()
        tried = await self._accept_keys(trial)
        if tried.standing is Standing.PASSPHRASE:
            tried, secrets = await self._unlock(tried, finder)
            # A key that cannot be read is reported before the machine shows its own.
            tried = await self._accept_keys(tried)
        if tried.standing is Standing.PASSWORD:
            tried, more = await self._ask(tried, finder, PASSWORD, self._answers.password)
            secrets = (*secrets, *more)
        return tried, secrets

    async def _accept_keys(self, trial: Trial) -> Trial:
        # Jump hosts on the way have keys of their own.
        while trial.unseen and not self._options.dry_run and self._answers.accepts_key(trial):
            accept_key(trial.unseen, self._known_hosts)
            (trial,) = await self._try([trial.candidate])
        return trial

    async def _unlock(self, trial: Trial, finder: Finder) -> tuple[Trial, tuple[MachineSecret, ...]]:
        """Ask for a key's passphrase: for the keyring, or without one for the user's agent."""
        if await asyncio.to_thread(keyring_store.is_there):
            ask = partial(self._answers.passphrase, use="kept in the keyring")
            return await self._ask(trial, finder, PASSPHRASE, ask)
        if trial.candidate.machine.login.agent and not self._options.dry_run:
            return await self._give_to_agent(trial), ()
        return trial, ()

    async def _give_to_agent(self, trial: Trial) -> Trial:
        agent = trial.candidate.machine.login.agent
        for _ in range(MOST_TRIES):
            passphrase = self._answers.passphrase(trial, use="for your ssh-agent")
            try:
                is_given = bool(passphrase) and await give_to_agent(agent, trial.locked_key, passphrase)
            except OSError as problem:
                self._page.problems([f"the agent at {agent} does not take the key: {problem.strerror or problem}"])
                break
            if is_given:
                (trial,) = await self._try([trial.candidate])
            if is_given or not passphrase:
                break
        return trial

    async def _ask(
        self, trial: Trial, finder: Finder, key: str, ask: Callable[[Trial], str]
    ) -> tuple[Trial, tuple[MachineSecret, ...]]:
        """The trial with the right secret, and that; or the trial as it was."""
        for _ in range(MOST_TRIES):
            if not (text := ask(trial)):
                break
            secret = MachineSecret(key, text)
            candidate = await asyncio.to_thread(finder.with_secret, trial.candidate, secret)
            (tried,) = await self._try([candidate])
            is_unlocked = key == PASSPHRASE and tried.standing is not Standing.PASSPHRASE
            if is_unlocked or tried.standing in (Standing.READY, Standing.CODE):
                return tried, (secret,)
        return trial, ()

    def _leave(self, trial: Trial) -> None:
        self._done.leave(f"{trial.name} was left out: {why_left(trial)}", _code(trial) if self._options.hosts else 0)

    def _fields(self, trial: Trial, chosen: Sequence[Chosen]) -> dict[str, Any]:
        trouble = trial.trouble
        return {
            "name": trial.name,
            "address": trial.candidate.address,
            "state": trial.standing.value,
            "configured": trial.candidate.is_configured,
            "chosen": any(one.trial.name == trial.name for one in chosen),
            "login": way_in(trial.candidate.machine),
            "gpus": trial.gpus,
            "slurm": trial.has_slurm,
            "host_key": trial.unseen.fingerprint if trial.unseen else "",
            "said": trouble.said if trouble else "",
            "remedy": trouble.remedy if trouble else "",
        }

    # The folder of projects

    def _new_projects(self, named: str, roots: Sequence[str], gate: Gate) -> str:
        """The folder to be added to config.toml; empty for none. A person who has named some there is not asked."""
        folder = named or ("" if roots else self._ask_projects(gate))
        return "" if os.path.expanduser(folder) in roots else folder

    def _ask_projects(self, gate: Gate) -> str:
        if self._answers.is_person:
            self._page.print("", WHY_PROJECTS)
        usual = config_file.usual_projects(gate)
        while text := self._answers.projects(usual):
            try:
                return config_file.checked_projects(text, gate)
            except BadArgument as problem:
                self._page.problems([str(problem)])
        return ""

    # config.toml

    async def _configure(self, chosen: Sequence[Chosen], projects: str, server: str) -> None:
        """Show the change of config.toml, and make it with the passwords that it names."""
        self._page.heading("config.toml", str(self._file))
        machines = []
        for one in chosen:
            kept = {it.key: keeping.reference_for(one.trial.name, it.key, self._file) for it in one.secrets}
            machines.append(_machine(one, kept))
        planned = config_file.plan(self._file, machines, projects, server)
        self._done.config = {"file": str(planned.path), "changed": False, "backup": ""}
        self._done.config["diff"] = "\n".join(planned.diff())
        if planned.is_empty:
            self._page.print("  nothing to change")
            return
        self._show_diff(planned)
        is_named = bool(self._options.hosts or self._options.projects)
        if self._options.dry_run or not self._answers.confirms("Write this?", is_named=is_named):
            self._done.leave(f"{planned.path} was not changed.")
            return
        change = await self._write(chosen, projects, server)
        self._done.config |= {"changed": True, "backup": change.backup}
        self._page.print(self._written(planned.path, change.backup))

    async def _write(self, chosen: Sequence[Chosen], projects: str = "", server: str = "") -> SetupChange:
        """Raises ConfigError; then no secret is kept, either."""
        kept: list[SetupChange] = []
        machines = []
        try:
            for one in chosen:
                references = {}
                for secret in one.secrets:
                    kept.append(await self._keep(one.trial.name, secret))
                    references[secret.key] = keeping.reference_of(kept[-1])
                machines.append(_machine(one, references))
            planned = config_file.plan(self._file, machines, projects, server)
            change = config_file.carry_out(planned, self._options.config)
        except BaseException:
            for each in kept:
                keeping.forget(each)
            raise
        for each in (*kept, change):
            self._journal.add(each)
        return change

    async def _keep(self, name: str, secret: MachineSecret) -> SetupChange:
        """Raises ConfigError."""
        storing = asyncio.ensure_future(asyncio.to_thread(keeping.keep, name, secret, self._file))
        try:
            kept = await asyncio.shield(storing)
        except asyncio.CancelledError:
            # Ctrl-C does not end the thread: what it has stored is taken back.
            with contextlib.suppress(ConfigError):
                keeping.forget(await storing)
            raise
        if kept.path:
            text = f"There is no keyring here, so the password of {name} is in {kept.path}, readable by you alone."
            self._page.problems([text])
        return kept

    def _show_diff(self, planned: config_file.ConfigPlan) -> None:
        colours = {"+": "green", "-": "red", "@": "cyan"}
        for line in planned.diff():
            self._page.print(styled((f"  {line}", colours.get(line[:1], ""))), soft_wrap=True)

    def _written(self, path: Path, backup: str) -> str:
        return f"  written: {path}" + (f"\n  backup: {backup}" if backup else "")

    # Clients

    async def _register(self) -> None:
        config = self._options.config
        arguments = ("--config", str(config.absolute())) if config else ()
        program = clients.StartCommand(command_path(), whole_command_path(), arguments)
        wanted = _words(self._options.clients)
        found = [client for client in clients.find() if (client.key in wanted if wanted else client.is_there)]
        self._page.heading("Clients", "" if found else "none was found; most take these lines in their mcp.json:")
        if not found:
            entry: dict[str, object] = {"command": program.path}
            if program.arguments:
                entry["args"] = [*program.arguments]
            self._show_lines(json.dumps({"mcpServers": {clients.NAME: entry}}, indent=2, ensure_ascii=False))
        for client in found:
            for planned in clients.plans(client, program):
                await self._print_client(await self._moved(planned), is_named=client.key in wanted)
        if any(row["state"] == "added" for row in self._done.clients) and is_in_cache(sys.executable):
            self._done.leave(CACHED)

    async def _moved(self, found: clients.ClientPlan) -> clients.ClientPlan:
        """The plan without the variables of the original that name machines, if a person wants these configured."""
        given = [*listed(found.variables, lambda _: None), *([one] if (one := single(found.variables)) else [])]
        if not (found.is_original and given and self._answers.is_person) or self._options.dry_run:
            return found
        machines = machines_of(
            given, found.client.title, await asyncio.to_thread(config_file.read, self._options.config)
        )
        if any(machine.why_not not in ("", CONFIGURED) for machine in machines):
            return found
        names = ", ".join(machine.name for machine in machines)
        title = found.client.title
        question = f"{title} starts 0.x with {names}. Move them to config.toml, and secrets to the keyring?"
        if not self._answers.confirms(question, is_named=False):
            return found
        taken = Takeover(paths.state_folder(), machines=machines)
        work = asyncio.to_thread(take_machines, taken, self._options.config, self._journal)
        self._page.problems(await work)
        env = {name: it for name, it in found.variables.items() if name not in MACHINE_VARIABLES}
        return clients.with_entry(replace(found, entry={**found.entry, "env": env}))

    async def _print_client(self, found: clients.ClientPlan, *, is_named: bool) -> None:
        """Show one client's change, ask, and make it."""
        title = found.client.title
        row = {"client": found.client.key, "state": found.state.value, "file": str(found.client.file), "backup": ""}
        self._done.clients.append(row)
        if found.state is State.REGISTERED:
            self._page.rows([(self._page.mark("ok"), title, f"registered already, as {found.said}")])
            return
        planned = self._replacing(found)
        if planned.state not in (State.NEW, State.ORIGINAL):
            self._left_client(planned, row, LEFT if is_named else 0)
            return
        how = "runs" if planned.is_by_command else "gets"
        self._page.print(styled((planned.client.title, "bold"), (f"  {planned.path} {how}", "dim")), soft_wrap=True)
        self._show_lines(planned.lines)
        question = f"Put this program in the place of 0.x in {title}?" if planned.is_original else f"Add it to {title}?"
        if self._options.dry_run or not self._answers.confirms(question, is_named=is_named):
            self._done.leave(f"{title} was not changed.")
            return
        self._change_client(planned, row, LEFT if is_named else 0)

    def _replacing(self, found: clients.ClientPlan) -> clients.ClientPlan:
        """The plan that takes the place of another command, where that is possible and wanted."""
        if found.state is not State.TAKEN or self._options.dry_run:
            return found
        planned = clients.overriding(found)
        is_wanted = planned.state is State.NEW and self._answers.replaces(found.client.title, found.said)
        return planned if is_wanted else found

    def _change_client(self, planned: clients.ClientPlan, row: dict[str, Any], code: int) -> None:
        """Make the change; `code` is the exit code if that fails."""
        try:
            change = clients.carry_out(planned)
        except ConfigError as problem:
            self._done.leave(str(problem), code)
            self._page.problems([str(problem)])
            row |= {"said": str(problem)}
            return
        self._journal.add(change)
        row |= {"state": "added", "backup": change.backup}
        self._page.print(self._written(planned.path, change.backup))

    def _left_client(self, planned: clients.ClientPlan, row: dict[str, Any], code: int) -> None:
        title = planned.client.title
        sentence = f"{title} was left as it is: {planned.said}."
        self._page.rows([(self._page.mark("warning"), title, f"{planned.said}; to add it yourself:")])
        self._show_lines(planned.lines)
        self._done.leave(sentence, code)
        row |= {"said": planned.said, "lines": planned.lines}

    def _show_lines(self, lines: str) -> None:
        for line in lines.split("\n"):
            self._page.print(styled((f"  + {line}", "green")), soft_wrap=True)

    # The end

    async def _first_command(self, trials: Sequence[Trial]) -> None:
        """A real command on a machine that works, or in the local sandbox, as an agent's would run."""
        if self._options.dry_run or not (name := await self._usable(trials)):
            return

        self._page.heading("A first command", name)
        self._page.print(f"  $ {_program()} exec --sandbox {name} -- '{FIRST}'", soft_wrap=True)
        try:
            code, said = await _run_first(self._options.config, name)
        except SandboxError as problem:
            self._done.leave(str(problem))
            self._page.problems([str(problem)])
            return
        self._done.first_command = {"sandbox": name, "command": FIRST, "exit_code": code, "stdout": said}
        self._page.print(*(styled((f"  {line}", "")) for line in said.splitlines()), soft_wrap=True)

    async def _usable(self, trials: Sequence[Trial]) -> str:
        """The first machine that works and is configured, else the local sandbox; empty where there is neither."""
        configuration = config_file.read(self._options.config)
        configured = {machine.name for machine in configuration.machines}
        for trial in trials:
            if trial.standing is Standing.READY and trial.name in configured:
                return trial.name
        is_wanted = self._answers.is_person or self._options.yes
        if configured or self._options.hosts or not is_wanted or configuration.local is None:
            return ""
        if why := await local.why_not():
            why = why.rstrip(".")
            self._done.leave(f"No command can run yet: no machine is ready, nor the sandbox on this computer ({why})")
            return ""
        return configuration.local.name

    def _end(self) -> int:
        if self._options.json:
            fields = {key: value for key, value in asdict(self._done).items() if key != "code"}
            print_json({"dry_run": self._options.dry_run, **fields})
        else:
            self._say_next()
        return self._done.code

    def _say_next(self) -> None:
        page = self._page
        if self._done.left:
            page.heading("Left to do")
            page.problems(self._done.left)
        if self._done.first_command:
            page.heading("Say to your agent", "restart it first, so that it finds the server")
            page.print("  Which of my sandboxes is free? Run uname -a there, and tell me what you see.")
        page.heading("Next")
        verbs = {"doctor": "checks each machine, step by step", "dashboard": "shows in your browser what agents do"}
        verbs |= {"setup undo": "takes back what setup has changed"}
        page.rows((f"{_program()} {words}", use) for words, use in verbs.items())


def _program() -> str:
    """Our own command as a person can type it in any terminal."""
    return shlex.quote(command_path())


def _code(trial: Trial) -> int:
    """The exit code for a machine that was named, and is not usable."""
    return NO_CONNECTION if trial.standing is Standing.FAILED else LEFT


def _machine(one: Chosen, references: dict[str, str]) -> config_file.NewMachine:
    entry = one.trial.candidate.entry
    assert entry is not None
    fields = fields_of(entry, references, one.slurm)
    return config_file.NewMachine(entry.name, fields, is_plain_alias(entry, references, one.slurm))


def _check_names(wanted: Sequence[str], names: Sequence[str]) -> None:
    """Raises BadArgument."""
    for name in wanted:
        if name not in names:
            raise BadArgument(f"--clients: {no_choice(name, names)}")


async def _run_first(config: Path | None, name: str) -> tuple[int | None, str]:
    """Exit code and output. Raises SandboxError."""
    from ..app import compose

    app = compose(config_file.read(config))
    try:
        report = await app.commands.run(FIRST, name=name, timeout_s=FIRST_S)
    finally:
        await app.close()
    code = report.seen.exit_code if isinstance(report.seen, Completed) else None
    return code, report.stdout.text + report.stderr.text
