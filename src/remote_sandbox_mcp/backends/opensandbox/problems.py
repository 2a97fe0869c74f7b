"""Turns failures of the platform, its SDK and image registries into our errors, each with one sentence."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...core import errors
from ...core.errors import SandboxError
from ...core.sandboxes.disposable import RegistryLogin, host_of
from ..shell.transport import NoRoom

if TYPE_CHECKING:
    from opensandbox.exceptions import SandboxException


T = TypeVar("T")
LONGEST_WORDS = 300

# Reasons of errors: that an image cannot be had, that its registry wants a login, that a network policy is refused.
IMAGE_UNKNOWN, LOGIN_WANTED, NETWORK_POLICY = "image_unknown", "login_wanted", "network_policy"
# Parts of the messages of engines and registries.
_WANTS_LOGIN = re.compile("no basic auth credentials|unauthorized|authentication required", re.IGNORECASE)
# The first published agent that passes a request's variables to its command.
OLDEST_AGENT = "1.0.7"
# What the agent answers to a request that it does not know.
NO_ROUTE = "404 page not found"


@dataclass(frozen=True)
class FailureRow:
    """Error that a failure becomes, its meaning, and whether the platform's message is quoted."""

    kind: type[SandboxError]
    # With `{platform}` for the platform and its address.
    means: str
    quoted: bool = False


DOWN = FailureRow(
    errors.Unreachable, "{platform} does not answer; check that its server runs and that server_url is right"
)
SLOW = FailureRow(errors.Unreachable, "{platform} did not answer in time; try again, or raise request_timeout_s")
REFUSED = FailureRow(errors.BadArgument, "the platform refuses it", quoted=True)
FAILED = FailureRow(SandboxError, "{platform} failed", quoted=True)
# A server that cannot reach its engine answers with a page of plain text, where the SDK expects JSON.
CONFUSED = FailureRow(
    errors.Unreachable,
    "{platform} failed and does not say why; its container engine may not run: see to that, and look at the log of the "
    "platform's server",
)
NONSENSE = FailureRow(errors.BrokenRules, "{platform} answers what cannot be understood; look at the log of its server")
TOO_MUCH = FailureRow(
    errors.BrokenRules, "{platform}, or its agent (execd) in the sandbox, sent more than it was asked for"
)
ASTRAY = FailureRow(
    errors.ConfigError,
    "{platform} names another host for its sandboxes, and the API key is sent to no other host; set server_url to that "
    "host, or turn use_server_proxy off",
)
AGENT_DOWN = FailureRow(
    errors.Unreachable,
    "the platform's agent (execd) in it does not answer, though {platform} does; delete it and create another one, or "
    "set use_server_proxy where its ports cannot be reached from here",
)
AGENT_SLOW = FailureRow(errors.Unreachable, "the platform's agent (execd) in it did not answer in time; try again")
AGENT_OLD = FailureRow(
    errors.Unsupported,
    "the platform's agent (execd) in it is too old; set execd_image in the settings of {platform} to "
    f"opensandbox/execd:v{OLDEST_AGENT} or later, then create another one",
)
NOT_READY = FailureRow(
    errors.ConnectError, "it was not ready in time and was removed again; try again, or raise ready_timeout_s"
)
FULL = FailureRow(
    SandboxError, "the platform has no room for it now; delete sandboxes that are not needed, or try later", True
)
NO_DISK = FailureRow(
    NoRoom,
    "there is no room left on the disk of the platform's machine; delete sandboxes, snapshots and images that are not "
    "needed there, then try again",
)
QUOTA = FailureRow(SandboxError, "the platform's quota is used up; delete sandboxes that are not needed", True)
GONE = FailureRow(errors.UnknownSandbox, "it is gone: it was deleted, has expired, or was removed from the platform")
PAUSED = FailureRow(errors.ConnectError, "it is paused; resume it first")
NO_IMAGE = FailureRow(
    errors.BadArgument, "the platform cannot get that image; check its name, and the login where it needs one", True
)
NO_VOLUME = FailureRow(errors.BadArgument, "the platform does not allow that volume", quoted=True)
CANNOT = FailureRow(errors.Unsupported, "this platform cannot do that", quoted=True)
NO_KEY = FailureRow(
    errors.LoginRefused, "{platform} refused the API key; set OPEN_SANDBOX_API_KEY or opensandbox.api_key"
)
POOL = FailureRow(FULL.kind, "the platform's pool gave none", quoted=True)

