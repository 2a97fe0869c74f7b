"""A platform for several processes: a sandbox is a file, and whoever may read it can use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote_sandbox_mcp.core.errors import ConnectError
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, SandboxOrder
from tests.support.disposable_house import ANSWERS
from tests.support.fakes.disposables import FakeProvider
from tests.support.fakes.sandbox import FakeSandbox


class FolderProvider(FakeProvider):
    """What exists is what has a file; a request is on its way while its file ends in .begun."""

    def __init__(self, folder: Path, kind: str = "opensandbox", slow_s: float = 0.0) -> None:
        super().__init__(kind, ANSWERS)
        self._folder = folder / "made"
        self._folder.mkdir(exist_ok=True)
        self._slow_s = slow_s

    def _file(self, disposable_id: str) -> Path:
        return self._folder / f"{disposable_id}.json"

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        made = await super().create(disposable_id, order)
        begun = self._file(disposable_id).with_suffix(".begun")
        begun.write_text(json.dumps({"name": order.name}))
        await asyncio.sleep(self._slow_s)
        begun.rename(self._file(disposable_id))
        return made

    async def open(self, disposable: Disposable) -> FakeSandbox:
        if not self._file(disposable.id).exists():
            raise ConnectError(f"unable to open {disposable.title}: no answer")
        return self.sandboxes.setdefault(disposable.id, FakeSandbox(ANSWERS, name=disposable.title))

    async def inspect(self, disposable: Disposable) -> Disposable:
        there = self._file(disposable.id).exists()
        if not there:
            self.kill(disposable.id)
        return replace(disposable, status="running" if there else "gone")

    async def list(self) -> Sequence[Disposable]:
        return [Disposable(id=file.stem, provider=self.kind, key=file.stem) for file in self._folder.glob("*.json")]

    async def delete(self, disposable: Disposable) -> None:
        await super().delete(disposable)
        self._file(disposable.id).unlink(missing_ok=True)
