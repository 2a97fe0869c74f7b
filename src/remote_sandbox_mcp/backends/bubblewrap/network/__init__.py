"""A network of its own for a sandbox on this machine, carried by a process outside that decides what is reached."""
