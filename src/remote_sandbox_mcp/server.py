"""`python -m remote_sandbox_mcp.server`: the same as the remote-sandbox-mcp command."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
