"""Frames on the line: body length, kind, request id, body."""

import json
import os
import struct

MYPY = False
if MYPY:
    from typing import Any

HEADER = struct.Struct(">IBI")
MAX_BODY = 64 << 20

# From the near side.
REQUEST, CANCEL, PING = 1, 2, 3
# From the far side. Every request is answered by any number of the others and exactly one END or FAIL.
HELLO, OUT, ERR, OUT_TAIL, ERR_TAIL, BEAT, END, FAIL, PONG = 10, 11, 12, 13, 14, 15, 16, 17, 18
# From a keeper to its outpost only: it waits for an order.
FREE = 30
# On a lane, from a source to a target: small entries whole, parts of large files, parts the target has already, any of
# these compressed, and the last word on a request.
FILES, PART, COPY, SQUEEZED, DONE = 40, 41, 42, 43, 44


def frame(kind: int, request: int, body: bytes = b"") -> bytes:
    return HEADER.pack(len(body), kind, request) + body


def json_frame(kind: int, request: int, value: "dict[str, Any]") -> bytes:
    return frame(kind, request, json.dumps(value).encode())


def split_frames(buffer: bytearray) -> "list[tuple[int, int, bytes]]":
    """Take the whole frames off the front of `buffer`; raises ValueError when it cannot be a frame."""
    frames = []
    start = 0
    with memoryview(buffer) as view:
        while len(buffer) - start >= HEADER.size:
            length, kind, request = HEADER.unpack_from(buffer, start)
            if length > MAX_BODY:
                raise ValueError("a frame of %d bytes" % length)
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            frames.append((kind, request, view[start + HEADER.size : end].tobytes()))
            start = end
    del buffer[:start]
    return frames


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
