"""The platform's API through its SDK: one set of connections for all sandboxes, answers bounded in size."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ...core.errors import ConfigError, ConnectError, SandboxError, UnknownSandbox
from ...core.sandboxes.disposable import Disposable, Platform, RegistryLogin
from ...core.sandboxes.foreign import not_understood
from ...local.waiting import within
from ..shell.transport import Gone, Paused
from . import KIND
from .order import ID, NAME, NETWORK, SNAPSHOT, STATUS, PlatformRequest, is_ours, label_name
from .problems import checked

if TYPE_CHECKING:
    import httpx
    from opensandbox import Sandbox as SdkSandbox
    from opensandbox import SandboxManager
    from opensandbox.config import ConnectionConfig
    from opensandbox.models.sandboxes import SandboxInfo


PAGE, MOST_PAGES = 100, 1000
# How often a starting sandbox is checked: the SDK's default would cost a fifth of a second each time.
POLL = timedelta(milliseconds=20)
CONNECTIONS = 200
# Pulling an image may take this many times as long as a start.
FETCH_SHARE = 5

# An address of a port, and the value of a header that its requests need: shown to people, and sent to it.
ADDRESS = re.compile(
    r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?(?:/[\w.~%/-]{0,1000})?\Z", re.A
)
HEADER = re.compile(r"[ -~]{0,4000}")

# The folder for answers for which there is no room on the disk.
IN_MEMORY = "/dev/shm"

T = TypeVar("T")


class Link:
    """Requests to the platform. Every method raises SandboxError with a sentence that starts with `doing`."""

    def __init__(self, platform: Platform) -> None:
        if not platform.server_url:
            raise ConfigError(
                "no OpenSandbox platform is configured; set OPEN_SANDBOX_DOMAIN or opensandbox.server_url"
            )
        self.platform = platform
        # How sentences name the platform.
        self.name = f"the platform at {shown(platform.server_url)}"
        self._config: ConnectionConfig | None = None
        self._manager: SandboxManager | None = None
        self._client: httpx.AsyncClient | None = None
        self._open: dict[str, SdkSandbox] = {}
        # The expiry of each sandbox as last heard: a Disposable that is held for long may have an outdated one.
        self.expires: dict[str, float] = {}

    async def checked(self, doing: str, answer: Awaitable[T]) -> T:
        """Wait for an answer of the platform. Raises SandboxError."""
        return await checked(doing, answer, self.name)

    async def checked_by_agent(self, doing: str, answer: Awaitable[T]) -> T:
        """Wait for an answer of the platform's agent in a sandbox. Raises SandboxError."""
        return await checked(doing, answer, self.name, agent=True)

    @property
    def config(self) -> ConnectionConfig:
        """The SDK's configuration with our own connections, which the SDK uses and does not close."""
        if self._config is None:
            self._config = connection_config(self.platform)
        return self._config

    @property
    def client(self) -> httpx.AsyncClient:
        """An HTTP client for lines, which shares the SDK's connections."""
        import httpx

        if self._client is None:
            from opensandbox.transport import unwrap_retry_transport

            transport = unwrap_retry_transport(self.config.transport)
            self._client = httpx.AsyncClient(transport=transport, timeout=self.platform.request_timeout_s)
        return self._client

    async def _unlock(self) -> None:
        """Read the API key in a thread: it may come from another program, such as a keyring, which may be slow."""
        if self._config is None and self.platform.api_key:
            await asyncio.to_thread(self.platform.api_key.reveal)

    async def manager(self) -> SandboxManager:
        if self._manager is None:
            from opensandbox import SandboxManager

            await self._unlock()
            self._manager = await SandboxManager.create(self.config)
        return self._manager

    async def managed(self, doing: str, ask: Callable[[SandboxManager], Awaitable[T]]) -> T:
        """Ask the SDK's manager of all sandboxes. Raises SandboxError."""
        return await self.checked(doing, ask(await self.manager()))

    async def close(self) -> None:
        self._open.clear()
        if self._config is not None and self._config.transport is not None:
            await self._config.transport.aclose()
        self._config = self._manager = self._client = None

    async def create(
        self, request: PlatformRequest, login: RegistryLogin | None, volumes: list[Any], doing: str
    ) -> str:
        """Create a sandbox; returns the platform's id when it is ready. The SDK deletes one that does not get ready."""
        from opensandbox import Sandbox as SdkSandbox
        from opensandbox.models.sandboxes import SandboxImageAuth, SandboxImageSpec

        await self._unlock()
        password = await asyncio.to_thread(login.password.reveal) if login else ""
        auth = SandboxImageAuth(username=login.user, password=password) if login else None
        made = await self.checked(
            doing,
            SdkSandbox.create(
                SandboxImageSpec(image=request.image, auth=auth) if request.image else None,
                snapshot_id=request.snapshot or None,
                timeout=timedelta(seconds=request.life_s) if request.life_s else None,
                ready_timeout=timedelta(seconds=self.platform.ready_timeout_s),
                env=dict(request.env),
                metadata=dict(request.labels),
                resource=dict(request.resource),
                network_policy=policy(request.allowed_hosts),
                entrypoint=list(request.entrypoint) or None,
                volumes=volumes or None,
                connection_config=self._patient(),
                health_check_polling_interval=POLL,
            ),
        )
        self._open[made.id] = made
        return made.id

    def _patient(self) -> ConnectionConfig:
        """The configuration for a creation: without retries, and with time for the platform to pull an image."""
        from opensandbox.transport import unwrap_retry_transport

        patience = timedelta(seconds=self.platform.request_timeout_s + FETCH_SHARE * self.platform.ready_timeout_s)
        transport = unwrap_retry_transport(self.config.transport)
        return self.config.model_copy(update={"request_timeout": patience, "transport": transport})

    async def sandbox(self, key: str, doing: str) -> SdkSandbox:
        """The SDK's object for a sandbox: its commands, files and endpoints."""
        from opensandbox import Sandbox as SdkSandbox

        if key not in self._open:
            await self._unlock()
            connecting = SdkSandbox.connect(key, connection_config=self.config, skip_health_check=True)
            self._open[key] = await self.checked(doing, connecting)
        return self._open[key]

    async def take_file(self, key: str, place: str, doing: str) -> bytes:
        """Read and remove a file of ours. Its path has no `$`, which the agent would expand."""
        sandbox = await self.sandbox(key, doing)
        try:
            return await self.checked_by_agent(doing, sandbox.files.read_bytes(place))
        finally:
            with contextlib.suppress(SandboxError):
                await self.checked_by_agent(doing, sandbox.files.delete_files([place]))

    def forget(self, key: str) -> None:
        """Forget the SDK's object for a sandbox, whose addresses may have changed."""
        self._open.pop(key, None)

    async def info(self, key: str, doing: str) -> SandboxInfo | None:
        """The platform's information about a sandbox; None if there is none."""
        try:
            seen = await self.managed(doing, lambda manager: manager.get_sandbox_info(key))
        except UnknownSandbox:
            return None
        self.expires[key] = seconds(seen.expires_at)
        return seen

    async def infos(self, mark: Mapping[str, str], doing: str) -> list[SandboxInfo]:
        from opensandbox.models.sandboxes import SandboxFilter

        manager, found, page = await self.manager(), [], 1
        while True:
            wanted = SandboxFilter(metadata=dict(mark), page=page, page_size=PAGE)
            answer = await self.checked(doing, manager.list_sandbox_infos(wanted))
            found += answer.sandbox_infos
            if page > MOST_PAGES:
                raise ConnectError(f"{doing}: its list of sandboxes has no end")
            if not answer.pagination.has_next_page:
                return found
            page += 1

    async def endpoint(self, key: str, port: int, doing: str) -> tuple[str, dict[str, str]]:
        """The address of a port, and the headers that its requests need."""
        sandbox = await self.sandbox(key, doing)
        found = await self.checked(doing, sandbox.get_endpoint(port))
        address = found.endpoint.rstrip("/")
        if "://" not in address:
            address = f"{self.config.protocol}://{address}"
        headers = found.build_request_headers(self.config)
        is_as_safe = address.startswith(("https://", f"{self.config.protocol}://"))
        if not ADDRESS.match(address) or not is_as_safe or not all(map(HEADER.fullmatch, headers.values())):
            raise not_understood(self.name, ValueError("it names no address"))
        return address, headers

    async def why_not(self, disposable: Disposable) -> ConnectError | None:
        """Explain why a sandbox cannot answer now, if the platform knows."""
        name = f"unable to reach {disposable.title}"
        try:
            seen = await within(self.info(disposable.key, name), self.platform.request_timeout_s)
        except asyncio.TimeoutError:
            return None
        except ConnectError as problem:
            return problem
        except SandboxError as problem:
            return ConnectError(str(problem))
        heard = replace(disposable, expires=self.expires.get(disposable.key, disposable.expires))
        return reason(heard, STATUS.get(seen.status.state, "") if seen else "gone")


