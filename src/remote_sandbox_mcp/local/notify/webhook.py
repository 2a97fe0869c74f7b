"""Events to a webhook: our own signed JSON, or what Slack, Feishu, DingTalk, ntfy and Telegram take."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx2

from ...core.jobs.watch import Event, Unsent, Watch
from ...core.permission import Address, read_address
from ...core.task import event_outcome
from ..store.subscriptions import EVENT, KEY, Subscription
from ..waiting import within
from . import messages

LIMIT_S = 10.0
MOST_ANSWER = 64 << 10
SHORTEST_KEY = 8

_HOSTS = {
    "hooks.slack.com": "slack",
    "open.feishu.cn": "feishu",
    "open.larksuite.com": "feishu",
    "oapi.dingtalk.com": "dingtalk",
    "ntfy.sh": "ntfy",
    "api.telegram.org": "telegram",
}
# Feishu and DingTalk always answer 200 and report the result in the body: which field, and which numbers mean "try
# later".
_VERDICTS = {
    "feishu": (("code", "StatusCode"), ("msg", "StatusMessage"), {11232, 99991400}),
    "dingtalk": (("errcode",), ("errmsg",), {-1, 130101}),
}


@dataclass(frozen=True)
class Parcel:
    """Request to send: a body, the headers and the parameters that go with it."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WebhookReply:
    """Reply of the webhook's server."""

    status: int
    body: bytes


async def post(url: str, form: str, secret: str, watch: Watch, event: Event) -> None:
    """Send an event to an allowed address. Raises Unsent, whose text shows only the host of the address."""
    address = read_address(url)
    form = _HOSTS.get(address.host, "json") if form == "auto" else form
    judge(address, form, await send(address, _PACKERS[form](watch, event, secret)))


async def send(address: Address, parcel: Parcel) -> WebhookReply:
    """The receiver's reply, whatever it is. Raises Unsent, whose text shows only the host of the address."""
    try:
        return await within(_send(address, parcel), LIMIT_S)
    except (asyncio.TimeoutError, httpx2.TimeoutException):
        raise Unsent(f"{address.origin} did not answer within {LIMIT_S:g} s", passing=True) from None
    except httpx2.TransportError as error:
        # The library's own message may contain the address, which is often secret.
        raise Unsent(f"{address.origin} could not be reached ({type(error).__name__})", passing=True) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unsent(f"{address.origin} could not be asked ({type(error).__name__})") from None


async def _send(address: Address, parcel: Parcel) -> WebhookReply:
    joint = "&" if address.query else "?"
    url = f"{address}{joint}{urlencode(parcel.parameters)}" if parcel.parameters else str(address)
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "remote-sandbox-mcp", **parcel.headers}
    # A proxy must not be used for addresses of this computer.
    async with (
        httpx2.AsyncClient(timeout=LIMIT_S, follow_redirects=False, trust_env=not address.is_loopback) as client,
        client.stream("POST", url, content=parcel.body, headers=headers) as response,
    ):
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MOST_ANSWER:
                break
        return WebhookReply(response.status_code, body[:MOST_ANSWER])


def judge(address: Address, form: str, answer: WebhookReply) -> None:
    """Check whether the receiver accepted it. Raises Unsent."""
    origin = address.origin
    if answer.status == 429 or answer.status >= 500:
        raise Unsent(f"{origin} answered with status {answer.status}{_said(answer)}", passing=True)
    if 300 <= answer.status < 400:
        raise Unsent(f"{origin} answered with a redirection ({answer.status}), which is not followed")
    if answer.status >= 400:
        raise Unsent(f"{origin} refused it with status {answer.status}{_said(answer)}")
    if form in _VERDICTS:
        _judge_body(address, form, answer)


def _judge_body(address: Address, form: str, answer: WebhookReply) -> None:
    numbers, words, passing = _VERDICTS[form]
    try:
        verdict = json.loads(answer.body)
    except (ValueError, RecursionError):
        verdict = None
    number = next((verdict[key] for key in numbers if key in verdict), None) if isinstance(verdict, dict) else None
    if number is None:
        raise Unsent(f"{address.origin} did not answer as {form} does; check webhook_url and webhook_format")
    if number != 0:
        said = next((str(verdict[key]) for key in words if verdict.get(key)), "no reason given")
        reason = f"{messages.one_line(str(number), 20)}: {messages.one_line(_without_keys(said, address), 200)}"
        raise Unsent(f"{address.origin} refused it with {reason}", passing=number in passing)


