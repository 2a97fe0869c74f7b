"""Confines a sandbox without namespaces: Landlock for files, a filter of system calls, and a supervisor for the rest.

The process that is started first supervises. Its child, the outpost, confines itself, and all commands with it. Calls
that could reach beyond their folders, and that Landlock does not hold, are made by the supervisor in their place, on
what the supervisor has looked up itself: so a command cannot exchange a name or an address in between.
"""

import array
import ctypes
import errno
import os
import resource
import select
import signal
import socket
import stat
import struct
import threading
import time

from .family import collect_children, descendants, read_status, strike
from .filter import (
    ALLOW,
    ANY_BIT,
    EQUAL,
    LOAD,
    MASK,
    REFUSE,
    RETURN,
    SUPERVISE,
    everywhere,
    is_known,
    number_of,
    of_call,
    of_sandboxes,
    refused,
    step,
    when,
)

MYPY = False
if MYPY:
    from typing import Any, Callable, Collection, Iterable

    Answer = "tuple[int, int, int]"

LIBC = ctypes.CDLL(None, use_errno=True)
DUMPABLE, DEATH_SIGNAL, SUBREAPER, NO_NEW_RIGHTS, NEVER_HAVE, AMBIENT = 4, 1, 36, 38, 24, 47
CAPABILITIES_OF_THREE = 0x20080522
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_FILE, MAKE_FILE = 1 << 5, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# In /dev/shm also files of one's own, but no folders and no links.
OF_DEVICES = (OF_FILES & ~EXECUTE) | REMOVE_FILE | MAKE_FILE
# All but character and block devices, which nothing inside may make.
WRITING = ((1 << 16) - 1) & ~(1 << 6 | 1 << 11 | IOCTL_DEV)
READING = EXECUTE | READ_FILE | READ_DIR
# Which rights a version of Landlock has first: REFER 2, TRUNCATE 3, IOCTL_DEV 5.
TRUNCATE_SINCE, TCP_SINCE, SCOPES_SINCE = 3, 4, 6
FIRST_WITH = ((2, REFER), (TRUNCATE_SINCE, TRUNCATE), (5, IOCTL_DEV))
OF_NAMES, OF_SIGNALS = 1, 2

RECEIVE, SEND, IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
CONTINUE, NEW_LISTENER = 1, 1 << 3
AT_CWD, AT_EMPTY, AT_NOFOLLOW = -100, 0x1000, 0x100
FAST_OPEN = 0x20000000
LONGEST_PATH, LONGEST_ADDRESS = 4096, 128
O_PATH = 0o10000000
# The marks setuid and setgid, and those of programs.
OF_OTHERS, ANYBODY_STARTS = 0o6000, 0o111
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902
END_S = 10.0

