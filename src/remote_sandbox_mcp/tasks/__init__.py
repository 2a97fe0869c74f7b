"""Transfers in the background: begun by one process, seen and cancelled by any, taken up by another where it ends."""
