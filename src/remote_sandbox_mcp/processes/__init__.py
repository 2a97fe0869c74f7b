"""Our own processes on this computer: how one is started, and file locks between them.

What the processes do is elsewhere (hub, watchdog, transfers); nothing here imports the rest of the program.
"""
