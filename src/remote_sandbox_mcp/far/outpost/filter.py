"""Filters on system calls, as the kernel's instructions: what no sandbox may do, with namespaces or without."""

import errno
import platform
import struct

# Numbers of system calls: of x86_64, and of the younger architectures, which share one table; 0 for none.
NUMBERS = {
    **{"socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201)},
    **{"sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269)},
    **{"chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, 0), "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54)},
    **{"utime": (132, 0), "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
    **{"open": (2, 0), "creat": (85, 0), "openat": (257, 56), "openat2": (437, 437)},
    **{"mknod": (133, 0), "mknodat": (259, 33), "truncate": (76, 45), "fallocate": (285, 47)},
    **{"fcntl": (72, 25), "ioctl": (16, 29), "file_setattr": (469, 469)},
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261)},
    **{"setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"sched_setparam": (142, 118), "sched_setscheduler": (144, 119)},
    **{"sched_setattr": (314, 274), "sched_setaffinity": (203, 122)},
    **{"shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195)},
    **{"semget": (64, 190), "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192)},
    **{"msgget": (68, 186), "msgctl": (71, 187), "msgsnd": (69, 189), "msgrcv": (70, 188)},
    **{"mq_open": (240, 180), "mq_unlink": (241, 181)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "seccomp": (317, 277), "io_uring_setup": (425, 425)},
    **{"unshare": (272, 97), "clone": (56, 220), "clone3": (435, 435)},
}
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
LOAD, EQUAL, ABOVE, ANY_BIT, MASK, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
ALLOW, REFUSE, SUPERVISE = 0x7FFF0000, 0x00050000, 0x7FC00000
LAST_NUMBER = 0x3FFFFFFF
NEW_USER_NAMESPACE = 0x10000000
# The two modes of fallocate that free space instead of taking it.
PUNCH_HOLE, COLLAPSE_RANGE = 0x02, 0x08
# These ioctls type into a terminal, or copy its screen, as its user would.
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
# Families up to netlink are bound to the network namespace; beyond, vsock reaches the hypervisor, bluetooth the radio.
LAST_FAMILY = 16
# Keyrings are shared by all processes of a user; the others are large parts of the kernel that no build or test needs.
CLOSED = ("add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd")


def is_known() -> bool:
    """Whether the system calls of this machine are known here."""
    return platform.machine() in ARCHITECTURES


def number_of(name: str) -> int:
    return NUMBERS[name][ARCHITECTURES[platform.machine()][1]]


def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def of_call(name: str, body: bytes) -> bytes:
    """Instructions for one call; they end with a decision, or with the number of the call loaded again."""
    number = number_of(name)
    return step(EQUAL, number, 0, len(body) // 8) + body if number else b""


def refused(name: str, error: int) -> bytes:
    return of_call(name, step(RETURN, REFUSE | error))


def when(
    name: str, argument: int, code: int, value: int, decision: int, mask: int = 0xFFFFFFFF, is_met: bool = True
) -> bytes:
    """Decide about a call if its argument passes the test, or does not; else go on with the call's number."""
    jump = (0, 1) if is_met else (1, 0)
    test = step(LOAD, 16 + 8 * argument) + step(MASK, mask) + step(code, value, *jump)
    return of_call(name, test + step(RETURN, decision) + step(LOAD, 0))


def everywhere() -> bytes:
    """The beginning of every filter. It refuses what no walls hold: other tables of calls, namespaces, terminals."""
    # The flags of clone3 are in memory, which a filter cannot read, and io_uring makes calls itself; with "no such
    # call" programs fall back to the older ones.
    audit = ARCHITECTURES[platform.machine()][0]
    native = step(LOAD, 4) + step(EQUAL, audit, 1, 0) + step(RETURN, REFUSE | errno.ENOSYS) + step(LOAD, 0)
    # x32 has the same name as x86_64 and differs in its numbers.
    native += step(ABOVE, LAST_NUMBER, 0, 1) + step(RETURN, REFUSE | errno.ENOSYS)
    parts = [native, refused("clone3", errno.ENOSYS), refused("io_uring_setup", errno.ENOSYS)]
    parts += [when(name, 0, ANY_BIT, NEW_USER_NAMESPACE, REFUSE | errno.EPERM) for name in ("clone", "unshare")]
    parts += [when("ioctl", 1, EQUAL, request, REFUSE | errno.EPERM) for request in (TIOCSTI, TIOCLINUX)]
    return b"".join(parts)


def of_sandboxes() -> bytes:
    """Refuse in a sandbox what leads beyond it."""
    parts = [refused(name, errno.EPERM) for name in CLOSED]
    parts.append(when("socket", 0, ABOVE, LAST_FAMILY, REFUSE | errno.EAFNOSUPPORT))
    # It takes the whole disk in an instant, before the watch can notice. Not all file systems support it, so programs
    # go on without it, or write zeros.
    frees = PUNCH_HOLE | COLLAPSE_RANGE
    parts.append(when("fallocate", 1, ANY_BIT, frees, REFUSE | errno.EOPNOTSUPP, is_met=False))
    return b"".join(parts)
