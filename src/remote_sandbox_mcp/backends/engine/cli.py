"""Runs an engine's command line on its machine, and explains its failures."""

from __future__ import annotations

from ...core.engine import trouble
from ...core.errors import SandboxError
from ...core.machine import Engine
from ..command.console import Console, Said
from ..command.way import Way, last_words

NOT_FOUND = 127

# Parts of the engines' error messages, for which they have no codes.
GONE = ("no such container", "no such object", "no container with name or id")
NO_IMAGE = ("no such image", "image not known", "unable to find image", "does not resolve to an image")
# Podman's init may be a separate package that is not installed; then our keeper is the container's first process.
NO_INIT = ("container-init binary not found", "init binary not found", '"docker-init": executable file not found')
REMOVING = ("removal of container", "already in progress", "is being removed")


class Cli(Console):
    """Runs one engine's commands on its machine, a few at once."""

    def __init__(self, machine: str, engine: Engine, way: Way) -> None:
        super().__init__(machine, way, f"{engine.tool} on {machine}")
        self.engine = engine

    def problem(self, doing: str, said: Said) -> SandboxError:
        """Why a command failed, and what to do."""
        tool, machine = self.engine.tool, self.machine
        found, remedy = trouble(tool, machine, said.err.decode("utf-8", "replace"))
        if found:
            return SandboxError.of_parts(doing, found, remedy)
        if said.status == NOT_FOUND and not said.says(("/bin/sh",)):
            return SandboxError.of_parts(
                doing, f"there is no {self.engine.command[0]} on {machine}", f"install {tool} there, or name it in full"
            )
        words = last_words(said.err) or f"it ended with status {said.status}"
        return SandboxError.of_parts(doing, f"{self.where} said: {words}")
