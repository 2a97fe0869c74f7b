"""How a transfer goes: what is told of it, and whether compressing makes it faster. No clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.transfer import Headway, Listener

TOLD_EVERY_S = 0.2
RATE_OVER_S = 5.0
WINDOW_S = 0.4
# A line that carries this much gains nothing from compression on one core.
FAST = 30e6
TRY_AGAIN_S = 15.0
BETTER = 1.1


@dataclass
class Meter:
    """Counts what has arrived, and tells it now and then."""

    listener: Listener
    files_total: int = 0
    bytes_total: int = 0
    files: int = 0
    arrived: int = 0
    phase: str = "sending"
    path: str = ""
    _marks: list[tuple[float, int]] = field(default_factory=list)
    _told: float = 0.0

    def add(self, now: float, files: int, count: int, path: bytes) -> None:
        self.files += files
        self.arrived += count
        self.path = path.decode("utf-8", "replace")
        self.tell(now)

    def tell(self, now: float, *, always: bool = False) -> None:
        if not always and now - self._told < TOLD_EVERY_S:
            return
        self._told = now
        self._marks.append((now, self.arrived))
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
class Squeeze:
    """Tries compression on a slow line, and keeps whichever way brings more in the same time."""

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
        """So much arrived, sent that way."""
        if not self.squeezer or bool(way) != self.squeezing:
            return
        if not self._begun:
            self._begun = now
            return
        self._bytes += count
        if now - self._begun >= WINDOW_S:
            self._rates[self.squeezing] = self._bytes / (now - self._begun)
            self._begun, self._bytes = 0.0, 0
            self._decide(now)

    def _decide(self, now: float) -> None:
        raw, squeezed = self._rates.get(False), self._rates.get(True)
        if now < self._until or (raw is not None and raw > FAST and not self.squeezing):
            return
        if raw is None or squeezed is None:
            self.squeezing = not self.squeezing
        else:
            self.squeezing = squeezed > BETTER * raw
            self._until, self._rates = now + TRY_AGAIN_S, {}
