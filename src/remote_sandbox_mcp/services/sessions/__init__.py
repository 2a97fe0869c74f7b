"""Shells and Pythons that live on a sandbox between calls: the verbs, and the command lines that reach them.

The programs that keep them there are not here but in far; their orders and records are values of core/commands.
"""
