"""A member that is opened ahead of its call: once, for that call alone, and with the same result."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.core.errors import LoginRefused, Unreachable
from remote_sandbox_mcp.services import fleet
from tests.support.door import Door
from tests.support.server import until


async def test_a_sandbox_that_is_opened_ahead_is_opened_once() -> None:
    door = Door()
    door.member.preopen()
    door.member.preopen()
    assert await door.member.open() is door.sandbox
    assert await door.member.open() is door.sandbox
    assert door.knocks == 1


async def test_a_failure_is_told_to_its_call_without_a_second_login() -> None:
    door = Door()
    door.trouble = LoginRefused("the login was refused")
    door.member.preopen()
    await until(lambda: door.member.opening and door.member.opening.done(), "the refusal")
    with pytest.raises(LoginRefused, match=r"^the login was refused$"):
        await door.member.open()
    assert door.knocks == 1
    door.trouble = None
    assert await door.member.open() is door.sandbox
    assert door.knocks == 2


async def test_a_failure_whose_call_never_came_is_not_told_to_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PREOPEN_S", 0.0)
    door = Door()
    door.trouble = Unreachable("no route to it")
    door.member.preopen()
    await until(lambda: door.member.opening and door.member.opening.done(), "the failure")
    await asyncio.sleep(0)
    door.trouble = None
    assert await door.member.open() is door.sandbox
