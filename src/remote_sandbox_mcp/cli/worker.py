"""The process that guards a transfer, and takes it over when it must; started by us, never by hand."""

from __future__ import annotations

import os
import sys

from ..tasks.process import LEAVE, sign

# It may wait for minutes and never be needed, so until then it is a bare interpreter: even typing is left out.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ..tasks.drive import Runner
    from ..tasks.work import RunnerFactory


def main(argv: Sequence[str] | None = None, *, runner_factory: RunnerFactory | None = None) -> int:
    """TASK_ID --state FOLDER --guard FD [--config FILE] [--client told]: wait for the word, or the end, on stdin.

    With --client, the first line is for whom it works.
    """
    task_id, options = _parse(sys.argv[1:] if argv is None else argv)
    guard = int(options["--guard"])
    # The lock is to go with this process, whatever that leaves running.
    os.set_inheritable(guard, False)
    sign(guard)
    client = _read_line() if "--client" in options else b""
    if os.read(0, 1) == LEAVE:
        return 0
    return _take_over(task_id, options["--state"], runner_factory or _configured(options.get("--config"), client))


def _read_line() -> bytes:
    """To its end, and not a byte further."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _parse(argv: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The options come in pairs, before or after the id."""
    rest, options, task_id = list(argv), {}, ""
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            options[word] = rest.pop(0)
        else:
            task_id = word
    return task_id, options


def _take_over(task_id: str, state: str, runner_factory: RunnerFactory) -> int:
    import asyncio
    from pathlib import Path

    from ..config import paths
    from ..core.errors import SandboxError
    from ..tasks.records import Records
    from ..tasks.work import carry_on

    # It may have been given relative to a folder that this process is not in.
    os.environ[paths.HOME] = state
    records = Records(Path(state))
    try:
        asyncio.run(carry_on(records, task_id, runner_factory))
    except SandboxError as problem:
        print(f"remote-sandbox-mcp: {problem}", file=sys.stderr)
        return 2
    finally:
        records.close()
    return 0


def _configured(config: str | None, client: bytes) -> RunnerFactory:
    """Runners as the configuration of the client has them."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def factory() -> AsyncIterator[Runner]:
        import json
        from pathlib import Path

        from ..app import compose
        from ..config.load import load
        from ..session import Session, begin

        if client:
            told = json.loads(client)
            begin(Session(environ=told["environ"], folder=told["folder"]))
            configuration = load(Path(config) if config else None, told["environ"], told["folder"])
        else:
            configuration = load(Path(config) if config else None)
        app = compose(configuration, for_all=True)
        try:
            yield app.copies.runner()
        finally:
            await app.close()

    return factory


if __name__ == "__main__":
    sys.exit(main())
