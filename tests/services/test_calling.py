"""Frames between a program and the hub: values of ours arrive as they are, and nothing else is made or called."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.api import Done
from remote_sandbox_mcp.core.commands.command import Completed, Ending, Excerpt, Running
from remote_sandbox_mcp.core.errors import BadArgument, LostContact, SandboxError, UnknownSandbox
from remote_sandbox_mcp.services.hub_contact.calling import HEADER, LONGEST_FRAME, next_frame, pack


def nothing(value: object) -> None:
    return None


def nobody(name: str) -> object:
    raise ValueError(name)


async def read(data: bytes) -> tuple[Any, ...] | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await next_frame(reader, nobody)


async def test_values_and_errors_of_ours_arrive_as_they_are() -> None:
    done = Done(3, b"\x00\xff", b"", False, 0, Completed("run-12345678", 3, Ending.STOPPED, stdout=Excerpt(b"x")))
    lost = LostContact("lost", outcome="unknown", so_far=Running("run-12345678"))
    unknown = UnknownSandbox("none", "reason", found="a", remedy="b")
    unknown.available = ("gpu1",)
    said = await read(pack((done, lost, unknown, {"a": [1.5, None, True]}, ("x", b"y")), nothing))
    assert said is not None
    assert said[0] == done
    assert said[3:] == ({"a": [1.5, None, True]}, ("x", b"y"))
    assert (type(said[1]), str(said[1]), said[1].outcome, said[1].so_far) == (
        LostContact,
        "lost",
        "unknown",
        lost.so_far,
    )
    assert (str(said[2]), said[2].reason, said[2].remedy, said[2].available) == ("none", "reason", "b", ("gpu1",))


async def test_any_mapping_is_sent_as_a_dictionary() -> None:
    class Mine(Mapping[str, str]):
        def __getitem__(self, name: str) -> str:
            return "b"

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    assert await read(pack((Mine(),), nothing)) == ({"a": "b"},)


@pytest.mark.parametrize("value", [Path("/"), object(), len, Path, lambda: None, RuntimeError("x")], ids=range(6))
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(value: object) -> None:
    with pytest.raises(BadArgument, match="cannot be given to the hub"):
        pack((value,), nothing)


class Evil:
    def __init__(self, *what: Any) -> None:
        self._what = what

    def __reduce__(self) -> Any:
        return self._what


EVIL = {
    "a program": Evil(os.system, ("touch /tmp/evil",)),
    "eval": Evil(eval, ("1",)),
    "a function of ours": Evil(pack, ((), None)),
    "a class of another room": Evil(asyncio.Event, ()),
    "what a room of ours imports": Evil(__import__("remote_sandbox_mcp.api").api.asynccontextmanager, (len,)),
    "a base of ours": Evil(Exception, ("x",)),
}


@pytest.mark.parametrize("what", EVIL)
async def test_a_frame_that_would_call_anything_else_is_not_read(what: str) -> None:
    data = pickle.dumps((EVIL[what],), protocol=4)
    with pytest.raises(ValueError, match="is no value of ours"):
        await read(HEADER.pack(len(data)) + data)
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize(
    "data",
    [HEADER.pack(LONGEST_FRAME + 1), HEADER.pack(3) + b"\x80\x04]", HEADER.pack(1) + b".", HEADER.pack(2) + b"0."],
)
async def test_nonsense_ends_the_conversation(data: bytes) -> None:
    with pytest.raises(ValueError):
        await read(data)


@pytest.mark.parametrize("data", [b"", b"\0" * 5, HEADER.pack(9) + b"x"])
async def test_a_peer_that_is_gone_has_said_nothing(data: bytes) -> None:
    assert await read(data) is None


def test_errors_keep_their_tree() -> None:
    assert issubclass(LostContact, SandboxError)
