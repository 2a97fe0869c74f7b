"""Trees of files and the plan that makes one like the other; which names stay where they are.

No file is read or written here: services/sync carries out the plan, far/lane moves the files.
"""
