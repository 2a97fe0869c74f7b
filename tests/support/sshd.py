"""Real sshd processes on loopback, each with a user, a home and a login shell of its own."""

from __future__ import annotations

import fcntl
import itertools
import os
import pwd
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from remote_sandbox_mcp.core.sandboxes.machine import Hop, Login, Machine
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.support.means import require_namespaces, require_program
from tests.support.pace import Deadline
from tests.support.ports import HOST as HOST
from tests.support.ports import closed_port as closed_port
from tests.support.ports import free_port as free_port
from tests.support.ports import silent_port as silent_port
from tests.support.root import as_root

Auth = Literal["key", "password", "encrypted_key", "certificate"]

PASSWORD = 'it\'s $HOME, "sweet": home'
PASSPHRASE = "open, sesame"
SSHD = "/usr/sbin/sshd"
RUN_FOLDER = Path("/run/sshd")
_PAM_FOLDER = Path("/etc/pam.d")
PATH_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")

# The owner's pid is in the name: workers do not clash, and the users of a run that was killed are known as such.
_USER_NAME = re.compile(r"rsmcp-(\d+)-\d+\Z")
_USER_FILES = ("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
_FOLDER_PREFIX = "/tmp/rsmcp-"
_numbers = itertools.count(1)


class Fleet:
    """Any number of machines; when it ends, nothing of them is left: no process, no user, no file."""

    folder: Path

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._users: list[pwd.struct_passwd] = []
        self._paths: dict[tuple[str, ...], Path] = {}

    def __enter__(self) -> Fleet:
        if not RUN_FOLDER.exists():
            _as_root("mkdir", "-p", str(RUN_FOLDER))
        _sweep()
        # Not pytest's own temporary folder: only its owner may pass through that one.
        self.folder = Path(tempfile.mkdtemp(prefix=Path(_FOLDER_PREFIX).name, dir=Path(_FOLDER_PREFIX).parent))
        self.folder.chmod(0o755)
        self._stack.callback(_as_root, "rm", "-rf", str(self.folder))
        self._stack.callback(_remove_users, self._users)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def machine(
        self,
        name: str | None = None,
        *,
        auth: Auth = "key",
        shell: str = "/bin/bash",
        max_sessions: int = 10,
        python: bool = True,
        tmux: bool = True,
        bashrc: str = "",
        extra_config: Collection[str] = (),
        sudoers: str | None = None,
        mounts: Mapping[str, Path] | None = None,
        pam: Collection[str] = (),
    ) -> Sshd:
        """Start a machine. The shell "busybox" is an ash with busybox's applets on PATH and nothing else.

        With `sudoers`, this is its /etc/sudoers, in which USER is its user: it and all that it starts see that file
        in the place of the system's, which stays as it is. `mounts` does the same for any file or folder.
        `pam` are the lines of a PAM service that is this machine's alone, with {folder} for its folder.
        """
        path = self._path(busybox=shell == "busybox", python=python, tmux=tmux)
        login_shell = f"{path}/ash" if shell == "busybox" else shell
        number = next(_numbers)
        name = name or f"machine-{number}"
        folder = self.folder / f"{number}-{name}"
        user = _add_user(f"rsmcp-{os.getpid()}-{number}", folder / "home", login_shell)
        self._users.append(user)
        # A login shell would otherwise be given the system's PATH by /etc/profile.
        _make_home(folder / "home", {".bashrc": bashrc, ".profile": f"export PATH={path}\n" if path else ""})
        login = _make_login(auth, user.pw_name, folder)
        _as_root("chown", "-R", f"{user.pw_uid}:{user.pw_gid}", user.pw_dir)
        sshd = Sshd(name=name, folder=folder, user=user.pw_name, uid=user.pw_uid, port=free_port(), login=login)
        sshd.mounts.update(mounts or {})
        if sudoers is not None:
            sshd.allow(sudoers)
        if pam:
            sshd.program = self._with_pam(sshd, [line.format(folder=folder) for line in pam])
            extra_config = [*extra_config, "UsePAM yes", "KbdInteractiveAuthentication yes"]
            extra_config += [f"PAMServiceName {Path(sshd.program).name}"] * (_openssh_version() >= (9, 8))
        # sshd takes the first value that it reads, so what the caller says goes first.
        sshd.configure([*extra_config, f"MaxSessions {max_sessions}", *([f"SetEnv PATH={path}"] if path else [])])
        self._stack.callback(sshd.stop)
        sshd.start()
        return sshd

    def _with_pam(self, sshd: Sshd, lines: Collection[str]) -> str:
        """A copy of sshd: the service that it asks PAM for has the name of its file."""
        program = sshd.folder / f"sshd-{sshd.user}"
        service = _PAM_FOLDER / program.name
        _run("cp", SSHD, str(program))
        self._stack.callback(_as_root, "rm", "-f", str(service))
        _as_root("tee", str(service), text="".join(f"{line}\n" for line in lines))
        return str(program)

    def _path(self, *, busybox: bool, python: bool, tmux: bool) -> Path | None:
        """The private folder that is a machine's whole PATH, or None where the system's own will do."""
        if not busybox and python and tmux:
            return None
        key = ("busybox",) if busybox else ("python",) * (not python) + ("tmux",) * (not tmux)
        if key not in self._paths:
            folder = self.folder / ("bin-" + "-".join(key))
            _make_open_folder(folder)
            _install_busybox(folder) if busybox else _link_all_but(key, folder)
            self._paths[key] = folder
        return self._paths[key]


@dataclass
class Sshd:
    """One machine: a listening sshd, the sessions that it serves, and what its user runs."""

    name: str
    folder: Path
    user: str
    uid: int
    port: int
    login: Login
    host: str = HOST
    program: str = SSHD
    # What it and all that it starts see in the place of the system's own file or folder.
    mounts: dict[str, Path] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _listener: int = field(default=0, repr=False)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def known_hosts(self) -> Path:
        """Knows this machine by its first host key."""
        return self.folder / "known_hosts"

    @property
    def host_key(self) -> str:
        """The public key line, without its comment."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def key_file(self) -> str:
        return next(iter(self.login.key_files), "")

    @property
    def certificate_file(self) -> str:
        return next(iter(self.login.certificate_files), "")

    @property
    def key_passphrase(self) -> str:
        return self.login.key_passphrase.reveal() if self.login.key_passphrase else ""

    @property
    def password(self) -> str:
        return self.login.password.reveal() if self.login.password else ""

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    @property
    def _log_file(self) -> Path:
        return self.folder / "sshd.log"

    @property
    def _sudoers_file(self) -> Path:
        return self.folder / "sudoers"

    def allow(self, sudoers: str) -> None:
        """What its user may do as root, from now on; USER is that user."""
        text = f"{sudoers.replace('USER', self.user)}\n"
        if self._sudoers_file.exists():
            # In place: the file itself is mounted.
            _as_root("sh", "-c", f"cat >{self._sudoers_file}", text=text)
        else:
            self._sudoers_file.write_text(text)
            _as_root("chown", "root:root", str(self._sudoers_file))
            _as_root("chmod", "440", str(self._sudoers_file))
            self.mounts["/etc/sudoers"] = self._sudoers_file
        _as_root("visudo", "--check", "--quiet", "--file", str(self._sudoers_file))

    def set_password(self, password: str) -> None:
        """The password of its user, for sudo; a login with the key stays as it is."""
        with _passwd_lock():
            _as_root("chpasswd", text=f"{self.user}:{password}\n")

    @property
    def _config_file(self) -> Path:
        return self.folder / "sshd_config"

    def machine(self, **overrides: Any) -> Machine:
        """This machine as an operator would configure it; `overrides` are fields of Machine."""
        known_hosts = (str(self.known_hosts),)
        machine = Machine(self.name, self.host, self.port, self.login, known_hosts_files=known_hosts)
        return replace(machine, **overrides)

    def hop(self) -> Hop:
        return Hop(self.host, self.port, self.login)

    def through(self, *jumps: Sshd, **overrides: Any) -> Machine:
        """This machine as reached through the others, in their order."""
        known_hosts = tuple(str(sshd.known_hosts) for sshd in (self, *jumps))
        hops = tuple(jump.hop() for jump in jumps)
        return replace(self.machine(known_hosts_files=known_hosts, hops=hops), **overrides)

    def client(self, command: str, *options: str) -> list[str]:
        """The OpenSSH client's argument vector that runs a command here."""
        words = ["ssh", "-F", "none", "-p", str(self.port), *options, "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]
        words += ["-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=none"]
        words += ["-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=5"]
        words += [word for file in self.login.key_files for word in ("-i", file)]
        words += [word for file in self.login.certificate_files for word in ("-o", f"CertificateFile={file}")]
        return [*words, f"{self.user}@{self.host}", command]

    def configure(self, first: Collection[str]) -> None:
        """Make the host key and write the files that name it; `first` wins over the usual settings."""
        _new_key(self.folder / "host_key")
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {self.host_key}\n")
        usual = [
            f"Port {self.port}",
            f"ListenAddress {self.host}",
            f"HostKey {self.folder}/host_key",
            f"AllowUsers {self.user}",
            f"PasswordAuthentication {'yes' if self.password else 'no'}",
            f"TrustedUserCAKeys {self.folder}/ca.pub" if self.certificate_file else "",
            *_USUAL_CONFIG,
            # From this version on, a few refused logins shut out their address, and all of ours come from one.
            "PerSourcePenalties no" if _openssh_version() >= (9, 8) else "",
        ]
        self._config_file.write_text("\n".join([*first, *usual]) + "\n")

    def start(self) -> None:
        """Listen, on the same port and with the same key as before."""
        argv = as_root(*with_mounts(self.mounts, [self.program, "-D", "-e", "-f", str(self._config_file)]))
        with self._log_file.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: self._listens(before), what=f"{self.name} to listen")
        self._listener = next(p.pid for p in _processes() if _is_sshd(p) and str(self._config_file) in p.command)

    def _listens(self, before: int) -> bool:
        log = self._log_file.read_bytes()[before:]
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"unable to start {self.name}: {log.decode(errors='replace')}")
        return b"Server listening on" in log

    def stop(self) -> None:
        """Stop listening and end every session; what the user left running goes on."""
        process, self._process = self._process, None
        if process is None:
            return
        sessions = self.sessions()
        _signal([self._listener], signal.SIGKILL)
        process.wait(10)
        _end(lambda: sessions.keys() & _processes_by_pid().keys())

    def change_host_key(self) -> None:
        """Come back as a machine that nobody knows."""
        self.stop()
        _new_key(self.folder / "host_key")
        self.start()

    def kill_sessions(self) -> None:
        """What a cut looks like: every session's sshd is gone at once, the commands are not."""
        _end(self.sessions)

    def freeze(self) -> None:
        """Answer nobody, but keep every connection open."""
        _signal([self._listener], signal.SIGSTOP)
        _signal(self.sessions(), signal.SIGSTOP)

    def thaw(self) -> None:
        _signal([*self.sessions(), self._listener], signal.SIGCONT)

    def reset(self) -> None:
        """Make it fit for the next test: listening, with nobody logged in and nothing running."""
        if self._process is None:
            self.start()
        _signal([self._listener], signal.SIGCONT)
        _end(self._all_but_the_listener)

    def _all_but_the_listener(self) -> dict[int, str]:
        processes = _processes_by_pid()
        return {**self._sessions_of(processes), **self._run_by_user(processes)}

    def sessions(self) -> dict[int, str]:
        """The sshd processes that serve connections, logged in or not: pid and title."""
        return self._sessions_of(_processes_by_pid())

    def _sessions_of(self, processes: dict[int, _Process]) -> dict[int, str]:
        return {
            pid: process.command
            for pid, process in processes.items()
            if _is_sshd(process) and (_names(process, self.user) or self._serves(process, processes))
        }

    def _serves(self, process: _Process, processes: dict[int, _Process]) -> bool:
        """Whether the listener is among the ancestors, as it is before anybody has logged in."""
        parent = processes.get(process.parent)
        return parent is not None and (parent.pid == self._listener or self._serves(parent, processes))

    def processes(self) -> dict[int, str]:
        """What this machine's user runs, however it was started, without the sshd sessions: pid and command line."""
        return self._run_by_user(_processes_by_pid())

    def _run_by_user(self, processes: dict[int, _Process]) -> dict[int, str]:
        return {p.pid: p.command for p in processes.values() if p.uid == self.uid and not _is_sshd(p)}


