"""A machine as the operator configured it: where it is, how to log in, how commands start there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..client import Variables
from ..commands.command import Environment
from ..texts.shown import note_names
from .disposable import Limits
from .network import NO_NETWORK, Network
from .secret import Secret
from .slurm import Cluster

# In the place of a password for sudo: none is asked for there. Revealed, it is empty.
NOPASSWD = Secret.later(str, "nopasswd")
# How a machine is reached: core.transport decides where it is "auto".
AUTO, OPENSSH, ASYNCSSH = "auto", "openssh", "asyncssh"
TRANSPORTS = (AUTO, OPENSSH, ASYNCSSH)


@dataclass(frozen=True)
class Login:
    """Login to a machine: keys are tried first, then the agent, then the password.

    `agent` is the agent's socket; `agent_identities` are public key files that limit which of its keys are offered.
    For one-time codes, `otp` gives a new one each time that it is fetched; from `otp_seed` they are computed.
    """

    user: str = ""
    password: Secret | None = None
    key_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    key_passphrase: Secret | None = None
    agent: str = ""
    agent_identities: tuple[str, ...] = ()
    otp: Secret | None = None
    otp_seed: Secret | None = None


@dataclass(frozen=True)
class Hop:
    """One jump host; `alias` is its name in ~/.ssh/config, if it has one there."""

    host: str
    port: int = 22
    login: Login = field(default_factory=Login)
    host_key_name: str = ""
    alias: str = ""


@dataclass(frozen=True)
class OpenSsh:
    """Settings for OpenSSH's own client to reach a machine, and what decides whether it is used.

    `program` is its path with the file that it reads, `options` what the operator configured, `destination` the name
    that it is given. `needs` is what only this client can do, `lacks` what is configured that it cannot be given.
    `control_path` is the socket of a connection that the user may have open; `is_strict`: ssh_config accepts no unknown
    host key; `kerberos`: it may use a ticket.
    """

    program: tuple[str, ...]
    destination: str
    options: tuple[str, ...] = ()
    environ: Variables | None = None
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    control_path: str = ""
    is_strict: bool = False
    kerberos: bool = False


@dataclass(frozen=True)
class Engine:
    """A container engine on a machine: docker or podman, and the words that begin its command line there."""

    tool: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """An SSH machine. `hops` are passed in order; `host_key_name` is the name to look up in known_hosts.

    `proxy_command` is an argument vector that takes the place of the first TCP connection: to the first hop, else here.
    It runs with `proxy_environ`, by default with those variables of this process that every such program gets.
    `direct` maps names of machines to what `ssh` on this one calls them: files may go there without passing through us.
    `sudo` is the password for it, or NOPASSWD; None: nothing is run as root there.
    `engine` makes disposable sandboxes on it, where the operator allows that. `slurm`: it is a cluster's login node.
    `is_by_pattern`: offered with all others that a pattern fits, so that it is opened only if it is named in a call.
    `asking` adds what OpenSSH's configuration says of its names; until then, only what the operator wrote is known.
    """

    name: str
    host: str
    port: int = 22
    login: Login = field(default_factory=Login)
    hops: tuple[Hop, ...] = ()
    proxy_command: tuple[str, ...] = ()
    proxy_environ: Variables | None = None
    host_key_name: str = ""
    known_hosts_files: tuple[str, ...] = ()
    strict_host_keys: bool = False
    connect_timeout_s: float = 5.0
    python: str = "python3"
    environment: Environment = field(default_factory=Environment)
    direct: Mapping[str, str] = field(default_factory=dict)
    sudo: Secret | None = None
    engine: Engine | None = None
    slurm: Cluster | None = None
    is_by_pattern: bool = False
    # The keys of this user's agent can be used there. Only our own configuration says so, never ssh_config alone.
    forward_agent: bool = False
    # One of TRANSPORTS; `openssh` is None where that client is not installed, or not to be used.
    transport: str = AUTO
    openssh: OpenSsh | None = None
    # The only folders there that what is started may write in; None: all that the login may.
    writable: tuple[str, ...] | None = None
    asking: Callable[[], Machine] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        note_names(self.name, self.host, self.login.user)

    @property
    def writable_words(self) -> str:
        """List what may be written there, in words; empty where nothing was said about it."""
        return "" if self.writable is None else ", ".join(self.writable) or "nothing"

    def complete(self) -> Machine:
        """The machine with nothing left to ask. Raises ConfigError; call it in a thread."""
        return self.asking() if self.asking else self


@dataclass(frozen=True)
class CommandPlace:
    """A sandbox behind a command of the operator's that gives a shell, and takes the line for it as one more argument.

    The command runs on this computer, with the variables `environ`; `shown` is the part of it that may be shown.
    """

    name: str
    # Not shown: arguments may be secret.
    command: tuple[str, ...] = field(repr=False)
    shown: str
    environ: Variables = field(default_factory=lambda: Variables({}))
    python: str = field(default="python3", repr=False)
    # Longer than for a machine: the commands of cloud providers look for one first, and send it a key.
    connect_timeout_s: float = 20.0
    environment: Environment = field(default_factory=Environment)


@dataclass(frozen=True)
class LocalPlace:
    """The `local` sandbox on this computer: walls around a private home folder.

    `image` is a folder with a root file system, or empty for the host's own; both are read-only. `shm_mb` is the size
    of /dev/shm, 0 for the default. `walls` pins what it is walled in by: bubblewrap or landlock.
    """

    name: str = "local"
    network: Network = NO_NETWORK
    environment: Environment = field(default_factory=Environment)
    image: str = ""
    limits: Limits = field(default_factory=Limits)
    shm_mb: int = 0
    walls: str = ""


DENIED = ("permission denied while trying to connect", "got permission denied", "socket: permission denied")
DOWN = ("cannot connect to the docker daemon", "is the docker daemon running", "cannot connect to podman")


def says(text: str, words: Sequence[str]) -> bool:
    """Whether a text contains one of these."""
    lower = text.lower()
    return any(word in lower for word in words)


def trouble(tool: str, machine: str, text: str) -> tuple[str, str]:
    """Explain why an engine cannot be used at all, and what to do; empty where its output means something else."""
    if says(text, DENIED):
        return f"the user on {machine} may not talk to its {tool}", (
            f"ask for membership of the group {tool} there (which is as good as root on that machine), or use rootless "
            f"podman: podman = true under [machines.{machine}]"
        )
    if says(text, DOWN):
        return f"{tool} does not run on {machine}", f"start it: systemctl start {tool}"
    return "", ""
