"""Bubblewrap: whether and how it can run here, and the options that isolate a sandbox."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...far.outpost import filter as calls
from ...local.processes.ownership import who_else_on_the_way
from ...local.processes.programs import find_helper, objection

TRIAL_S = 10.0
# A user id from a range that no distribution, service or container uses.
STEP_DOWN_TO = 61100
# The user id inside a user namespace.
INSIDE = 1000
SYSTEM_PYTHON = Path("/usr/bin/python3")
OLDEST_MINOR = 6
PYTHON_INSIDE = "/opt/python"
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# Files of /etc that programs need. Nothing else: passwords, private keys and tokens are there as well.
ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "fonts", "java-*", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "maven/logging", "maven/m2.conf", "mime.types", "os-release"),
    *("pki/ca-trust/extracted", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols"),
    *("services", "ssl/ca-bundle.pem", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
ETC_WITH_NETWORK = ("hosts",)

# For bubblewrap alone: a switch for the whole system would open what the distribution closed for all programs.
PROFILE = "abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"
# System settings that forbid user namespaces, and the commands that allow them.
SWITCHES = (
    (Path("/proc/sys/user/max_user_namespaces"), "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        "1",
        f"echo '{PROFILE}' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap",
    ),
)
DOCKER_FLAGS = (
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)


@dataclass(frozen=True)
class Footing:
    """The program and flags with which bubblewrap works on this computer; else the version of Landlock that does."""

    program: str
    flags: tuple[str, ...]
    # The user id that the first process must change to, or 0 if it need not.
    step_down: int = 0
    landlock: int = 0

    @property
    def user(self) -> int:
        """The user id that commands see."""
        return self.step_down or (os.geteuid() if self.landlock else INSIDE)


# Only successes are cached: the reason for a failure may be fixed a minute later.
_found: dict[tuple[str, int], Footing] = {}


async def find_footing() -> Footing | str:
    """A Footing that was tried successfully, or a sentence that says why there is none."""
    if not sys.platform.startswith("linux"):
        return "the local sandbox needs Linux: it is made of bubblewrap and the namespaces of Linux"
    if not (program := find_helper("bwrap")):
        seen = f" ({why})" if (why := objection("bwrap")) else ""
        return (
            f"the local sandbox needs bubblewrap, which is not installed{seen}: "
            "run `sudo apt install bubblewrap` (Debian, Ubuntu) or `sudo dnf install bubblewrap` (Fedora, RHEL)"
        )
    if not calls.is_known():
        return f"the local sandbox knows the system calls of {', '.join(calls.ARCHITECTURES)} only, not of this machine"
    key = (program, os.geteuid())
    if key not in _found:
        footing = await asyncio.to_thread(_try_all, program)
        if isinstance(footing, str):
            return footing
        _found[key] = footing
    return _found[key]


def footings(program: str, is_root: bool) -> Iterator[Footing]:
    """The ways to drop all privileges, best first."""
    # Root inside a user namespace still owns root's files and /proc/sys, so root becomes a user that owns nothing;
    # where root is one by name only, as in most containers, a user namespace is all there is.
    if is_root:
        # Capabilities that the first process needs to become that user, and to drop all privileges for good.
        kept = (word for right in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{right}"))
        yield Footing(program, ("--cap-drop", "ALL", *kept), STEP_DOWN_TO)
    user = ("--unshare-user", "--uid", str(INSIDE), "--gid", str(INSIDE))
    yield Footing(program, (*user, "--cap-drop", "ALL"))


def _try_all(program: str) -> Footing | str:
    if why := doubt_about_python():
        return (
            f"the local sandbox needs a Python that only root can change, because it runs before root's rights are "
            f"given up, and {why}: install this system's python3, or run this program as an ordinary user"
        )
    complaint = ""
    for footing in footings(program, os.geteuid() == 0):
        complaint = try_out(footing)
        if not complaint:
            return footing
    return explain(complaint)


def try_out(footing: Footing) -> str:
    """Run `true` inside; returns the complaint, if any."""
    with filter_file() as file:
        inside = (*namespaces(footing, file, network=False), *system_folders(), *kernel_folders(), "true")
        return complaint_of(inside, file)


def complaint_of(arguments: Sequence[str], *passed: int) -> str:
    """Run a program that should end well; returns the complaint, if any."""
    environment = {"PATH": SYSTEM_PATH}
    try:
        outcome = subprocess.run(
            arguments, env=environment, pass_fds=passed, capture_output=True, timeout=TRIAL_S, check=False
        )
    except OSError as problem:
        return str(problem)
    except subprocess.TimeoutExpired:
        return f"no end within {TRIAL_S:.0f} s"
    said = outcome.stderr.decode("utf-8", "replace").strip() or f"it ended with {outcome.returncode}"
    return said if outcome.returncode else ""


def explain(complaint: str) -> str:
    """Explain why bubblewrap failed, and the command that fixes it."""
    if cure := forbidding_switch():
        return f"the local sandbox needs user namespaces, which this system forbids: run `{cure}` ({complaint})"
    return (
        f"the local sandbox cannot be walled in here, because bubblewrap may not make namespaces ({complaint}): "
        f"in a container, start it with `docker run {DOCKER_FLAGS}`"
    )


def forbidding_switch() -> str:
    """The command that allows user namespaces where this system forbids them; else empty."""
    return next((cure for switch, forbidding, cure in SWITCHES if _read(switch) == forbidding), "")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@contextmanager
def filter_file() -> Iterator[int]:
    """The filter that closes what namespaces leave open, as an open file, as bubblewrap wants it."""
    fd = os.memfd_create("seccomp")
    try:
        os.write(fd, calls.everywhere() + calls.of_sandboxes() + calls.step(calls.RETURN, calls.ALLOW))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def namespaces(footing: Footing, seccomp_file: int, *, network: bool) -> list[str]:
    """The beginning of every command line: shares no namespace except, with `network`, the one it is started in."""
    return [
        footing.program,
        *footing.flags,
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if network else ("--unshare-net",)),
        # With bubblewrap's own first process, the connection would stay open to every process in the namespace.
        *("--die-with-parent", "--new-session", "--as-pid-1"),
        *("--seccomp", str(seccomp_file)),
    ]


def system_folders() -> Iterator[str]:
    """The host's programs and libraries, with /bin and /lib merged into /usr as on the host."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ROOT_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            yield from ("--symlink", os.readlink(folder), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))


