"""A platform and an execd that lie: each call ends in a value or a sentence, soon, and our key goes to nobody else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.opensandbox import api, transport
from remote_sandbox_mcp.backends.opensandbox import container as container_module
from remote_sandbox_mcp.backends.opensandbox import provider as provider_module
from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.backends.shell import program
from remote_sandbox_mcp.backends.shell import sandbox as shell_sandbox
from remote_sandbox_mcp.backends.shell import talk as talk_module
from remote_sandbox_mcp.core.commands.command import Command, Environment
from remote_sandbox_mcp.core.errors import BrokenRules, SandboxError
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder
from remote_sandbox_mcp.core.sandboxes.files import Span
from tests.support.lying_platform import (
    BOX_ID,
    INFO,
    INSTALLATION,
    KEY,
    PAGES,
    RAN,
    Asked,
    Flood,
    LyingPlatform,
    Reply,
    Slowly,
    answer,
    events,
    lying_platform,
)
from tests.support.tormentor import (
    BRACKETS,
    MEGABYTE,
    NESTED,
    ODD_VALUES,
    check_value,
    counted_memory,
    dumped,
    ends_well,
    fields_of,
    torment,
    values,
    with_field,
)

pytestmark = pytest.mark.anyio

BOX = Disposable(id=BOX_ID, provider="opensandbox", key="key-1", created=1.0, expires=2e9)
few = settings(torment, max_examples=max(15, torment.max_examples // 2))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in {
        container_module: {"SOON_OPEN_S": 0.5, "OPEN_S": 1.0, "UPGRADED_S": 0.5},
        provider_module: {"SWEEP_S": 0.0, "SNAPSHOT_S": 0.5},
        talk_module: {"SILENCE_S": 0.5, "ANSWER_S": 1.0},
        transport: {"MOST_BYTES": 8 * MEGABYTE},
        program: {"CHECK_S": 0.1, "LOOKS": 3},
        shell_sandbox: {"MEND_S": 0.05, "START_S": 0.5, "SNAPSHOT_S": 0.1, "FORGET_S": 0.05, "OVERTIME_S": 0.5},
    }.items():
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)


async def opened(provider: OpenSandboxProvider) -> None:
    sandbox = await provider.open(BOX)
    await sandbox.close()


async def ran_plainly(provider: OpenSandboxProvider) -> Any:
    box = PlainContainer(provider._link, BOX, Environment())
    try:
        return await box.run(Command("true", timeout_s=0.2, keep=1000), patience_s=0.3)
    finally:
        await box.close()


async def read_plainly(provider: OpenSandboxProvider) -> Any:
    box = PlainContainer(provider._link, BOX, Environment())
    try:
        return await box.read("/a", Span(limit=1000))
    finally:
        await box.close()


CALLS: dict[str, Callable[[OpenSandboxProvider], Awaitable[Any]]] = {
    "create": lambda provider: provider.create(BOX_ID, SandboxOrder(image="sandbox:test", network=False)),
    "look": lambda provider: provider.inspect(BOX),
    "list": lambda provider: provider.list(),
    "renew": lambda provider: provider.renew(BOX, 600.0),
    "pause": lambda provider: provider.pause(BOX),
    "endpoint": lambda provider: provider.endpoint(BOX, 8000),
    "open": opened,
    "run in a shell": ran_plainly,
    "read by a shell": read_plainly,
    "delete": lambda provider: provider.delete(BOX),
}


async def torment_call(platform: LyingPlatform, verb: str, **options: Any) -> Any:
    provider = OpenSandboxProvider(platform.settings(**options), DisposableRules(), INSTALLATION)
    try:
        seen = await ends_well(CALLS[verb](provider))
    finally:
        await provider.close()
    for box in seen if isinstance(seen, list) else [seen]:
        check_value(str(box) if isinstance(box, SandboxError) else box)
    return seen


@pytest.mark.parametrize("verb", [verb for verb in CALLS if verb not in ("open", "run in a shell", "read by a shell")])
async def test_an_honest_platform_is_believed(verb: str) -> None:
    async with lying_platform() as platform:
        seen = await torment_call(platform, verb)
    assert not isinstance(seen, SandboxError), seen


# One field of one answer


FORMS = {
    "create": INFO,
    "look": INFO,
    "list": {"items": [INFO], "pagination": PAGES},
    "renew": {"expiresAt": "2026-11-17T21:39:16Z"},
    "endpoint": {"endpoint": "127.0.0.1:1", "headers": {"X-Y": "z"}},
}
PATHS = {
    "create": "/sandboxes",
    "look": "/key-1",
    "list": "/sandboxes",
    "renew": "/renew-expiration",
    "endpoint": "/8000",
}
TIMES = [
    "0001-01-01T00:00:00",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59",
    "x",
    "²",
]


def only(path: str, said: bytes | Slowly, platform: LyingPlatform) -> Reply:
    """This answer to requests for that path, and the truth to all others."""
    return lambda asked: said if asked.path.partition("?")[0].endswith(path) else platform.honest(asked)


ODD = [*ODD_VALUES.values(), *TIMES, "../../x", "x\r\nX-Evil: 1", "file:///etc/passwd", "http://[", "[::1", ...]
ONE_FIELD = [(verb, way) for verb, form in FORMS.items() for way in fields_of(form)]


@few
@given(where=st.sampled_from(ONE_FIELD), odd=st.sampled_from(ODD))
@example(where=("look", ("expiresAt",)), odd="0001-01-01T00:00:00")
@example(where=("endpoint", ("endpoint",)), odd="http://[")
async def test_any_value_in_any_field_of_a_platforms_answer_is_read_or_refused(
    where: tuple[str, tuple[Any, ...]], odd: Any
) -> None:
    verb, way = where
    async with lying_platform() as platform:
        said = answer(dumped(with_field(FORMS[verb], way, odd)))
        platform.reply = only(PATHS[verb], said, platform)
        await torment_call(platform, verb)


# An agent's answers


ENDPOINTS = [
    "file:///etc/passwd", "http://[", "[::1", "unix:/run/x", "127.0.0.1:99999", "127.0.0.1:-1", "a b", "x\nX-Evil: 1",
    "user:word@127.0.0.1:1", "", "//", "\x00", "127.0.0.1:1/\r\nX: 1", "é" * 300, "gopher://127.0.0.1", "-", "..",
]  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("verb", ["create", "open", "run in a shell"])
async def test_an_address_that_is_none_is_a_sentence(verb: str, endpoint: str, caplog: Any) -> None:
    async with lying_platform() as platform:
        for path in ("/44772", "/18080", "/8000"):
            platform.reply = only(path, answer({"endpoint": endpoint, "headers": {"X-Y": "\u202e"}}), platform)
            assert not isinstance(await torment_call(platform, verb), Disposable) or path == "/8000"
    assert not caplog.records


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, "javascript://x", "x\x1b[2J", "127.0.0.1:1/<script>"])
async def test_an_address_that_is_shown_is_an_address(endpoint: str) -> None:
    async with lying_platform() as platform:
        platform.reply = only("/8000", answer({"endpoint": endpoint}), platform)
        seen = await torment_call(platform, "endpoint")
    assert isinstance(seen, SandboxError) or re.fullmatch(r"http://[a-z0-9.:-]+/", seen), seen


async def test_an_address_is_not_less_safe_than_the_platforms() -> None:
    async with lying_platform() as platform:
        link = OpenSandboxProvider(platform.settings(), DisposableRules(), INSTALLATION)._link
        link.config.protocol = "https"
        found = SimpleNamespace(endpoint="http://127.0.0.1:1", build_request_headers=lambda config: {})
        link._open["key-1"] = SimpleNamespace(get_endpoint=AsyncMock(return_value=found))  # type: ignore[assignment]
        with pytest.raises(BrokenRules, match="it names no address"):
            await link.endpoint("key-1", 8000, "unable to look")
        await link.close()


exit_codes = st.sampled_from(["0", "", "-1", "9" * 400, "²", "x", 7, None, [], {}, 1e999, True])
event_values = st.one_of(values, exit_codes)
KINDS = ["stdout", "stderr", "error", "result", "init", "execution_complete", "x", 7, None]
errors = st.fixed_dictionaries({"ename": event_values, "evalue": exit_codes, "traceback": values})
parts = {name: event_values for name in ("text", "timestamp", "results", "execution_time")}
made = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)}, optional={**parts, "error": st.one_of(event_values, errors)}
)
made_events = st.lists(st.one_of(st.sampled_from(RAN), made, values), max_size=6)
RAW = [
    b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\xff" * 5000, b"HTTP/9.9 999 x\r\n\r\n", b"HTTP/1.1 -1 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + b"\xff" * 100,
    answer(NESTED), answer(BRACKETS), answer(b"{", kind="text/html"), answer(b"\xff\xfe", kind="text/html; charset=x"),
    answer({}, "500 \x1b[2J"), answer({"code": "\x1b]0;x\x07", "message": "\u202e" * 10_000}, "400 x"),
    answer(b"x" * 100, more="Content-Encoding: gzip\r\n"), events({"type": "stdout", "text": "x" * MEGABYTE}),
    answer({}, "307 x", more="Location: file:///etc/passwd\r\n"), answer({}, "302 x", more="Location: \r\n"),
]  # fmt: skip
raw_answers = st.one_of(
    st.sampled_from(RAW), made_events.map(lambda said: events(*said)), values.map(lambda value: answer(dumped(value)))
)


@few
@given(said=raw_answers, verb=st.sampled_from(list(CALLS)), path=st.sampled_from(["", *PATHS.values(), "/command"]))
async def test_whatever_a_platform_or_its_agent_answers_a_call_ends_in_a_value_or_a_sentence(
    said: bytes, verb: str, path: str
) -> None:
    async with lying_platform() as platform:
        platform.reply = only(path, said, platform)
        await torment_call(platform, verb)
    assert len(platform.asked) < 60


# Floods


BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n"
EVENT = b'{"type":"stdout","text":"","timestamp":1}\n\n'
FLOODS = {
    "events": (b"text/event-stream", EVENT * 6000),
    "one event": (b"text/event-stream", b'{"type":"stdout","text":"' + b"x" * 250_000),
    "brackets": (b"application/json", b"[" + b"[]," * 80_000),
    "numbers": (b"application/json", b"[" + b"1," * 120_000),
    "text": (b"text/plain", b"x" * 250_000),
}


@pytest.mark.parametrize(("kind", "piece"), FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("verb", ["open", "look", "run in a shell"])
async def test_an_answer_without_end_is_cut_off(verb: str, kind: bytes, piece: bytes) -> None:
    async with lying_platform() as platform:
        path = "/key-1" if verb == "look" else "/command"

        def reply(asked: Asked) -> bytes:
            return Flood(BEGUN % kind, piece) if asked.path.endswith(path) else platform.honest(asked)

        platform.reply = reply
        with counted_memory() as check:
            assert isinstance(await torment_call(platform, verb, timeout_s=20.0), SandboxError)
            check(96 * MEGABYTE)
    assert platform.sent < 128 * MEGABYTE


LARGE = {
    "lists": ("look", b"[" + b"[]," * 2_000_000 + b"0]"),
    "keys": ("look", b"{" + b",".join(b'"%d":1' % at for at in range(200_000)) + b"}"),
    "more than a few fields": ("look", b'"' + b"x" * 10 * MEGABYTE + b'"'),
    "events": ("run in a shell", EVENT * 150_000),
}


@pytest.mark.parametrize(("verb", "body"), LARGE.values(), ids=LARGE)
async def test_an_answer_is_not_much_larger_in_memory_than_it_was_sent(verb: str, body: bytes) -> None:
    async with lying_platform() as platform:
        said = answer(body, kind="text/event-stream")
        platform.reply = only("/key-1" if verb == "look" else "/command", said, platform)
        with counted_memory() as check:
            assert isinstance(await torment_call(platform, verb, timeout_s=20.0), SandboxError)
            check(96 * MEGABYTE)


@pytest.mark.parametrize("part", ["head", "body", "events"])
@pytest.mark.parametrize("verb", ["look", "open", "read by a shell"])
async def test_an_answer_that_drips_is_not_waited_for_for_ever(verb: str, part: str) -> None:
    """Each byte comes in time, and the last one never."""
    heads = {
        "head": b"HTTP/1.1 200 OK\r\nX: ",
        "body": BEGUN % b"application/json",
        "events": BEGUN % b"text/event-stream",
    }
    async with lying_platform() as platform:
        drip = Slowly(heads.get(part, BEGUN % b"application/json"), b" " * 5000, 0.05)
        path = "/command" if part == "events" else ""
        platform.reply = only(path, drip, platform)
        seen = await torment_call(platform, verb, timeout_s=0.3)
    assert isinstance(seen, SandboxError) or (verb, part) == ("look", "events")


# Where our key goes


@pytest.mark.parametrize("use_server_proxy", [False, True], ids=["direct", "by the platform's proxy"])
@pytest.mark.parametrize("verb", ["create", "open", "run in a shell", "read by a shell", "endpoint"])
async def test_the_key_is_sent_to_no_other_host_than_the_platforms(verb: str, use_server_proxy: bool) -> None:
    async with lying_platform(host="127.0.0.2") as elsewhere, lying_platform() as platform:

        def reply(asked: Asked) -> bytes:
            is_endpoint = "/endpoints/" in asked.path
            return answer({"endpoint": elsewhere.address}) if is_endpoint else platform.honest(asked)

        platform.reply = reply
        await torment_call(platform, verb, use_server_proxy=use_server_proxy)
    assert platform.asked
    assert not any(KEY in str(asked.headers.values()) for asked in elsewhere.asked)


@pytest.mark.parametrize("verb", CALLS)
async def test_a_redirection_is_not_followed(verb: str) -> None:
    async with lying_platform(host="127.0.0.2") as elsewhere, lying_platform() as platform:
        moved = answer({}, "307 Temporary Redirect", more=f"Location: http://{elsewhere.address}/v1/x\r\n")
        platform.reply = lambda asked: moved
        assert isinstance(await torment_call(platform, verb), SandboxError)
    assert elsewhere.asked == []


async def test_a_line_that_names_another_path_as_its_number_gets_nothing() -> None:
    # It stays open, so that there would be time to send something.
    opened = Slowly(BEGUN % b"application/octet-stream" + b"../../x\n", b" " * 100, 0.1)
    async with lying_platform() as platform:
        platform.reply = only("/line", opened, platform)
        assert isinstance(await torment_call(platform, "open"), SandboxError)
    assert {asked.path for asked in platform.asked if asked.method == "POST"} == {"/command", "/line"}


async def test_a_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MOST_PAGES", 20)
    async with lying_platform() as platform:
        page = answer({"items": [], "pagination": {**PAGES, "hasNextPage": True}})
        platform.reply = lambda asked: page
        seen = await torment_call(platform, "list")
    assert "its list of sandboxes has no end" in str(seen)


async def test_what_does_not_bear_our_mark_is_neither_listed_nor_deleted() -> None:
    foreign = {**INFO, "metadata": dict.fromkeys(INFO["metadata"], "another")}
    async with lying_platform() as platform:
        listed = answer({"items": [foreign, {**INFO, "id": "key-2"}], "pagination": PAGES})
        platform.reply = only("/sandboxes", listed, platform)
        assert [box.key for box in await torment_call(platform, "list")] == ["key-2"]
        platform.reply = only("/key-1", answer(foreign), platform)
        assert isinstance(await torment_call(platform, "delete"), SandboxError)
    assert "DELETE" not in {asked.method for asked in platform.asked}
