"""The embedded provider, which needs no setup: disposable bubblewrap sandboxes on this computer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.check import variables
from ...core.commands.command import Environment
from ...core.errors import BadArgument, ConnectError, SandboxError, Unsupported
from ...core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder
from ...core.sandboxes.network import Network, Reach, is_private_range, ranges, read_rule
from ...local.waiting import undone_by
from . import KIND, TRAITS, cgroups, disk, images, landlock, limits
from .bwrap import Footing
from .disposable import EmbeddedSandbox, Tenant
from .landlock import NO_NAMESPACES
from .network import way
from .store import Record, SandboxStore, sweep, take_down

USUAL = Environment()
NO_RULES = DisposableRules()


class EmbeddedProvider:
    """Sandboxes in folders of the state folder; the files outlive this process, the processes in them do not."""

    traits = TRAITS
    where = "this machine"

    def __init__(self, state_folder: Path, environment: Environment = USUAL, rules: DisposableRules = NO_RULES) -> None:
        self._store = SandboxStore(state_folder.absolute() / "disposable")
        self._environment = environment
        self.rules = rules
        self._tenants: dict[str, Tenant] = {}
        self._bases: list[cgroups.ParentGroup] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        check(order)
        self._check_hosts(order.hosts)
        footing = await landlock.find_footing(self.rules.walls)
        if isinstance(footing, str):
            raise Unsupported(footing)
        network = self._network(bool(order.network), order.hosts)
        if reason := await way.why_not(network, footing):
            raise Unsupported(reason)
        if order.image and footing.landlock:
            raise Unsupported(
                f"an embedded sandbox has this computer's own system where {NO_NAMESPACES}; leave image out"
            )
        image = str(images.check(order.image, self._store.root.parent)) if order.image else ""
        # Before the new one is made: what a crash left may hold its disk space.
        await self._swept()
        try:
            tenant = self._make(disposable_id, order, image, footing)
        except OSError as problem:
            raise SandboxError(f"unable to make a sandbox in {self._store.root}: {problem.strerror}") from None
        # The process that makes one will use it at once.
        tenant.warm()
        return tenant.record.made

    def _make(self, disposable_id: str, order: SandboxOrder, image: str, footing: Footing) -> Tenant:
        lock = self._store.claim_new(disposable_id)
        try:
            return self._prepare(disposable_id, order, image, footing, lock)
        except OSError:
            os.close(lock)
            take_down(self._store, disposable_id)
            raise

    def _network(self, is_wanted: bool, hosts: tuple[str, ...]) -> Network:
        """A list of hosts always narrows the network; the host's own network only if the operator configured it."""
        if hosts:
            return Network(Reach.HOSTS, hosts, self.rules.private_ranges)
        if not is_wanted:
            return Network()
        reach = Reach.HOST if self.rules.shares_host_network else Reach.OUTSIDE
        return Network(reach, private_ranges=self.rules.private_ranges)

    def _check_hosts(self, hosts: tuple[str, ...]) -> None:
        """Raises BadArgument for addresses that the proxy would refuse anyway."""
        excepted = ranges(self.rules.private_ranges)
        for host in hosts:
            rule = read_rule(host)
            if rule and rule.range and is_private_range(rule.range, excepted):
                raise BadArgument(
                    f"network: {host} is in a private network or of this computer, where an embedded sandbox may not "
                    "go; its operator can allow it with private_ranges under [disposable] in config.toml"
                )

    def _prepare(self, disposable_id: str, order: SandboxOrder, image: str, footing: Footing, lock: int) -> Tenant:
        box, asked, now = self._store.box(disposable_id), order.limits, time.time()
        network = self._network(bool(order.network), order.hosts)
        landlock.make_root(box, footing)
        is_disk_real = bool(asked.disk_mb) and self._mount(disposable_id, asked.disk_mb, footing)
        made = Disposable(
            id=disposable_id,
            provider=KIND,
            key=disposable_id,
            name=order.name,
            image=image,
            created=now,
            expires=now + order.timeout_s if order.timeout_s else 0.0,
            limits=asked,
            network=bool(network),
            notes=(*network_notes(network), *notes(order)),
        )
        record = Record(made, order.env, hosts=order.hosts, has_real_disk=is_disk_real)
        return self._move_in(record, order.env, footing, lock)

    def _move_in(self, record: Record, env: Mapping[str, str], footing: Footing, lock: int) -> Tenant:
        """Enforce its limits, write its record, and keep it as in use by us."""
        if self._bases is None:
            self._bases = cgroups.find_bases()
        made, planned = record.made, cgroups.plan(self._bases, record.made.id)
        record = replace(record, groups=tuple(sorted({*record.groups, *map(str, planned.folders)})))
        # Recorded before the groups exist, so that a crash in between leaves nothing unknown.
        self._store.write(record)
        group = cgroups.make(planned)
        asked = replace(made.limits, told=())
        held = limits.hold(asked, group, footing, is_disk_real=record.has_real_disk)
        record = replace(record, made=replace(made, limits=held.limits))
        self._store.write(record)
        network = self._network(made.network, record.hosts)
        tenant = Tenant(self._store, record, held.bounds, env, self._environment, network, lock, self.rules.walls)
        self._tenants[made.id] = tenant
        tenant.begin(self._expire)
        return tenant

    def _mount(self, disposable_id: str, disk_mb: int, footing: Footing) -> bool:
        runs = self._store.runs(disposable_id)
        # What is mounted could not be bound to another place, where its user finds it.
        if footing.landlock or not disk.mount_sized(self._store.box(disposable_id), disk_mb):
            return False
        runs.mkdir(mode=0o700, exist_ok=True)
        # The outpost's records need their own space: when the sandbox's disk is full, they must still be written.
        return disk.mount_sized(runs, limits.RUNS_MB, footing.step_down)

    async def _swept(self) -> None:
        """The first call sweeps what earlier processes have left."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(asyncio.to_thread(sweep, self._store, time.time()))
        await asyncio.shield(self._sweeping)

    async def open(self, disposable: Disposable) -> EmbeddedSandbox:
        tenant = self._tenants.get(disposable.id) or await self._reopen(disposable)
        await tenant.sandbox.open()
        return tenant.sandbox

    async def _reopen(self, disposable: Disposable) -> Tenant:
        """Open one that another process made, or this one closed."""
        await self._swept()
        footing = await landlock.find_footing(self.rules.walls)
        if isinstance(footing, str):
            raise Unsupported(footing)
        if disposable.id in self._tenants:
            # Another task of this process was faster.
            return self._tenants[disposable.id]
        # The lock first: once it is held, no other process removes the folder.
        lock, record = self._store.claim(disposable.id), self._store.read(disposable.id)
        if lock is None or record is None:
            raise ConnectError(f"unable to open {disposable.title}: it is gone; create another")
        if record.made.status == "paused":
            os.close(lock)
            raise ConnectError(f"unable to open {disposable.title}: another server has paused it; resume it there")
        if record.has_real_disk:
            # Empty if this computer was restarted, because it is in memory.
            self._mount(disposable.id, record.made.limits.disk_mb, footing)
        return self._move_in(record, record.env, footing, lock)

    async def inspect(self, disposable: Disposable) -> Disposable:
        record = self._store.read(disposable.id)
        if record is None:
            is_over = 0 < disposable.expires <= time.time()
            return replace(disposable, status="expired" if is_over else "gone")
        return seen(record)

    async def list(self) -> Sequence[Disposable]:
        await self._swept()
        return [seen(record) for name in self._store.ids() if (record := self._store.read(name))]

    async def delete(self, disposable: Disposable) -> None:
        # Raises for an id that is not ours, before anything is touched.
        self._store.folder(disposable.id)
        tenant = self._tenants.pop(disposable.id, None)
        if tenant:
            await tenant.leave()
        await asyncio.to_thread(take_down, self._store, disposable.id)

    async def _expire(self, disposable: Disposable) -> None:
        """End it, unless it was renewed meanwhile, perhaps by another process."""
        record, tenant = self._store.read(disposable.id), self._tenants.get(disposable.id)
        if record is None or seen(record).status == "expired":
            await self.delete(disposable)
        elif tenant:
            tenant.record = record
            tenant.begin(self._expire)

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        check_time(timeout_s)
        expires = time.time() + timeout_s if timeout_s else 0.0
        return self._change(disposable, expires=expires)

    def _change(self, disposable: Disposable, **changes: Any) -> Disposable:
        record = self._living(disposable)
        record = replace(record, made=replace(record.made, **changes))
        self._store.write(record)
        if tenant := self._tenants.get(disposable.id):
            tenant.record = record
            tenant.begin(self._expire)
        return record.made

    def _living(self, disposable: Disposable) -> Record:
        record = self._store.read(disposable.id)
        if record is None or seen(record).status == "expired":
            word = "is gone" if record is None else "has expired"
            raise SandboxError(f"{disposable.title} {word}; create another")
        return record

    async def pause(self, disposable: Disposable) -> Disposable:
        if self._living(disposable).made.status == "paused":
            return await self.inspect(disposable)
        tenant = self._tenants.get(disposable.id) or await self._reopen(disposable)
        # Recorded first: other processes must not open it while it freezes.
        made = self._change(disposable, status="paused")
        with undone_by(lambda: self._change(disposable, status="running")):
            await tenant.pause()
        return made

    async def resume(self, disposable: Disposable) -> Disposable:
        if self._living(disposable).made.status != "paused":
            return await self.inspect(disposable)
        tenant = self._tenants.get(disposable.id)
        if tenant is None:
            raise SandboxError(f"unable to resume {disposable.title}: another server has paused it; resume it there")
        made = self._change(disposable, status="running")
        await tenant.resume()
        return made

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        raise Unsupported(
            f"{disposable.title} is an embedded sandbox, of which no image can be made; download what you want to keep"
        )

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        raise Unsupported(
            f"{disposable.title} is an embedded sandbox, whose ports have no address on this machine; forward the port"
        )

    async def close(self) -> None:
        if self._sweeping:
            await asyncio.gather(self._sweeping, return_exceptions=True)
        tenants = list(self._tenants.values())
        await asyncio.gather(*(self._let_go(tenant) for tenant in tenants), return_exceptions=True)

    async def _let_go(self, tenant: Tenant) -> None:
        """Close it: its files stay; its processes end, unless another process uses it, too."""
        made, is_alone = tenant.record.made, tenant.is_alone()
        self._tenants.pop(made.id, None)
        await tenant.leave()
        if is_alone:
            with contextlib.suppress(SandboxError):
                # No other process can resume a paused sandbox after this one is gone.
                self._change(made, status="running")
            await asyncio.to_thread(cgroups.existing(tenant.record.groups).end)


def seen(record: Record) -> Disposable:
    """The sandbox of a record with its current status."""
    is_over = 0 < record.made.expires <= time.time()
    return replace(record.made, status="expired") if is_over else record.made


def check(order: SandboxOrder) -> None:
    """Raises BadArgument, Unsupported."""
    limits.check(order.limits)
    check_time(order.timeout_s)
    if order.volumes:
        raise Unsupported("an embedded sandbox sees no folder of this machine; upload the files that it needs")
    variables(order.env)


def check_time(timeout_s: float) -> None:
    if not 0 <= timeout_s < float("inf"):
        raise BadArgument(f"timeout is {timeout_s:g}, but must be a number of seconds, or 0 for no end")


def network_notes(network: Network) -> tuple[str, ...]:
    """Describe in sentences the hosts that the network reaches, and the rule that blocks the rest."""
    if network.reach is Reach.HOST:
        return ("network: it reaches what listens on this machine's own loopback, and its abstract sockets, too",)
    if network.reach is Reach.OUTSIDE:
        return ("network: its own; this computer and private networks (10.0.0.0/8, 192.168.0.0/16, ...) are refused",)
    if network.reach is Reach.HOSTS:
        return (
            f"network: only {', '.join(network.hosts)}, ports 80 and 443 where none is named, held by a proxy that "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name; programs that use none of them reach nothing",
        )
    return ()


def notes(order: SandboxOrder) -> list[str]:
    """Notes about parts of an order that are not met as the caller might expect."""
    notes = []
    if order.image:
        notes.append(
            "image: read-only; its home and /tmp are its own, and /app and /workspace where the image has none"
        )
    if order.entrypoint:
        notes.append("entrypoint: not started, because an embedded sandbox has only the commands that are run in it")
    return notes
