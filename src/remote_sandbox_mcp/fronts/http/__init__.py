"""Serving MCP over HTTP: the listener, the keys and limits, and which requests are let in.

What is answered is not here: mcp_server has the tools, hub runs the service.
"""
