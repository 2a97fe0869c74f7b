"""Our errors in other words: a program that decides by what they say goes wrong with it."""

from __future__ import annotations

from collections.abc import Callable

from remote_sandbox_mcp.core.errors import SandboxError

Words = Callable[[str], str]
usual = SandboxError.__init__


def as_they_are(words: str) -> str:
    return words


def turned(words: str) -> str:
    """Backwards, behind a sign of its own."""
    return f"⇅{words[::-1]}" if words else ""


def init(self: SandboxError, message: str, reason: str = "", *, found: str = "", remedy: str = "") -> None:
    usual(self, turned(message), reason, found=turned(found), remedy=turned(remedy))


def main() -> int:
    """The command line, with all of its errors turned."""
    from remote_sandbox_mcp.cli.main import main

    SandboxError.__init__ = init  # type: ignore[method-assign]
    return main()


if __name__ == "__main__":
    raise SystemExit(main())
