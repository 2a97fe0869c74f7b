"""Local folders that belong to a folder of a sandbox: linking them, and passes that carry over what changed.

The decision is not made here but in core/sync/scope.py and core/workspaces/reconcile.py; services/sync moves the files.
"""
