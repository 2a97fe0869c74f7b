"""Disposable sandboxes on this machine: bubblewrap around a home that goes away."""
