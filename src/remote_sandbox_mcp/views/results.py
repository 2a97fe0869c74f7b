"""Values as fields and texts: errors, sandboxes, commands, files; and what is cut where they are too long."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.commands.command import Completed, Ending, Missing, Running
from ..core.errors import ConnectError, Defect, LostContact, NotStarted, SandboxError, UnknownSandbox
from ..core.resources.usage import as_resources
from ..core.task import Report
from ..core.texts.decoding import decode_text
from ..core.texts.shown import each_text, texts_of, tokens_in
from ..core.texts.text import clip, harmless, reveal_file, visible
from ..services.survey import View

if TYPE_CHECKING:
    from ..services.sessions.python import PythonReport

LONGEST_SENTENCE = 1000
# Characters of each stream, printed before a failure, that the error's text contains.
SO_FAR_CHARS = 5000
NOT_STARTED = "nothing was started"
CUT = "this result was cut to what your client takes; ask for less at once to see the rest"
# One encoder: json.dumps would make one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# How many kinds of tokens a warning names.
MOST_NAMED = 3
# How many rows are measured at once.
MEASURED = 50
# How JSON writes control characters, which readers are shown in another way.
_ESCAPED = re.compile(r"\\[bfru]")

T = TypeVar("T")


def warning_of(fields: Mapping[str, Any]) -> str:
    """Says that a result has something in it that should go no further; else empty."""
    found = ", ".join(tokens_in("\n".join(texts_of(fields)))[:MOST_NAMED])
    return f"this has what looks like a secret in it ({found}): do not repeat it" if found else ""


def all_visible(value: Any) -> Any:
    """A value with all control and invisible characters made visible; mostly it has none."""
    written = as_json(value)
    return value if visible(written) == written and not _ESCAPED.search(written) else each_text(value, visible)


def lean(**fields: Any) -> dict[str, Any]:
    """Non-empty fields: false flags, empty texts and empty lists are dropped, zero is kept."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ()) and value is not False}


def error_fields(problem: SandboxError) -> dict[str, Any]:
    """An error's fields for programs."""
    fields: dict[str, Any] = {"error": sentence(problem), "code": problem.code}
    if isinstance(problem, UnknownSandbox):
        fields |= lean(available=list(problem.available))
    if isinstance(problem, ConnectError):
        fields |= {"connection_error": True, "outcome": "not_started"}
    if isinstance(problem, LostContact):
        so_far = problem.so_far
        fields |= {"connection_error": True, "outcome": problem.outcome, "tmux_session": so_far.run_id}
        fields |= lean(stdout=clip(so_far.stdout, SO_FAR_CHARS).text, stderr=clip(so_far.stderr, SO_FAR_CHARS).text)
    return fields


def with_fate(text: str, problem: SandboxError, *, starts: bool) -> str:
    """The sentence, plus whether what the call was to start has been started."""
    if _was_not_started(problem, starts):
        # Apart from the sentence: many end with a command, which is copied to its end.
        return f"{text.rstrip('.')} ({NOT_STARTED})"
    fate = ""
    if isinstance(problem, LostContact) and problem.outcome == "unknown" and not problem.says_how_to_ask:
        handle = problem.so_far.run_id
        fate = f"it may have been started: ask with check_background_task(tmux_session={handle!r})"
    elif isinstance(problem, Defect) and starts:
        fate = "it may have been started: look before repeating it"
    return f"{text.rstrip('.')}; {fate}" if fate else text


def _was_not_started(problem: SandboxError, starts: bool) -> bool:
    if isinstance(problem, LostContact):
        return problem.outcome == "not_started"
    return isinstance(problem, NotStarted) or (isinstance(problem, ConnectError) and starts)


def sentence(problem: SandboxError | str) -> str:
    """An error's text, safe and bounded: it may quote a path with any bytes in it, or another machine."""
    text = harmless(str(problem).encode("utf-8", "surrogatepass"))
    half = LONGEST_SENTENCE // 2
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:half]} [...] {text[-half:]}"