# Extended attributes are refused as file systems do that have none: copying programs go on without them.
WITHOUT_ATTRIBUTES = [start + "xattr" for start in ("set", "lset", "fset", "remove", "lremove", "fremove")]
WITHOUT_ATTRIBUTES += ["setxattrat", "removexattrat"]
# Shared memory and queues by number or name are shared by all processes of a user.
SHARED = ["shmget", "shmat", "shmctl", "semget", "semctl", "semop", "semtimedop"]
SHARED += ["msgget", "msgctl", "msgsnd", "msgrcv", "mq_open", "mq_unlink"]
# Letters of ioctls: of Linux's file systems, XFS, flags by version, Btrfs.
OF_FILE_SYSTEMS = (0x6600, 0x5800, 0x7600, 0x9400)
# Of them: flags, version, extents and attributes are read; the others copy into a file that is open for writing.
TELLING_OR_COPYING = (0x80086601, 0x80087601, 0xC020660B, 0x801C581F, 0x40049409, 0x4020940D, 0xC0189436)
# Calls that change how other processes run, and which argument names one.
OF_PROCESSES = {"setpriority": 1, "ioprio_set": 1, "sched_setparam": 0, "sched_setscheduler": 0}
OF_PROCESSES.update(sched_setattr=0, sched_setaffinity=0)
# Calls that make a file, and which argument is its mode.
MAKING = (("open", 2), ("openat", 3), ("creat", 1), ("mknod", 1), ("mknodat", 2))


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 without it, or on an architecture that we do not know."""
    if not is_known():
        return 0
    return max(0, int(LIBC.syscall(CREATE_RULESET, None, 0, 1)))


def checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# Landlock


def why_not_supervised() -> str:
    """Explain why this kernel does not let a process answer calls of those that it has started; empty if it does."""
    if LIBC.syscall(number_of("pidfd_getfd"), -1, -1, 0) < 0 and ctypes.get_errno() == errno.ENOSYS:
        return "its kernel is older than Linux 5.6"
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            return "kernel.yama.ptrace_scope is 2 or 3 there" if int(file.read()) > 1 else ""
    except (OSError, ValueError):
        return ""


def restrict(version: int, plan: "dict[str, Any]") -> None:
    """Let this process and all that it starts read `readable` and change what lies in `writable`. Raises OSError."""
    writable, readable, devices = plan["writable"], plan["readable"], plan["devices"]
    handled = ((1 << 16) - 1) & ~sum(right for since, right in FIRST_WITH if version < since)
    connecting = 0 if plan["network"] or version < TCP_SINCE else 3
    # Signals are kept inside only where nothing of it outlives a connection: the next one must reach what was left.
    scopes = 0 if version < SCOPES_SINCE else OF_NAMES if plan["outlives"] else OF_NAMES | OF_SIGNALS
    attributes = struct.pack("=QQQ", handled, connecting, scopes)
    size = 24 if version >= SCOPES_SINCE else 16 if version >= TCP_SINCE else 8
    rules = checked(LIBC.syscall(CREATE_RULESET, attributes, size, 0))
    for rights, paths in ((WRITING, writable), (READING, readable), (OF_DEVICES, devices)):
        for path in paths:
            allow(rules, path, rights & handled)
    checked(LIBC.prctl(NO_NEW_RIGHTS, 1, 0, 0, 0))
    checked(LIBC.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)


def allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, O_PATH | os.O_CLOEXEC)
    except OSError:
        # Not every system has every folder of the list.
        return
    try:
        kind = os.fstat(fd).st_mode & 0o170000
        allowed = rights if kind == 0o040000 else rights & OF_FILES
        checked(LIBC.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", allowed, fd), 0))
    finally:
        os.close(fd)


# The filter of system calls


def sockets(network: bool) -> bytes:
    """Only kinds of sockets whose addresses the supervisor can check: streams of this computer, and TCP."""
    # With the network also datagrams, but none of this computer: those are sent to any address without a connection.
    refusing = step(RETURN, REFUSE | errno.EACCES)
    kind = step(LOAD, 24) + step(MASK, 0xF)
    # Streams are 1, datagrams 2, sequences of packets 5.
    local = kind + step(EQUAL, 1, 2, 0) + step(EQUAL, 5, 1, 0) + refusing + step(RETURN, ALLOW)
    if network:
        internet = kind + step(EQUAL, 3, 0, 1) + refusing + step(RETURN, ALLOW)
    else:
        protocol = step(LOAD, 32) + step(EQUAL, 0, 2, 0) + step(EQUAL, 6, 1, 0) + refusing + step(RETURN, ALLOW)
        internet = kind + step(EQUAL, 1, 1, 0) + refusing + protocol
    families = step(LOAD, 16) + step(EQUAL, socket.AF_UNIX, 0, len(local) // 8) + local
    families += step(EQUAL, socket.AF_INET, 1, 0) + step(EQUAL, socket.AF_INET6, 0, len(internet) // 8) + internet
    # With the network, netlink tells programs their addresses.
    families += (step(EQUAL, 16, 0, 1) + step(RETURN, ALLOW) if network else b"") + refusing
    pair = step(LOAD, 24) + step(MASK, 0xF) + step(EQUAL, 2, 0, 1) + refusing + step(LOAD, 0)
    return of_call("socket", families) + of_call("socketpair", pair)


def ioctls() -> bytes:
    """Refuse what can be changed of a file or a folder that is only open for reading: flags, verity, subvolumes."""
    body = step(LOAD, 24) + b"".join(step(EQUAL, each, 0, 1) + step(RETURN, ALLOW) for each in TELLING_OR_COPYING)
    refusing = step(RETURN, REFUSE | errno.ENOTTY)
    body += step(MASK, 0xFF00) + b"".join(step(EQUAL, kind, 0, 1) + refusing for kind in OF_FILE_SYSTEMS)
    return of_call("ioctl", body + step(LOAD, 0))


def signals() -> "list[bytes]":
    """For kernels that do not keep signals inside; a descriptor, too, can have one sent."""
    parts = [refused(name, errno.ENOSYS) for name in ("pidfd_send_signal", "tkill")]
    parts += [refused(name, errno.EPERM) for name in ("rt_sigqueueinfo", "rt_tgsigqueueinfo")]
    parts += [when("ioctl", 1, EQUAL, request, REFUSE | errno.EPERM) for request in (FIOSETOWN, SIOCSPGRP)]
    return [*parts, when("fcntl", 1, EQUAL, F_SETOWN_EX, REFUSE | errno.EPERM)]


def of_outpost(secret: bytes) -> "list[bytes]":
    """Let the outpost change its own open files: the supervisor cannot look at them, because its memory is closed."""
    # It passes a secret in the last two arguments, which these calls do not use.
    words = struct.unpack("=4I", secret)
    body = b"".join(step(LOAD, 48 + 4 * at) + step(EQUAL, word, 0, 7 - 2 * at) for at, word in enumerate(words))
    return [of_call(name, body + step(RETURN, ALLOW) + step(LOAD, 0)) for name in ("fchmod", "fchown", "utimensat")]


def use_secret(secret: bytes) -> None:
    """From now on this process, and what it forks, changes its open files by calls with the secret."""
    usual, last = os.utime, [ctypes.c_uint64(word) for word in struct.unpack("=2Q", secret)]

    def call(name: str, fd: int, *arguments: "int | None") -> None:
        given = (*arguments, 0, 0, 0)[:3]
        checked(LIBC.syscall(number_of(name), fd, *given, *last))

    def utime(path: "Any", *arguments: "Any", **named: "Any") -> None:
        is_now = isinstance(path, int) and not (arguments or named)
        call("utimensat", path, None, None) if is_now else usual(path, *arguments, **named)

    os.__dict__.update(
        fchmod=lambda fd, mode: call("fchmod", fd, mode),
        fchown=lambda fd, user, group: call("fchown", fd, user, group),
        utime=utime,
    )


def make_filter(version: int, plan: "dict[str, Any]", supervised: "Collection[str]", secret: bytes) -> bytes:
    parts = [everywhere(), sockets(bool(plan["network"])), ioctls(), *of_outpost(secret)]
    # What is made with the mark of a program that runs as its owner or group; `change_mode` refuses to add it.
    parts += [when(name, argument, ANY_BIT, OF_OTHERS, REFUSE | errno.EPERM) for name, argument in MAKING]
    if not plan["outlives"]:
        parts.append(of_sandboxes())
    parts += [refused(name, errno.EOPNOTSUPP) for name in WITHOUT_ATTRIBUTES]
    parts += [refused(name, errno.ENOSYS) for name in (*SHARED, "file_setattr", "futimesat", "openat2")]
    # Fast open connects while it sends.
    for name, argument in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        parts.append(when(name, argument, ANY_BIT, FAST_OPEN, REFUSE | errno.EOPNOTSUPP))
    # The limits of another process are its user's to change, and the priority of all.
    parts.append(when("prlimit64", 0, EQUAL, 0, REFUSE | errno.EPERM, is_met=False))
    for name, all_of_user in (("setpriority", 2), ("ioprio_set", 3)):
        parts.append(when(name, 0, EQUAL, all_of_user, REFUSE | errno.EPERM))
    if version < TRUNCATE_SINCE:
        # A file that may only be read can be emptied by opening it so.
        emptying = os.O_TRUNC | os.O_ACCMODE
        for name, argument in (("open", 1), ("openat", 2)):
            parts.append(when(name, argument, EQUAL, os.O_TRUNC, REFUSE | errno.EACCES, emptying))
    if "kill" in supervised:
        parts += signals()
    conditions = {"fcntl": when("fcntl", 1, EQUAL, F_SETOWN, SUPERVISE)}
    for name, argument in OF_PROCESSES.items():
        conditions[name] = when(name, argument, EQUAL, 0, SUPERVISE, is_met=False)
    parts += [conditions.get(name) or of_call(name, step(RETURN, SUPERVISE)) for name in supervised]
    return b"".join(parts) + step(RETURN, ALLOW)


def install(program: bytes) -> int:
    """Install a filter; returns the descriptor of its listener. Raises OSError."""
    text = ctypes.create_string_buffer(program, len(program))
    header = struct.pack(
        "HxxxxxxQ" if ctypes.sizeof(ctypes.c_void_p) == 8 else "HxxI", len(program) // 8, ctypes.addressof(text)
    )
    return checked(LIBC.syscall(number_of("seccomp"), 1, NEW_LISTENER, header))


# The supervisor


class Supervisor:
    """Answers the calls that a confined process may not make by itself."""

    def __init__(self, outpost: int, listener: int, plan: "dict[str, Any]") -> None:
        self.outpost = outpost
        self.listener = listener
        self.writable = [os.path.realpath(path) for path in plan["writable"]]
        # Sockets through which names of users are looked up.
        self.lookups = plan.get("lookups", [])
        self.network = bool(plan["network"])
        # Whether what the outpost has started goes on after it, as jobs on a machine do.
        self.outlives = bool(plan["outlives"])
        self.status = 0
        self.is_ending = False
        self.calls = {number_of(name): answer for name, answer in supervised_calls().items() if number_of(name)}

    def serve(self) -> None:
        woken, wakes = os.pipe()
        for end in (woken, wakes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakes)
        # A paused sandbox whose server is killed is sent SIGHUP first, which would end the supervisor alone.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        poller = select.poll()
        for fd in (woken, self.listener):
            poller.register(fd, select.POLLIN)
        while not self.is_over():
            for fd, events in poller.poll():
                if fd == woken:
                    os.read(woken, 4096)
                elif events & select.POLLIN:
                    self.answer_one()
                else:
                    # No process has the filter any more.
                    poller.unregister(fd)
        end_family(os.getpid())
        os._exit(self.status)

    def on_signal(self, number: int, frame: object) -> None:
        is_end = number == signal.SIGTERM or (number == signal.SIGHUP and not self.outlives)
        self.is_ending = self.is_ending or is_end

    def is_over(self) -> bool:
        return collect_children(self.note_end) or self.is_ending

    def note_end(self, pid: int, status: int) -> None:
        if pid == self.outpost:
            self.status = read_status(status)[0]
            self.is_ending = self.is_ending or not self.outlives

    def answer_one(self) -> None:
        request = ctypes.create_string_buffer(80)
        if LIBC.ioctl(self.listener, ctypes.c_ulong(RECEIVE), request) < 0:
            return
        number_of_request, pid, _, call = struct.unpack_from("=QIIi", request.raw)
        asked = Asked(self, number_of_request, pid, struct.unpack_from("=6Q", request.raw, 32))
        answer = self.calls[call]
        if call == number_of("connect"):
            # Whoever listens may let it wait.
            threading.Thread(target=self.answer, args=(asked, answer), daemon=True).start()
        else:
            self.answer(asked, answer)

    def answer(self, asked: "Asked", answer: "Callable[[Asked], bool | None]") -> None:
        value, error, flags = 0, 0, 0
        try:
            flags = CONTINUE if answer(asked) else 0
        except OSError as problem:
            error = -(problem.errno or errno.EACCES)
        except Exception:  # noqa: BLE001 arguments that make no sense must not end the supervisor, and with it the walls
            error = -errno.EFAULT
        finally:
            asked.close()
        LIBC.ioctl(self.listener, ctypes.c_ulong(SEND), struct.pack("=QqiI", asked.number, value, error, flags))


class Asked:
    """One call that waits for its answer: of which thread, with which arguments."""

    def __init__(self, supervisor: Supervisor, number: int, pid: int, arguments: "tuple[int, ...]") -> None:
        self.supervisor = supervisor
        self.number = number
        self.pid = pid
        self.arguments = arguments
        self.opened = []  # type: list[int]

    def close(self) -> None:
        for fd in self.opened:
            os.close(fd)

    def keep(self, fd: int) -> int:
        self.opened.append(fd)
        return fd

    def signed(self, index: int) -> int:
        value = self.arguments[index] & 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value

    def memory(self, index: int, size: int) -> bytes:
        """Read what an argument points at. Raises OSError, also where the caller is gone by now."""
        fd = os.open("/proc/%d/mem" % self.pid, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size, self.arguments[index])
        finally:
            os.close(fd)
        # The pid could be another process's: the kernel knows whether this call still waits.
        checked(LIBC.ioctl(self.supervisor.listener, ctypes.c_ulong(IS_VALID), struct.pack("=Q", self.number)))
        return data

    def path(self, index: int) -> bytes:
        address, found = self.arguments[index], b""
        while b"\0" not in found and len(found) < LONGEST_PATH:
            # Up to the end of the page: the next one may not be there.
            size = 4096 - (address + len(found)) % 4096
            piece = Asked(self.supervisor, self.number, self.pid, (address + len(found),)).memory(0, size)
            if not piece:
                raise OSError(errno.EFAULT, "")
            found += piece
        name, end, _ = found.partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "")
        return name

    def file(self, base: int, path: "int | None" = None, flags: int = 0) -> int:
        """Open the file that a descriptor, or a path from there, names. Raises OSError: EACCES beyond our folders."""
        if path is None:
            return self.locate(base, b"", AT_EMPTY)
        return self.locate(base, self.path(path), flags)

    def locate(self, base: int, path: bytes, flags: int = 0, allowed: "tuple[str, ...]" = ()) -> int:
        """Open a file below a writable or `allowed` folder, as the caller would find it. Raises OSError: EACCES."""
        own = b"/proc/%d/" % self.pid
        for word in (b"/proc/self/", b"/proc/thread-self/"):
            path = own + path[len(word) :] if path.startswith(word) else path
        start = own + (b"cwd" if base == AT_CWD else b"fd/%d" % base)
        if not path:
            if not flags & AT_EMPTY:
                raise OSError(errno.ENOENT, "")
            fd = self.keep(os.open(start, O_PATH | os.O_CLOEXEC))
        else:
            follow = os.O_NOFOLLOW if flags & AT_NOFOLLOW else 0
            where = None if path.startswith(b"/") else self.keep(os.open(start, O_PATH | os.O_CLOEXEC))
            fd = self.keep(os.open(path, O_PATH | os.O_CLOEXEC | follow, dir_fd=where))
        real = os.readlink("/proc/self/fd/%d" % fd)
        # Pipes, sockets and memory have no path.
        is_nameless = not real.startswith("/") or real.startswith("/memfd:")
        if not is_nameless and not any(lies_in(real, folder) for folder in allowed or self.supervisor.writable):
            raise OSError(errno.EACCES, "")
        return fd

    def descriptor(self, index: int) -> "socket.socket":
        """The caller's socket, as a copy of ours. Raises OSError."""
        process = self.keep(checked(LIBC.syscall(number_of("pidfd_open"), thread_group(self.pid), 0)))
        copy = checked(LIBC.syscall(number_of("pidfd_getfd"), process, self.signed(index), 0))
        checked(LIBC.ioctl(self.supervisor.listener, ctypes.c_ulong(IS_VALID), struct.pack("=Q", self.number)))
        try:
            return socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise

    def address(self) -> bytes:
        size = self.arguments[2] & 0xFFFFFFFF
        if not 2 <= size <= LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "")
        return self.memory(1, size)


def lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def thread_group(pid: int) -> int:
    with open("/proc/%d/status" % pid) as file:
        return int(next(line for line in file if line.startswith("Tgid:")).split()[1])


def by_name(fd: int) -> bytes:
    return b"/proc/self/fd/%d" % fd


def change_mode(fd: int, mode: int) -> None:
    """Raises OSError for a program that would run as its owner or group: somebody without walls could start it."""
    if mode & OF_OTHERS and mode & ANYBODY_STARTS and not stat.S_ISDIR(os.fstat(fd).st_mode):
        raise OSError(errno.EPERM, "")
    checked(LIBC.chmod(by_name(fd), mode & 0o7777))


def change_owner(fd: int, user: int, group: int) -> None:
    checked(LIBC.chown(by_name(fd), user, group))


def change_times(fd: int, times: "bytes | None") -> None:
    checked(LIBC.utimensat(AT_CWD, by_name(fd), times, 0))


def answer_truncate(asked: Asked) -> None:
    checked(LIBC.truncate(by_name(asked.file(AT_CWD, 0)), ctypes.c_int64(asked.arguments[1])))


def answer_utimensat(asked: Asked) -> None:
    times = asked.memory(2, 32) if asked.arguments[2] else None
    fd = asked.file(asked.signed(0), 1 if asked.arguments[1] else None, asked.signed(3))
    change_times(fd, times)


