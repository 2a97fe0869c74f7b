"""Items in portions, and their names as the lanes read them."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.plan import Item

PORTION_BYTES = 8 << 20


def names_of(batch: list[Item]) -> bytes:
    """A folder, its names, an empty field, and so on, as far/source.py reads it."""
    fields: list[bytes] = []
    folder: bytes | None = None
    for item in batch:
        if item.folder != folder:
            fields += [b"", item.folder] if folder is not None else [item.folder]
            folder = item.folder
        fields.append(item.name)
    return b"\0".join([*fields, b""])


def portions(parts: list[bytes]) -> Iterator[list[bytes]]:
    """As many at once as are sure to fit into a frame."""
    portion: list[bytes] = []
    size = 0
    for part in parts:
        portion.append(part)
        size += len(part)
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def batches(items: list[Item], most: int, size: int) -> Iterator[list[Item]]:
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += item.size
        if len(batch) >= most or total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def text_of(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
