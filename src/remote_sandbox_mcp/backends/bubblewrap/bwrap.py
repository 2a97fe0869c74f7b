"""Bubblewrap: whether it can run here, on what footing, and the walls that it is asked to build."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import seccomp

TRIAL_S = 10.0
# In a range that no distribution, service or container hands out.
STEP_DOWN_TO = 61100
INSIDE = 1000
SYSTEM_PYTHON = Path("/usr/bin/python3")
OLDEST_MINOR = 6
PYTHON_INSIDE = "/opt/python"
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# What programs read to run. Not the rest: passwords, private keys, and tokens in tools' system-wide settings.
ETC = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "maven/logging",
    "maven/m2.conf",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
ETC_WITH_NETWORK = ("hosts",)

# The switches that forbid user namespaces, and how to allow them.
SWITCHES = (
    (Path("/proc/sys/user/max_user_namespaces"), "0", "sysctl -w user.max_user_namespaces=15000"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
DOCKER_FLAGS = (
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)


@dataclass(frozen=True)
class Footing:
    """How bubblewrap can be used here.

    `step_down` is the user that the first process must turn into, or 0.
    """

    program: str
    abi: seccomp.Abi
    flags: tuple[str, ...]
    step_down: int = 0

    @property
    def user(self) -> int:
        """Who commands are, as they see it."""
        return self.step_down or INSIDE


# Only what works is remembered: a reason why not may have been dealt with a minute later.
_found: dict[tuple[str, int], Footing] = {}


async def find_footing() -> Footing | str:
    """A footing that was tried, or the sentence that says why there is none."""
    if not sys.platform.startswith("linux"):
        return "the local sandbox needs Linux: it is made of bubblewrap and the namespaces of Linux"
    if (program := shutil.which("bwrap")) is None:
        return (
            "the local sandbox needs bubblewrap, which is not installed: "
            "run `sudo apt install bubblewrap` (Debian, Ubuntu) or `sudo dnf install bubblewrap` (Fedora, RHEL)"
        )
    if (abi := seccomp.abi_here()) is None:
        return f"the local sandbox knows the system calls of {', '.join(seccomp.ABIS)} only, not of this machine"
    key = (program, os.geteuid())
    if key not in _found:
        footing = await asyncio.to_thread(_try_all, program, abi)
        if isinstance(footing, str):
            return footing
        _found[key] = footing
    return _found[key]


async def why_not() -> str:
    """Empty where bubblewrap can run; else one sentence for the person who can change that."""
    footing = await find_footing()
    return footing if isinstance(footing, str) else ""


def footings(program: str, abi: seccomp.Abi, is_root: bool) -> Iterator[Footing]:
    """The ways to lose all rights, best first.

    Root inside a user namespace is still the owner of root's files and of /proc/sys, so root turns into a user who
    owns nothing; where root is one by name only, as in most containers, a user namespace is all there is.
    """
    if is_root:
        # What the first process needs to become that user, and to see to it that nobody after it can have rights.
        kept = (word for right in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{right}"))
        yield Footing(program, abi, ("--cap-drop", "ALL", *kept), STEP_DOWN_TO)
    user = ("--unshare-user", "--uid", str(INSIDE), "--gid", str(INSIDE))
    yield Footing(program, abi, (*user, "--cap-drop", "ALL"))


def _try_all(program: str, abi: seccomp.Abi) -> Footing | str:
    complaint = ""
    for footing in footings(program, abi, os.geteuid() == 0):
        complaint = try_out(footing)
        if not complaint:
            return footing
    return explain(complaint)


def try_out(footing: Footing) -> str:
    """Build the walls around `true`; the complaint, if any."""
    with seccomp.filter_file(footing.abi) as file:
        arguments = [*namespaces(footing, file, network=False), *system_folders(), *kernel_folders(), "true"]
        try:
            outcome = subprocess.run(
                arguments,
                env={"PATH": SYSTEM_PATH},
                pass_fds=(file,),
                capture_output=True,
                timeout=TRIAL_S,
                check=False,
            )
        except OSError as problem:
            return str(problem)
        except subprocess.TimeoutExpired:
            return f"no end within {TRIAL_S:.0f} s"
    said = outcome.stderr.decode("utf-8", "replace").strip() or f"it ended with {outcome.returncode}"
    return said if outcome.returncode else ""


def explain(complaint: str) -> str:
    """Why bubblewrap failed, and the command that changes it."""
    if cure := forbidding_switch():
        return f"the local sandbox needs user namespaces, which this system forbids: run `sudo {cure}` ({complaint})"
    return (
        f"the local sandbox cannot be walled in here, because bubblewrap may not make namespaces ({complaint}): "
        f"in a container, start it with `docker run {DOCKER_FLAGS}`"
    )


def forbidding_switch() -> str:
    """The command that allows user namespaces where this system forbids them; else nothing."""
    return next((cure for switch, forbidding, cure in SWITCHES if _read(switch) == forbidding), "")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def namespaces(footing: Footing, seccomp_file: int, *, network: bool) -> list[str]:
    """The beginning of every command line: nothing is shared but, with `network`, the one that it is started in."""
    return [
        footing.program,
        *footing.flags,
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if network else ("--unshare-net",)),
        # Bubblewrap's own first process would hold the line open to everybody in the namespace.
        *("--die-with-parent", "--new-session", "--as-pid-1"),
        *("--seccomp", str(seccomp_file)),
    ]


def system_folders() -> Iterator[str]:
    """The host's programs and libraries, merged into /usr or not as they are on the host."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ROOT_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            yield from ("--symlink", os.readlink(folder), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))