def answer_utimes(asked: Asked, form: str) -> None:
    times = None
    if asked.arguments[1]:
        # With seconds alone, or with microseconds after each.
        given = struct.unpack(form, asked.memory(1, struct.calcsize(form)))
        first, more, last, rest = given if len(given) == 4 else (given[0], 0, given[1], 0)
        times = struct.pack("=4q", first, more * 1000, last, rest * 1000)
    change_times(asked.file(AT_CWD, 0), times)


def answer_connect(asked: Asked) -> None:
    address = asked.address()
    with asked.descriptor(0) as connecting:
        family = struct.unpack_from("=H", address)[0]
        if family == socket.AF_UNIX and connecting.family == socket.AF_UNIX:
            path = address[2:].partition(b"\0")[0]
            if not path:
                raise OSError(errno.ECONNREFUSED, "")
            allowed = (*asked.supervisor.writable, *asked.supervisor.lookups)
            address = address[:2] + by_name(asked.locate(AT_CWD, path, 0, allowed)) + b"\0"
        elif family in (socket.AF_INET, socket.AF_INET6):
            check_reach(asked, address, connecting.type)
        checked(LIBC.connect(connecting.fileno(), address, len(address)))


def check_reach(asked: Asked, address: bytes, kind: int) -> None:
    """Raises OSError for an address that lies beyond the walls.

    With the network of a machine those are only the machine's own ones: a port at which a program listens that has no
    walls, such as sshd. Without, all but the ports that the sandbox itself serves.
    """
    host, port = host_of(address)
    if asked.supervisor.outlives:
        if kind != socket.SOCK_DGRAM and is_own(host, address) and not is_served_by(port, walled_like_us):
            raise OSError(errno.EACCES, "")
    elif not asked.supervisor.network:
        if not is_loopback(host) and any(host):
            raise OSError(errno.ENETUNREACH, "")
        if not is_listening_here(port, os.getpid()):
            raise OSError(errno.ECONNREFUSED, "")


