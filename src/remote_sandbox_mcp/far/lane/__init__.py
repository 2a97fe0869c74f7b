"""The lane: the program that moves files on the far side and cannot run commands.

The plan is not made here but in core/sync; the near side of a lane is backends/link/lane.py.
"""
