"""The watchdog: the loop that checks watched jobs, its lock, and its place among the system's services.

One round is not here but in services/jobs/supervise.py; the process that the loop runs in is the hub.
"""