def is_own(host: bytes, address: bytes) -> bool:
    """Whether it is an address of this computer: only those can be bound."""
    if not any(host) or is_loopback(host):
        return True
    family = socket.AF_INET if len(host) == 4 else socket.AF_INET6
    scope = (0, struct.unpack_from("=I", address, 24)[0]) if len(host) > 4 else ()
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((socket.inet_ntop(family, host), 0, *scope))
    except OSError as problem:
        return problem.errno != errno.EADDRNOTAVAIL
    return True


def host_of(address: bytes) -> "tuple[bytes, int]":
    if len(address) < (16 if address[0] == socket.AF_INET else 28):
        raise OSError(errno.EINVAL, "")
    host = address[4:8] if address[0] == socket.AF_INET else address[8:24]
    return unmapped(host), struct.unpack("!H", address[2:4])[0]


def unmapped(host: bytes) -> bytes:
    return host[12:] if host[:12] == b"\0" * 10 + b"\xff\xff" else host


def is_loopback(host: bytes) -> bool:
    return host[:1] == b"\x7f" if len(host) == 4 else host == b"\0" * 15 + b"\1"


def is_listening_here(port: int, supervisor: int) -> bool:
    """Whether all that listens at this port, at any address, belongs to the family."""
    return is_served_by(port, lambda: descendants(supervisor))


