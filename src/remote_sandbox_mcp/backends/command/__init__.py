"""Sandboxes behind a command that gives a shell, as `docker exec -i web sh -c` and `ssh host` do.

The command takes one more argument, the line for the shell. How a command is started is a `Way`. Not here: which
commands there are, which only the operator's configuration says, and what other backends start over their connections.
"""
