"""The program that runs on the far side, in pieces: standard library only, Python 3.6 or newer, sent as one text.

What talks to it is not here but one folder up (client, sandbox, lane). program.py there names the pieces in the order
in which they are joined; a line that imports one piece from another is dropped then, because all share one namespace.
"""
