"""Consent of the client's user: the one place that decides what counts as a yes.

Where the client can show a form, its user is asked and an agent's `confirm` counts for nothing; a no is remembered for
the session. Elsewhere `confirm` counts. An answer proves no human: a client may answer by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ...core.errors import UNCONFIRMED, BadArgument
from ...local.asking import NoAnswer, asking
from ...services.session import current
from ...views.results import plain_text
from ...views.texts import one_line
from .forms import Asker

T = TypeVar("T")

REFUSED = "the user, or the client without asking its user, declined this or several like it, and is not asked again"
TOO_LONG = "it is too long to be shown whole in a form"
# Characters of a question: what a person does not see is not agreed to.
LONGEST = 4000


@dataclass(frozen=True, kw_only=True)
class Request:
    """A wish of an agent's that needs consent, in parts of sentences.

    `kind` and `key` say what a no holds for; `refusal` says what was not done and why, `by_hand` what a person can do
    instead, `unasked` what an agent can do where nobody can be asked (by default, to tell that person).
    """

    kind: str
    key: str
    question: str
    refusal: str
    by_hand: str
    unasked: str = ""


async def with_consent(
    attempt: Callable[[bool], Awaitable[T]], request: Callable[[BadArgument], Request], *, confirm: bool = False
) -> T:
    """Make an attempt without consent (false); if that is refused for want of it, ask the user, and try with it."""
    try:
        return await attempt(confirm and not isinstance(asking.get(), Asker))
    except BadArgument as problem:
        if problem.reason != UNCONFIRMED:
            raise
        await agreed(request(problem))
    return await attempt(True)


async def agreed(request: Request, *, confirm: bool = False) -> None:
    """Return if the user agrees or, where nobody can be asked, if the agent says so by `confirm`.

    Raises BadArgument without a yes, AnswerNeeded where the client asks and makes the call again.
    """
    ask = asking.get()
    if not isinstance(ask, Asker):
        if confirm:
            return
        raise BadArgument(f"{request.refusal}; {request.unasked or request.by_hand}")
    refusals = current().refusals
    async with refusals.turns[request.kind]:
        if refusals.hold(request.kind, request.key):
            raise _refused(request, REFUSED)
        question = one_line(plain_text(request.question))
        if len(question) > LONGEST:
            raise _refused(request, TOO_LONG)
        try:
            answer = await ask.agrees(question)
        except NoAnswer as problem:
            raise _refused(request, str(problem)) from None
        if not answer:
            refusals.note(request.kind, request.key)
            raise _refused(request, REFUSED)


def _refused(request: Request, why: str) -> BadArgument:
    return BadArgument(f"{request.refusal}: {why}; {request.by_hand}")
