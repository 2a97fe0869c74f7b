"""The far side of Python sessions: client, supervisor and interpreter (Python 3.6 or newer, standard library only).

What sends it is not here but one folder up (program.py). It imports nothing of ours from outside of this folder.
"""
