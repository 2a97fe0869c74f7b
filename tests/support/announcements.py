"""What a target is told of entries before they come, as a plan would say it: their kinds and modes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from remote_sandbox_mcp.far.lane.source import ENTRY, names_in_order
from remote_sandbox_mcp.far.outpost.wire import FILES

PLAIN_FILE = "f644"


def announced(raw: bytes, *frames: tuple[int, bytes]) -> list[str]:
    """Of what these frames bring; what they do not bring is a plain file."""
    wanted = {number: PLAIN_FILE for number, _ in enumerate(names_in_order(raw))}
    for kind, body in frames:
        at = 0
        while kind == FILES and at + ENTRY.size <= len(body):
            number, mode, _, length = ENTRY.unpack_from(body, at)
            at += ENTRY.size + length
            if number in wanted:
                wanted[number] = _meta(mode, body[at - length : at])
    return list(wanted.values())


def described(root: Path, raw: bytes) -> list[str]:
    """Of the entries of a tree; what is not there is a plain file."""
    return [_described(os.path.join(os.fsencode(root), folder, name)) for folder, name in names_in_order(raw)]


def _described(path: bytes) -> str:
    if not os.path.lexists(path):
        return PLAIN_FILE
    return _meta(os.lstat(path).st_mode, os.readlink(path) if os.path.islink(path) else b"")


def _meta(mode: int, link: bytes) -> str:
    return f"l777 0 0 {os.fsdecode(link)}" if stat.S_ISLNK(mode) else f"f{stat.S_IMODE(mode):o}"
