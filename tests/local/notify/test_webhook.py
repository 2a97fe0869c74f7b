from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from remote_sandbox_mcp.core.jobs.watch import Unsent
from remote_sandbox_mcp.core.permission import Notify
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.local.notify import messages, webhook
from remote_sandbox_mcp.local.notify.announcer import Announcer
from tests.support.notify_scenes import HIDDEN, event, watch

KEY = "SEC-key"
TOKEN = "token-0123456789"
OK = {"json": b"", "slack": b"ok", "feishu": b'{"code": 0, "msg": "success"}', "dingtalk": b'{"errcode": 0}'}
OK |= {"ntfy": b"{}", "telegram": b'{"ok": true}'}


@dataclass
class Server:
    """A real HTTP server on this machine that writes down what it gets and answers as it is told."""

    port: int = 0
    status: int = 200
    answer: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}?key={TOKEN}"

    @property
    def message(self) -> dict[str, Any]:
        ((_, _, body),) = self.got
        found: dict[str, Any] = json.loads(body)
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.gate.set()

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            made.gate.wait(30)
            self.send_response(made.status)
            for name, value in {"Content-Length": str(len(made.answer)), **made.headers}.items():
                self.send_header(name, value)
            try:
                self.end_headers()
                self.wfile.write(made.answer)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the test's own output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as listening:
        made.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.gate.set()
        listening.shutdown()
        thread.join()


async def tell(server: Server, tmp_path: Path, form: str = "auto", secret: str = "", summary: str = "done") -> None:
    notify = Notify(
        webhooks=(f"http://127.0.0.1:{server.port}/",),
        webhook_format=form,
        webhook_secret=Secret(secret) if secret else None,
    )
    await Announcer(notify, tmp_path).announce("webhook", watch(webhook_url=server.url), event(summary))


async def test_json_is_the_event_with_its_kind_and_number(server: Server, tmp_path: Path) -> None:
    await tell(server, tmp_path)
    ((path, headers, _),) = server.got
    assert server.message == messages.as_json(watch(), event("done"))
    assert path == f"/{TOKEN}?key={TOKEN}"
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert (headers["x-rsmcp-event"], headers["x-rsmcp-event-id"]) == ("completed", "17-1763222222")
    assert "x-rsmcp-signature" not in headers


async def test_json_is_signed_with_the_secret(server: Server, tmp_path: Path) -> None:
    await tell(server, tmp_path, secret=KEY)
    ((_, headers, body),) = server.got
    assert headers["x-rsmcp-signature"] == f"sha256={hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()}"
    assert KEY not in f"{headers}{body!r}"


async def test_slack_gets_text_that_calls_nobody(server: Server, tmp_path: Path) -> None:
    server.answer = OK["slack"]
    await tell(server, tmp_path, "slack", KEY, "<!channel> a & b\nnext")
    assert server.message == {
        "text": "train on gpu1: succeeded\n&lt;!channel&gt; a &amp; b next\nwatch 5",
    }


async def test_ntfy_gets_plain_text_and_its_token(server: Server, tmp_path: Path) -> None:
    await tell(server, tmp_path, "ntfy", KEY, "done <b>")
    ((_, headers, body),) = server.got
    assert body.decode() == "train on gpu1: succeeded\ndone <b>\nwatch 5"
    assert (headers["content-type"], headers["authorization"]) == ("text/plain; charset=utf-8", f"Bearer {KEY}")


async def test_feishu_gets_text_that_calls_nobody(server: Server, tmp_path: Path) -> None:
    server.answer = OK["feishu"]
    await tell(server, tmp_path, "feishu", summary='<at user_id="all">x</at>')
    assert server.message == {
        "msg_type": "text",
        "content": {"text": 'train on gpu1: succeeded\n‹at user_id="all"›x‹/at›\nwatch 5'},
    }


async def test_feishu_is_signed_in_the_body(server: Server, tmp_path: Path) -> None:
    server.answer = OK["feishu"]
    await tell(server, tmp_path, "feishu", KEY)
    stamp = server.message["timestamp"]
    assert isinstance(stamp, str)
    assert abs(int(stamp) - time.time()) < 60
    sign = hmac.new(f"{stamp}\n{KEY}".encode(), b"", hashlib.sha256).digest()
    assert server.message["sign"] == base64.b64encode(sign).decode()


