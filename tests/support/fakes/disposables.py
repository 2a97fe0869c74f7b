"""Disposable sandboxes in memory, for tests: they are made, expire and vanish when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from remote_sandbox_mcp.backends import bubblewrap, opensandbox
from remote_sandbox_mcp.core.errors import ConnectError, SandboxError, Unsupported
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder

from .sandbox import Answers, FakeSandbox


class FakeProvider:
    """Keeps the Provider protocol without a platform. What is made lives until its time is over by `clock`.

    `made` holds what exists, by our ids, `sandboxes` what is inside; `orders` all that was asked for, `renewals` each
    (id, seconds), `deleted` the ids in their order. With `delay_s` every call takes that much longer; no life is made
    shorter than `least_s` by a renewal.
    """

    def __init__(
        self, kind: str = bubblewrap.KIND, answers: Answers | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.kind = kind
        self.traits = opensandbox.TRAITS if kind == opensandbox.KIND else bubblewrap.TRAITS
        self.rules = DisposableRules()
        self.where = "the platform at http://platform.example.org"
        self.answers = answers
        self.made: dict[str, Disposable] = {}
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.orders: list[SandboxOrder] = []
        self.renewals: list[tuple[str, float]] = []
        self.deleted: list[str] = []
        self.asked: list[str] = []
        self.delay_s = 0.0
        self.least_s = 0.0
        self.is_closed = False
        self._clock = clock
        self._failures: dict[str, SandboxError] = {}

    # What a test does

    def fail(self, failure: SandboxError | None, verb: str = "") -> None:
        """From now on every call, or the calls of one verb, raise this with nothing done; None makes all well again."""
        if failure is None:
            self._failures.pop(verb, None)
        else:
            self._failures[verb] = failure

    def kill(self, disposable_id: str) -> None:
        """Make it vanish: its users lose contact."""
        self.made.pop(disposable_id, None)
        sandbox = self.sandboxes.pop(disposable_id, None)
        if sandbox is not None:
            sandbox.fail(ConnectError(f"unable to reach {sandbox.description.name}: no answer"))
            sandbox.lose_contact()

    # What every provider does

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        self.orders.append(order)
        await self._reach("create")
        now = self._clock()
        made = Disposable(
            id=disposable_id,
            provider=self.kind,
            key=f"fake-{disposable_id}",
            name=order.name,
            image=order.image,
            created=now,
            expires=now + order.timeout_s if order.timeout_s else 0.0,
            limits=order.limits,
            network=bool(order.network),
        )
        self.made[disposable_id] = made
        self.sandboxes[disposable_id] = FakeSandbox(self.answers, name=made.title)
        return made

    async def open(self, disposable: Disposable) -> FakeSandbox:
        await self._reach("open")
        if self._status(disposable) != "running":
            raise ConnectError(f"unable to open {disposable.title}: no answer")
        return self.sandboxes[disposable.id]

    async def inspect(self, disposable: Disposable) -> Disposable:
        await self._reach("look")
        return replace(disposable, status=self._status(disposable))

    async def list(self) -> Sequence[Disposable]:
        await self._reach("list")
        return [replace(it, status=self._status(it)) for it in tuple(self.made.values())]

    async def delete(self, disposable: Disposable) -> None:
        await self._reach("delete")
        self.deleted.append(disposable.id)
        self.kill(disposable.id)

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        await self._reach("renew")
        self.renewals.append((disposable.id, timeout_s))
        return self._change(disposable, expires=self._clock() + max(timeout_s, self.least_s))

    async def pause(self, disposable: Disposable) -> Disposable:
        await self._reach("pause")
        return self._change(disposable, status="paused")

    async def resume(self, disposable: Disposable) -> Disposable:
        await self._reach("resume")
        return self._change(disposable, status="running")

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        await self._reach("snapshot")
        self._change(disposable)
        return f"snapshot:{name or disposable.id}"

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        await self._reach("endpoint")
        if not self.traits.is_platform:
            raise Unsupported(f"{disposable.title} has no address for its ports; forward the port")
        self._change(disposable)
        return f"http://127.0.0.1:{port}/"

    async def close(self) -> None:
        self.is_closed = True

    async def _reach(self, verb: str) -> None:
        self.asked.append(verb)
        await asyncio.sleep(self.delay_s)
        failure = self._failures.get("") or self._failures.get(verb)
        if failure is not None:
            raise failure

    def _status(self, disposable: Disposable) -> str:
        made = self.made.get(disposable.id)
        if made is None:
            return "gone"
        return "expired" if 0 < made.expires <= self._clock() else made.status

    def _change(self, disposable: Disposable, *, status: str = "", expires: float = 0.0) -> Disposable:
        if self._status(disposable) in ("gone", "expired"):
            raise SandboxError(f"{disposable.title} is not there any more")
        made = self.made[disposable.id]
        changed = replace(made, status=status or made.status, expires=expires or made.expires)
        self.made[disposable.id] = changed
        return changed
