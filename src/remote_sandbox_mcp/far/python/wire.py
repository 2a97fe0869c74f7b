"""Frames between a call's client and the session's supervisor: a letter, four bytes of length, and the body."""

import struct

HEAD = struct.Struct(">cI")
LARGEST = 8 << 20
# What a client says, and what a supervisor says.
ORDER, INTERRUPT = b"R", b"I"
OUT, ERR, RECORD = b"O", b"E", b"X"


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(body)) + body


def split_frames(buffer: bytearray) -> "list[tuple[bytes, bytes]]":
    """Take the whole frames out of a buffer. Raises ValueError for one that is too large."""
    frames = []
    while len(buffer) >= HEAD.size:
        kind, length = HEAD.unpack(bytes(buffer[: HEAD.size]))
        if length > LARGEST:
            raise ValueError("a frame is too large")
        if len(buffer) < HEAD.size + length:
            break
        frames.append((kind, bytes(buffer[HEAD.size : HEAD.size + length])))
        del buffer[: HEAD.size + length]
    return frames