def shown(url: str) -> str:
    """An address without the secrets that may be in it."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def reason(disposable: Disposable, status: str) -> ConnectError | None:
    name = f"unable to reach {disposable.title}"
    if status == "paused":
        return Paused(f"{name}: it is paused; resume it first")
    if status not in ("gone", "failed", "ended"):
        return None
    if disposable.expires and time.time() > disposable.expires - 2:
        return Gone(f"{name}: its time was over, and the platform has removed it; create another one")
    if status == "ended":
        return Gone(f"{name}: it ended by itself when its main process ended; create another one")
    if status == "failed":
        return Gone(f"{name}: it was killed, or ended by itself; delete it and create another one")
    return Gone(f"{name}: it is gone from the platform, where somebody deleted it; create another one")


def connection_config(platform: Platform) -> ConnectionConfig:
    import httpx
    from opensandbox.config import ConnectionConfig
    from opensandbox.transport import RetryAsyncTransport, RetryPolicy

    from .transport import BoundedTransport

    # The SDK logs its exceptions, which we report ourselves, with addresses of sandboxes.
    for name in ("opensandbox", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    scheme, _, domain = platform.server_url.rstrip("/").rpartition("://")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS, keepalive_expiry=20)
    # All attempts together take no longer than one request may.
    retries = RetryPolicy(
        max_retries=2,
        initial_backoff=timedelta(milliseconds=200),
        overall_deadline=timedelta(seconds=platform.request_timeout_s),
    )
    host = httpx.URL(f"{scheme or 'http'}://{domain}").host
    transport = RetryAsyncTransport(BoundedTransport(host, limits=limits), retries, owns_inner=True)
    return ConnectionConfig(
        domain=domain,
        protocol=scheme or "http",
        api_key=platform.api_key.reveal() if platform.api_key else None,
        request_timeout=timedelta(seconds=platform.request_timeout_s),
        use_server_proxy=platform.use_server_proxy,
        transport=transport,
        disable_metrics=True,
    )


def policy(allowed_hosts: tuple[str, ...] | None) -> Any:
    from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

    if allowed_hosts is None:
        return None
    rules = [NetworkRule(action="allow", target=host) for host in allowed_hosts]
    return NetworkPolicy(defaultAction="deny", egress=rules)


def disposable_of(info: SandboxInfo, mark: str) -> Disposable | None:
    """A sandbox of ours, recognized by its labels; None for any other."""
    labels = info.metadata or {}
    if not is_ours(labels, mark):
        return None
    image = info.image.image if info.image else f"{SNAPSHOT}{info.snapshot_id}" if info.snapshot_id else ""
    return Disposable(
        id=labels[ID],
        provider=KIND,
        key=info.id,
        name=label_name(labels.get(NAME, "")),
        image=image,
        status=STATUS.get(info.status.state, "running"),
        created=seconds(info.created_at),
        expires=seconds(info.expires_at),
        network=NETWORK in labels,
    )


def seconds(moment: datetime | None) -> float:
    """Seconds since the epoch; a time without a zone is in UTC."""
    if moment is None:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def refreshed(before: Disposable, info: SandboxInfo) -> Disposable:
    status = STATUS.get(info.status.state, before.status)
    return replace(before, status=status, expires=seconds(info.expires_at))
