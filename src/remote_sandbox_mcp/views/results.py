"""Turns values into tool results: structured content, a complete text, and images, cut to what the client accepts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_types import CallToolResult, ImageContent, TextContent

from ..app import App, Report, View
from ..core.command import Completed, Ending, Missing, Running
from ..core.errors import BadArgument, ConnectError, Defect, LostContact, NotStarted, SandboxError
from ..core.files import FileSlice, Span
from ..core.image import MOST_BYTES, Image, recognise
from ..core.shown import each_text, shown, texts_of, tokens_in, values_in_use
from ..core.text import clip, harmless, reveal_file, visible
from ..core.usage import as_resources
from .clients import calling
from .texts import one_line

if TYPE_CHECKING:
    from ..interpreters.service import PythonReport

LONGEST_SENTENCE = 1000
# Characters of each stream, printed before a failure, that the error's text contains.
SO_FAR_CHARS = 5000
# Key of an error's code and fields in `_meta`. Not structured content: that would have to match the tool's output
# schema, and strict clients reject the whole answer otherwise.
ABOUT_ERROR = "remote-sandbox/error"
NOT_STARTED = "nothing was started"
# Tools that start something: their errors say whether that has happened.
STARTERS = frozenset(
    {
        *("exec_bash", "run_command", "exec_bash_background", "exec_bash_background_watch"),
        *("run_tests", "deploy_app", "run_python"),
    }
)
# Length of a text that the client does not show to its model.
MOST_DROPPED_TEXT = 2000
CUT = "this result was cut to what your client takes; ask for less at once to see the rest"
# One encoder: json.dumps would make one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# How many kinds of tokens a warning names.
MOST_NAMED = 3
# Number and bytes of images in one result.
MOST_SHOWN, MOST_TOGETHER = 4, 3_000_000

T = TypeVar("T")


def reply(
    structured: dict[str, Any], text: str, *, whole: bool = False, images: Sequence[ImageContent] = ()
) -> CallToolResult:
    """Every result passes here: invisible characters are shown, and it is cut to what the client accepts.

    `whole`: an unknown client gets all of it, because a program asked for these very bytes.
    """
    client = calling.get()
    fields, text = all_visible(without_known(structured)), without_known(text)
    if warning := "" if client.hides_tokens else warning_of(fields):
        fields, text = fields | {"warning": warning}, f"{text}\n{warning}"
    most = 1 << 30 if whole and not client.name else client.result_chars
    fitted = fit(fields, most)
    if fitted is not fields:
        fitted = {**fitted, "truncated": True, "cut": CUT}
        text = f"{text}\n{CUT}"
    # A text that the client never shows can be short.
    longest = MOST_DROPPED_TEXT if client.drops_text else client.result_chars
    return CallToolResult(
        content=[TextContent(type="text", text=shorten(visible(text), longest)), *images], structured_content=fitted
    )


def without_known(value: T) -> T:
    """A result, or its text, without the values that are known to be secret; the operator may want no tokens either."""
    if calling.get().hides_tokens:
        from ..core.redact import without_tokens

        return each_text(value, lambda text: without_tokens(shown(text)))  # type: ignore[no-any-return]
    return each_text(value, shown) if values_in_use() else value


def warning_of(fields: Mapping[str, Any]) -> str:
    """Says that a result has something in it that should go no further; else empty."""
    found = tokens_in("\n".join(texts_of(fields)))
    return (
        f"this has what looks like a secret in it ({', '.join(found[:MOST_NAMED])}): do not repeat it" if found else ""
    )


def all_visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(key) if isinstance(key, str) else key: all_visible(item) for key, item in value.items()}
    return [all_visible(item) for item in value] if isinstance(value, (list, tuple)) else value


def lean(**fields: Any) -> dict[str, Any]:
    """Non-empty fields: false flags, empty texts and empty lists are dropped, zero is kept."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ()) and value is not False}


def failure(problem: SandboxError, tool: str = "") -> CallToolResult:
    """An error as the agent reads it: a sentence, whether anything was started, and output until then."""
    fields = error_fields(problem)
    parts = [with_fate(fields["error"], problem, tool)]
    parts += [f"{name} so far:\n{fields[name]}" for name in ("stdout", "stderr") if name in fields]
    about = {name: value for name, value in fields.items() if name not in ("error", "stdout", "stderr")}
    return failed("\n".join(parts), about)


def failed(text: str, about: dict[str, Any]) -> CallToolResult:
    text, about = visible(without_known(text)), all_visible(without_known(about))
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True, _meta={ABOUT_ERROR: about})


def about_error(answer: object) -> dict[str, Any]:
    """An error's fields for programs: `code` and, after connection trouble, `outcome` and more."""
    return dict((getattr(answer, "meta", None) or {}).get(ABOUT_ERROR, {}))


def code_of(answer: object) -> str:
    return str(about_error(answer).get("code", SandboxError.code))


