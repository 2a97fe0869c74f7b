"""Commands, jobs and files where there is no Python: one POSIX sh program, and the classes that speak to it.

How a shell is reached, and where files are served better by something else, is for the backends that use this room.
"""
