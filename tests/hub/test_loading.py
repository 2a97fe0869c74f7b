"""The hub loads its modules in turn with a thread that loads the SDK for a client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A thread finds a package for a client; the hub imports a module of that package meanwhile, which the package needs.
BOTH = """
import asyncio, importlib, sys, threading, time
import remote_sandbox_mcp
from remote_sandbox_mcp.fronts.mcp.prefetch import load
from remote_sandbox_mcp.hub import serve

begun = threading.Event()

def is_waited_for():
    return "'package'" in repr(importlib._bootstrap._blocking_on.get(threading.main_thread().ident))

class Slow:
    def find_spec(self, name, *_):
        if name == "package":
            begun.set()
            until = time.monotonic() + 2
            while not is_waited_for() and time.monotonic() < until:
                time.sleep(0.01)

async def begin():
    serve.LOAD_AFTER_S = 0
    remote_sandbox_mcp.__path__[:] = [sys.argv[1]]
    sys.meta_path.insert(0, Slow())
    loading = asyncio.ensure_future(asyncio.to_thread(load, "package"))
    await asyncio.to_thread(begun.wait)
    await serve.load_everything()
    await loading
    print("remote_sandbox_mcp.for_the_hub" in sys.modules, "rich" in sys.modules)

asyncio.run(begin())
"""


def test_a_hub_and_a_client_that_load_the_same_modules_do_not_wait_for_each_other(tmp_path: Path) -> None:
    ours, package = tmp_path / "ours", tmp_path / "package"
    ours.mkdir()
    package.mkdir()
    (ours / "for_the_hub.py").write_text("import httpx\nimport package.part\n")
    (package / "__init__.py").write_text("import package.part\n")
    (package / "part.py").write_text("")
    (tmp_path / "both.py").write_text(BOTH)
    ended = subprocess.run(
        [sys.executable, "both.py", str(ours)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "True False\n"), ended.stderr
