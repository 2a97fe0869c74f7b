"""The frames of the protocol between near and far side: body length, kind, request id, body."""

import json
import os
import struct
from typing import Callable, Iterator, Mapping

HEADER = struct.Struct(">IBI")
MAX_BODY = 64 << 20
# What an empty frame counts where bytes are limited: handling it costs time even so.
EMPTY = 1 << 10

# From the near side. INPUT is a part of a run's standard input, an empty one its end.
REQUEST, CANCEL, PING, INPUT = 1, 2, 3, 4
# From the far side. Every request is answered by any number of the others and exactly one END or FAIL.
HELLO, OUT, ERR, OUT_TAIL, ERR_TAIL, BEAT, END, FAIL, PONG = 10, 11, 12, 13, 14, 15, 16, 17, 18
# How many bytes of its input a run has taken. At most INPUT_WINDOW more than that may be on their way to it.
TAKEN = 19
INPUT_WINDOW = 1 << 18
# From a keeper to its outpost only: the keeper is free for a run.
FREE = 30
# On a lane, from a source to a target: small entries whole, parts of large files, parts the target has already, any of
# these compressed, and the last word on a request.
FILES, PART, COPY, SQUEEZED, DONE = 40, 41, 42, 43, 44
# Bytes for the lane at the other end of a bridge, and bytes from there.
FORWARD, FORWARDED = 45, 46


def frame(kind: int, request: int, body: bytes = b"") -> bytes:
    return HEADER.pack(len(body), kind, request) + body


def json_frame(kind: int, request: int, value: "Mapping[str, object]") -> bytes:
    return frame(kind, request, json.dumps(value).encode())


def split_frames(
    buffer: bytearray, admit: "Callable[[int, int, int], None] | None" = None
) -> "list[tuple[int, int, bytes]]":
    """Take the complete frames off the front of `buffer`. Raises ValueError for bytes that cannot be a frame.

    `admit` is called with kind, request and length as soon as a header is there, and may raise to refuse the body.
    """
    frames = []
    start = 0
    with memoryview(buffer) as view:
        while len(buffer) - start >= HEADER.size:
            length, kind, request = HEADER.unpack_from(buffer, start)
            if length > MAX_BODY:
                raise ValueError("a frame of %d bytes" % length)
            if admit is not None:
                admit(kind, request, length)
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


class Inbox:
    """Frames read from a descriptor and parsed in place: copying bytes would be most of the cost of moving files."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = bytearray(1 << 20)
        self.start = self.end = 0

    def fill(self) -> bool:
        """Read once; False at the end of the stream."""
        wanted = HEADER.size
        if self.end - self.start >= HEADER.size:
            wanted += HEADER.unpack_from(self.buffer, self.start)[0]
        if self.start and (self.start == self.end or self.start + wanted > len(self.buffer)):
            rest = self.end - self.start
            self.buffer[:rest] = self.buffer[self.start : self.end]
            self.start, self.end = 0, rest
        if wanted > len(self.buffer):
            self.buffer = self.buffer + bytearray(wanted - len(self.buffer))
        got = os.readv(self.fd, [memoryview(self.buffer)[self.end :]])
        self.end += got
        return got > 0

    def frames(self) -> "Iterator[tuple[int, int, memoryview]]":
        """The complete frames that were read, valid until the next `fill`. Raises ValueError for what is no frame."""
        view = memoryview(self.buffer)
        while self.end - self.start >= HEADER.size:
            length, kind, request = HEADER.unpack_from(self.buffer, self.start)
            if length > MAX_BODY:
                raise ValueError("a frame of %d bytes" % length)
            begin = self.start + HEADER.size
            if self.end < begin + length:
                return
            self.start = begin + length
            yield kind, request, view[begin : self.start]
