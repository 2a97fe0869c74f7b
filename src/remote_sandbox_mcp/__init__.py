"""Coding agents work on SSH machines, containers and local sandboxes through one MCP server."""

__version__ = "1.0.0"
