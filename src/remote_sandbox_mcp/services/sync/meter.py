"""Progress of a sync: its rate, whether compression pays, and what was sent or failed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...core.errors import FileProblem
from ...core.sandboxes.files import Problem
from ...core.sync.transfer import Headway, Listener, Reply
from ...core.sync.tree import bytes_of

REPORT_EVERY_S = 0.2
RATE_OVER_S = 5.0
WINDOW_S = 0.4
# A faster connection gains nothing from compression on one core.
FAST = 30e6
TRY_AGAIN_S = 15.0
BETTER = 1.1
WAIT_S, FLOW_OVER_S = 0.5, 2.0
LEAST_ON_ITS_WAY, MOST_UNKNOWN, MOST_ON_ITS_WAY = 256 << 10, 16 << 20, 64 << 20
MOST_PROBLEMS = 100
# A field of Tally is called bytes, too.
Raw = bytes
# Errors that end the transfer instead of being reported for a single file.
FATAL = ("No space left on device", "Disk quota exceeded", "Read-only file system")


@dataclass
class Meter:
    """Counts what has arrived and reports it now and then."""

    listener: Listener
    files_total: int = 0
    bytes_total: int = 0
    files: int = 0
    arrived: int = 0
    phase: str = "sending"
    path: str = ""
    _marks: list[tuple[float, int]] = field(default_factory=list)
    _reported_at: float = 0.0

    def add(self, now: float, files: int, count: int, path: bytes) -> None:
        self.files += files
        self.arrived += count
        self.path = path.decode("utf-8", "replace")
        self.report(now)

    def report(self, now: float, *, always: bool = False) -> None:
        if not always and now - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = now
        self._marks.append((now, self.arrived))
        # Over the last seconds only, so that the rate follows the connection.
        while now - self._marks[0][0] > RATE_OVER_S:
            del self._marks[0]
        self.listener(self.headway())

    def headway(self) -> Headway:
        rate, left = self.rate, max(0, self.bytes_total - self.arrived)
        left_s = left / rate if rate > 0 else None
        return Headway(
            self.phase, self.files, self.files_total, self.arrived, self.bytes_total, round(rate), left_s, self.path
        )

    @property
    def rate(self) -> float:
        if not self._marks:
            return 0.0
        (begun, first), (ended, last) = self._marks[0], self._marks[-1]
        return (last - first) / (ended - begun) if ended > begun else 0.0


@dataclass
class Flow:
    """Limit on data in flight: half a second's worth, because everything else waits behind it."""

    round_trip_s: float
    on_its_way: int = 0
    _begun: float = 0.0
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _limit: int = MOST_UNKNOWN

    def has_room(self, size: int) -> bool:
        # A single piece always passes, even one larger than the limit; otherwise nothing would move.
        return not self.on_its_way or self.on_its_way + size <= self._limit

    @property
    def step(self) -> int:
        """Size of a part, small enough that it does not fill the connection alone."""
        return max(LEAST_ON_ITS_WAY // 2, self._limit // 4)

    def sent(self, now: float, size: int) -> None:
        self._begun = self._begun or now
        self.on_its_way += size

    def arrived(self, now: float, size: int) -> None:
        self.on_its_way -= size
        self._arrivals.append((now, size))
        while now - self._arrivals[0][0] > FLOW_OVER_S:
            self._arrivals.popleft()
        seconds = min(now - self._begun, FLOW_OVER_S)
        if seconds >= FLOW_OVER_S / 2:
            rate = sum(count for _, count in self._arrivals) / seconds
            # At least three round trips, so that the limit itself does not slow a long connection.
            wanted = int(rate * max(WAIT_S, 3 * self.round_trip_s))
            self._limit = min(MOST_ON_ITS_WAY, max(LEAST_ON_ITS_WAY, wanted))


@dataclass
class Squeeze:
    """Tries compression on a slow connection, and keeps whichever way is faster."""

    squeezer: str
    squeezing: bool = False
    _begun: float = 0.0
    _bytes: int = 0
    _rates: dict[bool, float] = field(default_factory=dict)
    _until: float = 0.0

    @property
    def way(self) -> str:
        return self.squeezer if self.squeezing else ""

    def add(self, now: float, count: int, way: str) -> None:
        """Record that `count` bytes arrived, sent that way."""
        # Bytes that were sent before the last change of mode would distort the measurement.
        if not self.squeezer or bool(way) != self.squeezing:
            return
        if not self._begun:
            # The first arrival only starts the clock.
            self._begun = now
            return
        self._bytes += count
        if now - self._begun >= WINDOW_S:
            self._rates[self.squeezing] = self._bytes / (now - self._begun)
            self._begun, self._bytes = 0.0, 0
            self._decide(now)

    def _decide(self, now: float) -> None:
        raw, squeezed = self._rates.get(False), self._rates.get(True)
        # At this rate one core cannot compress fast enough, so it is not even tried.
        if now < self._until or (raw is not None and raw > FAST and not self.squeezing):
            return
        if raw is None or squeezed is None:
            # The other mode has not been measured yet.
            self.squeezing = not self.squeezing
        else:
            self.squeezing = squeezed > BETTER * raw
            self._until, self._rates = now + TRY_AGAIN_S, {}


@dataclass
class Tally:
    """Counts results and keeps the first problems. `target` is named in the error where nothing more can be written."""

    target: str
    sent: int = 0
    bytes: int = 0
    deleted_files: int = 0
    deleted_dirs: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    # What was put in place, by its path, and is not or may not be what the scan found at the source.
    otherwise: dict[Raw, Raw] = field(default_factory=dict)
    # What the file system of the target does not keep: see ReceiveAnswer.
    rough: set[str] = field(default_factory=set)

    def hear(self, reply: Reply) -> Reply:
        """Take an answer's problems with single entries. Raises FileProblem where one is fatal."""
        problems = reply.problems()
        for problem in problems:
            self.note(problem)
        self.problem_count += max(0, int(reply.end.get("problem_count", 0)) - len(problems))
        for path, meta in reply.end.get("otherwise", ()):
            self.otherwise[bytes_of(path)] = bytes_of(meta)
        self.rough.update({"m", "t"}.intersection(str(reply.end.get("rough", ""))))
        return reply

    def note(self, problem: Problem) -> None:
        """Raises FileProblem where it is fatal."""
        if any(words in problem.reason for words in FATAL):
            problems = f"{self.target}: {problem.reason}; what had arrived by then is in place"
            raise FileProblem(problems, "fatal")
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
