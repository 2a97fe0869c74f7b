"""The MCP front end: tools, shapes of results, resources and prompts, and where errors become sentences.

The work of a tool is not done here: tools call the app (app.py); HTTP is in fronts/http, the hub's connections in hub.
"""
