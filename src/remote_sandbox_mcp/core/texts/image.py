"""Images that a model can look at, told by their first bytes: what they are is read, their pixels are never decoded.

An image comes from a machine that may be hostile. A decoder is code that such files are made to break, so there is none
here: a few fields at known places are read, with a bound on the one loop. What a model's service would refuse (no
pixels, too many, an end that is missing) is not shown, because one such image can spoil a whole conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The services take 5 MB in base64, and 8000 pixels on a side.
MOST_BYTES = 1_500_000
LONGEST_SIDE = 8000
MOST_MARKERS = 1000
# Some programs write a few bytes after the end.
LAST_BYTES = 1024

Size = tuple[int, int]
UNKNOWN: Size = (0, 0)
# JPEG: markers that begin a frame and so tell its size (C0 to CF but for tables), and those without a length.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
_SCAN = 0xDA


@dataclass(frozen=True)
class Image:
    """Claims of an image file: no size where that cannot be read; `is_whole` where its end is there."""

    mime_type: str
    width: int
    height: int
    is_whole: bool

    @property
    def problem(self) -> str:
        """Explain why a model cannot be shown this image; empty if it can."""
        if not self.width or not self.height or not self.is_whole:
            return "it is damaged, or still being written"
        if max(self.width, self.height) > LONGEST_SIDE:
            return f"it has {self.width} x {self.height} pixels, more than {LONGEST_SIDE} on a side"
        return ""


def recognise(data: bytes) -> Image | None:
    """The image that these bytes begin; None for anything else. The file's name plays no role."""
    for mime_type, (is_begun_by, size, is_whole) in _KINDS.items():
        # A text may begin like an image; no image is without a zero byte.
        if is_begun_by(data) and b"\0" in data:
            return Image(mime_type, *size(data), is_whole(data))
    return None


def _png(data: bytes) -> Size:
    return (_big(data, 16, 4), _big(data, 20, 4)) if data[12:16] == b"IHDR" else UNKNOWN


def _webp(data: bytes) -> Size:
    """Read the size of a WebP image from any of its three forms."""
    form = data[12:16]
    if form == b"VP8X":
        return 1 + _little(data, 24, 3), 1 + _little(data, 27, 3)
    if form == b"VP8L" and data[20:21] == b"\x2f":
        bits = _little(data, 21, 4)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    is_simple = form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a"
    return (_little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF) if is_simple else UNKNOWN


def _jpeg(data: bytes) -> Size:
    """Walk from marker to marker by their lengths, up to the one that has the size."""
    at = 2
    for _ in range(MOST_MARKERS):
        marker = data[at + 1] if at + 9 <= len(data) and data[at] == 0xFF else _SCAN
        if marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        if marker == _SCAN:
            break
        at += 1 if marker == 0xFF else 2 if marker in _BARE else 2 + max(2, _big(data, at + 2, 2))
    return UNKNOWN


def _big(data: bytes, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "big")


def _little(data: bytes, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")


Test = Callable[[bytes], bool]
# By mime type: whether a file begins like it, its size, and whether its end is there.
_KINDS: dict[str, tuple[Test, Callable[[bytes], Size], Test]] = {
    "image/png": (
        lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
        _png,
        lambda data: b"IEND\xaeB`\x82" in data[-LAST_BYTES:],
    ),
    "image/jpeg": (
        lambda data: data.startswith(b"\xff\xd8\xff"),
        _jpeg,
        lambda data: b"\xff\xd9" in data[-LAST_BYTES:],
    ),
    "image/gif": (
        lambda data: data.startswith((b"GIF87a", b"GIF89a")),
        lambda data: (_little(data, 6, 2), _little(data, 8, 2)),
        lambda data: data[-LAST_BYTES:].rstrip(b"\0\r\n").endswith(b";"),
    ),
    "image/webp": (
        lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
        _webp,
        lambda data: len(data) >= _little(data, 4, 4) + 8,
    ),
}