def is_served_by(port: int, processes: "Callable[[], Iterable[int]]") -> bool:
    """Whether these processes serve this port, and no others do so at another address of this computer."""
    wanted = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as file:
                lines = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        listening = [line for line in lines if line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == port]
        wanted |= {"socket:[%s]" % line[9] for line in listening}
    return bool(wanted) and wanted <= {name for pid in processes() for name in open_files(pid)}


def walled_like_us() -> "Iterable[int]":
    """The processes of our user that live within walls: they can get no new rights, and their calls are filtered."""
    user = b"Uid:\t%d\t" % os.getuid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/status" % name, "rb") as file:
                status = file.read()
        except OSError:
            continue
        if user in status and b"\nNoNewPrivs:\t1\n" in status and b"\nSeccomp:\t2\n" in status:
            yield int(name)


def open_files(pid: int) -> "set[str]":
    folder, found = "/proc/%d/fd" % pid, set()
    try:
        for name in os.listdir(folder):
            try:
                found.add(os.readlink(folder + "/" + name))
            except OSError:
                pass
    except OSError:
        pass
    return found


def answer_bind(asked: Asked) -> bool:
    address = asked.address()
    family = struct.unpack_from("=H", address)[0]
    if family == socket.AF_UNIX and address[2:3] != b"\0":
        # By name: Landlock holds where it is made. What is exchanged meanwhile is found where it begins to listen.
        return True
    if family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError(errno.EACCES if family == socket.AF_UNIX else errno.EAFNOSUPPORT, "")
    with asked.descriptor(0) as binding:
        if not asked.supervisor.network:
            address = on_loopback(address)
        checked(LIBC.bind(binding.fileno(), address, len(address)))
    return False


