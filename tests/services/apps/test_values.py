"""What may be asked for, and how an answer is read."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.sandboxes.port import DeployOrder, Forward, check_path, is_well, read_status, request_text


def order(**fields: object) -> DeployOrder:
    return DeployOrder(**{"sandbox": "s", "command": "serve", "port": 8000, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"command": " "}, "command is empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"port": 0}, "from 1 to 65535"),
        ({"port": 70000}, "from 1 to 65535"),
        ({"timeout_s": 0}, "timeout is 0"),
        ({"timeout_s": 1e9}, "timeout"),
        ({"health_path": "health"}, "must begin with /"),
        ({"health_path": "/a b"}, "no spaces"),
        ({"health_path": "/a\r\nX: y"}, "no spaces"),
        ({"health_path": "/ä"}, "must begin with /"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_order_that_cannot_be_meant_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadArgument, match=sentence):
        order(**fields)


def test_an_order_that_can_be_meant_is_taken() -> None:
    assert order(health_path="/health?deep=1").timeout_s == 60


@pytest.mark.parametrize(
    ("heard", "status"),
    [
        (b"", None),
        (b"HTTP/1", None),
        (b"HTTP/1.1 20", None),
        (b"HTTP/1.1 200 OK\r\n", 200),
        (b"HTTP/1.0 301\r\nLocation", 301),
        (b"HTTP/1.1 503 Busy\r\n", 503),
        (b"HTTP/1.1 abc\r\n", 0),
        (b"HTTP/2 200\r\n", 0),
        (b"SSH-2.0-OpenSSH\r\n", 0),
        (b"\x15\x03\x01", 0),
        (b"HTTP/1.1 " + b"x" * 5000, 0),
    ],
)
def test_a_status_is_read_as_soon_as_it_is_there(heard: bytes, status: int | None) -> None:
    assert read_status(heard) == status


@pytest.mark.parametrize(("status", "well"), [(200, True), (204, True), (302, True), (199, False), (404, False)])
def test_well_is_what_was_done_or_led_on(status: int, well: bool) -> None:
    assert is_well(status) is well


def test_a_request_names_path_and_host_and_asks_for_an_end() -> None:
    lines = request_text(check_path("/x"), 81).split(b"\r\n")
    assert lines[:2] == [b"GET /x HTTP/1.1", b"Host: 127.0.0.1:81"]
    assert b"Connection: close" in lines
    assert lines[-2:] == [b"", b""]


def test_an_address_is_on_this_machine() -> None:
    assert Forward(sandbox="s", port=80, local_port=8080).url == "http://127.0.0.1:8080/"
