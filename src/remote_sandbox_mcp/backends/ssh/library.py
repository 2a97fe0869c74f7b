"""Loading asyncssh without starting a compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINKER_CACHE = Path("/etc/ld.so.cache")


def load() -> None:
    """Import asyncssh; call it before the first use, in a thread, as it takes a tenth of a second."""
    with libraries_found_quickly():
        import asyncssh  # noqa: F401


@contextmanager
def libraries_found_quickly() -> Iterator[None]:
    """asyncssh looks for liboqs and nettle, and ctypes runs ldconfig, gcc and ld for each library that is not there.

    That is more than a dozen processes where gcc is installed. The linker's own cache says at once what is not there.
    """
    import ctypes.util

    usual = ctypes.util.find_library

    def find(name: str) -> str | None:
        return usual(name) if f"lib{name}.so".encode() in cache else None

    try:
        cache = LINKER_CACHE.read_bytes()
    except OSError:
        cache = b""
    # Other systems have no such cache, and start no process; this variable names folders that it does not cover.
    if cache and not os.environ.get("LD_LIBRARY_PATH"):
        ctypes.util.find_library = find
    try:
        yield
    finally:
        ctypes.util.find_library = usual
