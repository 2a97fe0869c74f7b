"""Programs that run on a cluster's nodes: standard library only, Python 3.6 or newer, each sent as one text.

What sends them is not here but one folder up (order.py). They import nothing of ours.
"""
