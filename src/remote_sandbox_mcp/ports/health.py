"""How an app is: whether its port accepts connections, and what it answers when it is asked."""

from __future__ import annotations

import asyncio
import time

from ..backends.deadline import within
from ..core.errors import Unreachable
from ..core.port import Health, PortClosed, Stream, is_well, read_status, request_text
from ..core.sandbox import Sandbox

# One answer's share of the time: an app that never answers is asked again.
ANSWER_S = 10.0
# What a proxy says for an app that does not listen.
BEHIND_NOTHING = (502, 503, 504)


async def check_health(sandbox: Sandbox, port: int, path: str = "", *, seconds: float = ANSWER_S) -> Health | None:
    """None where nothing accepts connections at the port. Raises ConnectError or Unsupported, as connecting does."""
    begun = time.monotonic()
    try:
        stream = await sandbox.connect(port)
    except PortClosed:
        return None
    try:
        status = await within(ask(stream, port, path), seconds) if path else 0
    except (asyncio.TimeoutError, TimeoutError):
        return Health(seconds=time.monotonic() - begun, problem=f"no answer to GET {path} in {seconds:.0f} s")
    except Unreachable as problem:
        return Health(seconds=time.monotonic() - begun, problem=str(problem))
    finally:
        stream.close()
    return judge(status, path, time.monotonic() - begun)


def judge(status: int, path: str, seconds: float) -> Health:
    if not path or is_well(status):
        return Health(True, status, seconds)
    problem = f"GET {path} answers {status}" if status else f"the answer to GET {path} is no HTTP"
    return Health(False, status, seconds, problem)


async def check_url(url: str, path: str = "", *, seconds: float = ANSWER_S) -> Health | None:
    """The same through a platform's own address, which may answer itself that nothing is behind it."""
    import httpx

    begun = time.monotonic()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=seconds) as client:
            answer = await client.head(url) if not path else await client.get(url.rstrip("/") + path)
    except httpx.TimeoutException:
        return Health(seconds=time.monotonic() - begun, problem=f"no answer in {seconds:.0f} s")
    except httpx.HTTPError:
        return None
    if answer.status_code in BEHIND_NOTHING:
        return None
    return judge(answer.status_code, path, time.monotonic() - begun)


async def ask(stream: Stream, port: int, path: str) -> int:
    """The status of the answer; 0 where it is no HTTP. Raises Unreachable where it is cut off."""
    stream.write(request_text(path, port))
    await stream.drain()
    heard = b""
    while (status := read_status(heard)) is None:
        data = await stream.read()
        if not data:
            raise Unreachable(f"the app closed the connection without an answer to GET {path}")
        heard += data
    return status
