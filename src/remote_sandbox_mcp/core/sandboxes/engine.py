"""Messages of container engines, and advice about them: engines have words for their failures, and no codes."""

from __future__ import annotations

from collections.abc import Sequence

DENIED = ("permission denied while trying to connect", "got permission denied", "socket: permission denied")
DOWN = ("cannot connect to the docker daemon", "is the docker daemon running", "cannot connect to podman")


def says(text: str, words: Sequence[str]) -> bool:
    """Whether a text contains one of these."""
    lower = text.lower()
    return any(word in lower for word in words)


def trouble(tool: str, machine: str, text: str) -> tuple[str, str]:
    """Explain why an engine cannot be used at all, and what to do; empty where its output means something else."""
    if says(text, DENIED):
        return f"the user on {machine} may not talk to its {tool}", (
            f"ask for membership of the group {tool} there (which is as good as root on that machine), or use rootless "
            f"podman: podman = true under [machines.{machine}]"
        )
    if says(text, DOWN):
        return f"{tool} does not run on {machine}", f"start it: systemctl start {tool}"
    return "", ""
