"""Sandboxes as values: the protocol, machines, disposable sandboxes, logins and ports.

No sandbox is opened here: the backends keep the protocol, services/fleet.py opens them by name.
"""
