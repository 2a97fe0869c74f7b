"""Local computer: the state file, notifications, processes and locks, waiting, and asking a person.

The sandbox `local` is not here: it is one of the backends (backends/bubblewrap).
"""
