"""Errors, as one tree; a branch exists only where a caller acts differently.

SandboxError                 anything that we tell an agent in one sentence
├── ConfigError              the operator's configuration is wrong
├── BadArgument              a caller's argument is wrong; nothing was done
│   └── UnknownTask          no task has that name
├── UnknownSandbox           no sandbox has that name
├── Unsupported              this sandbox cannot do that
├── FileProblem              a file could not be read, written, listed or searched
├── ConnectError             the sandbox could not be opened; nothing was started
│   ├── Unreachable          no answer, no route, no name; may be tried again
│   │   └── BrokenRules      it answered, but not as our programs do; to try again at once is no use
│   ├── LoginRefused         the machine answered and said no
│   └── HostKeyProblem       the machine is not, or may not be, the one we know
├── NotStarted               the command itself could not be started
├── LostContact              the line went while a command may have been running
└── Defect                   our own mistake; whether anything was done is not known
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from .commands.command import Missing, Running

E = TypeVar("E", bound="SandboxError")

# The reason of an Unreachable whose connection was there a moment ago: another one may well succeed.
CUT = "cut"
# The reason of a LoginRefused where the machine asks for a code and nobody has given one: no code was tried.
CODE_NEEDED = "code_needed"
# The reason of a BadArgument that stands until a person agrees.
UNCONFIRMED = "confirm"
# The reason of a BadArgument for what only the operator can allow.
NOT_PERMITTED = "not_permitted"


class SandboxError(Exception):
    """A failure that is told in one sentence: what, on what, why, and what to do next.

    Programs decide by its class, its `reason` and its other fields, never by its words: these may change at any time.
    """

    code: ClassVar[str] = "failed"

    def __init__(self, message: str, reason: str = "", *, found: str = "", remedy: str = "") -> None:
        """`found` and `remedy` are the parts of the sentence that say what is wrong and what to do about it.

        They are for tables, which show them apart; a sentence that was not made of parts has none.
        """
        super().__init__(message)
        # A word for programs, where one class stands for several causes.
        self.reason = reason
        self.found = found
        self.remedy = remedy

    @classmethod
    def of_parts(cls: type[E], doing: str, found: str, remedy: str = "", *, where: str = "", reason: str = "") -> E:
        """Make the sentence of what was tried, what was found (`where` says in which part of it), and what to do."""
        at, inner = (f" {where}", f"{where}: {found}") if where else ("", found)
        return cls(f"{doing}{at}: {_joined(found, remedy)}", reason, found=inner, remedy=remedy)

    @property
    def cause(self) -> str:
        """The sentence without what was tried."""
        return _joined(self.found, self.remedy) if self.found else str(self)

    def with_more(self: E, more: str) -> E:
        """Copy the error with more at the end of its sentence."""
        found, remedy = self.found, self.remedy
        if remedy:
            remedy = f"{remedy}; {more}"
        elif found:
            found = f"{found}; {more}"
        return type(self)(f"{self}; {more}", self.reason, found=found, remedy=remedy)


def _joined(found: str, remedy: str) -> str:
    if not remedy:
        return found
    return f"{found}. {remedy}" if remedy[0].isupper() else f"{found}; {remedy}"


class ConfigError(SandboxError):
    """The operator's configuration is wrong."""

    code = "config"


class BadArgument(SandboxError):
    """A caller's argument is wrong; nothing was done."""

    code = "bad_argument"


class UnknownTask(BadArgument):
    """No task has that name: no job, no command, no session."""

    code = "unknown_task"


class UnknownSandbox(SandboxError):
    """No sandbox has that name; `available` are names that there are."""

    code = "unknown_sandbox"
    available: tuple[str, ...] = ()


class Unsupported(SandboxError):
    """Sandbox that cannot do what was asked."""

    code = "unsupported"


class FileProblem(SandboxError):
    """A file could not be read, written, listed or searched."""

    code = "file"


class ConnectError(SandboxError):
    """The sandbox could not be opened; nothing was started on it."""

    code = "connect"


class Unreachable(ConnectError):
    """No answer, no route, no such name; or, with the reason CUT, a connection that was there and was cut."""

    code = "unreachable"


class BrokenRules(Unreachable):
    """Answer of another program than ours, or of a broken one: it sent more than was asked for, or nonsense."""

    code = "broken_rules"


class LoginRefused(ConnectError):
    """The machine answered and refused the login."""

    code = "login_refused"


class HostKeyProblem(ConnectError):
    """The machine's host key has changed, or is unknown in strict mode."""

    code = "host_key"


class NotStarted(SandboxError):
    """The command could not be started: no such folder, no such shell."""

    code = "not_started"


class LostContact(SandboxError):
    """The line went while the command may have been running; the run id can be asked for later."""

    code = "connection_lost"

    def __init__(self, message: str, *, outcome: str, so_far: Running, says_how_to_ask: bool = False) -> None:
        """`outcome`: unknown, lost or not_started; `says_how_to_ask`: the sentence names the handle of the run."""
        super().__init__(message)
        self.outcome = outcome
        self.so_far = so_far
        self.says_how_to_ask = says_how_to_ask

    @classmethod
    def while_running(cls, name: str, why: str, so_far: Running) -> LostContact:
        """The outcome is unknown: the machine could not be asked in time."""
        return cls(
            f"contact with {name} was lost while the command ran and could not be made again ({why}); "
            f"it may still run or have ended. Ask later with check_background_task(tmux_session={so_far.run_id!r}) "
            "before repeating it",
            outcome="unknown",
            so_far=so_far,
            says_how_to_ask=True,
        )

    @classmethod
    def of_lost(cls, seen: Missing) -> LostContact:
        """A run that its machine has lost, with what it had printed."""
        return cls(
            f"the run was lost: {seen.reason}. What it did before that is not known; look before repeating it",
            outcome="lost",
            so_far=Running(seen.run_id, seen.stdout, seen.stderr),
        )

    @classmethod
    def while_starting(cls, name: str, session: str, why: str) -> LostContact:
        """An app was started as a job, and its machine was lost before the app answered."""
        return cls(
            f"{session} was started on {name}, but contact was lost before it answered ({why}); it may still run. "
            f"Ask with check_background_task(tmux_session={session!r}) before starting it again",
            outcome="unknown",
            so_far=Running(session),
            says_how_to_ask=True,
        )


class Defect(SandboxError):
    """A mistake of our own, which is logged; whether anything was done before it is not known."""

    code = "defect"
