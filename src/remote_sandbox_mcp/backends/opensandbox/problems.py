"""What the SDK and the platform say when something fails, as our sentences: the one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...core.errors import (
    BadArgument,
    ConnectError,
    LoginRefused,
    SandboxError,
    UnknownSandbox,
    Unreachable,
    Unsupported,
)

if TYPE_CHECKING:
    from opensandbox.exceptions import SandboxException

T = TypeVar("T")
Kind = Callable[[str], SandboxError]
LONGEST_WORDS = 300


@dataclass(frozen=True)
class Row:
    """What it means, as which error, and whether the platform's own words say more."""

    kind: Kind
    means: str
    quoted: bool = False


DOWN = Row(Unreachable, "the platform does not answer; check that its server runs and that server_url is right")
SLOW = Row(Unreachable, "the platform did not answer in time; try again, or raise request_timeout_s")
REFUSED = Row(BadArgument, "the platform refuses it", quoted=True)
FAILED = Row(SandboxError, "the platform failed", quoted=True)
NOT_READY = Row(ConnectError, "it was not ready in time and was removed again; try again, or raise ready_timeout_s")
FULL = Row(
    SandboxError, "the platform has no room for it now; delete sandboxes that are not needed, or try later", True
)
NO_DISK = Row(
    SandboxError,
    "there is no room left on the disk of the platform's machine; delete sandboxes, snapshots and images that are not "
    "needed there, then try again",
)
QUOTA = Row(SandboxError, "the platform's quota is used up; delete sandboxes that are not needed", True)
GONE = Row(UnknownSandbox, "it is gone: it was deleted, has expired, or was removed from the platform")
PAUSED = Row(ConnectError, "it is paused; resume it first")
NO_IMAGE = Row(
    BadArgument, "the platform cannot get that image; check its name, and the login where it needs one", True
)
NO_VOLUME = Row(BadArgument, "the platform does not allow that volume", quoted=True)
CANNOT = Row(Unsupported, "this platform cannot do that", quoted=True)
NO_KEY = Row(LoginRefused, "the platform refused the API key; set OPEN_SANDBOX_API_KEY or opensandbox.api_key")
POOL = Row(FULL.kind, "the platform's pool gave none", quoted=True)

# Every exception class of the SDK by its name: importing them here would cost every start of the server.
BY_CLASS: dict[str, Row] = {
    "SandboxException": FAILED,
    "SandboxApiException": FAILED,
    "SandboxRateLimitException": QUOTA,
    "SandboxInternalException": FAILED,
    "SandboxTimeoutException": SLOW,
    "SandboxConnectionException": DOWN,
    "SandboxUnhealthyException": NOT_READY,
    "SandboxReadyTimeoutException": NOT_READY,
    "InvalidArgumentException": REFUSED,
    "PoolEmptyException": POOL,
    "PoolAcquireFailedException": POOL,
    "PoolDestroyedException": POOL,
    "PoolDestroyIncompleteException": POOL,
    "PoolStateStoreUnavailableException": POOL,
    "PoolNotRunningException": POOL,
}
# What an answer of the platform says, from the most telling to the least: parts of its code, then of its text.
BY_CODE: tuple[tuple[str, Row], ...] = (
    ("API_KEY", NO_KEY),
    ("IMAGE_PULL_FAILED", NO_IMAGE),
    ("QUOTA_EXCEEDED", QUOTA),
    ("CAPACITY_EXHAUSTED", FULL),
    ("HOST_PATH", NO_VOLUME),
    ("VOLUME::", NO_VOLUME),
    ("SANDBOX_NOT_FOUND", GONE),
    ("NOT_SUPPORTED", CANNOT),
    ("UNSUPPORTED_RUNTIME", CANNOT),
    ("INVALID", REFUSED),
)
BY_TEXT: tuple[tuple[str, Row], ...] = (
    ("no space left on device", NO_DISK),
    ("disk quota exceeded", NO_DISK),
    ("database or disk is full", NO_DISK),
    # Said by an engine whose overlay could not make its own folder there.
    ("/work/work: no such file", NO_DISK),
    ("no such image", NO_IMAGE),
    ("insufficient", FULL),
    ("cannot allocate memory", FULL),
    ("port range", FULL),
    ("is paused", PAUSED),
)
BY_STATUS: dict[int, Row] = {
    400: REFUSED,
    401: NO_KEY,
    403: NO_KEY,
    404: GONE,
    422: REFUSED,
    429: QUOTA,
    501: CANNOT,
    502: DOWN,
    503: FAILED,
    504: SLOW,
    507: NO_DISK,
}


async def told(doing: str, answer: Awaitable[T]) -> T:
    """The answer, or our sentence for why there is none; `doing` is what failed, on what."""
    from opensandbox.exceptions import SandboxException

    try:
        return await answer
    except SandboxException as problem:
        # Not chained: an SDK exception can be its own cause, and who follows causes would never end.
        raise sentence(doing, problem) from None


def sentence(doing: str, problem: SandboxException) -> SandboxError:
    row = find_row(problem)
    words = _words(problem) if row.quoted else ""
    return row.kind(f"{doing}: {row.means}" + (f" ({words})" if words else ""))


def described(doing: str, words: str) -> SandboxError:
    """Our sentence for what the platform says of work that it went on with by itself, and that failed."""
    row = next((row for part, row in BY_TEXT if part in words.lower()), FAILED)
    return row.kind(f"{doing}: {row.means}" + (f" ({words})" if row.quoted and words else ""))


def find_row(problem: SandboxException) -> Row:
    """The most telling row. A class that is not in the table is treated as the one that it comes from."""
    named = next(BY_CLASS[kind.__name__] for kind in type(problem).__mro__ if kind.__name__ in BY_CLASS)
    status = getattr(problem, "status_code", None)
    if status is None:
        return named
    code, text = str(problem.error.code or ""), str(problem).lower()
    for part, row in BY_TEXT:
        if part in text:
            return row
    for part, row in BY_CODE:
        if part in code:
            return row
    return BY_STATUS.get(int(status), named)


def _words(problem: SandboxException) -> str:
    """What the platform said, without what the SDK wraps around it."""
    words = str(problem.error.message or "") or str(problem.args[0] if problem.args else "")
    words = " ".join(words.split()).rstrip(".")
    return words if len(words) <= LONGEST_WORDS else words[:LONGEST_WORDS] + "..."
