"""Syncs that a caller asks for: at once, or in the background, where any process sees, cancels and continues them.

How files move is not decided here: sync has that."""
