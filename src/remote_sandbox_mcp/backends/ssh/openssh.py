"""An SSH machine over OpenSSH's own client: by a login, or over a connection that the user has open (ControlPath)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.commands.shell import join
from ...core.errors import ConnectError, HostKeyProblem, LoginRefused, SandboxError, Unreachable, Unsupported
from ...core.sandboxes.machine import Hop, Machine, OpenSsh
from ...core.sandboxes.transport import TransportChoice, choose
from ...far import program
from ...local.processes.programs import find_helper
from ...local.processes.variables import home_folder
from ...local.waiting import within
from ..command.sandbox import open_behind
from ..command.way import LocalCommand, ProcessLine, last_words
from ..link.sandbox import OutpostSandbox
from ..shell.sandbox import ShellAlone
from .connection import KEEPALIVE_S, LoginGate
from .host_keys import USUAL_FILES, entry_name
from .machine import describe

# Options that override ssh_config: nothing waits for a person, nothing is forwarded, no process of ours stays behind.
ALWAYS = (
    *("BatchMode=yes", "RequestTTY=no", "RemoteCommand=none", "EscapeChar=none", "PermitLocalCommand=no"),
    *("ForwardX11=no", "ClearAllForwardings=yes", "ControlMaster=no", "ControlPersist=no", "LogLevel=INFO"),
    *("HashKnownHosts=no", "UpdateHostKeys=no", "CheckHostIP=no"),
    *(f"ServerAliveInterval={KEEPALIVE_S}", "ServerAliveCountMax=3"),
)
# Keeps ssh from starting a program that asks for a passphrase in a window.
NEVER_ASK = {"SSH_ASKPASS_REQUIRE": "never"}
# How long `ssh -O check` and klist may take, which ask only programs of this computer.
ASK_S = 3.0
# How long the outpost may take to greet after the login.
START_S = 15.0


async def choose_transport(machine: Machine) -> TransportChoice:
    """Choose between asyncssh and OpenSSH's client for this machine, as things are now. Raises ConfigError."""
    ssh = machine.openssh
    if ssh is None or machine.transport == "asyncssh":
        return choose(machine)
    master = ssh.control_path if ssh.control_path and await _is_alive(ssh) else ""
    klist = find_helper("klist") if ssh.kerberos else ""
    return choose(machine, master=master, has_ticket=bool(klist) and await _succeeds([klist, "-s"], ssh))


def distrust(path: str) -> str:
    """Explain why a control socket is not trusted; "" if it is. A user who can replace it would get all we send."""
    try:
        found = os.lstat(path)
        above = Path(os.path.realpath(os.path.dirname(path)))
        folders = [os.stat(folder) for folder in (above, *above.parents)]
    except OSError:
        return "it is not there"
    if not stat.S_ISSOCK(found.st_mode):
        return "it is no socket"
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if any(folder.st_uid not in (0, os.geteuid()) for folder in folders):
        return "its folder belongs to another user"
    # In a folder with the sticky bit, like /tmp, users cannot replace files of others.
    if any(folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX for folder in folders):
        return "other users may write to its folder"
    return ""


def _without_links(path: str) -> str:
    """The path with the links of its folder resolved, so that what is used is what was checked."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def unused_socket(machine: Machine) -> str:
    """The sentence about a control socket that exists but is not trusted; "" if there is none."""
    path = machine.openssh.control_path if machine.openssh else ""
    why = distrust(path) if path and os.path.lexists(path) else ""
    return f"its control socket {path} is not used: {why}" if why else ""


async def _is_alive(ssh: OpenSsh) -> bool:
    """Whether a connection of the user answers on the control socket."""
    if distrust(ssh.control_path):
        return False
    path = quoted(_without_links(ssh.control_path))
    words = [*ssh.program, "-o", f"ControlPath={path}", "-O", "check", "--", ssh.destination]
    return await _succeeds(words, ssh)


async def _succeeds(words: Sequence[str], ssh: OpenSsh) -> bool:
    nothing = subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=nothing, stdout=nothing, stderr=nothing, env=variables_of(ssh), start_new_session=True,
            cwd=home_folder(),
        )  # fmt: skip
    except OSError:
        return False
    try:
        return await within(process.wait(), ASK_S) == 0
    except (asyncio.TimeoutError, TimeoutError):
        return False
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def variables_of(ssh: OpenSsh) -> dict[str, str]:
    return {**(ssh.environ or {}), **NEVER_ASK}


async def open_over_openssh(gate: LoginGate, choice: TransportChoice) -> OutpostSandbox | ShellAlone:
    """Open a machine over OpenSSH's client. `gate` remembers that a login was refused. Raises ConnectError."""
    machine = gate.machine
    timeout_s = gate.deadline_s + START_S
    way = OpenSshWay(gate, choice.master)
    # With this argument a lane may connect to another machine, which the operator has allowed.
    words = ("bridge",) if machine.direct else ()
    return await open_behind(
        way,
        describe(machine),
        machine.environment,
        python=machine.python,
        timeout_s=timeout_s,
        lane_words=words,
        sudo=machine.sudo,
        queue_rate_s=machine.slurm.rate_s if machine.slurm else 0.0,
    )


