"""Creates containers on an OpenSandbox platform, finds them again, and checks their network policy."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...core.commands.command import Environment
from ...core.errors import BadArgument, SandboxError, UnknownSandbox, Unreachable, Unsupported
from ...core.permission import allow_volume
from ...core.sandboxes.disposable import (
    NO_IMAGE,
    Disposable,
    DisposableRules,
    NeedsHeaders,
    Platform,
    SandboxOrder,
    Volume,
    login_for,
)
from ...core.sandboxes.sandbox import Sandbox
from ...local import extras
from ...local.waiting import Chores, within
from ..mending import opened
from . import KIND, TRAITS
from .api import Link, disposable_of, refreshed, seconds
from .container import BridgeWay, ContainerSandbox, NoPythonInContainer
from .order import ID, MARK, NETWORK, SHORTEST_LIFE_S, SNAPSHOT, PlatformRequest, is_ours, mark_label, request_of
from .problems import NETWORK_POLICY, described, explained

if TYPE_CHECKING:
    from opensandbox.models.sandboxes import SandboxInfo
    from opensandbox.models.sandboxes import Volume as SdkVolume

SNAPSHOT_S, SWEEP_S, SOON_S = 300.0, 30.0, 0.1
AS_IT_IS = Environment()
# The rule of Kubernetes, even where the platform does not run on it.
VOLUME_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,251}[a-z0-9])?\Z")
# The port of the egress control beside a sandbox, which answers requests with its token.
PORT = 18080
SET_UP = 'set up [egress] with mode = "dns+nft" in the platform\'s settings, or leave network out'


class OpenSandboxProvider:
    """Provider of containers (core.disposable.Provider). `mark` names the user's installation: only that is touched."""

    traits = TRAITS

    def __init__(self, platform: Platform, rules: DisposableRules, mark: str) -> None:
        extras.need("opensandbox", f"unable to use the platform at {platform.server_url}")
        self._link = Link(platform)
        self.rules = rules
        self._mark = mark
        self._chores = Chores("work on a container")

    @property
    def where(self) -> str:
        return self._link.name

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        request = request_of(disposable_id, order, self.rules, self._mark)
        if not request.image and not request.snapshot:
            raise BadArgument(f"unable to create a sandbox: {NO_IMAGE}")
        begun = time.time()
        try:
            key, request = await self._make(request, order)
        except (Unreachable, asyncio.CancelledError):
            # The platform may still create the sandbox after we stopped waiting.
            self._chores.start(self._sweep(disposable_id))
            raise
        return Disposable(
            id=disposable_id,
            provider=KIND,
            key=key,
            name=order.name,
            image=order.image or self.rules.default_image,
            created=begun,
            # The platform counts from the request.
            expires=begun + request.life_s if request.life_s else 0.0,
            limits=request.limits,
            network=request.has_network,
            notes=request.notes,
        )

    async def _make(self, request: PlatformRequest, order: SandboxOrder) -> tuple[str, PlatformRequest]:
        doing = f"unable to create a sandbox from {request.image or SNAPSHOT + request.snapshot}"
        allowed = self._link.platform.volumes
        volumes = [sdk_volume(f"volume-{number}", volume, allowed) for number, volume in enumerate(order.volumes)]
        try:
            key = await self._fetch_and_make(request, volumes, doing)
        except SandboxError as problem:
            # Only a platform that cannot enforce policies at all is asked again, without one.
            if request.allowed_hosts is None or problem.reason != NETWORK_POLICY:
                raise
            if request.must_hold:
                raise refusal(doing, request, problem.cause) from None
            request = request.without_policy()
            key = await self._fetch_and_make(request, volumes, doing)
        if request.allowed_hosts is not None:
            request = await self._check_policy(request, key, doing)
        return key, request

    async def _fetch_and_make(self, request: PlatformRequest, volumes: list[SdkVolume], doing: str) -> str:
        login = login_for(request.image, self._link.platform.registries) if request.image else None
        try:
            return await self._link.create(request, login, volumes, doing)
        except BadArgument as problem:
            raise explained(problem, doing, request.image, login) from None

    async def _check_policy(self, request: PlatformRequest, key: str, doing: str) -> PlatformRequest:
        """Check that the platform enforces the policy. If not, a sandbox that must not have a network is deleted."""
        try:
            why = await gap(self._link, key, doing)
            if not why:
                return request
            if request.must_hold:
                raise refusal(doing, request, why)
            await self._link.managed(doing, lambda manager: manager.patch_sandbox_metadata(key, {NETWORK: "yes"}))
        except BaseException:
            await self._discard(key, request.labels[ID])
            raise
        return request.with_network(f"the network could not be kept off: {why}")

    async def _discard(self, key: str, disposable_id: str) -> None:
        """Delete a sandbox that is not handed to the caller."""
        self._link.forget(key)
        try:
            await self._link.managed("unable to discard a sandbox", lambda manager: manager.kill_sandbox(key))
        except SandboxError:
            self._chores.start(self._sweep(disposable_id))

    async def _sweep(self, disposable_id: str) -> None:
        """Delete a sandbox whose creation was given up; it may appear a while later."""
        until = time.monotonic() + SWEEP_S
        while time.monotonic() < until:
            with contextlib.suppress(SandboxError):
                for found in await self.list():
                    if found.id == disposable_id:
                        return await self.delete(found)
            await asyncio.sleep(10 * SOON_S)

    async def open(self, disposable: Disposable, environment: Environment = AS_IT_IS) -> Sandbox:
        try:
            return await opened(ContainerSandbox(BridgeWay(self._link, disposable), environment))
        except NoPythonInContainer:
            from .plain import PlainContainer

            return PlainContainer(self._link, disposable, environment)

    async def inspect(self, disposable: Disposable) -> Disposable:
        seen = await self._link.info(disposable.key, f"unable to look at {disposable.title}")
        if seen is None or not self._is_ours(seen):
            expired = 0 < self._link.expires.get(disposable.key, disposable.expires) < time.time()
            return replace(disposable, status="expired" if expired else "gone")
        return refreshed(disposable, seen)

    async def list(self) -> Sequence[Disposable]:
        # Filtered by our mark on the platform and again here: a server may not support filters.
        found = await self._link.infos({MARK: mark_label(self._mark)}, "unable to list the platform's sandboxes")
        disposables = (disposable_of(info, self._mark) for info in found)
        return [disposable for disposable in disposables if disposable is not None]

    async def delete(self, disposable: Disposable) -> None:
        doing = f"unable to delete {disposable.title}"
        if not await self._mine(disposable, doing):
            return
        self._link.forget(disposable.key)
        # It may have been deleted, or have expired, meanwhile.
        with contextlib.suppress(UnknownSandbox):
            await self._link.managed(doing, lambda manager: manager.kill_sandbox(disposable.key))

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        doing = f"unable to renew {disposable.title}"
        await self._must_be_mine(disposable, doing)
        life = timedelta(seconds=max(timeout_s, SHORTEST_LIFE_S))
        answer = await self._link.managed(doing, lambda manager: manager.renew_sandbox(disposable.key, life))
        expires = self._link.expires[disposable.key] = seconds(answer.expires_at)
        return replace(disposable, expires=expires)

    async def pause(self, disposable: Disposable) -> Disposable:
        doing = f"unable to pause {disposable.title}"
        seen = await self._must_be_mine(disposable, doing)
        if refreshed(disposable, seen).status != "paused":
            await self._link.managed(doing, lambda manager: manager.pause_sandbox(disposable.key))
        return replace(disposable, status="paused")

    async def resume(self, disposable: Disposable) -> Disposable:
        doing = f"unable to resume {disposable.title}"
        seen = await self._must_be_mine(disposable, doing)
        if refreshed(disposable, seen).status == "paused":
            await self._link.managed(doing, lambda manager: manager.resume_sandbox(disposable.key))
            self._link.forget(disposable.key)
        return await self.inspect(disposable)

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        doing = f"unable to keep {disposable.title} as a snapshot"
        await self._must_be_mine(disposable, doing)
        made = await self._link.managed(doing, lambda manager: manager.create_snapshot(disposable.key, name or None))
        try:
            await within(self._until_kept(made.id, doing), SNAPSHOT_S)
        except asyncio.TimeoutError:
            raise SandboxError(f"{doing}: it was not ready in {SNAPSHOT_S:.0f} s; try again later") from None
        return f"{SNAPSHOT}{made.id}"

    async def _until_kept(self, snapshot_id: str, doing: str) -> None:
        manager = await self._link.manager()
        while (seen := await self._link.checked(doing, manager.get_snapshot(snapshot_id))).status.state != "Ready":
            if seen.status.state == "Failed":
                raise described(doing, seen.status.message or seen.status.reason or "", self._link.name)
            await asyncio.sleep(SOON_S)

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        doing = f"unable to find port {port} of {disposable.title}"
        if not 0 < port < 65536:
            raise BadArgument(f"{doing}: ports are numbers from 1 to 65535")
        await self._must_be_mine(disposable, doing)
        address, headers = await self._link.endpoint(disposable.key, port, doing)
        # Headers that the SDK adds to every request are not needed for the port.
        if needed := tuple(name for name in headers if name not in ("User-Agent", *self._link.config.headers)):
            raise NeedsHeaders(
                f"the platform's address of port {port} of {disposable.title} opens in no browser: its requests must "
                f"carry {' and '.join(needed)}; forward the port instead",
                f"{address}/",
                needed,
            )
        return f"{address}/"

    async def close(self) -> None:
        await self._chores.close()
        await self._link.close()

    def _is_ours(self, seen: SandboxInfo) -> bool:
        return is_ours(seen.metadata or {}, self._mark)

    async def _mine(self, disposable: Disposable, doing: str) -> SandboxInfo | None:
        """The platform's information about a sandbox; None if it is gone. Raises UnknownSandbox for one not ours."""
        seen = await self._link.info(disposable.key, doing)
        if seen is not None and not self._is_ours(seen):
            raise UnknownSandbox(f"{doing}: it belongs to another installation, and is left alone")
        return seen

    async def _must_be_mine(self, disposable: Disposable, doing: str) -> SandboxInfo:
        seen = await self._mine(disposable, doing)
        if seen is None:
            raise UnknownSandbox(f"{doing}: it is gone: it was deleted, or its time was over; create another one")
        return seen


