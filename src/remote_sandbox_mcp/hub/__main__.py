"""`python -m remote_sandbox_mcp.hub LOCK SOCKET`: the hub, as a front starts it."""

import sys


def run() -> int:
    from ..local.processes import loading

    # Before the modules that it is about are imported.
    loading.begin()
    from .serve import serve

    return serve(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    raise SystemExit(run())
