"""The MCP front end: tools, results and errors."""
