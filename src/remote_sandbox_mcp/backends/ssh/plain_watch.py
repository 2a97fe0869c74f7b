"""Waiting for one run over plain channels, line after line."""

from __future__ import annotations

import asyncio
import time

from ...core.command import Command, Completed, Missing, Running
from ...core.errors import LostContact
from ...core.foreign import understood
from ...core.progress import Beat, Progress
from ..pace import Pace
from .runner import Answer, Talk

BEAT_S = 0.5
# How long after its own time limit the far side may take to end a run, and to tell it; and to take one at all.
OVERTIME_S, CLAIM_S = 60.0, 60.0


class Watch:
    """Waits for one run: until its end, or until the caller's patience is over."""

    def __init__(self, command: Command, patience_s: float | None, progress: Progress, place: str, name: str) -> None:
        self.command = command
        self.name = name
        self.pace = Pace(name)
        self.progress = progress
        self.place = place
        self.sent = False
        self.mend_until = 0.0
        self.begun = self.beaten = time.monotonic()
        # Who never tells the end of a run does not keep its caller for ever.
        longest_s = max(0.0, command.timeout_s) + OVERTIME_S
        self.until = self.begun + (longest_s if patience_s is None else min(patience_s, longest_s))

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    async def follow(self, talk: Talk) -> Answer | None:
        """The whole answer, or None when patience is over; never before the far side has taken the run."""
        holding = asyncio.create_task(talk.hold())
        try:
            while not holding.done():
                if self.left_s <= (0 if talk.answer.claimed else -CLAIM_S):
                    return None
                await asyncio.wait((holding,), timeout=max(0.05, min(self.left_s, BEAT_S)))
                self._report(talk.answer)
            return holding.result()
        finally:
            self.sent = self.sent or talk.sent
            self.place = talk.answer.place or self.place
            self.mend_until = 0.0 if talk.answer.heard else self.mend_until
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)

    def _report(self, answer: Answer) -> None:
        now = time.monotonic()
        if now - self.beaten > BEAT_S * 0.9:
            self.beaten = now
            self.progress(Beat(now - self.begun, answer.last_bytes, answer.last_text))

    def judge(self, answer: Answer) -> Completed | Running:
        """Raises Refusal for what could not be started, LostContact for what is not there any more, BrokenRules."""
        with understood(self.name):
            seen = answer.observation(self.command.run_id)
        if not isinstance(seen, Missing):
            return seen
        never = answer.verdict == "unstarted"
        advice = "It was not started" if never else "What it did before that is not known; look before repeating it"
        raise LostContact(
            f"the run was lost: {seen.reason}. {advice}",
            outcome="not_started" if never else "lost",
            so_far=Running(seen.run_id, seen.stdout, seen.stderr),
        )

    def so_far(self) -> Running:
        return Running(self.command.run_id, seconds=time.monotonic() - self.begun)
