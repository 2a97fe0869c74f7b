"""A look at both sides of a link before it is made: what would be sent, and what not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ...core.errors import BadArgument, FileProblem
from ...core.sync.scope import survey
from ...core.sync.transfer import IN_WORKSPACE, Order, Place
from ...core.workspaces.workspace import LinkOrder, Preview
from ..sync.service import Syncs
from .passes import NAMED, Closing


async def preview_link(syncs: Syncs, order: LinkOrder, check: Callable[[str, str], None]) -> Preview:
    """Look at both sides of a link that is not made yet. Raises BadArgument, SandboxError.

    `check` gets the folder there and the home folder before anything in them is scanned: it may be a whole machine.
    """
    here, there = Place("", order.folder, order.free), Place(order.sandbox, order.remote)
    # Both ways have to be open to an agent: reading the folder, and writing to it.
    syncs.begin(Order(source=there, target=here))
    rules = order.rules
    job = syncs.begin(Order(source=here, target=there))
    async with Closing(job):
        await job.open()
        admitted = job.ends.source.admitted
        closed = admitted.rules if admitted else ()
        lines = rules.scan_lines(closed)
        everything = Order(source=here, target=there, excludes=(*IN_WORKSPACE, *lines), respect_gitignore=True)
        top = await job.ends.target.scan(replace(everything, excludes=("*",)))
        check(top.real, top.home)
        # With secret-like names, so that they can be named.
        with_secrets = replace(everything, excludes=rules.scan_lines(closed, secrets=()))
        ours, theirs = await asyncio.gather(job.ends.source.scan(with_secrets), job.ends.target.scan(everything))
    if theirs.kind not in ("dir", "missing"):
        raise BadArgument(f"{there} is not a folder")
    if not theirs.real.startswith("/") or not theirs.real.isprintable():
        raise FileProblem(f"{order.sandbox} names its folder in a way that is not possible", "hostile")
    # Somebody may have put a link in its place meanwhile.
    check(theirs.real, theirs.home)
    found = survey(ours, rules, closed)
    return Preview(
        folder=order.folder,
        sandbox=order.sandbox,
        remote=theirs.real,
        files=found.files,
        bytes=found.bytes,
        secrets=tuple(found.secrets[:NAMED]),
        secret_count=len(found.secrets),
        links=tuple(found.links[:NAMED]),
        link_count=len(found.links),
        excluded=ours.hits,
        files_there=sum(theirs.counts.values()),
    )
