"""Our own processes on this computer: how one is started, how a server loads quickly, and file locks.

What the processes do is elsewhere (hub, watchdog, transfers); nothing here imports the rest of the program.
"""
