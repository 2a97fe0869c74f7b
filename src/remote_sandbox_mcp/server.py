"""`python -m remote_sandbox_mcp.server` and its `main`: the same as the remote-sandbox-mcp command."""

from .__main__ import run as main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
