"""Whether a sandbox's network is kept as it was asked for: what the platform's egress control says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import BadArgument, SandboxError, Unsupported

if TYPE_CHECKING:
    from .link import Link
    from .order import Request

# Of the egress control beside a sandbox, which answers whoever has its token.
PORT = 18080
SET_UP = 'set up [egress] with mode = "dns+nft" in the platform\'s settings, or leave network out'


def is_about_policy(problem: SandboxError) -> bool:
    """Whether the platform refused because it cannot hold a policy at all, which is not the same as a failure."""
    return isinstance(problem, (BadArgument, Unsupported)) and "networkPolicy" in str(problem)


def refusal(doing: str, request: Request, why: str) -> Unsupported:
    wanted = "narrowed to these hosts" if request.allowed_hosts else "kept off"
    return Unsupported(f"{doing}: its network cannot be {wanted}: {why}; {SET_UP}")


async def gap(link: Link, key: str, doing: str) -> str:
    """Why the policy of one that was just made does not hold, as the end of a sentence; empty where it does."""
    import httpx

    address, headers = await link.endpoint(key, PORT, doing)
    try:
        answer = await link.client.get(f"{address}/policy", headers=headers)
        said = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return "the platform's egress control does not say what it holds"
    return gap_in(said)


def gap_in(said: Any) -> str:
    """The same, of what was said."""
    policy = said.get("policy") if isinstance(said, dict) else None
    if not isinstance(policy, dict) or policy.get("defaultAction") != "deny":
        return "the platform's egress control does not deny what is not allowed"
    if said.get("enforcementMode") == "dns":
        # As configured, or because the packet filter could not be set up.
        return "the platform's egress control refuses names alone, and addresses can be reached"
    return ""
