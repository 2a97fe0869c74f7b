"""Reads and packs the far side's programs: each as one text that is sent, with the shell line that starts it."""

from __future__ import annotations

import functools
import marshal
import threading
import zlib
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import MAGIC_NUMBER
from types import CodeType

from ..core import sync
from ..core.commands.shell import quote

OUTPOST = (
    *("outpost/wire", "outpost/place", "outpost/output", "outpost/family", "outpost/observe", "outpost/sudo"),
    *("outpost/keeper", "outpost/files", "outpost/post"),
)
LANE = (
    *("outpost/wire", "outpost/place", "secret_names", "ignore", "lane/tree", "lane/chunks", "lane/source"),
    *("lane/expected", "lane/large", "lane/target", "lane/snapshot", "lane/follow", "lane/lane"),
)
# JOBS is sent with the first request about jobs and runs in the outpost's namespace; JOB_KEEPER is each job's program.
JOBS = ("jobs/record", "jobs/place", "jobs/tools", "jobs/state", "jobs/start", "jobs/work")
JOB_KEEPER = ("outpost/place", "outpost/family", "jobs/record", "jobs/cards", "jobs/keeper")
# The same for the login node of a Slurm cluster: no other machine is sent what asks a queue, or keeps a job on a node.
CLUSTER_JOBS = (*JOBS, "jobs/queue", "jobs/submit", "jobs/fate", "jobs/cluster")
BATCH_KEEPER = (*JOB_KEEPER, "jobs/batch")
# The parent of a command that runs as root, read by root's Python.
ROOT = ("outpost/family", "outpost/root")
# What confines a line for the shell on a machine whose owner says what may be written there.
WALLS = ("outpost/family", "outpost/filter", "outpost/guard", "outpost/walls")
# Pieces that are modules of core, because both sides must decide alike.
OF_THE_CORE = ("secret_names", "ignore")
# The Python that compiled programs are for.
MAGIC = MAGIC_NUMBER.hex()
_compiling = threading.Lock()


@functools.cache
def source(pieces: tuple[str, ...] = OUTPOST) -> str:
    """The pieces joined into one text, without their `if MYPY:` blocks."""
    # They share one namespace, so their imports of each other are left out as well, and so are those for types, which
    # only annotations in quotes name.
    kept, is_import, is_typing = [], False, False
    for line in "\n".join(read_piece(piece) for piece in pieces).split("\n"):
        is_typing = line == "if MYPY:" or (is_typing and (not line or line.startswith(" ")))
        if is_import or line.startswith(("from .", "from typing import ", "from collections.abc import ")):
            # An import in parentheses goes on to the line that closes them.
            is_import = line.endswith(("(", ","))
        elif not is_typing:
            kept.append(line)
    return "\n".join(kept)


def read_piece(piece: str) -> str:
    return (
        files(sync).joinpath(f"{piece}.py").read_text(encoding="utf-8")
        if piece in OF_THE_CORE
        else read_program(f"{piece}.py")
    )


@functools.cache
def read_program(name: str) -> str:
    """Read a program or a piece of one by its path in this room."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def packed(pieces: tuple[str, ...] = OUTPOST) -> bytes:
    return zlib.compress(source(pieces).encode(), 9)


def compiled(pieces: tuple[str, ...] = OUTPOST) -> bytes:
    """The program for a Python of our own magic number: compiling it there takes longer than the rest of its start."""
    with _compiling:
        return _compiled(pieces)


@functools.cache
def _compiled(pieces: tuple[str, ...]) -> bytes:
    return zlib.compress(marshal.dumps(_bare(compiled_code(pieces))), 9)


def compiled_code(pieces: tuple[str, ...]) -> CodeType:
    code: CodeType = compile(source(pieces), "outpost", "exec", dont_inherit=True, optimize=2)
    return code


def _bare(code: CodeType) -> CodeType:
    """Code without its line numbers, which would be half of what is sent, and which nobody sees."""
    inner = tuple(_bare(part) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=inner)


def sent(pieces: tuple[str, ...] = OUTPOST, *, is_compiled: bool = False) -> bytes:
    """The bytes that the loader reads."""
    return compiled(pieces) if is_compiled else packed(pieces)


def loader(pieces: tuple[str, ...] = OUTPOST, *, is_compiled: bool = False) -> str:
    return loader_of(len(sent(pieces, is_compiled=is_compiled)), is_compiled=is_compiled)


def loader_of(size: int, *, is_compiled: bool = False) -> str:
    """Python that reads exactly the packed program from its input and runs it; another Python runs nothing compiled."""
    # A reader with a buffer of one byte does not read ahead: the frames that follow stay for the program. It has no
    # single quote, newline, backslash or exclamation mark, so any login shell passes it on unchanged.
    read = f"io.BufferedReader(io.FileIO(0,closefd=False),1).read({size})"
    if not is_compiled:
        return f'import io,zlib;__name__="__main__";text=zlib.decompress({read});exec(compile(text,"outpost","exec"))'
    check = f'f.MAGIC_NUMBER.hex()=="{MAGIC}" or sys.exit(1)'
    modules = "io,marshal,sys,zlib,_frozen_importlib_external as f"
    return f'import {modules};{check};__name__="__main__";exec(marshal.loads(zlib.decompress({read})))'


def start_line(
    python: str, token: str, pieces: tuple[str, ...] = OUTPOST, *words: str, is_compiled: bool = False
) -> str:
    """The command line that starts the loader, for a login shell of any kind; `words` need no quotes."""
    load = loader(pieces, is_compiled=is_compiled)
    return " ".join((f"exec {quote_plainly(python)} -IS -c '{load}' {token}", *words))


def walled(line: str, python: str, writable: Sequence[str]) -> tuple[str, bytes]:
    """A line for the login shell that runs `line` within walls, and what must be sent to it first."""
    build = f"{source(WALLS)}\nbuild({line!a}, {list(writable)!a})\n"
    sent = zlib.compress(build.encode(), 9)
    return f"exec {quote_plainly(python)} -IS -c '{loader_of(len(sent))}'", sent


def quote_plainly(word: str) -> str:
    """Quote a word only if it needs it, so that `~` in a configured path still expands."""
    plain = all(letter.isalnum() or letter in "/._-~+" for letter in word)
    return word if plain else quote(word)
