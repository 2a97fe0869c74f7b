"""Answers what a host asks during one login: with the configured password, with a code, or by a person."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import CODE_NEEDED, ConfigError, LoginRefused
from ...core.sandboxes.login import MOST_PROMPTS, MOST_ROUNDS, Challenge, Kind, Prompt, challenge, other_ways
from ...core.sandboxes.machine import Login
from ...core.sandboxes.secret import Secret
from ...core.sandboxes.totp import Totp, read_seed
from ...local.asking import NoAnswer, Questions

# Codes from a program or keyring are assumed to change every half minute, as TOTP codes do.
USUAL_STEP_S = 30
# Logins with one seed take turns, one time step each; none waits longer than this.
LONGEST_TURN_S = 95.0
# The file beside our known_hosts with the time steps that this and other processes have used.
STEPS_FILE = "used-codes.json"
MOST_REMEMBERED = 100
# A digest of the last code of each source: a source that changes more slowly may give the same code again.
_codes: dict[Secret, bytes] = {}


class Codes:
    """One-time codes from the configuration. No process sends one twice: sites count that as a wrong code."""

    def __init__(self, file: Path, name: str) -> None:
        # It holds the number of the last time step for each seed or source, under a digest of its name.
        self._file = file
        self._name = name
        self._steps: dict[str, int] = {}

    async def next(self, login: Login) -> str:
        """A code that was not sent before. Raises ConfigError."""
        if login.otp_seed is not None:
            totp = await asyncio.to_thread(_seed, login.otp_seed)
            return totp.code(await self._turn(totp.identity, totp.period_s))
        assert login.otp is not None
        code = await self._fetched(login.otp)
        if _codes.get(login.otp) == _digest(code):
            # A login to another machine may have used it; the next step has another code.
            code = await self._fetched(login.otp)
        if _codes.get(login.otp) == _digest(code):
            raise ConfigError(f"{login.otp.source} gives the code that was used before, so it is not sent again")
        _codes[login.otp] = _digest(code)
        return code

    async def _fetched(self, otp: Secret) -> str:
        # With the machine's name, because `source` shows only the program of a command, not its arguments.
        await self._turn(_digest(f"{self._name} {otp.source}").hex(), USUAL_STEP_S)
        otp.forget()
        code = await asyncio.to_thread(otp.reveal)
        otp.forget()
        return code.strip()

    async def _turn(self, identity: str, period_s: int) -> int:
        """Reserve an unused time step and wait for it. Raises ConfigError."""
        step = await asyncio.to_thread(self._reserve, identity[:16], period_s)
        pause_s = step * period_s - time.time()
        # A little into the step: the machine's clock may be behind.
        await asyncio.sleep(pause_s + 0.5 if pause_s > 0 else 0)
        return step

    def _reserve(self, identity: str, period_s: int) -> int:
        try:
            with open(
                os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="utf-8"
            ) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                steps = {**_read(file.read()), **self._steps}
                step = self._next(steps.get(identity, -1), period_s)
                kept = dict(list({**steps, identity: step}.items())[-MOST_REMEMBERED:])
                file.seek(0)
                file.truncate()
                json.dump(kept, file)
        except OSError:
            # The file cannot be written; then at least this process does not repeat a code.
            step = self._next(self._steps.get(identity, -1), period_s)
        self._steps[identity] = step
        return step

    def _next(self, last: int, period_s: int) -> int:
        now = time.time()
        # A step far in the future was recorded while the clock was wrong.
        step = max(int(now // period_s), last + 1 if last * period_s < now + LONGEST_TURN_S + period_s else 0)
        if step * period_s > now + LONGEST_TURN_S:
            raise ConfigError("too many logins wait for a code of the same seed; try again in two minutes")
        return step


def _read(text: str) -> dict[str, int]:
    try:
        steps = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return {key: step for key, step in steps.items() if isinstance(step, int)} if isinstance(steps, dict) else {}


def _seed(secret: Secret) -> Totp:
    try:
        return read_seed(secret.reveal())
    except ValueError as problem:
        raise ConfigError(f"otp_seed cannot be used: {problem}") from None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Attempt:
    """One login through all hops: what it was asked for, and how long it waited for answers."""

    def __init__(self) -> None:
        # What the machine asked for besides the configured password.
        self.asked = ""
        # Whether an answer was sent that must not be repeated, and whether a person was asked.
        self.is_code_sent = self.needed_person = False
        # Whether a password was asked for, and none is configured.
        self.lacks_password = False
        # Why there was no answer, and to which prompt.
        self.missing = ""
        self.shown = ""
        self._waited_s = 0.0
        self._since: float | None = None

    @property
    def waited_s(self) -> float:
        return self._waited_s + (time.monotonic() - self._since if self._since is not None else 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures waiting for a person or a time step, which does not count against the machine's deadline."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._since = self.waited_s, None

    def refusal(self, who: str, where: str, name: str) -> LoginRefused:
        """Explain why the login was given up before its end."""
        found = f"it asks {self.shown}, and {self.missing}" if self.shown else self.missing
        return LoginRefused.of_parts(who, found, other_ways(name), where=where, reason=CODE_NEEDED)


class Dialogue:
    """Answers one host in one login. Each answer is given once; a second try needs another call."""

    def __init__(
        self, name: str, host: str, login: Login, password: str | None, attempt: Attempt, codes: Codes
    ) -> None:
        self._codes = codes
        self._name = name
        self._host = host
        self._login = login
        self._password = password
        self._attempt = attempt
        self._rounds = 0
        self._is_begun = self._is_password_given = self._is_code_given = False

    def begin(self) -> str | None:
        """For the method keyboard-interactive: "" to begin it, None if it was tried before."""
        if self._is_begun:
            return None
        self._is_begun = True
        return ""

    def password(self) -> str | None:
        """The password for the method password; None if keyboard-interactive used it, which would be a second try."""
        if self._is_password_given or self._attempt.asked:
            return None
        self._is_password_given = True
        self._attempt.lacks_password = self._password is None
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
            code = await self._codes.next(self._login)
        self._attempt.is_code_sent = True
        return password + code

    def _own_password(self) -> str | None:
        """The configured password, once: asked for again, it was wrong, or a new password is wanted."""
        password, self._password = self._password, None
        self._is_password_given = self._is_password_given or password is not None
        return password

    async def _completed(self, asked: Challenge, own: list[str | None], questions: Questions) -> list[str] | None:
        """All answers, with a person's for prompts that the configuration does not answer. Raises NoAnswer."""
        missing = asked.only(prompt for prompt, answer in zip(asked.prompts, own, strict=True) if answer is None)
        if not missing.prompts:
            return [answer or "" for answer in own]
        if not self._attempt.asked and not questions.can_be_put(missing):
            # Most machines ask for a password after refusing a key; the error should be about the key then.
            self._attempt.lacks_password = self._login.password is None
            return None
        self._attempt.asked, self._attempt.needed_person = missing.shown, True
        with self._attempt.waiting():
            given = iter(await questions.ask(missing))
        self._attempt.is_code_sent = True
        return [next(given) if answer is None else answer for answer in own]
