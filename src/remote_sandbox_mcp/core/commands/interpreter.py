"""Order to a Python session on a sandbox, and its record, which is read as foreign data."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import check
from ..errors import BadArgument
from ..jobs.cards import CardRequest, card_names
from ..sandboxes.foreign import NONSENSE, Fields, read_json, to_text
from ..texts.image import MOST_BYTES
from ..texts.text import harmless, size, span
from .command import Excerpt
from .session_handle import check_session

LONGEST_CODE = 500_000
# One argument of a program may have 128 KiB on Linux.
LONGEST_PIECE = 60_000
# A record that is larger, or comes later, is asked for by itself: until then what was printed ends as plain text.
RECORD_ROOM, INLINE_S = 40_000, 4.0
LARGEST_RECORD = 16 << 20
MOST_IMAGES, MOST_SESSIONS, MOST_CARDS = 4, 200, 64
ENDED = frozenset({"done", "error", "timed_out", "interrupted", "died", "lost"})
NOT_RUN = frozenset(
    {"absent", "no_session", "there", "begun", "busy", "other_python", "failed", "unknown", "no_cards", "fewer_cards"}
)
OTHERS = frozenset({"sessions", "status", "stopped"})


@dataclass(frozen=True, kw_only=True)
class PythonOrder:
    """Code for one session, as a caller wants it run. Without code: the result of the newest call is wanted."""

    code: str
    session: str = "main"
    timeout_s: float = 120.0
    python: str = ""
    cwd: str = ""
    limit: int = 20_000
    # GPUs that a new session gets for itself, until it ends.
    cards: CardRequest | None = None

    def check(self) -> None:
        """Raises BadArgument."""
        check.text_argument("code", self.code, required=False)
        if len(self.code) > LONGEST_CODE:
            how = "write it to a file with write_remote_file, and import or exec that"
            raise BadArgument(f"code has {len(self.code)} characters, and at most {LONGEST_CODE} can be sent; {how}")
        check_session(self.session)
        check.text_argument("python", self.python, required=False)
        check.text_argument("cwd", self.cwd, required=False)
        check.in_range("timeout_s", self.timeout_s, 0.1, check.LONGEST_TIMEOUT_S)
        check.in_range("max_output_chars", self.limit, 1, check.MOST_OUTPUT_CHARS)

    @property
    def shown(self) -> str:
        """The call as it is listed where it outlasts its time."""
        return f"run_python, session {self.session}:\n{self.code}"

    def as_call(self, call_id: str, inline_s: float) -> dict[str, Any]:
        return {
            "verb": "call",
            "session": self.session,
            "id": call_id,
            "code": self.code,
            "timeout": self.timeout_s,
            "limit": 2 * self.limit + 100,
            "python_given": bool(self.python),
            "cwd_given": bool(self.cwd),
            "inline": inline_s,
            "cards": self.cards.count if self.cards else 0,
            "card_mb": self.cards.memory_mb if self.cards else 0,
        }


def packed(order: Mapping[str, Any]) -> list[str]:
    """An order as words of a command line; the far side puts them together."""
    data = base64.b64encode(zlib.compress(json.dumps(order).encode("utf-8", "surrogateescape"), 6)).decode()
    return [data[at : at + LONGEST_PIECE] for at in range(0, len(data), LONGEST_PIECE)]


@dataclass(frozen=True)
class ImageFile:
    """An image that a call has left in its session's folder."""

    path: str
    size: int


@dataclass(frozen=True, kw_only=True)
class PythonRecord:
    """Record of a call by the session's supervisor. `out` and `err` are how many bytes the code has printed."""

    state: str
    value: str = ""
    traceback: str = ""
    why: str = ""
    exit_code: int | None = None
    signal: str = ""
    images: tuple[ImageFile, ...] = ()
    unseen: int = 0
    is_new: bool = False
    # The code did not end when it was interrupted, and still runs.
    goes_on: bool = False
    python: str = ""
    version: str = ""
    # Where the session is, if that is not where the call wanted it.
    folder: str = ""
    memory: int = 0
    gpu: int = 0
    # The cards that its session has leased.
    cards: tuple[str, ...] = ()
    # What was printed between the call before and this one.
    earlier: str = ""
    earlier_dropped: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    busy_with: str = ""
    out: int = 0
    err: int = 0

    @property
    def was_run(self) -> bool:
        return self.state in ENDED

    @property
    def death(self) -> str:
        """Explain why the session is lost, and what follows; empty where it lives."""
        if self.state not in ("died", "lost"):
            return ""
        how = self.why or (f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code or 0}")
        return f"the session has ended ({how}); its variables are lost, and the next call begins a new one"


def find_record(stdout: Excerpt, word: str) -> tuple[Any, Excerpt]:
    """The record at the very end of what was printed, as JSON, and what was printed before it; None without one.

    Only the session's supervisor and its client know the word, so code cannot print a record.
    Raises ValueError for one that cannot be read.
    """
    mark, text = word.encode(), stdout.head + stdout.tail if not stdout.omitted else stdout.tail
    if not text.endswith(mark + b"\n"):
        return None, stdout
    begin = text.rfind(mark, 0, len(text) - len(mark) - 1)
    if begin < 0:
        return None, stdout
    body = text[begin + len(mark) : -len(mark) - 1].strip()
    return unpacked(body), without_end(stdout, len(text) - begin)


