"""The far side of Python sessions: client, supervisor and interpreter (Python 3.6 or newer, standard library only).

The near side is not here but in services/sessions/python.py. It imports nothing of ours from outside of this folder.
"""
