"""Our own processes: how they are started, and locks between them.

What they do is elsewhere; nothing here imports the rest of the program."""
