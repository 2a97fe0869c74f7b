"""Sandboxes on this computer, isolated by bubblewrap: the one called `local`, and disposable ones.

The program that runs commands inside them is not here: it is the same outpost as on any machine (backends/outpost).
"""