def error_fields(problem: SandboxError) -> dict[str, Any]:
    """An error's fields for programs."""
    fields: dict[str, Any] = {"error": sentence(problem), "code": problem.code}
    if isinstance(problem, ConnectError):
        fields |= {"connection_error": True, "outcome": "not_started"}
    if isinstance(problem, LostContact):
        so_far = problem.so_far
        fields |= {"connection_error": True, "outcome": problem.outcome, "tmux_session": so_far.run_id}
        fields |= lean(stdout=clip(so_far.stdout, SO_FAR_CHARS).text, stderr=clip(so_far.stderr, SO_FAR_CHARS).text)
    return fields


def with_fate(text: str, problem: SandboxError, tool: str) -> str:
    """The sentence, plus whether what the call was to start has been started."""
    if _was_not_started(problem, tool):
        # Apart from the sentence: many end with a command, which is copied to its end.
        return f"{text.rstrip('.')} ({NOT_STARTED})"
    fate = ""
    if isinstance(problem, LostContact) and problem.outcome == "unknown" and not problem.says_how_to_ask:
        handle = problem.so_far.run_id
        fate = f"it may have been started: ask with check_background_task(tmux_session={handle!r})"
    elif isinstance(problem, Defect) and tool in STARTERS:
        fate = "it may have been started: look before repeating it"
    return f"{text.rstrip('.')}; {fate}" if fate else text


def _was_not_started(problem: SandboxError, tool: str) -> bool:
    if isinstance(problem, LostContact):
        return problem.outcome == "not_started"
    return isinstance(problem, NotStarted) or (isinstance(problem, ConnectError) and tool in STARTERS)


def told_where(answer: CallToolResult, sandbox: str) -> CallToolResult:
    """The answer to a call that named no sandbox, with the name of the one that was used."""
    told = about_error(answer) if answer.is_error else dict(answer.structured_content or {})
    if "sandbox" in told or told.get("code") == BadArgument.code:
        return answer
    told |= {"sandbox": sandbox}
    # The text comes first; images may follow.
    first, *others = answer.content
    assert isinstance(first, TextContent)
    if answer.is_error:
        # Many errors name it themselves.
        return failed(first.text if sandbox in first.text else f"on {sandbox}: {first.text}", told)
    content = [TextContent(type="text", text=f"on {sandbox}: {first.text}"), *others]
    return CallToolResult(content=content, structured_content=told)


def told_moved(answer: CallToolResult, line: str) -> CallToolResult:
    """The answer to a call in a workspace, with a line about what moved with it."""
    if not line:
        return answer
    # It has names of files in it, which may come from the other machine.
    line = visible(one_line(sentence(line)))
    first, *others = answer.content
    assert isinstance(first, TextContent)
    text = f"{first.text}\nworkspace: {line}"
    if answer.is_error:
        return failed(text, about_error(answer) | {"workspace": line})
    content = [TextContent(type="text", text=text), *others]
    return CallToolResult(
        content=content, structured_content=dict(answer.structured_content or {}) | {"workspace": line}
    )


def sentence(problem: SandboxError | str) -> str:
    """An error's text, safe and bounded: it may quote a path with any bytes in it, or another machine."""
    text = harmless(str(problem).encode("utf-8", "surrogatepass"))
    half = LONGEST_SENTENCE // 2
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:half]} [...] {text[-half:]}"


def sandbox_fields(view: View) -> dict[str, Any]:
    what = view.description
    fields = lean(name=what.name, kind=what.kind, host=what.host, port=what.port or None, user=what.user)
    fields |= {"is_active": view.active, "connection_alive": view.alive}
    fields |= lean(connection_error=sentence(view.trouble))
    if view.usage is not None:
        fields["resources"] = as_resources(view.usage, view.score)
    elif view.usage_trouble:
        fields["resources"] = {"error": sentence(view.usage_trouble)}
    return fields


def exec_fields(report: Report) -> dict[str, Any]:
    """exec_bash's result for every way in which a command can end, or go on."""
    seen = report.seen
    fields: dict[str, Any] = {}
    if isinstance(seen, Completed):
        fields = {"exit_code": seen.exit_code} | lean(
            signal=seen.signal if seen.ending is Ending.EXITED else "",
            timed_out=seen.ending is Ending.TIMED_OUT,
            stopped=seen.ending is Ending.STOPPED,
            still_alive=list(seen.survivors),
            left_running=list(seen.left_running),
        )
    elif isinstance(seen, Running):
        fields = {"running": True, "tmux_session": seen.run_id}
    fields |= lean(session=sentence(report.session), stdout=report.stdout.text, stderr=report.stderr.text)
    return fields | truncation(report)


def truncation(report: Report | PythonReport) -> dict[str, Any]:
    seen = report.seen
    fields: dict[str, Any] = {}
    for stream, clipped, excerpt in (("stdout", report.stdout, seen.stdout), ("stderr", report.stderr, seen.stderr)):
        if clipped.omitted:
            fields |= {"truncated": True, f"{stream}_bytes": excerpt.total}
            fields |= lean(**{f"{stream}_file": excerpt.file})
    return fields


