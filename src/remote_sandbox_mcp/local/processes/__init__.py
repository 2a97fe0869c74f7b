"""Processes on this computer: how ours are started and load quickly, file locks, and which programs we run.

What the processes do is elsewhere (hub, services); nothing here imports the rest of the program.
"""
