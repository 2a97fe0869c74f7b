"""Programs that run on a cluster's nodes: standard library only, Python 3.6 or newer, each sent as one text.

The near side is not here but in backends/slurm. They import nothing of ours.
"""