def _said(answer: WebhookReply) -> str:
    """The receiver's reason if it is a single word, as with Slack; an error page might contain the address."""
    return f": {answer.body.decode()}" if re.fullmatch(rb"[a-z_]{1,40}", answer.body) else ""


def _without_keys(text: str, address: Address) -> str:
    for part in re.split(r"[/?&=]", f"{address.path}{address.query}"):
        text = text.replace(part, "...") if len(part) >= SHORTEST_KEY else text
    return text


def _pack_json(watch: Watch, event: Event, secret: str) -> Parcel:
    body = messages.encode(messages.as_json(watch, event)).encode()
    headers = {
        "X-RSMCP-Event": event.type.value,
        **({"X-RSMCP-Outcome": outcome.state.value} if (outcome := event_outcome(event)) else {}),
        # The same for every attempt, so that a receiver can drop repetitions.
        "X-RSMCP-Event-Id": f"{event.id}-{event.created:.0f}",
    }
    if secret:
        headers["X-RSMCP-Signature"] = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
    return Parcel(body, headers)


def pack_subscribed(to: Subscription, watch: Watch, event: Event) -> Parcel:
    """An event as MCP Events wants it; its id is the same for every attempt."""
    number, data = f"job-event-{event.id}-{event.created:.0f}", messages.as_json(watch, event)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.created))
    return sign_parcel(to, number, {"eventId": number, "name": EVENT, "timestamp": at, "data": data, "cursor": None})


def sign_parcel(to: Subscription, number: str, fields: Mapping[str, Any]) -> Parcel:
    """Sign by the rules of Standard Webhooks."""
    body, at = messages.encode(fields), f"{time.time():.0f}"
    signature = _sign(base64.b64decode(to.secret.removeprefix(KEY)), f"{number}.{at}.{body}")
    headers = {"webhook-id": number, "webhook-timestamp": at, "webhook-signature": f"v1,{signature}"}
    return Parcel(body.encode(), {**headers, "X-MCP-Subscription-Id": to.id})


def _pack_slack(watch: Watch, event: Event, secret: str) -> Parcel:
    text = _text(watch, event).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _packed({"text": text})


def _pack_feishu(watch: Watch, event: Event, secret: str) -> Parcel:
    # An <at> tag would notify everybody, and it cannot be escaped.
    text = _text(watch, event).replace("<", "‹").replace(">", "›")
    fields: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
    if secret:
        now = str(int(time.time()))
        fields |= {"timestamp": now, "sign": _sign(f"{now}\n{secret}", "")}
    return _packed(fields)


def _pack_dingtalk(watch: Watch, event: Event, secret: str) -> Parcel:
    now = str(int(time.time() * 1000))
    parameters = {"timestamp": now, "sign": _sign(secret, f"{now}\n{secret}")} if secret else {}
    return _packed({"msgtype": "text", "text": {"content": _text(watch, event)}}, parameters)


def _pack_ntfy(watch: Watch, event: Event, secret: str) -> Parcel:
    """The address is that of the topic; a secret is an access token."""
    login = {"Authorization": f"Bearer {secret}"} if secret else {}
    return Parcel(_text(watch, event).encode(), {"Content-Type": "text/plain; charset=utf-8", **login})


def _pack_telegram(watch: Watch, event: Event, secret: str) -> Parcel:
    """The address is .../botTOKEN/sendMessage?chat_id=..."""
    return _packed({"text": _text(watch, event)})


def _packed(fields: Mapping[str, Any], parameters: Mapping[str, str] | None = None) -> Parcel:
    return Parcel(messages.encode(fields).encode(), parameters=parameters or {})


def _text(watch: Watch, event: Event) -> str:
    return f"{messages.title(watch, event)}\n{messages.body(event)}\nwatch {event.watch_id or watch.id}"


def _sign(key: str | bytes, message: str) -> str:
    key = key.encode() if isinstance(key, str) else key
    return base64.b64encode(hmac.new(key, message.encode(), hashlib.sha256).digest()).decode()


_PACKERS: dict[str, Callable[[Watch, Event, str], Parcel]] = {
    "json": _pack_json,
    "slack": _pack_slack,
    "feishu": _pack_feishu,
    "dingtalk": _pack_dingtalk,
    "ntfy": _pack_ntfy,
    "telegram": _pack_telegram,
}