async def test_dingtalk_is_signed_in_the_address(server: Server, tmp_path: Path) -> None:
    server.answer = OK["dingtalk"]
    await tell(server, tmp_path, "dingtalk", KEY)
    assert server.message == {"msgtype": "text", "text": {"content": "train on gpu1: succeeded\ndone\nwatch 5"}}
    ((path, _, _),) = server.got
    query = parse_qs(urlsplit(path).query)
    (stamp,), (sign,) = query["timestamp"], query["sign"]
    assert query["key"] == [TOKEN]
    assert abs(int(stamp) / 1000 - time.time()) < 60
    assert (
        sign == base64.b64encode(hmac.new(KEY.encode(), f"{stamp}\n{KEY}".encode(), hashlib.sha256).digest()).decode()
    )


async def test_dingtalk_without_a_secret_is_not_signed(server: Server, tmp_path: Path) -> None:
    server.answer = OK["dingtalk"]
    await tell(server, tmp_path, "dingtalk")
    assert server.got[0][0] == f"/{TOKEN}?key={TOKEN}"


def test_signatures_are_those_that_openssl_makes() -> None:
    # printf %s TEXT | openssl dgst -sha256 -mac HMAC -macopt hexkey:KEY -binary | base64
    assert webhook._sign("1599360473\nthis is secret", "") == "/eYKrXQBzTjUZJ3s6NX16VxGbTwmK7AEs8/FnvC1CSw="
    dingtalk = webhook._sign("this is secret", "1577262236757\nthis is secret")
    assert dingtalk == "hmPWwU+7lVdm3ZZz0r9tSfx0L4Q26jWOZr9+Gs6EZQM="


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/x", "slack"),
        ("https://HOOKS.slack.com/services/x", "slack"),
        ("https://open.feishu.cn/open-apis/bot/v2/hook/x", "feishu"),
        ("https://open.larksuite.com/open-apis/bot/v2/hook/x", "feishu"),
        ("https://oapi.dingtalk.com/robot/send?access_token=x", "dingtalk"),
        ("https://api.telegram.org/botx/sendMessage?chat_id=1", "telegram"),
        ("https://hooks.slack.com.example.com/", "json"),
        ("https://example.com/hooks.slack.com", "json"),
    ],
)
async def test_the_format_goes_by_the_host(url: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[webhook.Parcel] = []

    async def answer(_: object, parcel: webhook.Parcel) -> webhook.WebhookReply:
        sent.append(parcel)
        return webhook.WebhookReply(200, OK[form])

    monkeypatch.setattr(webhook, "_send", answer)
    await webhook.post(url, "auto", "", watch(), event())
    marks = {"json": "event_type", "slack": "text", "feishu": "msg_type", "dingtalk": "msgtype", "telegram": "text"}
    assert marks[form] in json.loads(sent[0].body)


@pytest.mark.parametrize(
    ("status", "answer", "passing", "reason"),
    [
        pytest.param(500, b"", True, "answered with status 500", id="broken"),
        pytest.param(503, b"busy", True, "answered with status 503: busy", id="busy"),
        pytest.param(429, b"rate_limited", True, "answered with status 429: rate_limited", id="too much"),
        pytest.param(400, b"invalid_payload", False, "refused it with status 400: invalid_payload", id="bad"),
        pytest.param(404, f"<p>/{TOKEN} is not here".encode(), False, "refused it with status 404", id="not there"),
        pytest.param(410, b"", False, "refused it with status 410", id="gone"),
    ],
)
async def test_a_refusal_is_told_and_tried_again_only_where_that_may_help(
    server: Server, tmp_path: Path, status: int, answer: bytes, passing: bool, reason: str
) -> None:
    server.status, server.answer = status, answer
    with pytest.raises(Unsent) as caught:
        await tell(server, tmp_path)
    assert str(caught.value) == f"http://127.0.0.1:{server.port} {reason}"
    assert caught.value.passing == passing


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirection_is_not_followed(server: Server, tmp_path: Path, status: int) -> None:
    server.status, server.headers = status, {"Location": f"http://127.0.0.1:{server.port}/elsewhere"}
    with pytest.raises(Unsent, match=rf"redirection \({status}\), which is not followed") as caught:
        await tell(server, tmp_path)
    assert not caught.value.passing
    assert len(server.got) == 1


@pytest.mark.parametrize(
    ("form", "answer", "passing", "reason"),
    [
        pytest.param("feishu", {"code": 19021, "msg": "sign match fail"}, False, "19021: sign match fail", id="sign"),
        pytest.param("feishu", {"code": 11232, "msg": "too fast"}, True, "11232: too fast", id="too fast"),
        pytest.param("feishu", {"StatusCode": 9, "StatusMessage": "x\n\x1b[0m"}, False, "9: x", id="old field names"),
        pytest.param("feishu", {"ok": 1}, False, "did not answer as feishu does", id="another server"),
        pytest.param("feishu", [1], False, "did not answer as feishu does", id="a list"),
        pytest.param("dingtalk", {"errcode": 310000, "errmsg": f"no {TOKEN}"}, False, "310000: no ...", id="token"),
        pytest.param("dingtalk", {"errcode": 130101, "errmsg": "fast"}, True, "130101: fast", id="DingTalk too fast"),
        pytest.param("dingtalk", {"errcode": -1}, True, "-1: no reason given", id="busy"),
        pytest.param("dingtalk", {"errcode": "x" * 900}, False, "xxx...", id="no number"),
    ],
)
async def test_an_error_in_a_good_answer_is_a_failure(
    server: Server, tmp_path: Path, form: str, answer: object, passing: bool, reason: str
) -> None:
    server.answer = json.dumps(answer).encode()
    with pytest.raises(Unsent) as caught:
        await tell(server, tmp_path, form)
    assert reason in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.passing == passing


@pytest.mark.parametrize("answer", [b"", b"<html>", b"\xff\xfe", b"[" * 60_000])
async def test_a_page_in_place_of_a_verdict_is_a_failure(server: Server, tmp_path: Path, answer: bytes) -> None:
    server.answer = answer
    with pytest.raises(Unsent, match="check webhook_url and webhook_format"):
        await tell(server, tmp_path, "dingtalk")


async def test_an_answer_without_end_is_not_read_to_its_end(server: Server, tmp_path: Path) -> None:
    # More is promised than ever comes: whoever wants all of it fails.
    server.answer, server.headers = b"x" * (1 << 20), {"Content-Length": str(1 << 30)}
    await tell(server, tmp_path)


async def test_a_server_that_does_not_answer_may_be_asked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "LIMIT_S", 0.5)
    server.gate.clear()
    with pytest.raises(Unsent) as caught:
        await tell(server, tmp_path)
    assert str(caught.value) == f"http://127.0.0.1:{server.port} did not answer within 0.5 s"
    assert caught.value.passing


