"""Answers what a host asks during one login: with the configured password, with a code, or by a person."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...asking import NoAnswer, Questions
from ...core.errors import CODE_NEEDED, ConfigError, LoginRefused
from ...core.login import MOST_PROMPTS, MOST_ROUNDS, Challenge, Kind, Prompt, challenge, other_ways
from ...core.machine import Login
from ...core.secret import Secret
from ...core.totp import Totp, read_seed

# Codes of programs that we know nothing of change with each half minute.
USUAL_STEP_S = 30.0
# Logins with one seed have to take turns, a time step each.
LONGEST_TURN_S = 95.0
# The last time step of each seed, and the last code of each source, that was given in this process: sites count a code
# that comes twice as a wrong one. Machines of one site may share a seed.
_steps: dict[str, int] = {}
_codes: dict[Secret, bytes] = {}


async def next_code(login: Login) -> str:
    """A code from the configuration that was not given before. Raises ConfigError."""
    if login.otp_seed is not None:
        return await _computed(await asyncio.to_thread(_seed, login.otp_seed))
    assert login.otp is not None
    code = await _fetched(login.otp)
    if _is_used(login.otp, code):
        await asyncio.sleep(USUAL_STEP_S - time.time() % USUAL_STEP_S + 0.5)
        code = await _fetched(login.otp)
    if _is_used(login.otp, code):
        raise ConfigError(f"{login.otp.source} gives the code that was used before, so it is not sent again")
    _codes[login.otp] = _digest(code)
    return code


def _seed(secret: Secret) -> Totp:
    try:
        return read_seed(secret.reveal())
    except ValueError as problem:
        raise ConfigError(f"otp_seed cannot be used: {problem}") from None


async def _computed(totp: Totp) -> str:
    step = max(totp.step_at(time.time()), _steps.get(totp.identity, -1) + 1)
    pause_s = step * totp.period_s - time.time()
    if pause_s > LONGEST_TURN_S:
        raise ConfigError("too many logins wait for a code of the same otp_seed; try again in two minutes")
    _steps[totp.identity] = step
    # A little into the step: the machine's clock may be behind.
    await asyncio.sleep(pause_s + 0.5 if pause_s > 0 else 0)
    return totp.code(step)


async def _fetched(otp: Secret) -> str:
    otp.forget()
    code = (await asyncio.to_thread(otp.reveal)).strip()
    otp.forget()
    return code


def _is_used(otp: Secret, code: str) -> bool:
    return _codes.get(otp) == _digest(code)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()


class Attempt:
    """One login through all hops: what it took, and how long it waited for answers."""

    def __init__(self) -> None:
        # What the machine asked for besides a password that is configured.
        self.asked = ""
        # An answer was sent that must not be sent again; and a person was asked for one.
        self.is_code_sent = self.needed_person = False
        # Why an answer was missing, and to what.
        self.missing = ""
        self.shown = ""
        self._waited_s = 0.0
        self._since: float | None = None

    @property
    def waited_s(self) -> float:
        return self._waited_s + (time.monotonic() - self._since if self._since is not None else 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around waiting for a person or a time step: the machine is not to blame for that time."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._since = self.waited_s, None

    def refusal(self, who: str, where: str, name: str) -> LoginRefused:
        """Why the login was given up before its end."""
        found = f"it asks {self.shown}, and {self.missing}" if self.shown else self.missing
        return LoginRefused.of_parts(who, found, other_ways(name), where=where, reason=CODE_NEEDED)


class Dialogue:
    """What one host asks in one login. Each answer is given once: a second try is another call's to make."""

    def __init__(self, name: str, host: str, login: Login, password: str | None, attempt: Attempt) -> None:
        self._name = name
        self._host = host
        self._login = login
        self._password = password
        self._attempt = attempt
        self._rounds = 0
        self._is_begun = self._is_password_given = self._is_code_given = False

    def begin(self) -> str | None:
        """For the method keyboard-interactive: "" to be asked; None where that was over before."""
        if self._is_begun:
            return None
        self._is_begun = True
        return ""

    def password(self) -> str | None:
        """For the method password; not after a dialogue that had it, or had more: that would be a second attempt."""
        if self._is_password_given or self._attempt.asked:
            return None
        self._is_password_given = True
        return self._password

    async def answers(
        self, notes: Sequence[str], prompts: Sequence[tuple[str, bool]], questions: Questions
    ) -> list[str] | None:
        """Answers to one round of prompts; None to give up."""
        self._rounds += 1
        if len(prompts) > MOST_PROMPTS or self._rounds > MOST_ROUNDS:
            self._give_up("", "it asks for more than any login needs, so nothing more was answered")
            return None
        if not prompts:
            return []
        asked = challenge(self._name, self._host, notes, prompts)
        try:
            own = [await self._own(prompt) for prompt in asked.prompts]
            return await self._completed(asked, own, questions)
        except (NoAnswer, ConfigError) as problem:
            self._give_up(asked.shown, str(problem).rstrip("."))
            return None

    def _give_up(self, shown: str, why: str) -> None:
        self._attempt.asked = self._attempt.asked or shown or "too much"
        self._attempt.shown, self._attempt.missing = shown, why

    async def _own(self, prompt: Prompt) -> str | None:
        """The configuration's answer, or None. Raises ConfigError."""
        kind = prompt.kind
        password = "" if kind is Kind.CODE else self._own_password()
        if kind is Kind.PASSWORD or password is None:
            return password
        self._attempt.asked = f"“{prompt.text}”"
        if self._is_code_given or (self._login.otp is None and self._login.otp_seed is None):
            return None
        self._is_code_given = True
        with self._attempt.waiting():
            code = await next_code(self._login)
        self._attempt.is_code_sent = True
        return password + code

    def _own_password(self) -> str | None:
        """Once: asked for again, it was wrong, or a new one is wanted."""
        password, self._password = self._password, None
        self._is_password_given = self._is_password_given or password is not None
        return password

    async def _completed(self, asked: Challenge, own: list[str | None], questions: Questions) -> list[str] | None:
        """With a person's answers to what the configuration does not answer. Raises NoAnswer."""
        missing = asked.only(prompt for prompt, answer in zip(asked.prompts, own, strict=True) if answer is None)
        if not missing.prompts:
            return [answer or "" for answer in own]
        if not self._attempt.asked and not questions.can_be_put(missing):
            # Most machines ask for a password after a key that they refuse: it is the key that is to be told of.
            return None
        self._attempt.asked, self._attempt.needed_person = missing.shown, True
        with self._attempt.waiting():
            given = iter(await questions.ask(missing))
        self._attempt.is_code_sent = True
        return [next(given) if answer is None else answer for answer in own]
