"""Questions to the client's user, as forms, in old and new versions of the protocol: of a login, or of ours."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, InputRequiredResult
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequests
from pydantic import ValidationError

from ...core.sandboxes.login import LONGEST_ANSWER, Challenge
from ...local.asking import AnswerNeeded, Answers, NoAnswer, Question, asking
from ...local.waiting import within
from ...services.session import Session, current
from .clients import CallContext, abilities

# Since this version a server does not ask during a call: the call returns the form, and is made again with the answer.
ROUNDS_SINCE = "2026-07-28"
DECLINED = "the form with its question was {action}"
UNREADABLE = "the form with its question came back without an answer"
UNABLE = "this client did not show the form with its question"
OVER = "the call that could have asked is over"
MOST_CONSENTS = 100


class Shown:
    """Form as a client shows it: a message, and fields to fill in."""

    message: str
    fields: dict[str, dict[str, Any]]

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": self.fields, "required": [*self.fields]}

    @property
    def request(self) -> ElicitRequest:
        return ElicitRequest(params=ElicitRequestFormParams(message=self.message, requested_schema=self.schema))


class Form(Shown):
    """A question as a client shows it. Its field names are random, so that answers to another form are not taken."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.key = f"login-{secrets.token_hex(16)}"
        mark = secrets.token_hex(4)
        self._prompts = {f"answer_{n}_{mark}": prompt for n, prompt in enumerate(question.challenge.prompts, 1)}
        self.fields = {
            name: {"type": "string", "title": f"“{prompt.text}”", "maxLength": LONGEST_ANSWER}
            for name, prompt in self._prompts.items()
        }
        asked = question.challenge
        quoted = [f"> {text}" for text in (asked.note, *(prompt.text for prompt in asked.prompts)) if text]
        begin = f"To log in, {asked.host} asks, in its own words:"
        end = "The answer goes to that machine alone and is not kept. Give a code for this machine, and no password."
        self.message = "\n".join((begin, *quoted, end))

    def is_foreign(self, result: ElicitResult) -> bool:
        """Whether another form was filled in."""
        content = result.content or {}
        return result.action == "accept" and bool(content) and not self._prompts.keys() & content.keys()

    def read(self, result: object) -> Answers:
        """Raises NoAnswer."""
        if not isinstance(result, ElicitResult):
            raise NoAnswer(UNREADABLE)
        if result.action != "accept":
            raise NoAnswer(DECLINED.format(action={"decline": "declined"}.get(result.action, "cancelled")))
        given = [(result.content or {}).get(name) for name in self._prompts]
        answers = tuple(answer for answer in given if isinstance(answer, str) and answer.isprintable())
        if len(answers) != len(given) or any(len(answer) > LONGEST_ANSWER for answer in answers):
            raise NoAnswer(UNREADABLE)
        return answers


class Consent(Shown):
    """A question of ours that is answered with yes or no. `about` is all that the answer depends on."""

    def __init__(self, about: str) -> None:
        self.about = about
        self.key = f"consent-{secrets.token_hex(16)}"
        self._field = f"agreed_{secrets.token_hex(4)}"
        self.message, self.fields = about, {self._field: {"type": "boolean", "title": "Yes, do it"}}

    def read(self, result: object) -> bool:
        """Raises NoAnswer. A form that was closed is no answer; one that was declined is a no."""
        if not isinstance(result, ElicitResult):
            raise NoAnswer(UNREADABLE)
        if result.action == "cancel":
            raise NoAnswer(DECLINED.format(action="cancelled"))
        answer = result.action == "accept" and (result.content or {}).get(self._field)
        if not isinstance(answer, bool):
            raise NoAnswer(UNREADABLE)
        return answer


