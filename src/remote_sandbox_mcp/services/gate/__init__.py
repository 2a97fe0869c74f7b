"""The gate: which files of this computer an agent may use, and a person's permission for more.

The rules themselves are not here but in core/gate.py.
"""
