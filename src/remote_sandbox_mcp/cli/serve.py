"""Serving MCP on standard input and output: what happens between the first instruction and the first answer."""

from __future__ import annotations

import gc
import logging
import os
import signal
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..mcp_server.early import Early

# Threads take turns this often while loading, so that the first questions do not wait for it.
TURN_S = 0.0005
ADVANCED = "REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS"


def run(config: Path | None) -> int:
    """Serve; does not return."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    # The collector finds nothing in a start that only makes things which stay, but costs a fifth of it.
    gc.disable()
    early = _listen_early(config)
    turn = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    from ..app import compose
    from ..config.load import load
    from ..mcp_server import stdio

    configuration = load(config)
    for problem in configuration.problems:
        print(f"remote-sandbox-mcp: {problem}", file=sys.stderr)
    app = compose(configuration)
    logging.basicConfig(level=logging.WARNING, format="remote-sandbox-mcp: %(levelname)s: %(message)s")
    sys.setswitchinterval(turn)
    gc.freeze()
    gc.enable()
    stdio.serve(app, early)
    return 0


def _listen_early(config: Path | None) -> Early | None:
    """Begin to answer from memory, where input and output are pipes that can be waited for."""
    if not (_is_stream(0) and _is_stream(1)):
        return None
    from .. import __version__
    from ..config import paths
    from ..core.errors import ConfigError
    from ..mcp_server import early

    try:
        folder = paths.state_folder()
    except ConfigError as problem:
        print(f"remote-sandbox-mcp: {problem}", file=sys.stderr)
        folder = Path(os.devnull)
    sdk = find_spec("mcp")
    makers = [*sorted(Path(early.__file__).parent.rglob("*.py")), *([Path(sdk.origin)] if sdk and sdk.origin else [])]
    # Which tools there are is configured, too.
    settings = [file for file in (config or paths.config_file(),) if file.is_file()]
    stamp = early.stamp_of([*makers, *settings], __version__, os.environ.get(ADVANCED, ""))
    listener = early.Early(early.Memory(folder / "first-answers.json", stamp))
    listener.start()
    return listener


def _is_stream(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
