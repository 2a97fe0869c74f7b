"""Items in portions, and their names as the lanes read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.plan import Item

PORTION_BYTES = 8 << 20
# What JSON makes of one byte at most.
MOST_ESCAPED = 6


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


def wanted_of(batch: list[Item]) -> list[str]:
    """What each has to be, as far/target.py reads it: the kind and mode of a file, all that is known of a link."""
    return [item.text.partition(b" ")[0].decode() if item.text[:1] == b"f" else text_of(item.text) for item in batch]


def portions(parts: list[bytes], found: Sequence[bytes] = ()) -> Iterator[tuple[list[bytes], list[str]]]:
    """As many parts at once as are sure to fit into a frame, with what was found for each, if that is given."""
    begin = size = 0
    for at, part in enumerate(parts):
        size += len(part) + (MOST_ESCAPED * len(found[at]) + len('"", ') if found else 0)
        if size >= PORTION_BYTES or at == len(parts) - 1:
            yield parts[begin : at + 1], list(map(text_of, found[begin : at + 1]))
            begin, size = at + 1, 0


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
