"""What was run where, for who reads it later: the last commands of each sandbox and the end of what they printed."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST_SANDBOXES, MOST_ENTRIES = 200, 50
LONGEST_COMMAND, LONGEST_TAIL = 500, 4000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A command that was run. `outcome` is a word or two: exit 0, running, timed out."""

    at: float
    command: str
    outcome: str
    seconds: float = 0.0
    tail: str = ""


class Journal:
    """Bounded in every direction; the oldest goes first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, deque[Entry]] = OrderedDict()

    def note(self, sandbox: str, entry: Entry) -> None:
        kept = self._entries.setdefault(sandbox, deque(maxlen=MOST_ENTRIES))
        self._entries.move_to_end(sandbox)
        command, tail = entry.command[:LONGEST_COMMAND], entry.tail[-LONGEST_TAIL:]
        kept.append(Entry(at=entry.at, command=command, outcome=entry.outcome, seconds=entry.seconds, tail=tail))
        while len(self._entries) > MOST_SANDBOXES:
            self._entries.popitem(last=False)

    def of(self, sandbox: str) -> Sequence[Entry]:
        """Oldest first."""
        return tuple(self._entries.get(sandbox, ()))

    def forget(self, sandbox: str) -> None:
        self._entries.pop(sandbox, None)
