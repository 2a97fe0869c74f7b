"""Sandboxes, jobs, ports and disposable sandboxes in memory, for our tests and for those of our users.

Nothing here runs in production: a real sandbox never imports it (those are in backends).
"""

from .sandbox import Answer, FakeSandbox, after

__all__ = ["Answer", "FakeSandbox", "after"]
