"""Adapters for other projects' agents and evaluations: one file per framework, over the public Python API alone.

Nothing of ours imports them, and none imports another: each needs its own framework, which is an extra.
"""

# Reasons of a FileProblem, for which each framework has a word of its own.
MISSING, DENIED, FOLDER = ("ENOENT", "ENOTDIR"), ("EACCES", "EPERM", "EROFS", "read_only"), ("EISDIR", "is_dir")
# What a command may take where a framework sets no limit.
NO_LIMIT_S = 7 * 86400
