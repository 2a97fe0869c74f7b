"""Commands, jobs and files where there is no Python: one POSIX sh program, and the classes that speak to it.

How a shell is reached is not decided here, nor which files are served better in another way: the backends that use this
room (ssh, opensandbox) do that.
"""