@dataclass(frozen=True)
class OpenSshWay:
    """A Way whose lines are processes of OpenSSH's client, which log in or use the control socket `master`."""

    gate: LoginGate = field(repr=False)
    master: str = ""

    what = "OpenSSH's client"

    async def open(self, shell_line: str, *, walled: bool = True) -> ProcessLine:
        ssh = self.gate.machine.openssh
        assert ssh is not None
        # Checked again: the user may have closed the connection, and another user may have taken the socket's place.
        master = self.master if self.master and await _is_alive(ssh) else ""
        if not master:
            # Only a new login has to wait after a refused one.
            self.gate.check_pause()
        machine, sent = self.gate.machine, b""
        if machine.writable is not None and walled:
            shell_line, sent = program.walled(shell_line, machine.python, machine.writable)
        line = await LocalCommand(arguments(self.gate, ssh, master), variables_of(ssh)).open(shell_line)
        line.write(sent)
        return line

    def explain(self, complaints: bytes) -> SandboxError | None:
        """Our error for what the client printed. After a refused login none is tried for a while."""
        if self.master and _FULL in complaints:
            name = self.gate.machine.name
            return Unsupported(f"{name}: your own connection to it grants no further session (MaxSessions of its sshd)")
        problem, ssh = explain(self.gate, complaints), self.gate.machine.openssh
        if isinstance(problem, LoginRefused):
            if self.master and ssh:
                problem = problem.with_more(f"your own connection is gone: open it again (ssh {ssh.destination})")
            self.gate.note_refusal(problem)
        return problem


def arguments(gate: LoginGate, ssh: OpenSsh, master: str = "") -> list[str]:
    """The client's arguments, without the line for the shell."""
    machine = gate.machine
    words = [*ssh.program, "-T", *_common(gate, ssh), "-o", f"ForwardAgent={'yes' if machine.forward_agent else 'no'}"]
    words += ["-o", f"ControlPath={quoted(_without_links(master)) if master else 'none'}"]
    if master:
        # Keeps ssh from logging in itself if that connection is full: without a second factor it would be refused.
        words += ["-o", "ProxyCommand=false"]
    elif machine.hops:
        words += ["-o", f"ProxyCommand={escaped(_proxy(gate, ssh, machine.hops, machine))}"]
    return [*words, *ssh.options, "--", ssh.destination]


def _common(gate: LoginGate, ssh: OpenSsh) -> Iterator[str]:
    """Options for the machine and for its jump hosts."""
    machine = gate.machine
    files = (str(gate.host_keys.own), *(machine.known_hosts_files or map(os.path.expanduser, USUAL_FILES)))
    strict = machine.strict_host_keys or ssh.is_strict
    given = [
        # New keys are written to the first file.
        f"UserKnownHostsFile={' '.join(map(quoted, files))}",
        f"StrictHostKeyChecking={'yes' if strict else 'accept-new'}",
        f"ConnectTimeout={max(1, round(machine.connect_timeout_s))}",
    ]
    for option in (*ALWAYS, *given):
        yield from ("-o", option)


