"""Coding agents work on SSH machines, containers and local sandboxes through one MCP server."""

__version__ = "1.0.0"
# __init__.pyi has their types: an import here, even one for types alone, would be one from the lowest room to the API.
_OF_API = ("SandboxError", "Sandboxes")


def __getattr__(name: str) -> object:
    """The API on first use: every start of the program imports this module."""
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.api"), name)