async def test_a_server_that_is_not_there_may_be_asked_again(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = Server(port=taken.getsockname()[1])
        with pytest.raises(Unsent) as caught:
            await tell(gone, tmp_path)
    assert str(caught.value) == f"http://127.0.0.1:{gone.port} could not be reached (ConnectError)"
    assert caught.value.passing


async def test_this_machine_is_not_asked_through_a_proxy(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await tell(server, tmp_path)
    assert len(server.got) == 1


async def test_what_is_no_longer_allowed_is_not_sent(server: Server, tmp_path: Path) -> None:
    with pytest.raises(Unsent, match=r"webhooks = .* under \[notify\] in config.toml") as caught:
        await Announcer(Notify(), tmp_path).announce("webhook", watch(webhook_url=server.url), event())
    assert TOKEN not in str(caught.value)
    assert not caught.value.passing
    assert server.got == []


async def test_a_secret_that_cannot_be_had_is_told_by_its_place(server: Server, tmp_path: Path) -> None:
    from remote_sandbox_mcp.config.secrets import resolve_secret

    notify = Notify(webhooks=(server.url,), webhook_secret=resolve_secret("env:NOT_SET", {"OTHER": HIDDEN}))
    with pytest.raises(Unsent, match="env:NOT_SET"):
        await Announcer(notify, tmp_path).announce("webhook", watch(webhook_url=server.url), event())
    assert server.got == []


def test_the_http_library_is_imported_only_for_a_webhook() -> None:
    code = "import sys; import remote_sandbox_mcp.local.notify.announcer; print('httpx2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
