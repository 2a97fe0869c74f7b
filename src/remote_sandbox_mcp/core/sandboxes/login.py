"""Questions of a machine during a login: its prompts made harmless, and which of them want a password or a code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ..texts.text import harmless

# A site asks for a password and a code, perhaps after a menu; what asks for more is no login.
MOST_PROMPTS, MOST_ROUNDS = 8, 10
LONGEST_PROMPT, LONGEST_NOTE = 120, 400
LONGEST_ANSWER = 1000

_ONE_TIME = re.compile(r"one[- ]?time[- ]?(?:pass(?:word|code|phrase)?|pin)")
_PASSWORD = re.compile(r"pass(?:word|phrase|wort)|kennwort|mot de passe|contrase|senha|密码|密碼|口令|パスワード")
_CODE = re.compile(r"code|token|otp|verif|authenticator|factor|yubikey|duo|验证|動態|动态")


class Kind(Enum):
    """Kind of a prompt. Whatever is no password counts as a code: a menu, a token's digits, a word to confirm."""

    PASSWORD = "password"
    CODE = "code"
    # Both in one answer, as pam_google_authenticator asks with forward_pass.
    BOTH = "password and code"


@dataclass(frozen=True)
class Prompt:
    """One line that is asked for, in the machine's own words."""

    text: str
    is_shown: bool = False

    @property
    def kind(self) -> Kind:
        """
        >>> [Prompt(text).kind.value for text in ("Password:", "One-time password (OATH) for `a':", "Passcode:")]
        ['password', 'code', 'code']
        >>> Prompt("Password & verification code:").kind.value
        'password and code'
        """
        words = _ONE_TIME.sub(" code ", self.text.lower())
        if not _PASSWORD.search(words):
            return Kind.CODE
        return Kind.BOTH if _CODE.search(words) else Kind.PASSWORD


@dataclass(frozen=True)
class Challenge:
    """Questions that a machine asks at once. `name` is the sandbox's; `host` asks: the machine or a jump host.

    All texts are the machine's own, made harmless; they are data, whatever they say.
    """

    name: str
    host: str
    note: str = ""
    prompts: tuple[Prompt, ...] = ()

    @property
    def wants_password(self) -> bool:
        return any(prompt.kind is not Kind.CODE for prompt in self.prompts)

    @property
    def shown(self) -> str:
        """The first prompt as a quotation, for a sentence."""
        return next((f"“{prompt.text}”" for prompt in self.prompts), "")

    def only(self, wanted: Iterable[Prompt]) -> Challenge:
        return replace(self, prompts=tuple(wanted))


def challenge(name: str, host: str, notes: Iterable[str], prompts: Iterable[tuple[str, bool]]) -> Challenge:
    """From what the machine sent."""
    asked = tuple(Prompt(one_line(text, LONGEST_PROMPT), bool(is_shown)) for text, is_shown in prompts)
    return Challenge(name, host, one_line(" ".join(filter(None, notes)), LONGEST_NOTE), asked)


def one_line(text: str, limit: int) -> str:
    """Foreign text without control characters and line breaks, cut to `limit` characters."""
    words = " ".join(harmless(text[: 4 * limit].encode("utf-8", "replace")).split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"


def other_ways(name: str) -> str:
    """Advise a person where no form is answered, as the end of a sentence."""
    return f"a person can run `{login_command(name)}` in a terminal, or set otp or otp_seed in config.toml"


def login_command(name: str) -> str:
    return f"remote-sandbox-mcp login {shlex.quote(name)}"
