"""A container on a machine as a Sandbox, entered by its engine's `exec`; and the command line of that engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ...core.commands.command import Environment
from ...core.commands.shell import join, quote
from ...core.errors import ConnectError, SandboxError
from ...core.sandboxes.disposable import Disposable
from ...core.sandboxes.machine import Engine, trouble
from ...core.sandboxes.sandbox import Capabilities, Description, Sandbox
from ..command.console import Console, ConsoleOutput
from ..command.provided import ProvidedShellAlone, ProvidedWay, open_provided
from ..command.way import CommandLine, Way, last_words
from ..shell.transport import Gone, Paused, ShellPlace

NOT_FOUND = 127

# Parts of the engines' error messages, for which they have no codes.
GONE = ("no such container", "no such object", "no container with name or id")
NO_IMAGE = ("no such image", "image not known", "unable to find image", "does not resolve to an image")
# Podman's init may be a separate package that is not installed; then our keeper is the container's first process.
NO_INIT = ("container-init binary not found", "init binary not found", '"docker-init": executable file not found')
REMOVING = ("removal of container", "already in progress", "is being removed")


# Variables by which clients find their engine. Others of the machine's may be secrets, and a line shows them to all.
ENGINE_VARIABLES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
    *("XDG_RUNTIME_DIR", "PATH"),
)
NOTHING: Mapping[str, str] = {}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def login_line(*words: str) -> str:
    """The line that starts a login shell with these words, bash where it is installed."""
    # Rootless engines are found by variables that only the files of a login shell set.
    rest = join(words)
    return f"exec {join(['sh', '-c', f'command -v bash >/dev/null 2>&1 && exec bash -l {rest}; exec sh -l {rest}'])}"


def plain_line(*words: str) -> str:
    """The line that starts a shell with these words, which reads no files of the login."""
    return f"exec /bin/sh {join(words)}"


class Cli(Console):
    """Runs one engine's commands on its machine, a few at once."""

    def __init__(
        self, machine: str, engine: Engine, way: Way, env: Mapping[str, str] = NOTHING, *, beyond_walls: bool = False
    ) -> None:
        """`env` are the machine's variables, of which an engine's client is given those that are about it.

        `beyond_walls`: what an agent may write there has walls, which this client is outside of. So it is not looked
        for where a login would look, which may be a folder that the agent writes in.
        """
        self.env = {name: value for name, value in env.items() if name in ENGINE_VARIABLES}
        if beyond_walls:
            self.env["PATH"] = SYSTEM_PATH
        self._login = plain_line if beyond_walls else login_line
        first = [f"export {name}={quote(value)}" for name, value in self.env.items()]
        where = f"{engine.tool} on {machine}"
        super().__init__(machine, way, where, start_line=self._login("-s"), first=first)
        self.engine = engine

    def line_of(self, words: Sequence[str]) -> str:
        """The line for the machine's login shell that runs an engine's command in the login environment."""
        given = ["env", *(f"{name}={value}" for name, value in self.env.items())] if self.env else []
        return self._login("-c", f"exec {join([*given, *words])}")

    def problem(self, doing: str, said: ConsoleOutput) -> SandboxError:
        """Explain why a command failed, and what to do."""
        tool, machine = self.engine.tool, self.machine
        found, remedy = trouble(tool, machine, said.err.decode("utf-8", "replace"))
        if found:
            return SandboxError.of_parts(doing, found, remedy)
        if said.status == NOT_FOUND and not said.says(("/bin/sh",)):
            return SandboxError.of_parts(
                doing, f"there is no {self.engine.command[0]} on {machine}", f"install {tool} there, or name it in full"
            )
        words = last_words(said.err) or f"it ended with status {said.status}"
        return SandboxError.of_parts(doing, f"{self.where} said: {words}")


# Asks the provider for a container's status; empty if the engine does not answer.
Fate = Callable[[Disposable], Awaitable[str]]
# podman drops all output where the input is closed before it was read, as by a Python that cannot start. This shell
# holds the input open until the output has arrived, and must not be replaced by the program: hence the subshell.
UNTIL_HEARD = "({}) || {{ status=$?; sleep 1; exit $status; }}"


def describe(disposable: Disposable, *, kills_trees: bool = True) -> Description:
    capabilities = Capabilities(
        survives_disconnect=True, kills_trees=kills_trees, network=disposable.network, on_machine=disposable.machine
    )
    return Description(disposable.title, disposable.kind, disposable.machine, capabilities=capabilities)


async def open_container(cli: Cli, disposable: Disposable, fate: Fate) -> Sandbox:
    """Open a container with an outpost, or with a plain shell if its image has no Python. Raises ConnectError."""
    way = ContainerWay(cli, disposable, fate)

    def open_plain() -> ProvidedShellAlone:
        # A container that is started again finds its folders as they were.
        place = ShellPlace(disposable.title, "container", jobs_at_home=False)
        return ProvidedShellAlone(way, describe(disposable, kills_trees=False), Environment(), place)

    return await open_provided(way, describe(disposable), Environment(), open_plain)


@dataclass(frozen=True)
class ContainerWay(ProvidedWay):
    """Starts programs in one container: by the engine's `exec`, which is a program on the machine."""

    cli: Cli
    disposable: Disposable
    fate: Fate

    @property
    def what(self) -> str:
        return f"{self.cli.engine.tool} exec on {self.cli.machine}"

    async def open(self, shell_line: str) -> CommandLine:
        if self.cli.engine.tool == "podman":
            shell_line = UNTIL_HEARD.format(shell_line)
        words = [*self.cli.engine.command, "exec", "--interactive", self.disposable.key, "/bin/sh", "-c", shell_line]
        return await self.cli.way.open(self.cli.line_of(words))

    async def why_not(self) -> ConnectError | None:
        """Explain why the container cannot answer, if the engine knows."""
        title, status = self.disposable.title, await self.fate(self.disposable)
        if status == "paused":
            return Paused(f"{title} is paused; continue it with resume_sandbox")
        if status in ("gone", "expired", "ended"):
            return Gone(f"{title} is gone: it was deleted, or its time was over; create another one")
        return None
