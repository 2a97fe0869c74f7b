"""The MCP front end: tools, shapes of results, resources and prompts, and where errors become sentences.

What a tool does is not here: tools call the app (app.py); HTTP is in web, the hub's connections are in hub.
"""