def _proxy(gate: LoginGate, ssh: OpenSsh, hops: Sequence[Hop], target: Hop | Machine) -> str:
    """The ProxyCommand that reaches a machine through its jump hosts."""
    # For a ProxyJump OpenSSH would start the same, but without our options, such as the one against password prompts.
    *before, hop = hops
    words = [*ssh.program, *_common(gate, ssh), "-o", "ForwardAgent=no", "-o", "ControlPath=none"]
    if before:
        words += ["-o", f"ProxyCommand={escaped(_proxy(gate, ssh, before, hop))}"]
    else:
        # A ProxyCommand that ssh_config has for the first jump host is still used.
        words += ["-o", "ProxyJump=none"]
    login = hop.login
    words += ["-p", str(hop.port), *(("-l", login.user) if login.user else ())]
    words += [word for file in login.key_files for word in ("-i", file)]
    words += [word for file in login.certificate_files for word in ("-o", f"CertificateFile={quoted(file)}")]
    words += ["-o", f"HostKeyAlias={hop.host_key_name}"] if hop.host_key_name else []
    return join([*words, "-W", f"[{target.host}]:{target.port}", "--", hop.alias or hop.host])


def quoted(path: str) -> str:
    """A path as the value of an option, in which blanks separate words and % begins a token."""
    return f'"{escaped(path)}"'


def escaped(text: str) -> str:
    return text.replace("%", "%%")


# Parts of the client's messages, in the order in which they are checked. A machine's banner may be among them.
MOST_WORDS = 16 << 10
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_FULL = b"session request failed"
_FINGERPRINT = re.compile(r"\b(SHA256:[A-Za-z0-9+/]{20,60})")
_STRICT = "you have requested strict checking"
_UNVERIFIED = "Host key verification failed"
_NO_ALGORITHM = re.compile(r"(no matching [a-z ]{1,40} found)")
_REFUSED = re.compile(r"(Permission denied \([a-z0-9@.,-]{0,200}\)|Too many authentication failures)")
_NO_NAME = "Could not resolve hostname"
_NO_PORT = "Connection refused"
_NO_ANSWER = ("timed out", "not responding")
_CUT = ("Connection closed by", "Connection reset by", "No route to host", "Network is unreachable", "Broken pipe")


def explain(gate: LoginGate, complaints: bytes) -> ConnectError | None:
    """The client's messages as one of our errors, with the same sentence as over asyncssh; None if they are unknown."""
    machine, said = gate.machine, complaints[-MOST_WORDS:].decode("utf-8", "replace")
    who = f"unable to open {machine.name} ({entry_name(machine.host, machine.port)})"
    if problem := _key_problem(machine, who, said):
        return problem
    if found := _REFUSED.search(said):
        return LoginRefused.of_parts(who, "the login was refused", f"check user and key ({found[1]})")
    if _NO_NAME in said:
        return Unreachable.of_parts(who, "the host name cannot be found", "check host or your DNS")
    if _NO_PORT in said:
        return Unreachable.of_parts(who, "nothing listens on that port", "check port, or whether sshd runs")
    if any(words in said for words in _NO_ANSWER):
        return Unreachable.of_parts(who, f"no answer within {machine.connect_timeout_s:g} s")
    if any(words in said for words in _CUT):
        return Unreachable.of_parts(who, f"the connection was closed ({last_words(complaints)})")
    return None


def _key_problem(machine: Machine, who: str, said: str) -> HostKeyProblem | None:
    if _CHANGED in said:
        shown = _FINGERPRINT.search(said)
        now = f" (now {shown[1]})" if shown else ""
        forget = f"If that is expected, run: remote-sandbox-mcp hosts forget {machine.name}"
        return HostKeyProblem.of_parts(who, f"the host key has changed since it was first seen{now}", forget)
    if _STRICT in said:
        scan = f"ssh-keyscan -p {machine.port} {machine.host} >> ~/.ssh/known_hosts"
        found = "the host key is not known and strict_host_keys, or StrictHostKeyChecking, is on"
        return HostKeyProblem.of_parts(who, found, f"If it is right, add it: {scan}")
    if _UNVERIFIED in said:
        destination = machine.openssh.destination if machine.openssh else machine.name
        found = "the host key of a host on the way to it is not known, or has changed"
        return HostKeyProblem.of_parts(who, found, f"run ssh {destination} once in a terminal, and compare the key")
    if found_none := _NO_ALGORITHM.search(said):
        return HostKeyProblem.of_parts(who, f"no common algorithm or host key type: {found_none[1]}")
    return None
