"""The command line: one file for each verb of remote-sandbox-mcp, and what they share to parse and print.

What a verb does is not here: each calls the app (app.py), like every other front end.
"""
