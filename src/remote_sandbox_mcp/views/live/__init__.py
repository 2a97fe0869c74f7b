"""Live view: rows that change, for the page in the browser, and for the view in the terminal.

How rows are shown is not here, and nothing here changes a sandbox.
"""