def on_loopback(address: bytes) -> bytes:
    """Replace an address that means all of them by the loopback's: nothing beyond this computer may connect."""
    host, _ = host_of(address)
    if is_loopback(host):
        return address
    if any(host):
        raise OSError(errno.EADDRNOTAVAIL, "")
    if address[0] == socket.AF_INET:
        return address[:4] + b"\x7f\0\0\1" + address[8:]
    return address[:8] + b"\0" * 15 + b"\1" + address[24:]


def answer_listen(asked: Asked) -> None:
    with asked.descriptor(0) as listening:
        if listening.family == socket.AF_UNIX:
            # Names without a file are not Landlock's.
            if isinstance(listening.getsockname(), bytes):
                raise OSError(errno.EACCES, "")
        elif not asked.supervisor.network:
            keep_on_loopback(listening)
        checked(LIBC.listen(listening.fileno(), asked.signed(1)))


def keep_on_loopback(listening: "socket.socket") -> None:
    """Bind what is unbound, which would listen on all addresses. Raises OSError for another address."""
    host, port = listening.getsockname()[:2]
    if not port:
        listening.bind(("127.0.0.1" if listening.family == socket.AF_INET else "::1", 0))
    elif not is_loopback(unmapped(socket.inet_pton(listening.family, host.partition("%")[0]))):
        raise OSError(errno.EACCES, "")


def answer_kill(asked: Asked) -> None:
    wanted, number = asked.signed(0), asked.signed(1)
    if wanted == -1:
        raise OSError(errno.EPERM, "")
    check_own(wanted or -os.getpgid(asked.pid))
    os.kill(wanted or -os.getpgid(asked.pid), number)


def answer_tgkill(asked: Asked) -> None:
    check_own(asked.signed(0))
    checked(LIBC.syscall(number_of("tgkill"), asked.signed(0), asked.signed(1), asked.signed(2)))


def answer_about(asked: Asked, wanted: int, is_process: bool = True) -> bool:
    """Let a call go on about a process of the family: which one is no memory that could be exchanged."""
    if wanted and not is_process:
        raise OSError(errno.EPERM, "")
    check_own(thread_group(wanted) if wanted > 0 else wanted)
    return True


def check_own(wanted: int) -> None:
    """Raises OSError for a process, or with a minus for a group, that has no part in the family; 0 is the caller."""
    family = descendants(os.getpid())
    if wanted > 0 and wanted not in family:
        raise OSError(errno.EPERM if is_there(wanted) else errno.ESRCH, "")
    if wanted < 0 and not any(group_of(pid) == -wanted for pid in family):
        raise OSError(errno.EPERM, "")


def is_there(pid: int) -> bool:
    return os.path.exists("/proc/%d" % pid)


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def supervised_calls(version: int = 0, outlives: bool = False) -> "dict[str, Callable[[Asked], bool | None]]":
    """The calls that the supervisor makes for the caller; each tells whether the caller may go on by itself."""
    calls = {
        "chmod": lambda asked: change_mode(asked.file(AT_CWD, 0), asked.signed(1)),
        "fchmod": lambda asked: change_mode(asked.file(asked.signed(0)), asked.signed(1)),
        "fchmodat": lambda asked: change_mode(asked.file(asked.signed(0), 1), asked.signed(2)),
        "fchmodat2": lambda asked: change_mode(asked.file(asked.signed(0), 1, asked.signed(3)), asked.signed(2)),
        "chown": lambda asked: change_owner(asked.file(AT_CWD, 0), asked.signed(1), asked.signed(2)),
        "fchown": lambda asked: change_owner(asked.file(asked.signed(0)), asked.signed(1), asked.signed(2)),
        "lchown": lambda asked: change_owner(asked.file(AT_CWD, 0, AT_NOFOLLOW), asked.signed(1), asked.signed(2)),
        "fchownat": lambda asked: change_owner(
            asked.file(asked.signed(0), 1, asked.signed(4)), asked.signed(2), asked.signed(3)
        ),
        "utime": lambda asked: answer_utimes(asked, "=2q"),
        "utimes": lambda asked: answer_utimes(asked, "=4q"),
        "utimensat": answer_utimensat,
        "connect": answer_connect,
        "bind": answer_bind,
        "listen": answer_listen,
    }  # type: dict[str, Callable[[Asked], bool | None]]
    if version < TRUNCATE_SINCE:
        calls["truncate"] = answer_truncate
    if outlives:
        return calls
    # Signals, and how processes run, are kept inside only where nothing outlives a connection.
    if version < SCOPES_SINCE:
        calls.update(kill=answer_kill, tgkill=answer_tgkill, fcntl=lambda asked: answer_about(asked, asked.signed(2)))
    calls["setpriority"] = lambda asked: answer_about(asked, asked.signed(1), asked.signed(0) == 0)
    calls["ioprio_set"] = lambda asked: answer_about(asked, asked.signed(1), asked.signed(0) == 1)
    for name in ("sched_setparam", "sched_setscheduler", "sched_setattr", "sched_setaffinity"):
        calls[name] = lambda asked: answer_about(asked, asked.signed(0))
    return calls


