"""The far side of machines without Python: one POSIX sh program, in pieces.

The classes that talk to it are not here but in backends/shell.
"""
