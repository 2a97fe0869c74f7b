"""Serving MCP over HTTP: the listener, the keys and limits, and which requests are let in.

The answers are not made here: fronts/mcp has the tools, hub runs the service.
"""
