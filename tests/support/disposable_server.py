"""A server for tests: a process with disposable sandboxes on a shared folder that does what its input says."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.jobs.job import JobOrder
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Provider, SandboxOrder
from tests.support.disposable_folder import FolderProvider
from tests.support.disposable_house import House


async def create(house: House, count: int) -> list[str]:
    came = await asyncio.gather(
        *(house.disposables.create(SandboxOrder()) for _ in range(count)), return_exceptions=True
    )
    return [it.id for it in came if not isinstance(it, BaseException)]


async def run(house: House, name: str) -> int:
    provider = next(iter(house.providers.values()))
    assert isinstance(provider, FolderProvider)
    # The line of one that another process has ended is cut by the platform; here nobody else would do it.
    if (found := await house.disposables.find(name)) is None:
        house.fleet.member(name)
    elif (await provider.inspect(found)).status == "gone":
        provider.kill(found.id)
    seen = await (await house.fleet.get(name)).run(Command("true"))
    assert isinstance(seen, Completed)
    return seen.exit_code


async def obey(house: House, verb: str, *words: str) -> object:
    if verb == "create":
        return await create(house, int(words[0]))
    if verb == "create_named":
        return (await house.disposables.create(SandboxOrder(name=words[0]))).id
    if verb == "create_for":
        return (await house.disposables.create(SandboxOrder(timeout_s=float(words[0])))).id
    if verb == "run":
        return await run(house, words[0])
    if verb == "delete":
        return (await house.disposables.service.delete(words[0])).status
    if verb == "list":
        return sorted(it.id for it in await house.disposables.list())
    if verb == "deleted":
        return [deleted for provider in house.providers.values() for deleted in getattr(provider, "deleted", ())]
    if verb == "start":
        order = JobOrder(session="work", script=words[1])
        return (await (await house.fleet.get(words[0])).jobs.start(order)).job_id
    if verb == "write":
        return (await (await house.fleet.get(words[0])).write(words[1], words[2].encode())).size
    await house.tick()
    return "ok"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=50)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--kind", default="opensandbox")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--configuration", default="")
    options = parser.parse_args()
    provider: Provider = FolderProvider(options.folder, options.kind, options.slow)
    if options.real:
        provider = EmbeddedProvider(options.folder)
    rules = DisposableRules(max_concurrent=options.most)
    house = House(options.folder, rules, time.time, {options.kind: provider}, options.configuration)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = json.loads(line)
        try:
            answer = await obey(house, verb, *words)
        except SandboxError as problem:
            answer = str(problem)
        print(json.dumps(answer), flush=True)
    await house.close()


if __name__ == "__main__":
    asyncio.run(main())
