"""`python -m remote_sandbox_mcp.server`: the same as the remote-sandbox-mcp command."""

from .__main__ import run

if __name__ == "__main__":
    raise SystemExit(run())
