"""`python -m remote_sandbox_mcp.server` and its `main`: the same as the remote-sandbox-mcp command."""

from .__main__ import run as main

__all__ = ["main"]


def __getattr__(name: str) -> object:
    if name != "mcp":
        raise AttributeError(name)
    raise ImportError(
        "there is no server object here: name files with tools of your own as `extensions` in config.toml"
    )


if __name__ == "__main__":
    raise SystemExit(main())
