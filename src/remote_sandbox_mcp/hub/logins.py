"""Logins of a person at a terminal (`remote-sandbox-mcp login`): the hub keeps the connection for all sessions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from ..asking import Answers, NoAnswer, Question, asking
from ..core.errors import SandboxError, Unsupported
from ..core.login import LONGEST_ANSWER, Challenge
from ..hub_contact.hello import read
from ..session import begin
from .houses import Houses, client_of

GONE = "the person at the terminal gave no answer"


class Terminal:
    """Asks the person at the other end of the line."""

    is_terminal = True

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def takes(self, challenge: Challenge) -> bool:
        return True

    async def __call__(self, question: Question) -> Answers:
        asked = question.challenge
        prompts = [{"text": prompt.text, "is_shown": prompt.is_shown} for prompt in asked.prompts]
        await self.say({"ask": prompts, "host": asked.host, "note": asked.note})
        try:
            answers = read(await self._reader.readline() or b"{}").get("answers")
        except (ConnectionError, ValueError):
            raise NoAnswer(GONE) from None
        if not isinstance(answers, list) or len(answers) != len(prompts) or not all(map(_is_answer, answers)):
            raise NoAnswer(GONE)
        return tuple(answers)

    async def say(self, what: dict[str, Any]) -> None:
        self._writer.write(json.dumps(what).encode() + b"\n")
        # That the person is gone shows at the next read.
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()


def _is_answer(answer: object) -> bool:
    return isinstance(answer, str) and len(answer) <= LONGEST_ANSWER


async def log_in(
    houses: Houses, said: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Open the machine that the caller names, with the caller's configuration, and send how that ended."""
    config, session = client_of(said)
    house = await houses.enter(config, session)
    terminal = Terminal(reader, writer)
    begin(session)
    asking.set(terminal)
    try:
        member = house.app.fleet.member(str(said.get("name") or ""))
        if member.questions is None:
            raise Unsupported(f"{member.name} is no SSH machine, so there is nothing to log in to")
        was_open = member.sandbox is not None and member.sandbox.is_open
        await member.open()
        await terminal.say({"name": member.name, "was_open": was_open, "asked": member.questions.need_person})
    except SandboxError as problem:
        await terminal.say({"trouble": str(problem)})
    finally:
        houses.leave_house(house, session)