# Every exception class of the SDK by its name: importing them here would cost every start of the server.
BY_CLASS: dict[str, FailureRow] = {
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
# What the SDK met, by the name of its class, where that says more than the SDK's own exception does.
BY_CAUSE = {"JSONDecodeError": CONFUSED, "ValidationError": NONSENSE, "TooMuch": TOO_MUCH, "Astray": ASTRAY}
# Parts of an answer's error code and of its text, the most specific first.
BY_CODE: tuple[tuple[str, FailureRow], ...] = (
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
BY_TEXT: tuple[tuple[str, FailureRow], ...] = (
    ("no space left on device", NO_DISK),
    ("disk quota exceeded", NO_DISK),
    ("database or disk is full", NO_DISK),
    # The message of an engine that could not make a folder of its overlay on a full disk.
    ("/work/work: no such file", NO_DISK),
    ("no such image", NO_IMAGE),
    ("insufficient", FULL),
    ("cannot allocate memory", FULL),
    ("port range", FULL),
    ("is paused", PAUSED),
)
BY_STATUS: dict[int, FailureRow] = {
    **{400: REFUSED, 401: NO_KEY, 403: NO_KEY, 404: GONE, 422: REFUSED, 429: QUOTA},
    **{501: CANNOT, 502: DOWN, 503: FAILED, 504: SLOW, 507: NO_DISK},
}


# What these rows become if the agent in a sandbox was asked, not the platform itself.
OF_AGENT = {DOWN: AGENT_DOWN, SLOW: AGENT_SLOW}


async def checked(doing: str, answer: Awaitable[T], platform: str = "the platform", *, agent: bool = False) -> T:
    """Wait for an answer of the SDK. Raises SandboxError; `doing` is its beginning: what failed, on what.

    `platform` names the platform with its address; `agent` says that the agent in a sandbox was asked.
    """
    from opensandbox.exceptions import SandboxException

    try:
        return await answer
    except SandboxException as problem:
        # Not chained: an SDK exception can be its own cause, and code that follows causes would never end.
        raise sentence(doing, problem, platform, agent=agent) from None


def sentence(
    doing: str, problem: SandboxException, platform: str = "the platform", *, agent: bool = False
) -> SandboxError:
    row = find_row(problem)
    if agent:
        row = AGENT_OLD if NO_ROUTE in str(problem) else OF_AGENT.get(row, row)
    return _said(doing, row, _words(problem), platform)


def described(doing: str, words: str, platform: str = "the platform") -> SandboxError:
    """The error for work that the platform did in the background and that failed, from its message."""
    row = next((row for part, row in BY_TEXT if part in words.lower()), FAILED)
    return _said(doing, row, words, platform)


def too_old(doing: str, platform: str) -> SandboxError:
    """The error for an agent that does not do what a request asks for."""
    return _said(doing, AGENT_OLD, "", platform)


def _said(doing: str, row: FailureRow, words: str, platform: str) -> SandboxError:
    means = row.means.replace("{platform}", platform) + (f" ({words})" if row.quoted and words else "")
    return row.kind.of_parts(doing, means, reason=_reason(row, words))


def _reason(row: FailureRow, words: str) -> str:
    """The reason that callers check, from the platform's message; "" if no caller needs one."""
    if row is NO_IMAGE:
        return LOGIN_WANTED if _WANTS_LOGIN.search(words) else IMAGE_UNKNOWN
    is_refused = issubclass(row.kind, (errors.BadArgument, errors.Unsupported))
    return NETWORK_POLICY if is_refused and "networkPolicy" in words else ""


def find_row(problem: SandboxException) -> FailureRow:
    """The most specific row. An exception class that is not in the table is treated as its base class."""
    if row := BY_CAUSE.get(type(problem.__cause__).__name__):
        return row
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
    """The platform's message, without what the SDK wraps around it."""
    words = str(problem.error.message or "") or str(problem.args[0] if problem.args else "")
    words = " ".join(words.split()).rstrip(".")
    return words if len(words) <= LONGEST_WORDS else words[:LONGEST_WORDS] + "..."


def explained(problem: SandboxError, doing: str, image: str, login: RegistryLogin | None) -> SandboxError:
    """Add advice to the problem if the image could not be pulled; never includes a part of a password."""
    if problem.reason not in (IMAGE_UNKNOWN, LOGIN_WANTED):
        return problem
    host = host_of(image)
    place = f'[registries."{host}"] in config.toml'
    if problem.reason == IMAGE_UNKNOWN:
        return problem.with_more(f"a login to {host} is set under {place}")
    if login is None:
        return errors.ConfigError(f"{doing}: the registry {host} wants a login; set user and password under {place}")
    # Read it again next time: it may have been corrected where it is kept.
    login.password.forget()
    return errors.ConfigError(
        f"{doing}: the registry {host} refuses the login of {login.user}; correct user and password under {place}"
    )