def kernel_folders(shm_mb: int = 0, room: str = "") -> Iterator[str]:
    """/proc and /dev. Without a size, /dev/shm may take half of the host's memory."""
    # Files in /proc/sys check their owner, not capabilities, and one of them names a program that runs as root.
    yield from ("--proc", f"{room}/proc", "--remount-ro", f"{room}/proc")
    size = ("--size", str(shm_mb << 20)) if shm_mb else ()
    yield from ("--dev", f"{room}/dev", *size, "--tmpfs", f"{room}/dev/shm", "--remount-ro", f"{room}/dev")


def settings(*, network: bool) -> Iterator[str]:
    """The host's settings that programs read; every parent folder is created, or only root could enter it."""
    wanted = ETC + (ETC_WITH_NETWORK if network else ())
    for path in (found for name in wanted for found in sorted(Path("/etc").glob(name))):
        for folder in [*reversed(path.parents)][2:]:
            yield from ("--dir", str(folder))
        yield from ("--ro-bind-try", str(path), str(path))


def find_python() -> tuple[str, tuple[str, ...]]:
    """A Python for inside, and what must be bound for it: the system's, else the one that runs us."""
    if has_system_python():
        return str(SYSTEM_PYTHON), ()
    home, name = python_home(), f"bin/{PYTHON_NAME}"
    if home.is_relative_to("/usr"):
        return str(home / name), ()
    # Only its programs and libraries: other environments and settings may be beside them.
    bound = [
        ("--dir", "/opt", "--dir", PYTHON_INSIDE, "--ro-bind", str(home / part), f"{PYTHON_INSIDE}/{part}")
        for part in ("bin", "lib")
    ]
    search = ("--setenv", "LD_LIBRARY_PATH", f"{PYTHON_INSIDE}/lib")
    path = ("--setenv", "PATH", f"{SYSTEM_PATH}:{PYTHON_INSIDE}/bin")
    return f"{PYTHON_INSIDE}/{name}", (*bound[0], *bound[1], *search, *path)


def doubt_about_python() -> str:
    """Explain why the Python that is run inside is others' to change, where root runs it. Else empty."""
    home = python_home()
    own = (home / "bin" / PYTHON_NAME, home / "lib" / PYTHON_NAME / "os.py")
    return doubt_as_root(*([SYSTEM_PYTHON] if has_system_python() else own))


def doubt_as_root(*files: Path) -> str:
    """Explain why these are not root's alone, where this process is root: as root they must not run. Else empty."""
    if os.geteuid() != 0:
        return ""
    try:
        # In a user namespace of one ordinary user, root is that user, and the system's files belong to nobody.
        inside = Path("/proc/self/uid_map").read_text().split()
        if len(inside) == 3 and inside[1] != "0" and inside[2] == "1":
            return ""
        return next(filter(None, map(who_else_on_the_way, map(str, files))), "")
    except OSError as problem:
        return f"{problem.filename} cannot be examined"


def python_home() -> Path:
    """The folder of the Python that is run inside: the system's, else the one that runs us."""
    return Path("/usr") if has_system_python() else Path(sys.base_prefix).resolve()


def has_system_python() -> bool:
    return SYSTEM_PYTHON.exists() and is_usable(SYSTEM_PYTHON.resolve())


def is_usable(python: Path) -> bool:
    """Judged by its real name: running it would take as long as opening the sandbox."""
    return is_new_enough(python) and python.is_relative_to("/usr")


def is_new_enough(python: Path) -> bool:
    version = re.fullmatch(r"python3\.(\d+)", python.name)
    return version is not None and int(version[1]) >= OLDEST_MINOR
