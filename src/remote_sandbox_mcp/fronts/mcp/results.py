"""Tool results: structured content, a complete text and images, cut to what the client accepts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mcp_types import CallToolResult, ImageContent, InputRequiredResult, TextContent

from ...app import App
from ...core.client import JSON
from ...core.errors import BadArgument, SandboxError
from ...core.sandboxes.files import FileSlice, Span
from ...core.texts.image import MOST_BYTES, Image, recognise
from ...core.texts.shown import each_text, shown, values_in_use
from ...core.texts.text import visible
from ...services.hub_contact.hello import ABOUT_ERROR
from ...views.results import (
    CUT,
    all_visible,
    as_json,
    error_fields,
    fit,
    lean,
    sentence,
    shorten,
    warning_of,
    with_fate,
)
from ...views.texts import fields_text, one_line
from .clients import calling
from .toolbox import Declaration

T = TypeVar("T")
Answer = CallToolResult | InputRequiredResult
# Length of a text that the client does not show to its model.
MOST_DROPPED_TEXT = 2000
# Number and bytes of images in one result.
MOST_SHOWN, MOST_TOGETHER = 4, 3_000_000


def reply(
    structured: dict[str, Any], text: str, *, whole: bool = False, images: Sequence[ImageContent] = ()
) -> CallToolResult:
    """Every result passes here: invisible characters are shown, and it is cut to what the client accepts.

    `whole`: it is not cut, because the caller asked for these very bytes.
    """
    client = calling.get()
    fields, text = all_visible(redacted(structured)), redacted(text)
    if warning := "" if client.hides_tokens else warning_of(fields):
        fields, text = fields | {"warning": warning}, f"{text}\n{warning}"
    most = 1 << 30 if whole else client.result_chars
    fitted = fit(fields, most)
    if fitted is not fields:
        fitted = {**fitted, "truncated": True, "cut": CUT}
        text = f"{text}\n{CUT}"
    # A text that the client never shows can be short.
    is_dropped = client.drops_text and not (images and client.drops_images)
    longest = MOST_DROPPED_TEXT if is_dropped else client.result_chars
    return CallToolResult(
        content=[TextContent(type="text", text=shorten(visible(text), longest)), *images], structured_content=fitted
    )


def told(first: str, fields: dict[str, Any], *without: str, images: Sequence[ImageContent] = ()) -> CallToolResult:
    """Reply with fields; the text is a first line, then those of them that this line does not tell."""
    return reply(fields, fields_text(first, fields, without=without), images=images)


def as_shown(answer: Answer, tool: Declaration, given: Mapping[str, Any]) -> Answer:
    """The answer in the form that is right for its client; every answer passes here last."""
    if not isinstance(answer, CallToolResult):
        return answer
    client, (first, *others), fields = calling.get(), answer.content, answer.structured_content
    assert isinstance(first, TextContent)
    if answer.is_error:
        # Codex would show its model these fields in place of the sentence, so known clients do not get them.
        fields = {"error": first.text, **about_error(answer)} if client.is_stranger else None
    elif client.is_stranger and fields and tool.earlier:
        fields = fields | tool.earlier(given, fields)
    if client.text == JSON and fields and not answer.is_error:
        first = TextContent(type="text", text=as_json(fields))
    if client.drops_images and any(isinstance(block, ImageContent) for block in others):
        # It would hide the images from the client's model.
        fields = None
    return answer.model_copy(update={"content": [first, *others], "structured_content": fields})


def redacted(value: T) -> T:
    """A result, or its text, without the values that are known to be secret; the operator may want no tokens either."""
    if calling.get().hides_tokens:
        from ...core.texts.redact import without_tokens

        return each_text(value, lambda text: without_tokens(shown(text)))  # type: ignore[no-any-return]
    return each_text(value, shown) if values_in_use() else value


def failure(problem: SandboxError, *, starts: bool = False) -> CallToolResult:
    """An error as the agent reads it: a sentence, whether anything was started, and output until then."""
    fields = error_fields(problem)
    parts = [with_fate(fields["error"], problem, starts=starts)]
    parts += [f"{name} so far:\n{fields[name]}" for name in ("stdout", "stderr") if name in fields]
    about = {name: value for name, value in fields.items() if name not in ("error", "stdout", "stderr")}
    return failed("\n".join(parts), about)


def failed(text: str, about: dict[str, Any]) -> CallToolResult:
    text, about = visible(redacted(text)), all_visible(redacted(about))
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True, _meta={ABOUT_ERROR: about})


def about_error(answer: object) -> dict[str, Any]:
    """An error's fields for programs: `code` and, after connection trouble, `outcome` and more."""
    return dict((getattr(answer, "meta", None) or {}).get(ABOUT_ERROR, {}))


