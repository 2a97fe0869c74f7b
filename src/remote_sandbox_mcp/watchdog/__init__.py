"""The watchdog: the loop that looks after watched jobs, its lock, and its place among the system's services.

What happens in one round is not here but in jobs/supervise.py; the process that the loop runs in is the hub.
"""