def without_end(stream: Excerpt, count: int) -> Excerpt:
    """The stream without its last bytes, which were ours."""
    from_tail = min(count, len(stream.tail))
    tail = stream.tail[: len(stream.tail) - from_tail]
    head = stream.head[: len(stream.head) - (count - from_tail)] if count > from_tail else stream.head
    return replace(stream, head=head, tail=tail, total=max(0, stream.total - count))


def unpacked(body: bytes) -> Any:
    """Raises ValueError, also for what would grow beyond its bound."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(body, validate=True), LARGEST_RECORD)
    except (zlib.error, binascii.Error) as problem:
        raise ValueError(str(problem)) from None
    if not unpacker.eof:
        raise ValueError("it is too large" if unpacker.unconsumed_tail else "it was cut off")
    return read_json(data)


def read_record(value: Any, call_id: str = "") -> PythonRecord:
    """Raises ValueError for what no supervisor of ours says, and for the record of another call than `call_id`."""
    fields = Fields(value)
    if call_id and _text(fields, "id") not in ("", call_id):
        raise ValueError("it is of another call")
    state = fields.text("state")
    if state not in ENDED | NOT_RUN | OTHERS:
        raise ValueError("its state is none that there is")
    return PythonRecord(
        state=state,
        value=_text(fields, "value"),
        traceback=_text(fields, "traceback"),
        why=_text(fields, "why")[:1000],
        exit_code=fields.whole("exit") if fields.has("exit") else None,
        signal=_text(fields, "signal")[:40],
        images=tuple(map(_image, fields.list("images")[:MOST_IMAGES])) if fields.has("images") else (),
        unseen=_unseen(fields),
        is_new=fields.has("new"),
        goes_on=fields.has("goes_on"),
        python=_text(fields, "python")[:4096],
        version=_text(fields, "version")[:40],
        folder=_text(fields, "folder")[:4096],
        memory=_whole(fields, "memory"),
        gpu=_whole(fields, "gpu"),
        cards=card_names(map(to_text, fields.list("cards")[:MOST_CARDS])) if fields.has("cards") else (),
        earlier=_text(fields, "earlier"),
        earlier_dropped=_whole(fields, "earlier_dropped"),
        seconds=_number(fields, "seconds"),
        busy_s=_number(fields, "busy_s"),
        busy_with=_text(fields, "busy_with")[:200],
        out=_whole(fields, "out"),
        err=_whole(fields, "err"),
    )


def _text(fields: Fields, name: str) -> str:
    return fields.text(name) if fields.has(name) else ""


def _whole(fields: Fields, name: str) -> int:
    return max(0, fields.whole(name)) if fields.has(name) else 0


def _number(fields: Fields, name: str) -> float:
    return max(0.0, fields.number(name)) if fields.has(name) else 0.0


def _unseen(fields: Fields) -> int:
    shown = _text(fields, "unseen")
    return int(shown) if shown.isdecimal() and len(shown) < 10 else 0


def _image(value: Any) -> ImageFile:
    fields = Fields(value)
    try:
        path = check.text_argument("an image's path", fields.text("path"))
    except BadArgument as problem:
        raise ValueError(str(problem)) from None
    return ImageFile(path, min(fields.whole("size"), MOST_BYTES))


@dataclass(frozen=True)
class PythonSession:
    """A session in the list of its machine."""

    name: str
    used_s: float = 0.0
    record: PythonRecord = PythonRecord(state="status")
    is_stuck: bool = False

    @property
    def more(self) -> dict[str, object]:
        """Return further fields for the list of jobs."""
        shown: dict[str, object] = {"python": _shown(f"{self.record.version} {self.record.python}")}
        shown |= {"memory": size(self.record.memory)} if self.record.memory else {}
        if self.record.busy_s:
            shown |= {"command": _shown(self.record.busy_with), "seconds": self.record.busy_s}
        return shown


def _shown(text: str) -> str:
    return harmless(text.encode("utf-8", "surrogateescape")).strip()


def read_sessions(value: Any) -> list[PythonSession]:
    """The sessions of a machine. Raises ValueError; a single one that makes no sense is left out."""
    found = []
    for row in Fields(value).list("sessions")[:MOST_SESSIONS]:
        try:
            fields = Fields(row)
            name = check_session(fields.text("session"))
            found.append(PythonSession(name, _number(fields, "unused_s"), read_record(row), fields.has("stuck")))
        except (*NONSENSE, BadArgument):
            continue
    return found


def busy_sentence(order: PythonOrder, record: PythonRecord) -> str:
    """Explain why nothing was run, and what to do."""
    code = f" ({record.busy_with!r})" if record.busy_with else ""
    return (
        f"session {order.session} was still busy after {span(order.timeout_s)}: code of an earlier call{code} has run "
        f"for {span(record.busy_s)}; wait for it, use another session, or end this one with "
        f"stop_background_task(tmux_session='python:{order.session}')"
    )