_WITH_MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
_USUAL_CONFIG = (
    "PidFile none",
    "UsePAM no",
    "KbdInteractiveAuthentication no",
    "PermitRootLogin no",
    "AllowTcpForwarding yes",
    "AcceptEnv LANG LC_*",
    "Subsystem sftp internal-sftp",
    "LogLevel VERBOSE",
    "PrintMotd no",
    "PrintLastLog no",
    # The default drops connections at random when many are opened at once.
    "MaxStartups 200",
)


def with_mounts(mounts: Mapping[str, Path], words: list[str]) -> list[str]:
    """The command line that runs these words where files or folders of ours lie over those of the system.

    In a mount namespace of its own, whose mounts end with it.
    """
    if mounts:
        require_namespaces()
    for place, ours in mounts.items():
        words = ["sh", "-c", _WITH_MOUNT, "sh", str(ours), place, *words]
    return ["unshare", "--mount", *words] if mounts else words


def wait_until(condition: Callable[[], object], *, what: str, seconds: float = 10.0) -> None:
    """Poll until the condition holds, ever less often; fails after `seconds`, later beside other work."""
    deadline, pause_s = Deadline(seconds), 0.01
    while not condition():
        if deadline.has_passed():
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, 0.1)


def fleet_users() -> list[pwd.struct_passwd]:
    """Every user that a fleet has made and not yet removed, here or in another process."""
    return [user for user in pwd.getpwall() if _USER_NAME.match(user.pw_name)]


