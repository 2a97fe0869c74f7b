"""The program that runs on the far side, in pieces: standard library only, Python 3.6 or newer, sent as one text.

Its near side is not here but in backends/link. far/program.py names the pieces in the order in which they are joined; a
line that imports one piece from another is dropped then, because all share one namespace.
"""
