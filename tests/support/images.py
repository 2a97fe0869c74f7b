"""Small images, made by hand: whole ones of each kind that models take."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 3, height: int = 2, *, padding: int = 0) -> bytes:
    """A real one; with so many bytes in a chunk that nobody reads, to be as large as a test wants it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + min(width, 100)) * min(height, 100)))
    chunks = [(b"IHDR", header), (b"tEXt", bytes(padding)), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int = 3, height: int = 2, *, before: bytes = b"") -> bytes:
    """As much of one as says what it is."""
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"\x12\x34"
    return b"\xff\xd8\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0" + before + frame + scan + b"\xff\xd9"


def gif(width: int = 3, height: int = 2) -> bytes:
    real = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
    return real[:6] + struct.pack("<HH", width, height) + real[10:]


WEBP_LOSSY = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
WEBP_LOSSLESS = base64.b64decode("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")


def webp_extended(width: int = 3, height: int = 2) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X\x0a\0\0\0\0\0\0\0" + size + WEBP_LOSSLESS[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body