# Users


@contextmanager
def _passwd_lock() -> Iterator[None]:
    """One process at a time: useradd and userdel give up when another of them is at work."""
    # The folder is there for sshd anyway, so that no lock file stays behind.
    descriptor = os.open(RUN_FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add_user(name: str, home: Path, shell: str) -> pwd.struct_passwd:
    # The password "*" fits nothing, but unlike the usual "!" it does not lock the account for keys.
    options = ["--no-create-home", "--home-dir", str(home), "--shell", shell, "--user-group", "--password", "*"]
    with _passwd_lock():
        for leftover in fleet_users():
            if leftover.pw_name == name:
                _empty([leftover])
                _delete([leftover])
        _as_root("useradd", *options, name)
    return pwd.getpwnam(name)


def _remove_users(users: Collection[pwd.struct_passwd]) -> None:
    """They go last: as long as they are there, no other fleet's user is given their uid."""
    _empty(users)
    with _passwd_lock():
        _delete(users)


def _delete(users: Collection[pwd.struct_passwd]) -> None:
    """All at once: userdel would take a minute for those of a whole session."""
    names = [user.pw_name for user in users]
    assert all(map(_USER_NAME.match, names))
    if names:
        files = [file for file in _USER_FILES if Path(file).exists()]
        _as_root("sed", "--in-place", "--regexp-extended", f"/^({'|'.join(names)}):/d", *files)


def _empty(users: Collection[pwd.struct_passwd]) -> None:
    """End their processes and remove their files, all in one go: at the end of a long session there are many."""
    _end(lambda: [process.pid for process in _processes() if any(_belongs(process, user) for user in users)])
    _remove_files_of({user.pw_uid for user in users})


def _belongs(process: _Process, user: pwd.struct_passwd) -> bool:
    listens = f"{Path(user.pw_dir).parent}/" in process.command
    return process.uid == user.pw_uid or (_is_sshd(process) and (listens or _names(process, user.pw_name)))


def _remove_files_of(uids: Collection[int]) -> None:
    """What tmux and others leave in the folders that everybody shares."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid in uids:
                    _as_root("rm", "-rf", entry.path)


def _sweep() -> None:
    """Remove what earlier runs could not, because they were killed."""
    with _passwd_lock():
        stale = [user for user in fleet_users() if not Path(f"/proc/{user.pw_name.split('-')[1]}").exists()]
        _empty(stale)
        _delete(stale)
        for user in stale:
            _as_root("rm", "-f", str(_PAM_FOLDER / f"sshd-{user.pw_name}"))
    for folder in {str(Path(user.pw_dir).parents[1]) for user in stale}:
        if folder.startswith(_FOLDER_PREFIX):
            _unmount_below(folder)
            _as_root("rm", "-rf", folder)


# Folders and keys


def _unmount_below(folder: str) -> None:
    """Schedules of faults mount small disks in homes; a schedule that was killed leaves them there."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (place := line.split()[1]).startswith(f"{folder}/"):
            _as_root("umount", "--lazy", place)


def _make_home(home: Path, files: dict[str, str]) -> None:
    for folder in (home.parent, home):
        _make_open_folder(folder)
    (home / ".ssh").mkdir(mode=0o700)
    for name, text in files.items():
        if text:
            (home / name).write_text(text)


def _make_open_folder(folder: Path) -> None:
    """One that every user may pass through, whatever the umask."""
    folder.mkdir()
    folder.chmod(0o755)


def _make_login(auth: Auth, user: str, folder: Path) -> Login:
    if auth == "password":
        with _passwd_lock():
            _as_root("chpasswd", text=f"{user}:{PASSWORD}\n")
        return Login(user, password=Secret(PASSWORD))
    passphrase = PASSPHRASE if auth == "encrypted_key" else ""
    key = _new_key(folder / "id_ed25519", passphrase)
    login = Login(user, key_files=(str(key),), key_passphrase=Secret(passphrase) if passphrase else None)
    if auth == "certificate":
        return replace(login, certificate_files=(str(_certify(key, user)),))
    (folder / "home/.ssh/authorized_keys").write_text(Path(f"{key}.pub").read_text())
    return login


def _new_key(file: Path, passphrase: str = "") -> Path:
    file.unlink(missing_ok=True)
    # One round of key stretching: nobody attacks these, and every test that opens one would wait for it.
    _run("ssh-keygen", "-q", "-t", "ed25519", "-a", "1", "-C", "test", "-N", passphrase, "-f", str(file))
    return file


def _certify(key: Path, user: str) -> Path:
    authority = _new_key(key.with_name("ca"))
    _run("ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", user, f"{key}.pub")
    # Not the name that clients try by themselves: only who is told of the certificate finds it.
    return key.with_name(f"{key.name}-cert.pub").rename(key.with_name("certificate.pub"))


def _install_busybox(folder: Path) -> None:
    _run(require_program("busybox"), "--install", "-s", str(folder))


def _link_all_but(unwanted: tuple[str, ...], folder: Path) -> None:
    for source in PATH_FOLDERS:
        for entry in os.scandir(source):
            if not entry.name.startswith(unwanted):
                with suppress(FileExistsError):
                    (folder / entry.name).symlink_to(entry.path)


# Processes


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    uid: int
    # Empty where it is the system's and no sshd: most of them, and nobody asks.
    command: str


def all_processes() -> list[_Process]:
    """Every process of this system that is not dead already."""
    return _processes(with_roots=True)


def _processes(*, with_roots: bool = False) -> list[_Process]:
    """The same, without the command lines of the system's own users, or all of them `with_roots`."""
    found = (_process(entry.name, with_roots) for entry in os.scandir("/proc") if entry.name.isdigit())
    return [process for process in found if process]


def _processes_by_pid() -> dict[int, _Process]:
    return {process.pid: process for process in _processes()}


# Many tests wait for processes, and look at all of them every few milliseconds.
_STATUS = re.compile(rb"Name:\t([^\n]*).*?\nState:\t(.).*?\nPPid:\t(\d+)\n.*?\nUid:\t(\d+)\t", re.DOTALL)
_FIRST_UID = 1000


def _process(pid: str, with_roots: bool) -> _Process | None:
    try:
        found = _STATUS.match(_read(f"/proc/{pid}/status"))
        if found is None or found[2] in b"ZX":
            return None
        is_of_interest = with_roots or int(found[4]) >= _FIRST_UID or b"sshd" in found[1]
        command = _read(f"/proc/{pid}/cmdline") if is_of_interest else b""
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return _Process(int(pid), int(found[3]), int(found[4]), words)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _is_sshd(process: _Process) -> bool:
    """By its title, which reads "sshd: user [priv]", or by its command before it has one."""
    return process.command.partition(" ")[0].rpartition("/")[2].startswith("sshd")


def _names(process: _Process, user: str) -> bool:
    return re.match(rf"sshd[\w-]*: {user}[ @]", process.command) is not None


def _end(find: Callable[[], Collection[int]]) -> None:
    """Kill what is found, until nothing is."""

    def nothing_left() -> bool:
        pids = find()
        _signal(pids, signal.SIGKILL)
        return not pids

    wait_until(nothing_left, what="processes to end")


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    if os.geteuid() == 0:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    elif pids:
        # One that has ended meanwhile makes kill fail, and is none the worse for it.
        subprocess.run(as_root("kill", f"-{number.value}", *map(str, pids)), check=False, capture_output=True)


def _run(*argv: str, text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed with {done.returncode}: {done.stderr.strip()}")


def _as_root(*argv: str, text: str = "") -> None:
    _run(*as_root(*argv), text=text)


@cache
def _openssh_version() -> tuple[int, int]:
    banner = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    found = re.match(r"OpenSSH_(\d+)\.(\d+)", banner)
    return (int(found[1]), int(found[2])) if found else (0, 0)
