"""`make run`: the page, how to tell an agent, what to try; else the tour."""

from __future__ import annotations

import os
import shlex
import sys

from remote_sandbox_mcp.cli.render import Page, command_path, styled

SAY = (
    "Make a sandbox, write a small web page in it, deploy it, and give me its address.",
    "Start a job in the sandbox local that counts to 100, one number a second, and tell me when it is done.",
)


def main() -> int:
    from remote_sandbox_mcp.cli.browser import browser_here

    # A program that calls make wants it to end.
    if not sys.stdout.isatty() and browser_here(os.environ) is None:
        import tour

        return tour.main()
    _introduce(Page(), command_path())
    from remote_sandbox_mcp.cli.main import main as run

    return run(["dashboard"])


def _introduce(page: Page, program: str) -> None:
    from remote_sandbox_mcp.cli.welcome import agent_lines

    word = shlex.quote(program)
    page.print(
        styled(
            ("remote-sandbox-mcp from this checkout", "bold"), (": the hub, a sandbox on this computer, a page.", "")
        ),
        "The page shows what your agents and your commands do, while they do it.",
    )
    page.heading("Add it to Claude Code, or to Codex")
    page.print(*(f"  {line}" for line in agent_lines(program)), soft_wrap=True)
    page.heading("Say to your agent")
    page.print(*(f"  {line}" for line in SAY), soft_wrap=True)
    page.heading("Or in another terminal")
    for words, told in (
        ("create", "a sandbox, which the page shows at once"),
        ("setup", "your own machines, and all of your clients"),
    ):
        page.print(styled((f"  {word} {words}", ""), (f"  {told}", "dim")), soft_wrap=True)
    page.heading("The page")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
