"""File descriptors of this process: how many it may have, and how many of them connections of strangers may take.

Any user of this computer can connect to a forwarded port or to the page. Each such connection costs descriptors, and
a process without any left opens no sessions, machines or files. So a quarter of them is for forwarded connections and
a quarter for HTTP, and the other half is never given to strangers.
"""

from __future__ import annotations

import contextlib
import resource

# Enough for all that we serve. Some programs that we start close every number up to their limit, one by one.
MOST = 65536
# macOS has no hard limit, but refuses more than this.
MOST_ON_MACOS = 10240
# Of a carried connection: the client's socket and the one to the other end.
PER_CARRIED = 2
# What a process needs itself that does nothing but carry connections.
KEPT = 32

# The limit that this process was started with, which is the one for programs that it starts; 0 while it is unchanged.
_usual = 0


def raise_limit() -> None:
    """Raise the soft limit as far as the hard one allows."""
    global _usual
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (MOST, MOST_ON_MACOS):
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= most:
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            _usual = soft
            return


def usual_limit() -> int:
    """The soft limit for programs that this process starts: those that use select() fail with a larger one."""
    return _usual or resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def give_usual_limit(pid: int) -> None:
    """Give a program that was just started its usual limit. Without prlimit, as on macOS, it has ours."""
    if not _usual or not hasattr(resource, "prlimit"):
        return
    # It may have ended, or be another user's by now.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_usual, hard))


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if soft == resource.RLIM_INFINITY else soft


def for_forwards() -> int:
    """Return how many forwarded connections this process may carry."""
    return max(1, _limit() // 4 // PER_CARRIED)


def for_pages() -> int:
    """Return how many connections over HTTP this process may have."""
    return max(2, _limit() // 4)


def for_carrier() -> int:
    """Return how many connections a process may carry that does nothing else."""
    return max(1, (_limit() - KEPT) // PER_CARRIED)
