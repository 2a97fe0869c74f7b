"""The page in the browser, under /ui: entering, the stream of changes, logs, calls of tools, and its files.

What is shown is not found out here, but in live; which requests reach this room at all is decided in web.
"""
