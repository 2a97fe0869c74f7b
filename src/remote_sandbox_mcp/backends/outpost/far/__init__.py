"""The far side's program, in pieces: standard library only, Python 3.6 or newer, joined into one text when sent.

program.py names them in the order in which they are joined. A line that imports one piece
from another is dropped when they are joined, because then they share one namespace.
"""
