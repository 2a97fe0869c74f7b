"""`python -m remote_sandbox_mcp.server` and its `main`: the same as the remote-sandbox-mcp command."""

from .__main__ import run as main

__all__ = ["main"]


def __getattr__(name: str) -> object:
    if name == "mcp":
        raise ImportError(
            "remote_sandbox_mcp.server has no server object: put tools and resources of your own into a file, and name "
            "it as `extensions` in config.toml; see docs/extensions.md"
        )
    raise AttributeError(name)

if __name__ == "__main__":
    raise SystemExit(main())
