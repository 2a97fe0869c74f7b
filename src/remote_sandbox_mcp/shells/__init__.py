"""Shells of exec_bash that keep their state between calls: run a command in one, list them, close one.

What a machine's bash is told is pure and not here: core/shell_session.py makes it, of the pieces of session.sh.
"""
