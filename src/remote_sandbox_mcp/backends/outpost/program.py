"""The far side's program as it is sent: one text, and the one line of shell that starts it."""

from __future__ import annotations

import functools
import zlib
from importlib.resources import files

from ...core.shell import quote

PIECES = ("wire", "place", "output", "family", "look", "feed", "keeper", "files", "worker", "post")


@functools.cache
def source() -> str:
    """The pieces joined: with one namespace, their imports of each other fall away."""
    folder = files(__package__).joinpath("far")
    texts = [folder.joinpath(f"{piece}.py").read_text(encoding="utf-8") for piece in PIECES]
    lines = "\n".join(texts).split("\n")
    return "\n".join(line for line in lines if not line.startswith("from ."))


@functools.cache
def packed() -> bytes:
    return zlib.compress(source().encode(), 9)


def loader() -> str:
    """Python that reads exactly the packed program from its input and runs it.

    A reader with a buffer of one byte never takes more than it is asked for: what follows are frames.
    No single quote, newline, backslash or exclamation mark: any login shell passes it on untouched.
    """
    read = f"io.BufferedReader(io.FileIO(0,closefd=False),1).read({len(packed())})"
    return f'import io,zlib;__name__="__main__";exec(compile(zlib.decompress({read}),"outpost","exec"))'


def start_line(python: str, token: str) -> str:
    """The command line for a login shell of any kind."""
    return f"exec {quote_plainly(python)} -IS -c '{loader()}' {token}"


def quote_plainly(word: str) -> str:
    """Leave a plain word as it is: quotes are alike in all shells, but `~` in a configured path should expand."""
    plain = all(letter.isalnum() or letter in "/._-~+" for letter in word)
    return word if plain else quote(word)
