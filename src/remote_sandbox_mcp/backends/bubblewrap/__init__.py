"""Sandboxes on this computer, walled in by bubblewrap: the one called `local`, and disposable ones.

The outpost that runs inside the walls is not here: it is the same as on any other machine."""