def exec_text(report: Report) -> str:
    """exec_bash's result for clients that read only text."""
    stderr = f"stderr:\n{report.stderr.text}" if report.stderr.text else ""
    return "\n".join(filter(None, (exec_head(report), report.stdout.text, stderr)))


def exec_head(report: Report | PythonReport) -> str:
    """The first line of that text: how the command ended, or that it goes on; what became of its session."""
    told = report.session if isinstance(report, Report) else ""
    session = f"; session: {sentence(told)}" if told else ""
    return f"{_end_of(report)}{session}"


def _end_of(report: Report | PythonReport) -> str:
    seen = report.seen
    if isinstance(seen, Completed):
        return f"exit {seen.exit_code} after {seen.seconds:.1f} s{_how(seen)}"
    if isinstance(seen, Running):
        return f"still running after {seen.seconds:.0f} s; ask with check_background_task(tmux_session={seen.run_id!r})"
    return f"{seen.run_id} is not there: {seen.reason}"


def _how(seen: Completed) -> str:
    """What the exit code alone does not say about an end."""
    told = [seen.signal] if seen.ending is Ending.EXITED and seen.signal else []
    told += [seen.ending.value.replace("_", " ")] if seen.ending is not Ending.EXITED else []
    for name, pids in (("still alive", seen.survivors), ("left running", seen.left_running)):
        told += [f"{name}: {', '.join(map(str, pids))}"] if pids else []
    return f" ({'; '.join(told)})" if told else ""


def task_fields(report: Report, lines: int) -> dict[str, Any]:
    """check_background_task's result: whether it runs, how it ended, and the end of what it printed."""
    seen = report.seen
    fields: dict[str, Any] = {"tmux_session": seen.run_id, "running": isinstance(seen, Running)}
    if isinstance(seen, Missing):
        fields["error"] = f"the run is lost: {seen.reason}"
    else:
        fields |= {
            key: value for key, value in exec_fields(report).items() if key not in ("stdout", "stderr", "running")
        }
    tail = _last_lines(report.stdout.text, lines)
    return fields | lean(log_tail=tail, stderr_tail=_last_lines(report.stderr.text, lines))


def _last_lines(text: str, lines: int) -> str:
    return "\n".join(text.rstrip("\n").split("\n")[-lines:]) if text else ""


def file_content(data: bytes) -> dict[str, Any]:
    """Text as text with invisible characters escaped; other content as base64, marked by `encoding`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        shown = reveal_file(text)
        return {"content": shown.text} | lean(invisible_characters=len(shown.escapes) or None)
    import base64

    return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def plain_text(path: str) -> str:
    """Names and texts from another machine as readable text: invalid UTF-8 and control characters are made visible."""
    # A name of nothing but escape sequences would vanish.
    return harmless(path.encode("utf-8", "surrogateescape")) or visible(path)


def size_of(value: object) -> int:
    """Number of characters as JSON, which is how clients show the structured part."""
    return len(_ENCODER.encode(value))


def fit(fields: dict[str, Any], most: int) -> dict[str, Any]:
    """The fields if they fit; otherwise with the longest texts and lists cut."""
    return fields if size_of(fields) <= most else _smaller_fields(fields, most - len(CUT) - 40)


def shorten(text: str, most: int) -> str:
    """A text with its middle left out where it is too long."""
    if len(text) <= most:
        return text
    note = f"\n[... {len(text) - most} of {len(text)} characters left out ...]\n"
    kept = max(0, most - len(note))
    return f"{text[: kept - kept // 3]}{note}{text[len(text) - kept // 3 :]}"


def first_that_fit(items: Sequence[T], sizes: Sequence[int], most: int) -> Sequence[T]:
    """As many items as fit, but at least one: with none, paging could never go on."""
    used = 0
    for number, size in enumerate(sizes):
        used += size + 1
        if used > most and number:
            return items[:number]
    return items


def _smaller(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return _smaller_text(value, most)
    if isinstance(value, dict):
        return _smaller_fields(value, most)
    if isinstance(value, list) and value:
        kept = list(first_that_fit(value, [size_of(item) for item in value], most - 2))
        return kept if len(kept) > 1 else [_smaller(kept[0], most - 2)]
    return value


def _smaller_text(text: str, most: int) -> str:
    kept = text
    # Quotes and line breaks make it longer as JSON, so one cut may not be enough.
    while (size := size_of(kept)) > most and len(kept) > 100:
        kept = shorten(text, max(100, len(kept) * most // size - 10))
    return kept


def _smaller_fields(fields: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Cut the largest field first, then the next."""
    kept = dict(fields)
    for name in sorted(kept, key=lambda name: -size_of(kept[name])):
        over = size_of(kept) - most
        if over <= 0:
            break
        kept[name] = _smaller(kept[name], max(0, size_of(kept[name]) - over))
    return kept


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


async def look(app: App, path: str, *, usual: int, limit: int, name: str) -> tuple[FileSlice, Image | None]:
    """The beginning of a file; an image is read completely.

    A `limit` other than the usual one asks for just these bytes, so a part of an image is not shown as one.
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
