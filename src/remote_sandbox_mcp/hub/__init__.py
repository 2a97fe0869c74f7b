"""The hub, one process per user that serves all MCP clients, and the small front that each client starts.

How another process finds the hub is not here but in services/hub_contact; a tool call is carried out by fronts/mcp and
app.py.
"""
