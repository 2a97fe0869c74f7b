"""The hub, one process per user that serves all MCP clients, and the small front that each client starts.

How another process finds the hub is not here but in hub_contact; what a tool call does is decided in mcp_server and
app.py.
"""
