"""One file sync: scan both ends, compare them, and stream what differs over a few lanes.

The plan is not made here but in core/sync/plan.py; the verbs, and syncs in the background, are in services/transfers.
"""
