"""The sync verbs: run a sync at once, or in the background, where any process can see, cancel and continue it.

How files move is not here: services/sync does that.
"""