class Asker:
    """Asks the user of the client that made one call, about the sandboxes that the call names."""

    is_terminal = False

    def __init__(self, forms: Forms, context: CallContext, names: Collection[str], limit_s: float) -> None:
        self._forms = forms
        self._context = context
        self._names = names
        self._limit_s = limit_s
        self._is_over = False
        # Forms that the client is to show before it makes the call again.
        self._shown: list[Form] = []
        self._consents: list[Consent] = []

    def __enter__(self) -> Asker:
        """While the call runs, machines that are opened for it may ask its client's user."""
        self._token = asking.set(self if shows_forms(self._context) else None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        asking.reset(self._token)
        self._is_over = True
        if kind is not None:
            self._withdraw()

    def takes(self, challenge: Challenge) -> bool:
        # Work that outlasts its call, such as a sync, still has this object in its context.
        return not self._is_over and challenge.name in self._names and not challenge.wants_password

    async def __call__(self, question: Question) -> Answers:
        form = Form(question)
        assert self._context
        if not is_in_rounds(self._context):
            result = await self._elicit(self._context, form)
            # After a hub died, its form may still be open in the client and be answered in place of this one.
            return form.read(await self._elicit(self._context, form) if form.is_foreign(result) else result)
        self._forms.keep(form)
        self._shown.append(form)
        raise AnswerNeeded(f"{question.challenge.host} asks a question, which the client has to show")

    async def agrees(self, about: str) -> bool:
        """Whether the client's user says yes to a question of ours. Raises NoAnswer, AnswerNeeded."""
        assert self._context
        if self._is_over:
            raise NoAnswer(OVER)
        if not is_in_rounds(self._context):
            consent = Consent(about)
            return consent.read(await self._elicit(self._context, consent))
        answered = self._forms.consent(self._context, about)
        if answered is not None:
            return answered
        self._consents.append(self._forms.keep_consent(Consent(about)))
        raise AnswerNeeded("this needs its user's consent, for which the client has to ask")

    async def _elicit(self, context: Context[None, Any], form: Form | Consent) -> ElicitResult:
        asked = context.session.elicit_form(form.message, form.schema, context.request_id)
        try:
            return await within(asked, self._limit_s)
        except (asyncio.TimeoutError, TimeoutError):
            raise NoAnswer(f"the form with its question was not answered within {self._limit_s:.0f} s") from None
        except (MCPError, ValidationError, ValueError):
            # The exception's text may contain the answer, which is a secret.
            raise NoAnswer(UNABLE) from None

    def finish(self, answer: CallToolResult | InputRequiredResult) -> CallToolResult | InputRequiredResult:
        """The forms, if the call failed because it needs answers; otherwise the answer, with the forms withdrawn."""
        waiting: InputRequests = {form.key: form.request for form in self._shown if not form.question.answers.done()}
        waiting |= {consent.key: consent.request for consent in self._consents}
        if waiting and isinstance(answer, CallToolResult) and answer.is_error:
            return InputRequiredResult(input_requests=waiting)
        self._withdraw()
        return answer

    def _withdraw(self) -> None:
        for form in self._shown:
            form.question.refuse(OVER)


class Forms:
    """The forms that the clients of one server are showing."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Session, Form]] = {}
        self._consents: OrderedDict[str, tuple[Session, Consent]] = OrderedDict()

    def asker(self, context: CallContext, names: Collection[str], limit_s: float) -> Asker:
        """An Asker for one call, about the sandboxes that it names."""
        return Asker(self, context, names, limit_s)

    def keep(self, form: Form) -> None:
        self._open[form.key] = current(), form
        form.question.answers.add_done_callback(lambda _: self._open.pop(form.key, None))

    def keep_consent(self, consent: Consent) -> Consent:
        self._consents[consent.key] = current(), consent
        if len(self._consents) > MOST_CONSENTS:
            self._consents.popitem(last=False)
        return consent

    def consent(self, context: Context[None, Any], about: str) -> bool | None:
        """The answer that comes with a call, to this very question and of the same session; None without one."""
        for key, result in (context.input_responses or {}).items():
            session, asked = self._consents.get(key, (None, None))
            if asked is not None and asked.about == about and session is current():
                del self._consents[key]
                return asked.read(result)
        return None

    def deliver(self, context: CallContext) -> None:
        """Pass answers that come with a call to the logins that wait for them, within the same session only."""
        for key, result in ((context.input_responses if context else None) or {}).items():
            session, form = self._open.get(key, (None, None))
            if form is None or session is not current():
                continue
            try:
                form.question.answer(form.read(result))
            except NoAnswer as problem:
                form.question.refuse(str(problem))


def is_in_rounds(context: Context[None, Any]) -> bool:
    """Whether the client makes a call again with the answers, instead of being asked during the call."""
    return (context.protocol_version or "") >= ROUNDS_SINCE


def shows_forms(context: CallContext) -> bool:
    """Whether the client can show forms. Clients older than elicitation by URL announce elicitation without a kind."""
    found = abilities(context)
    elicitation = found.elicitation if found else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)
