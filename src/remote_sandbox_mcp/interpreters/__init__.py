"""Python interpreters that live on a sandbox between calls: the verbs, and the command line that reaches them.

The program that keeps them on the sandbox is not here but in far; orders and records are values of core/interpreter.py.
"""
