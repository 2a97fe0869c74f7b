"""Questions to the server that runs: whether it answers, and which sandboxes it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANSWER_S = 5.0
KEY_HEADER = "OPEN-SANDBOX-API-KEY"
# More are counted, not named.
PAGE = 200


@dataclass(frozen=True)
class Sandboxes:
    """Those that the server knows: the ids of the first, and how many in all."""

    ids: tuple[str, ...] = ()
    count: int = 0


async def list_sandboxes(url: str, key: str) -> Sandboxes | None:
    """All sandboxes of the engine that a server made; None where it does not answer as it should."""
    import httpx

    try:
        # What the environment says of proxies is not for this machine.
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
            answer = await client.get(f"{url}/v1/sandboxes", params={"pageSize": PAGE}, headers={KEY_HEADER: key})
            answer.raise_for_status()
            return _read(answer.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def _read(page: Any) -> Sandboxes:
    ids = tuple(str(item["id"]) for item in page["items"])
    return Sandboxes(ids, max(len(ids), int(page["pagination"].get("totalItems", 0))))
