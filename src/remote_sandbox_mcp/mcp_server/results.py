"""Values as tool results: structured content without empty fields, and a short text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_types import CallToolResult, ImageContent, TextContent

from ..app import Report, View
from ..core.command import Completed, Ending, Missing, Running
from ..core.errors import BadArgument, ConnectError, LostContact, SandboxError
from ..core.invisible import reveal_file, visible
from ..core.output import clip, harmless
from ..core.usage import as_resources

LONGEST_SENTENCE = 1000


def reply(
    structured: dict[str, Any], text: str, *, is_error: bool = False, images: Sequence[ImageContent] = ()
) -> CallToolResult:
    """The border that every result passes: whatever a machine has said, nothing in it is invisible to its reader."""
    return CallToolResult(
        content=[TextContent(type="text", text=visible(text)), *images],
        structured_content=all_visible(structured),
        is_error=is_error,
    )


def all_visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(key) if isinstance(key, str) else key: all_visible(item) for key, item in value.items()}
    return [all_visible(item) for item in value] if isinstance(value, (list, tuple)) else value


def lean(**fields: Any) -> dict[str, Any]:
    """Fields that say something; false flags, empty texts and empty lists are left out, zero is not."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ()) and value is not False}


def failure(problem: SandboxError) -> CallToolResult:
    """An error as the agent reads it: one sentence, and a code for programs."""
    text = sentence(problem)
    structured: dict[str, Any] = {"error": text, "code": problem.code}
    if isinstance(problem, ConnectError):
        structured |= {"connection_error": True, "outcome": "not_started"}
    if isinstance(problem, LostContact):
        so_far = problem.so_far
        structured |= {"connection_error": True, "outcome": problem.outcome, "tmux_session": so_far.run_id}
        structured |= lean(stdout=clip(so_far.stdout, 5000).text, stderr=clip(so_far.stderr, 5000).text)
    return reply(structured, text, is_error=True)


def told_where(answer: CallToolResult, sandbox: str) -> CallToolResult:
    """The answer to a call that named no sandbox, with the one that it was carried out in."""
    told = dict(answer.structured_content or {})
    if "sandbox" in told or told.get("code") == BadArgument.code:
        return answer
    text = "\n".join(part.text for part in answer.content if isinstance(part, TextContent))
    # Many errors name it themselves.
    text = text if answer.is_error and sandbox in text else f"on {sandbox}: {text}"
    told |= {"sandbox": sandbox} | ({"error": text} if answer.is_error else {})
    shown = [part for part in answer.content if not isinstance(part, TextContent)]
    content = [TextContent(type="text", text=text), *shown]
    return answer.model_copy(update={"content": content, "structured_content": told})


def sentence(problem: SandboxError | str) -> str:
    """What an error says: it may name a path of any length, with any bytes in it, or quote another machine."""
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
    """exec_bash's result for every way in which a command can end, or not end yet."""
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
    fields |= lean(stdout=report.stdout.text, stderr=report.stderr.text)
    return fields | _truncation(report)


def _truncation(report: Report) -> dict[str, Any]:
    seen = report.seen
    fields: dict[str, Any] = {}
    for stream, clipped, excerpt in (("stdout", report.stdout, seen.stdout), ("stderr", report.stderr, seen.stderr)):
        if clipped.omitted:
            fields |= {"truncated": True, f"{stream}_bytes": excerpt.total}
            fields |= lean(**{f"{stream}_file": excerpt.file})
    return fields


def exec_text(report: Report) -> str:
    """The same for clients that read only text."""
    seen = report.seen
    if isinstance(seen, Completed):
        first = f"exit {seen.exit_code} after {seen.seconds:.1f} s"
        if seen.ending is not Ending.EXITED or seen.signal:
            first += f" ({seen.ending.value.replace('_', ' ') if seen.ending is not Ending.EXITED else seen.signal})"
    elif isinstance(seen, Running):
        first = (
            f"still running after {seen.seconds:.0f} s; ask with check_background_task(tmux_session={seen.run_id!r})"
        )
    else:
        first = f"{seen.run_id} is not there: {seen.reason}"
    parts = [first, report.stdout.text, f"stderr:\n{report.stderr.text}" if report.stderr.text else ""]
    return "\n".join(part for part in parts if part)


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
    """Text as text, with what is invisible in it as escapes; what is not text as base64, told by `encoding`."""
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
    """Names and texts of another machine for a reader: bytes that are no UTF-8 and controls are shown, not sent."""
    return harmless(path.encode("utf-8", "surrogateescape"))
