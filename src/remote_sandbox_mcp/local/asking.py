"""Questions of a machine during a login, and the callers that can put them before a person."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from ..core.errors import ConnectError
from ..core.sandboxes.login import Challenge
from .waiting import within

# A little less than what an sshd allows for a login by default.
ANSWER_S = 100.0
# A connection for which a person gave a code is kept for so long without clients.
KEPT_S = 8 * 3600.0
NOBODY = "no client that waits for it can ask a person"

Answers = tuple[str, ...]
T = TypeVar("T")


class NoAnswer(Exception):
    """Reason why a person did not answer, as a part of a sentence."""


class AnswerNeeded(ConnectError):
    """The call has to end here: the client asks its user, and makes the call again with the answer."""

    code = "answer_needed"


class Question:
    """A challenge that waits for its answers."""

    def __init__(self, challenge: Challenge) -> None:
        self.challenge = challenge
        self.answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        # A caller puts it before its user; no other does.
        self.is_taken = False

    def answer(self, answers: Answers) -> None:
        if not self.answers.done():
            self.answers.set_result(answers)

    def refuse(self, why: str) -> None:
        if not self.answers.done():
            self.answers.set_exception(NoAnswer(why))


class Ask(Protocol):
    """Puts a question before a person."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person wants this very login, and waits at a terminal."""

    def takes(self, challenge: Challenge) -> bool:
        """Whether this may be asked for in this way: a password, for one, may not be asked for everywhere."""

    async def __call__(self, question: Question) -> Answers:
        """Raises NoAnswer, AnswerNeeded."""


# How the current call can ask a person; None where it cannot.
asking: ContextVar[Ask | None] = ContextVar("asking", default=None)


class Questions:
    """The questions of one machine. Calls that wait for the same login share it, and one of them asks."""

    def __init__(self) -> None:
        self._question: Question | None = None
        self._callers: list[Ask | None] = []
        self._changed = asyncio.Event()
        # A call that can ask may come: its machine is opened while it is still being read.
        self.is_awaited = False
        # Whether the last login needed a person, and when one gave an answer (monotonic).
        self.need_person = False
        self._answered_at = float("-inf")

    @property
    def has_terminal(self) -> bool:
        return any(ask.is_terminal for ask in self._callers if ask)

    def can_be_put(self, challenge: Challenge) -> bool:
        """Whether a caller waits that can put this before a person, or may still come."""
        may_come = self.is_awaited and not self._callers and not challenge.wants_password
        return may_come or any(ask.takes(challenge) for ask in self._callers if ask)

    @property
    def were_answered_lately(self) -> bool:
        return self.need_person and time.monotonic() < self._answered_at + KEPT_S

    async def ask(self, challenge: Challenge) -> Answers:
        """A person's answers. Raises NoAnswer."""
        self.need_person = True
        question = self._question = Question(challenge)
        self._notify()
        try:
            answers = await within(_result(question), ANSWER_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise NoAnswer(f"there was no answer within {ANSWER_S:.0f} s") from None
        finally:
            self._question = None
        self._answered_at = time.monotonic()
        return answers

    async def attend(self, opening: asyncio.Future[T]) -> T:
        """Wait for a login, and ask this call's user what the machine asks meanwhile. Raises as the login does."""
        ask = asking.get()
        self._callers.append(ask)
        self.is_awaited = False
        try:
            self._notify()
            while not opening.done():
                if ask and (question := self._question) and _fits(ask, question):
                    await self._put(question, ask, opening)
                else:
                    await _either(opening, asyncio.ensure_future(self._changed.wait()))
            return opening.result()
        finally:
            self._callers.remove(ask)
            self._notify()

    async def _put(self, question: Question, ask: Ask, opening: asyncio.Future[T]) -> None:
        """Have a question answered, as long as it is asked. Raises AnswerNeeded; then it stays taken."""
        question.is_taken = True
        asked = asyncio.ensure_future(ask(question))
        try:
            await _either(opening, asked)
            if asked.done() and not asked.cancelled():
                question.answer(asked.result())
        except NoAnswer as problem:
            question.refuse(str(problem))
        except asyncio.CancelledError:
            # This call was given up; another that waits may ask.
            question.is_taken = False
            raise

    def _notify(self) -> None:
        question = self._question
        if question and not question.is_taken and not self.can_be_put(question.challenge):
            question.refuse(NOBODY)
        self._changed.set()
        self._changed = asyncio.Event()


def _fits(ask: Ask, question: Question) -> bool:
    return not question.is_taken and ask.takes(question.challenge)


async def _result(question: Question) -> Answers:
    return await question.answers


async def _either(opening: asyncio.Future[T], other: asyncio.Future[Any]) -> None:
    """Wait until one of them is over; what goes on beside the login ends with that."""
    try:
        await asyncio.wait((opening, other), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not other.done():
            other.cancel()
            await asyncio.wait((other,))
