"""The page in the browser, under /ui: entering, the stream of changes, logs, calls of tools, and its files.

Rows are not made here but in views/live; which requests reach this room at all is decided in fronts/http.
"""
