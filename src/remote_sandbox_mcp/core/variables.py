"""A client's environment variables, for programs that are started in its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# They tell one terminal, window or agent from another, but nothing that decides how a program logs in.
_OF_A_TERMINAL = frozenset(
    {
        *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "WINDOW", "STY"),
        *("TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "ITERM_SESSION_ID", "TMUX", "TMUX_PANE"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "XDG_SESSION_ID", "GPG_TTY", "VTE_VERSION", "INVOCATION_ID"),
        *("JOURNAL_STREAM", "CLAUDECODE", "KITTY_PID", "KITTY_WINDOW_ID", "WEZTERM_PANE", "ALACRITTY_WINDOW_ID"),
    }
)


class ClientVariables(dict[str, str]):
    """Those of a client that is another process, and the folder in which that was started."""

    def __init__(self, environ: Mapping[str, str], folder: str) -> None:
        super().__init__(environ)
        self.folder = folder


class Variables(Mapping[str, str]):
    """All of them, never shown. Two are equal if they differ in nothing but what belongs to a terminal.

    What else a program heeds cannot be known: so two that may mean the same are told apart, at the cost of a login.
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
