"""The kinds of sandbox: SSH machines, local bubblewrap sandboxes and containers, all behind the protocol Sandbox.

What is done with an open sandbox (jobs, syncs, apps) is not here but in services; the protocol itself is in
core/sandboxes/sandbox.py.
"""
