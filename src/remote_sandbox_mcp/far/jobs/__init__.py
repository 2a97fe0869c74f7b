"""Background jobs on the far side: their folders, keepers and states, and those of a Slurm cluster.

The near side is not here: backends/link/jobs.py sends the requests, core/jobs decides what follows from the answers.
"""
