"""The far side's program as it is sent: one text, and the one line of shell that starts it."""

from __future__ import annotations

import functools
import zlib
from importlib.resources import files

from ... import core
from ...core.shell import quote

OUTPOST = ("wire", "place", "output", "family", "look", "sudo", "keeper", "files", "post")
LANE = ("wire", "place", "ignore", "tree", "chunks", "source", "expected", "large", "target", "lane")
# Sent when the first job is asked about, into the outpost's own namespace; and the program that each job has.
JOBS = ("jobrecord", "jobplace", "jobtools", "joblook", "jobstart", "jobwork")
JOB_KEEPER = ("place", "family", "jobrecord", "jobkeeper")
# The parent of a command that runs as root, read by root's Python.
ROOT = ("family", "root")
# Decided on both sides by the same text.
OF_THE_CORE = ("ignore",)


@functools.cache
def source(pieces: tuple[str, ...] = OUTPOST) -> str:
    """The pieces joined: with one namespace, their imports of each other fall away, and so does what types need."""
    kept, is_import, is_typing = [], False, False
    for line in "\n".join(read_piece(piece) for piece in pieces).split("\n"):
        is_typing = line == "if MYPY:" or (is_typing and (not line or line.startswith(" ")))
        if is_import or line.startswith("from ."):
            # Until the parenthesis that it may open is closed.
            is_import = line.endswith(("(", ","))
        elif not is_typing:
            kept.append(line)
    return "\n".join(kept)


def read_piece(piece: str) -> str:
    folder = files(core) if piece in OF_THE_CORE else files(__package__).joinpath("far")
    return folder.joinpath(f"{piece}.py").read_text(encoding="utf-8")


@functools.cache
def packed(pieces: tuple[str, ...] = OUTPOST) -> bytes:
    return zlib.compress(source(pieces).encode(), 9)


def loader(pieces: tuple[str, ...] = OUTPOST) -> str:
    """Python that reads exactly the packed program from its input and runs it.

    A reader with a buffer of one byte never takes more than it is asked for: what follows are frames.
    No single quote, newline, backslash or exclamation mark: any login shell passes it on untouched.
    """
    read = f"io.BufferedReader(io.FileIO(0,closefd=False),1).read({len(packed(pieces))})"
    return f'import io,zlib;__name__="__main__";exec(compile(zlib.decompress({read}),"outpost","exec"))'


def start_line(python: str, token: str, pieces: tuple[str, ...] = OUTPOST, *words: str) -> str:
    """The command line for a login shell of any kind; `words` are plain."""
    return " ".join((f"exec {quote_plainly(python)} -IS -c '{loader(pieces)}' {token}", *words))


def quote_plainly(word: str) -> str:
    """Leave a plain word as it is: quotes are alike in all shells, but `~` in a configured path should expand."""
    plain = all(letter.isalnum() or letter in "/._-~+" for letter in word)
    return word if plain else quote(word)
