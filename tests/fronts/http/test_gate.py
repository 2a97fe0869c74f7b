from __future__ import annotations

from typing import Any

import pytest

from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.http.gate import Asked, HttpGate
from remote_sandbox_mcp.fronts.http.listener import LOOPBACK_NAMES, Terms

KEY = "the-right-key"
FOREIGN_KEY = "cl\N{LATIN SMALL LETTER E WITH ACUTE}"
PAGE = "https://app.example.com"


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing may pass here")


def gate(**changes: Any) -> HttpGate:
    usual: dict[str, Any] = {"host": "127.0.0.1", "port": 3000, "key": Secret(KEY), "hosts": LOOPBACK_NAMES}
    return HttpGate(nobody, Terms(**(usual | changes)))


def asked(*headers: tuple[str, str], method: str = "POST", path: str = "/mcp", host: str = "localhost:3000") -> Asked:
    named = (("host", host), *headers) if host else headers
    return Asked(method, path, tuple((name.encode(), value.encode()) for name, value in named))


def status(gate: HttpGate, request: Asked) -> int:
    answer = gate.decide(request)
    return answer.status if answer else 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([("authorization", f"Bearer {KEY}")], 200, id="bearer"),
        pytest.param([("authorization", f"bearer   {KEY} ")], 200, id="spelled otherwise"),
        pytest.param([("x-api-key", KEY)], 200, id="api key"),
        pytest.param([("authorization", "Bearer old"), ("x-api-key", KEY)], 200, id="one of both"),
        pytest.param([], 401, id="none"),
        pytest.param([("authorization", "Bearer wrong")], 401, id="wrong"),
        pytest.param([("authorization", f"Bearer {KEY}x")], 401, id="longer"),
        pytest.param([("authorization", f"Bearer {KEY[:-1]}")], 401, id="shorter"),
        pytest.param([("authorization", "Bearer ")], 401, id="empty"),
        pytest.param([("x-api-key", "")], 401, id="empty api key"),
        pytest.param([("authorization", KEY)], 200, id="without its scheme"),
        pytest.param([("authorization", f"{KEY} {KEY}")], 401, id="twice"),
        pytest.param([("authorization", " ")], 401, id="blank"),
        pytest.param([("authorization", f"Basic {KEY}")], 401, id="another scheme"),
        pytest.param([("authorization", f"Bearer {FOREIGN_KEY}")], 401, id="no plain text"),
    ],
)
def test_the_key_lets_in_and_nothing_else_does(headers: list[tuple[str, str]], expected: int) -> None:
    assert status(gate(), asked(*headers)) == expected


def test_who_is_refused_is_told_what_to_send() -> None:
    missing, wrong = gate().decide(asked()), gate().decide(asked(("x-api-key", "no")))
    assert missing
    assert wrong
    assert missing.headers == ((b"www-authenticate", b'Bearer realm="remote-sandbox-mcp"'),)
    assert wrong.headers == ((b"www-authenticate", b'Bearer realm="remote-sandbox-mcp", error="invalid_token"'),)
    assert "Authorization: Bearer KEY" in missing.text
    assert KEY not in f"{missing}{wrong}"


def test_a_key_that_is_not_ascii_works() -> None:
    assert status(gate(key=Secret(FOREIGN_KEY)), asked(("authorization", f"Bearer {FOREIGN_KEY}"))) == 200


def test_without_a_key_the_other_checks_stay() -> None:
    open_gate = gate(key=None)
    assert status(open_gate, asked()) == 200
    assert status(open_gate, asked(host="evil.example.com")) == 421
    assert status(open_gate, asked(("origin", "https://evil.example.com"))) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param("localhost", 200, id="name"),
        pytest.param("LOCALHOST:3000", 200, id="capitals"),
        pytest.param("127.0.0.1:9", 200, id="a forwarded port"),
        pytest.param("[::1]:3000", 200, id="IPv6"),
        pytest.param("named.example.com:3000", 200, id="allowed"),
        pytest.param("ported.example.com:444", 200, id="allowed with its port"),
        pytest.param("ported.example.com:445", 421, id="allowed with another port"),
        pytest.param("evil.example.com", 421, id="foreign"),
        pytest.param("localhost.evil.example.com", 421, id="beginning like ours"),
        pytest.param("evil.example.com:localhost", 421, id="no port"),
        pytest.param("localhost:3000@evil.example.com", 421, id="with a user"),
        pytest.param("127.0.0.2:3000", 421, id="another address"),
        pytest.param("", 421, id="missing"),
    ],
)
def test_only_right_names_are_answered_to(host: str, expected: int) -> None:
    hosts = (*LOOPBACK_NAMES, "named.example.com", "ported.example.com:444")
    assert status(gate(hosts=hosts), asked(("x-api-key", KEY), host=host)) == expected


def test_two_names_at_once_are_none() -> None:
    assert status(gate(), asked(("host", "localhost"), ("x-api-key", KEY))) == 421


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        pytest.param("http://localhost:3000", 200, id="its own"),
        pytest.param(PAGE, 200, id="allowed"),
        pytest.param("http://localhost:5173", 403, id="another server of this machine"),
        pytest.param("http://127.0.0.1:3000", 403, id="another name of ours"),
        pytest.param("https://evil.example.com", 403, id="foreign"),
        pytest.param(f"{PAGE}.evil.example.com", 403, id="beginning like an allowed one"),
        pytest.param("null", 403, id="hidden"),
        pytest.param("", 403, id="empty"),
    ],
)
def test_only_known_web_pages_may_call(origin: str, expected: int) -> None:
    assert status(gate(origins=(PAGE,)), asked(("origin", origin), ("x-api-key", KEY))) == expected


@pytest.mark.parametrize(("path", "expected"), [("/", 200), ("/mcp", 200), ("/mcp/", 200), ("/x", 404), ("//", 404)])
def test_it_serves_two_places(path: str, expected: int) -> None:
    assert status(gate(), asked(("x-api-key", KEY), path=path)) == expected


def test_browsers_are_answered_for_allowed_pages_alone() -> None:
    answer = gate(origins=(PAGE,)).decide(asked(("origin", PAGE), method="OPTIONS"))
    assert answer
    assert answer.status == 204
    assert dict(answer.headers)[b"access-control-allow-origin"] == PAGE.encode()
    assert status(gate(), asked(("origin", PAGE), method="OPTIONS")) == 403
    assert status(gate(), asked(method="OPTIONS")) == 401
    assert status(gate(origins=(PAGE,)), asked(("origin", "http://localhost:3000"), method="OPTIONS")) == 401


async def test_an_answer_may_be_read_by_the_page_that_asked() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read here")

    terms = Terms(host="127.0.0.1", port=1, key=None, hosts=LOOPBACK_NAMES, origins=(PAGE,))
    for headers in ([(b"host", b"localhost"), (b"origin", PAGE.encode())], [(b"host", b"localhost")]):
        await HttpGate(app, terms)({"method": "POST", "path": "/", "headers": headers}, receive, send)
    with_page, without = (dict(message["headers"]) for message in sent)
    assert with_page[b"access-control-allow-origin"] == PAGE.encode()
    assert with_page[b"vary"] == b"origin"
    assert without == {}


def test_the_key_is_shown_nowhere() -> None:
    assert KEY not in repr(Terms(host="h", port=1, key=Secret(KEY), hosts=()))