def sandbox_fields(view: View) -> dict[str, Any]:
    what = view.description
    fields = lean(name=what.name, kind=what.kind, host=what.host, port=what.port or None, user=what.user)
    fields |= lean(writable=what.writable)
    fields |= {"is_active": view.active, "connection_alive": view.alive}
    fields |= lean(connection_error=sentence(view.trouble), makes=view.makes)
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
    notes = report.session if isinstance(report, Report) else ""
    session = f"; session: {sentence(notes)}" if notes else ""
    return f"{_end_of(report)}{session}"


def _end_of(report: Report | PythonReport) -> str:
    seen = report.seen
    if isinstance(seen, Completed):
        return f"exit {seen.exit_code} after {seen.seconds:.1f} s{_how(seen)}"
    if isinstance(seen, Running):
        return f"still running after {seen.seconds:.0f} s; ask with check_background_task(tmux_session={seen.run_id!r})"
    return f"{seen.run_id} is not there: {seen.reason}"


def _how(seen: Completed) -> str:
    """Describe an end beyond its exit code."""
    notes = [seen.signal] if seen.ending is Ending.EXITED and seen.signal else []
    notes += [seen.ending.value.replace("_", " ")] if seen.ending is not Ending.EXITED else []
    for name, pids in (("still alive", seen.survivors), ("left running", seen.left_running)):
        notes += [f"{name}: {', '.join(map(str, pids))}"] if pids else []
    return f" ({'; '.join(notes)})" if notes else ""


def task_fields(report: Report, lines: int) -> dict[str, Any]:
    """check_background_task's result: whether it runs, how it ended, and the end of what it printed."""
    seen = report.seen
    fields: dict[str, Any] = {"tmux_session": seen.run_id, "running": isinstance(seen, Running)}
    if isinstance(seen, Missing):
        fields["error"] = f"the run is lost: {seen.reason}"
    else:
        told = exec_fields(report).items()
        fields |= {key: value for key, value in told if key not in ("stdout", "stderr", "running")}
    tail = _last_lines(report.stdout.text, lines)
    return fields | lean(log_tail=tail, stderr_tail=_last_lines(report.stderr.text, lines))


def _last_lines(text: str, lines: int) -> str:
    return "\n".join(text.rstrip("\n").split("\n")[-lines:]) if text else ""


def file_content(data: bytes) -> dict[str, Any]:
    """Text as text with invisible characters escaped; other content as base64. `encoding` is empty for UTF-8."""
    if found := decode_text(data):
        shown = reveal_file(found.text)
        return {"content": shown.text} | lean(encoding=found.encoding, invisible_characters=len(shown.escapes) or None)
    return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def plain_text(path: str) -> str:
    """Names and texts from another machine as readable text: invalid UTF-8 and control characters are made visible."""
    if path.isascii() and path.isprintable():
        return path
    # A name of nothing but escape sequences would vanish.
    return harmless(path.encode("utf-8", "surrogateescape")) or visible(path)


def as_json(value: object) -> str:
    return _ENCODER.encode(value)


def size_of(value: object) -> int:
    """Number of characters as JSON, which is how clients show the structured part."""
    return len(as_json(value))


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


def first_that_fit(items: Sequence[T], most: int) -> Sequence[T]:
    """The items that fit, but at least one: with none, paging could never go on."""
    used = number = 0
    # Many at once take much less time than each by itself.
    while (some := items[number : number + MEASURED]) and used + (size := size_of(some) - 1) <= most:
        used, number = used + size, number + len(some)
    for item in some:
        used += size_of(item) + 1
        if used > most and number:
            return items[:number]
        number += 1
    return items


def _smaller(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return _smaller_text(value, most)
    if isinstance(value, dict):
        return _smaller_fields(value, most)
    if isinstance(value, list) and value:
        kept = list(first_that_fit(value, most - 2))
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
