"""Front ends: the MCP server, HTTP and the page in the browser.

No decision is made here: fronts turn arguments into values, call app.py and the services, and show what views makes of
the result. The command line is not here but in cli.
"""
