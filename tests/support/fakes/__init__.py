"""In-memory sandboxes, jobs, ports and disposable sandboxes."""

from .sandbox import Answer, FakeSandbox, after

__all__ = ["Answer", "FakeSandbox", "after"]