def sdk_volume(name: str, volume: Volume, allowed: Sequence[str]) -> SdkVolume:
    """A volume as the SDK takes it: by its name, or an absolute path there. Raises BadArgument if it is not allowed."""
    from opensandbox.models.sandboxes import PVC, Host
    from opensandbox.models.sandboxes import Volume as SdkVolume

    folder = Host(path=volume.source) if volume.source.startswith("/") else None
    if not folder and not VOLUME_NAME.match(volume.source):
        raise BadArgument(
            f"volumes: {volume.source[:80]!r} is no name of a volume; use lower-case letters, digits and hyphens, or "
            "the whole path of a folder of the platform's machine"
        )
    allow_volume(volume.source, allowed)
    named = None if folder else PVC(claimName=volume.source)
    return SdkVolume(name=name, host=folder, pvc=named, mountPath=volume.target, readOnly=volume.read_only)


def refusal(doing: str, request: PlatformRequest, why: str) -> Unsupported:
    wanted = "narrowed to these hosts" if request.allowed_hosts else "kept off"
    return Unsupported(f"{doing}: its network cannot be {wanted}: {why}; {SET_UP}")


async def gap(link: Link, key: str, doing: str) -> str:
    """Explain why the policy of a new sandbox is not enforced, as the end of a sentence; empty if it is."""
    import httpx

    address, headers = await link.endpoint(key, PORT, doing)
    try:
        answer = await link.client.get(f"{address}/policy", headers=headers)
        said = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return "the platform's egress control does not say what it holds"
    return gap_in(said)


def gap_in(said: Any) -> str:
    """Find the gap in the answer of the egress control; empty where there is none."""
    policy = said.get("policy") if isinstance(said, dict) else None
    if not isinstance(policy, dict) or policy.get("defaultAction") != "deny":
        return "the platform's egress control does not deny what is not allowed"
    if said.get("enforcementMode") == "dns":
        # Configured so, or because the packet filter could not be set up.
        return "the platform's egress control refuses names alone, and addresses can be reached"
    return ""
