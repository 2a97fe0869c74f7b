"""Local folders that belong to a folder of a sandbox: linking them, and passes that carry over what changed.

What goes and what comes is not decided here, but in core/scope.py and core/reconcile.py; the room sync moves files.
"""
