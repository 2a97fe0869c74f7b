"""How closely sandboxes are watched: often while anybody looks, seldom for an hour after that, then not at all."""

from __future__ import annotations

import time

# How often a machine is asked while it is looked at, and again after it did not answer.
SAMPLE_S, DOWN_S = 4.0, 30.0
# A slow one is left alone for so many times as long as it took to answer.
REST_AFTER_ANSWER = 3.0
# Without a looker: how often those that are connected are asked, and for how long.
SELDOM_S, AFTERWARDS_S = 60.0, 3600.0
JOBS_S = 5.0


class Attention:
    """Whether anybody looks, or did so lately."""

    def __init__(self) -> None:
        self.is_looked_at = False
        self._until = 0.0

    def begin(self) -> None:
        self.is_looked_at = True

    def end(self) -> None:
        self.is_looked_at = False
        self._until = time.monotonic() + AFTERWARDS_S

    @property
    def is_over(self) -> bool:
        return not self.is_looked_at and time.monotonic() > self._until

    def pause_after(self, took_s: float, *, is_up: bool) -> float:
        """How long to wait before a machine is asked again."""
        if not self.is_looked_at:
            return SELDOM_S
        return max(SAMPLE_S, REST_AFTER_ANSWER * took_s) if is_up else max(DOWN_S, took_s)
