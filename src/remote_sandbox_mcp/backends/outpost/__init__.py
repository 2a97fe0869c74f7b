"""The outpost: a small program at the far end of one line, and the client that talks to it."""
