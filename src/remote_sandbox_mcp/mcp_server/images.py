"""Images in results: a model sees them as images, within what clients and models take."""

from __future__ import annotations

import base64
from typing import Any

from mcp_types import ImageContent

from ..app import App
from ..core.files import FileSlice, Span
from ..core.image import MOST_BYTES, Image, recognise
from .results import lean

# Of one result.
MOST_SHOWN, MOST_TOGETHER = 4, 3_000_000


class Images:
    """The images of one result, and what is said of those that are not shown."""

    def __init__(self) -> None:
        self.blocks: list[ImageContent] = []
        self._bytes = 0

    def add(self, image: Image, found: FileSlice) -> dict[str, Any]:
        """What the result says of it in place of its content."""
        if not (problem := self._problem(image, found)):
            data = base64.b64encode(found.data).decode()
            self.blocks.append(ImageContent(type="image", data=data, mime_type=image.mime_type))
            self._bytes += len(found.data)
        fields = {"size": found.size, "mime_type": image.mime_type}
        fields |= lean(width=image.width or None, height=image.height or None)
        advice = f"not shown: {problem}. Copy it with download_files and local_dir" if problem else ""
        return fields | lean(problem=advice)

    def _problem(self, image: Image, found: FileSlice) -> str:
        if max(found.size, len(found.data)) > MOST_BYTES:
            return f"it has {found.size} bytes, and one with at most {MOST_BYTES} can be shown"
        if image.problem:
            return image.problem
        if len(self.blocks) >= MOST_SHOWN or self._bytes + len(found.data) > MOST_TOGETHER:
            return f"a result shows at most {MOST_SHOWN} images with {MOST_TOGETHER} bytes; ask for it in another call"
        return ""


async def look(app: App, path: str, *, usual: int, limit: int, name: str) -> tuple[FileSlice, Image | None]:
    """A file from its beginning and, where it is an image, all of it.

    `limit` other than the usual one asks for so many bytes: then the part of an image is only bytes.
    """
    found = await app.read(path, Span(limit=limit), name=name)
    image = recognise(found.data)
    if image is None or not found.more:
        return found, image
    if limit != usual:
        return found, None
    if found.size <= MOST_BYTES:
        found = await app.read(path, Span(limit=MOST_BYTES), name=name)
        image = recognise(found.data)
    return found, image