def kernel_folders(shm_mb: int = 0, room: str = "") -> Iterator[str]:
    """/proc and /dev; without a size, what lies in /dev/shm may take half of the host's memory."""
    # The settings in /proc/sys ask who owns them, not for rights: one of them names a program to run as root.
    yield from ("--proc", f"{room}/proc", "--remount-ro", f"{room}/proc")
    size = ("--size", str(shm_mb << 20)) if shm_mb else ()
    yield from ("--dev", f"{room}/dev", *size, "--tmpfs", f"{room}/dev/shm", "--remount-ro", f"{room}/dev")


def settings(*, network: bool) -> Iterator[str]:
    """The host's settings that programs read; each folder on the way is named, or only root could enter it."""
    wanted = ETC + (ETC_WITH_NETWORK if network else ())
    for path in (found for name in wanted for found in sorted(Path("/etc").glob(name))):
        for folder in [*reversed(path.parents)][2:]:
            yield from ("--dir", str(folder))
        yield from ("--ro-bind-try", str(path), str(path))


def find_python() -> tuple[str, tuple[str, ...]]:
    """A Python inside the walls, and what must be bound for it: the system's, or else the one that runs us."""
    if SYSTEM_PYTHON.exists() and is_usable(SYSTEM_PYTHON.resolve()):
        return str(SYSTEM_PYTHON), ()
    name = f"bin/{PYTHON_NAME}"
    home = Path(sys.base_prefix).resolve()
    if home.is_relative_to("/usr"):
        return str(home / name), ()
    # Its programs and libraries only: other environments and settings may lie beside them.
    bound = [
        ("--dir", "/opt", "--dir", PYTHON_INSIDE, "--ro-bind", str(home / part), f"{PYTHON_INSIDE}/{part}")
        for part in ("bin", "lib")
    ]
    search = ("--setenv", "LD_LIBRARY_PATH", f"{PYTHON_INSIDE}/lib")
    path = ("--setenv", "PATH", f"{SYSTEM_PATH}:{PYTHON_INSIDE}/bin")
    return f"{PYTHON_INSIDE}/{name}", (*bound[0], *bound[1], *search, *path)


def is_usable(python: Path) -> bool:
    """Told by its real name: to ask it would take as long as to open the sandbox."""
    return is_new_enough(python) and python.is_relative_to("/usr")


def is_new_enough(python: Path) -> bool:
    version = re.fullmatch(r"python3\.(\d+)", python.name)
    return version is not None and int(version[1]) >= OLDEST_MINOR
