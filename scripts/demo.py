"""`make run`: the page, how to tell an agent, what to try; else the tour."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys

from remote_sandbox_mcp.cli.render import Page, command_path, styled

SAY = (
    "Make a sandbox, write a small web page in it, deploy it, and give me its address.",
    "Start a job in the sandbox local that counts to 100, one number a second, and tell me when it is done.",
)
SAY_OF_MACHINES = "Which of my machines is free? Run hostname there, and tell me what you see."


def main() -> int:
    from remote_sandbox_mcp.cli.browser import browser_here

    # A program that calls make wants it to end.
    if not sys.stdout.isatty() and browser_here(os.environ) is None:
        import tour

        return tour.main()
    from remote_sandbox_mcp.backends.bubblewrap.local import why_not

    _introduce(Page(), command_path(), asyncio.run(why_not()))
    from remote_sandbox_mcp.cli.main import main as run

    return run(["dashboard"])


def _introduce(page: Page, program: str, reason: str) -> None:
    """Say what is there and what to try; `reason` is why no sandbox can run on this computer, if so."""
    from remote_sandbox_mcp.cli.welcome import agent_lines

    word = shlex.quote(program)
    what = ": the hub and a page." if reason else ": the hub, a sandbox on this computer, a page."
    page.print(
        styled(("remote-sandbox-mcp from this checkout", "bold"), (what, "")),
        *(
            ("No sandbox can run on this computer, so add a machine of yours (setup, below):", f"  {reason}")
            if reason
            else ()
        ),
        "The page shows what your agents and your commands do, while they do it.",
    )
    page.heading("Add it to Claude Code, or to Codex")
    page.print(*(f"  {line}" for line in agent_lines(program)), soft_wrap=True)
    page.heading("Say to your agent")
    page.print(*(f"  {line}" for line in ((SAY_OF_MACHINES,) if reason else SAY)), soft_wrap=True)
    page.heading("Or in another terminal")
    create = ("create", "a sandbox, which the page shows at once")
    for words, told in (*(() if reason else (create,)), ("setup", "your own machines, and all of your clients")):
        page.print(styled((f"  {word} {words}", ""), (f"  {told}", "dim")), soft_wrap=True)
    page.heading("The page")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
