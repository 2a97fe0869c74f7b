"""A client program: its limits, the identity of its calls, and its environment variables."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

# Variables that differ from terminal to terminal, and that never decide how a program logs in.
_OF_A_TERMINAL = frozenset(
    {
        *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "WINDOW", "STY"),
        *("TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "ITERM_SESSION_ID", "TMUX", "TMUX_PANE"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "XDG_SESSION_ID", "GPG_TTY", "VTE_VERSION", "INVOCATION_ID"),
        *("JOURNAL_STREAM", "CLAUDECODE", "KITTY_PID", "KITTY_WINDOW_ID", "WEZTERM_PANE", "ALACRITTY_WINDOW_ID"),
    }
)


PROSE, JSON = TEXTS = ("prose", "json")


@dataclass(frozen=True)
class Client:
    """A client program, recognized by a part of the name with which it introduces itself.

    `patience_s`: seconds within which a call should be answered. `result_chars`: the longest result, counted as JSON
    and as text, that reaches its model whole. `drops_text`: its model sees the structured part of a good result and
    never the text; of other clients we do not know which of the two they show. `drops_images`: with a structured part
    it does not see the images either, so a result that shows one has none. `text`: what the text of a good result is,
    prose for a model or the JSON of the structured part, which a program can read.
    """

    name: str
    patience_s: float
    result_chars: int
    drops_text: bool = False
    drops_images: bool = False
    text: str = PROSE
    # The operator wants nothing that looks like a token in a result.
    hides_tokens: bool = False

    @property
    def is_stranger(self) -> bool:
        """Whether it may be a program: it gets results whole, and errors as fields, too."""
        return not self.name


# Agents whose limits we have not measured: they show results to a model, and many give a call up after 60 s.
AGENTS = (
    *("claude-ai", "cursor", "visual-studio-code", "copilot", "windsurf", "cline", "zed", "goose"),
    *("gemini-cli", "opencode"),
)
# A little less than what each was seen to allow: an answer has to be on its way in time, and is wrapped before it is
# shown. Claude Code begins to count tokens at 50,000 characters; Codex cuts out the middle from about 12,000 on.
CLIENTS = (
    Client("claude-code", patience_s=110.0, result_chars=45_000, drops_text=True),
    Client("codex", patience_s=280.0, result_chars=10_000, drops_text=True, drops_images=True),
    *(Client(name, patience_s=50.0, result_chars=100_000) for name in AGENTS),
)
# SDKs, the Inspector and programs of users, which may do with a result whatever they like.
STRANGER = Client("", patience_s=55.0, result_chars=100_000, text=JSON)
# Progress keeps one that has asked for it waiting.
PATIENT_STRANGER = replace(STRANGER, patience_s=110.0)
# A front end of ours.
OURS = Client("ours", patience_s=50.0, result_chars=100_000)


@functools.lru_cache(maxsize=64)
def client_named(name: str, hears_progress: bool = False) -> Client:
    """Limits of the client with that name; those of a stranger where we do not know it."""
    given = re.sub("[^a-z0-9]+", "-", f" {name.lower()}")
    stranger = PATIENT_STRANGER if hears_progress else STRANGER
    return next((client for client in CLIENTS if f"-{client.name}" in given), stranger)


@dataclass(frozen=True)
class Call:
    """A client's call. `again`: an earlier process of ours may have begun it, `waited_s` seconds ago."""

    name: str
    again: bool = False
    waited_s: float = 0.0

    def name_of(self, kind: str, part: str = "") -> str:
        """The name of what this call begins: always the same. `part` tells several apart that one call begins."""
        import hashlib

        what = f"{self.name} {kind} {part}" if part else f"{self.name} {kind}"
        return f"{kind}-{hashlib.sha256(what.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Calls:
    """Gives each line of a conversation a name by its position, because clients may use a request id twice.

    A conversation that moves to another process of ours begins there with the lines that are sent again. `again` holds
    their earlier names, or nothing for a line that cannot have begun anything.
    """

    def __init__(self, session: str, prefix: str = "", again: Sequence[Any] = ()) -> None:
        """`prefix` distinguishes this process from those that served the session before."""
        self._session = session
        self._prefix = prefix
        self._again = again
        self._lines = 0

    def next(self) -> Call:
        number, self._lines = self._lines, self._lines + 1
        before = self._again[number] if number < len(self._again) else None
        if before:
            return Call(f"{self._session} {before['name']}", True, float(before["waited_s"]))
        return Call(f"{self._session} {self._prefix}{number}")


# Called with the name with which a client has introduced itself, for `hub status`.
introduced: ContextVar[Callable[[str], None] | None] = ContextVar("introduced", default=None)
# Called with the id of a command that is about to run for this call.
run_begins: ContextVar[Callable[[str], None] | None] = ContextVar("run_begins", default=None)
# Shell source, such as init lines of a workspace, that runs before what a tool makes up itself for this call.
preamble: ContextVar[str] = ContextVar("preamble", default="")
# Called when the call has nothing to do until the far side answers, so that more calls of its client may begin.
only_waits: ContextVar[Callable[[], None]] = ContextVar("only_waits", default=lambda: None)
_call: ContextVar[Call | None] = ContextVar("call", default=None)


def begin_call(call: Call | None) -> None:
    """Make this the current call, in this task and in those that it starts."""
    _call.set(call)


def current_call() -> Call | None:
    """The current call; None where calls cannot be told apart."""
    return _call.get()


def is_again() -> bool:
    """Whether an earlier process may already have begun the work of the current call."""
    call = _call.get()
    return call is not None and call.again


def name_for_call(kind: str, part: str = "") -> str:
    """Name of what the current call begins, the same at each repetition; empty where calls cannot be told apart."""
    call = _call.get()
    return call.name_of(kind, part) if call else ""


class ClientVariables(dict[str, str]):
    """Environment variables of a client in another process, and the folder in which it was started."""

    def __init__(self, environ: Mapping[str, str], folder: str) -> None:
        super().__init__(environ)
        self.folder = folder


class Variables(Mapping[str, str]):
    """All environment variables of a client, never shown. Equal if they differ only in those of a terminal.

    Which others matter to ssh or its helpers cannot be known, so any other difference counts; at worst we log in twice.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._decisive = {name: value for name, value in self._environ.items() if name not in _OF_A_TERMINAL}

    def __getitem__(self, name: str) -> str:
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variables) and self._decisive == other._decisive

    def __hash__(self) -> int:
        return hash(frozenset(self._decisive.items()))

    def __repr__(self) -> str:
        return "Variables(hidden)"
