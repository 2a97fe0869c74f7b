"""The kinds of sandbox: SSH machines, local bubblewrap sandboxes and containers, all behind the protocol Sandbox.

What is done with an open sandbox (jobs, syncs, apps) is not here but in the rooms above; the protocol itself is in
core/sandbox.py.
"""
