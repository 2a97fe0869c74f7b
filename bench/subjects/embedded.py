"""A disposable sandbox on this machine: made, first used, deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder, new_disposable_id

from ..measure import in_turns, timed
from ..mux import spawn_and_wait
from ..report import Row, Target
from ..stage import Stage
from .local import PLAIN

AT_MOST = Target(60)
NO_LONGER = Target(1.0, of_ratio=True)
WALLS = ("bubblewrap", "landlock")


def rows(stage: Stage) -> Iterator[Row]:
    folder = Path(mkdtemp(prefix="disposable-", dir=stage.folder))
    taken = asyncio.run(_lives(folder, stage.rounds(20, 4)))
    created, first, deleted = taken["bubblewrap"]
    plain = in_turns({"bwrap": timed(lambda: spawn_and_wait(PLAIN))}, rounds=stage.rounds(20, 4))["bwrap"]
    yield Row(
        "embedded",
        "disposable sandbox: create it and run `true`",
        first,
        baseline=plain.p50_ms,
        against="bwrap alone",
        target=AT_MOST,
        note=f"create itself takes {created:.1f} ms; the provider is called directly",
    )
    yield Row("embedded", "disposable sandbox: delete it, with all that ran in it", deleted)
    yield Row(
        "embedded",
        "disposable sandbox by Landlock: create it and run `true`",
        taken["landlock"][1],
        baseline=first,
        against="by bubblewrap",
        target=NO_LONGER,
    )


async def _lives(folder: Path, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Medians in milliseconds with each kind of walls, in turns, after a first one that tries out what there is."""
    providers = {walls: EmbeddedProvider(folder / walls, rules=DisposableRules(walls=walls)) for walls in WALLS}
    taken: dict[str, list[tuple[float, float, float]]] = {walls: [] for walls in WALLS}
    try:
        for _ in range(rounds + 1):
            for walls, provider in providers.items():
                taken[walls].append(await _life(provider))
    finally:
        for provider in providers.values():
            await provider.close()
    return {walls: _medians(lives[1:]) for walls, lives in taken.items()}


def _medians(lives: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    created, first, deleted = (median(column) * 1000 for column in zip(*lives, strict=True))
    return created, first, deleted


async def _life(provider: EmbeddedProvider) -> tuple[float, float, float]:
    begun = time.perf_counter()
    disposable = await provider.create(new_disposable_id(), SandboxOrder())
    created = time.perf_counter()
    sandbox = await provider.open(disposable)
    await sandbox.run(Command("true"))
    used = time.perf_counter()
    await provider.delete(disposable)
    return created - begun, used - begun, time.perf_counter() - used