# Processes


def end_family(root: int) -> None:
    """Stop all descendants until no new one appears, then kill them: what is stopped starts no other."""
    until = time.monotonic() + END_S
    stopped = set()  # type: set[int]
    while time.monotonic() < until:
        new = set(descendants(root)) - stopped
        if not new:
            break
        strike(new, signal.SIGSTOP)
        stopped |= new
    while time.monotonic() < until:
        left = descendants(root)
        if not left:
            break
        strike(left, signal.SIGKILL)
        time.sleep(0.001)
        collect_children(lambda pid, status: None)


# The start


def give_up_rights(user: int) -> None:
    """Become the user, if one is given, and keep no capability in any case. Raises OSError."""
    for right in range(64):
        LIBC.prctl(NEVER_HAVE, right, 0, 0, 0)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    LIBC.prctl(AMBIENT, 4, 0, 0, 0)
    checked(LIBC.capset(struct.pack("=Ii", CAPABILITIES_OF_THREE, 0), b"\0" * 24))


def fork_guarded(user: int, limits: "dict[int, tuple[int, int]]", plan: "dict[str, Any]") -> None:
    """Fork the outpost's process, confined, and return in that one only; the other supervises it, and never returns.

    `plan`: version of Landlock, 0 where other walls hold files; what is writable, readable, devices; network; outlives.
    A process that cannot be confined ends with the reason.
    """
    give_up_rights(user)
    LIBC.prctl(DUMPABLE, 0, 0, 0, 0)
    LIBC.prctl(SUBREAPER, 1, 0, 0, 0)
    if not plan["outlives"]:
        LIBC.prctl(DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    ours, theirs = socket.socketpair()
    outpost = os.fork()
    if outpost:
        theirs.close()
        supervise(outpost, ours, plan)
    ours.close()
    LIBC.prctl(DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    # Not in the supervisor's group: what signals its own group must not reach it.
    os.setpgid(0, 0)
    for number, (soft, most) in limits.items():
        hard = lowest(most, resource.getrlimit(number)[1])
        resource.setrlimit(number, (lowest(soft, hard), hard))
    version, secret = int(plan["version"]), os.urandom(16)
    try:
        restrict(version, plan) if version else checked(LIBC.prctl(NO_NEW_RIGHTS, 1, 0, 0, 0))
        version = version or SCOPES_SINCE
        calls = supervised_calls(version, bool(plan["outlives"]))
        listener = install(make_filter(version, plan, calls, secret))
    except OSError as problem:
        os.write(2, ("it could not be confined: %s\n" % problem).encode())
        os._exit(1)
    theirs.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)
    theirs.close()
    use_secret(secret)
    os.environ.pop("LD_LIBRARY_PATH", None)


def lowest(one: int, other: int) -> int:
    return max(one, other) if resource.RLIM_INFINITY in (one, other) else min(one, other)


def supervise(outpost: int, ours: "socket.socket", plan: "dict[str, Any]") -> None:
    _, found, _, _ = ours.recvmsg(1, socket.CMSG_LEN(4))
    ours.close()
    if not found:
        os.waitpid(outpost, 0)
        os._exit(1)
    listener = struct.unpack("i", found[0][2])[0]
    os.closerange(0, 3)
    Supervisor(outpost, listener, plan).serve()
