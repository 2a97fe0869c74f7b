"""A path as callers write it: `gpu2:path` names the sandbox that it is on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .errors import BadArgument, UnknownSandbox


@dataclass(frozen=True)
class Address:
    """A path and the sandbox that it is on; none is named by an empty one."""

    sandbox: str
    path: str

    @property
    def from_home(self) -> str:
        """The path with ~ in front where it is relative, so that no other folder is taken for its start."""
        return self.path if self.path.startswith(("/", "~")) else f"~/{self.path}"


def read_address(text: str) -> Address:
    """Split `gpu2:path` at its first colon; a path of its own that holds a colon has a slash before it."""
    name, colon, path = text.partition(":")
    return Address(name, path) if colon and name and "/" not in name else Address("", text)


def plain_name(name: str) -> str:
    """A sandbox's name without the signs that separate it from a path."""
    return name.replace("/", "-").replace(":", "-")


def read_target(text: str) -> Address:
    """Split the name of a sandbox and perhaps a folder on it."""
    name, _, folder = text.partition(":")
    return Address(name, folder)


def sandboxes_named(values: Iterable[object]) -> Iterator[str]:
    """Find the sandboxes that paths name: texts, lists of texts, and lists of objects with a `path`."""
    for value in values:
        if isinstance(value, str):
            yield from filter(None, (read_address(value).sandbox,))
        elif isinstance(value, dict):
            yield from sandboxes_named((value.get("path"),))
        elif isinstance(value, (list, tuple)):
            yield from sandboxes_named(value)


def not_a_sandbox(problem: UnknownSandbox, text: str) -> UnknownSandbox:
    """The refusal of a path whose prefix names no sandbox."""
    return UnknownSandbox(f"{problem}. A path with a colon is written ./{text[:200]}")


def contradiction(text: str, sandbox: str) -> BadArgument:
    return BadArgument(
        f"{text[:200]} names another sandbox than {sandbox}, which was named beside it, so nothing was done; name one"
    )
