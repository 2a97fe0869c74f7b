"""What runs beside a job for a person at a terminal (Python 3.6 or newer, standard library only).

What starts it is not here but one folder up (attach.py). It imports nothing of ours.
"""