def fields_of(answer: CallToolResult) -> dict[str, Any]:
    """The fields for programs, of a good result or of an error."""
    return about_error(answer) if answer.is_error else dict(answer.structured_content or {})


def code_of(answer: object) -> str:
    return str(about_error(answer).get("code", SandboxError.code))


def with_sandbox(answer: CallToolResult, sandbox: str) -> CallToolResult:
    """The answer to a call that named no sandbox, with the name of the one that was used."""
    fields, text = fields_of(answer), _text_of(answer)
    if "sandbox" in fields or fields.get("code") == BadArgument.code:
        return answer
    # Many errors name it themselves.
    is_named = answer.is_error and sandbox in text
    return _changed(answer, text if is_named else f"on {sandbox}: {text}", fields | {"sandbox": sandbox})


def placed(answer: CallToolResult, named: str, sandbox: str) -> CallToolResult:
    """The answer, with the sandbox that was chosen where the caller did not name it alone."""
    return answer if named in ("", sandbox) else with_sandbox(answer, sandbox)


def with_moved(answer: CallToolResult, line: str) -> CallToolResult:
    """The answer to a call in a workspace, with a line about what moved with it."""
    if not line:
        return answer
    # It has names of files in it, which may come from the other machine.
    line = visible(one_line(sentence(line)))
    return _changed(answer, f"{_text_of(answer)}\nworkspace: {line}", fields_of(answer) | {"workspace": line})


def _text_of(answer: CallToolResult) -> str:
    """The text, which comes first; images may follow."""
    first = answer.content[0]
    assert isinstance(first, TextContent)
    return first.text


def _changed(answer: CallToolResult, text: str, fields: dict[str, Any]) -> CallToolResult:
    if answer.is_error:
        return failed(text, fields)
    content = [TextContent(type="text", text=text), *answer.content[1:]]
    return CallToolResult(content=content, structured_content=fields)


class ResultImages:
    """The images of one result; one that is not shown gets fields that say why."""

    def __init__(self) -> None:
        self.blocks: list[ImageContent] = []
        self._bytes = 0

    def add(self, image: Image, found: FileSlice) -> dict[str, Any]:
        """The image's fields in the result, in place of its content."""
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


async def read_slice(
    app: App, path: str, *, usual: int, limit: int, name: str, first: int | None = None
) -> tuple[FileSlice, Image | None]:
    """The beginning of a file, of which `first` bytes are enough; an image is read completely.

    A `limit` other than the usual one asks for just these bytes, so a part of an image is not shown as one.
    """
    enough = limit if first is None else min(first, limit)
    found = await app.files.read(path, Span(limit=enough), name=name)
    image = recognise(found.data)
    if image and found.more and enough < limit:
        found = await app.files.read(path, Span(limit=limit), name=name)
        image = recognise(found.data)
    if image is None or not found.more:
        return found, image
    if limit != usual:
        return found, None
    if found.size <= MOST_BYTES:
        found = await app.files.read(path, Span(limit=MOST_BYTES), name=name)
        image = recognise(found.data)
    return found, image
