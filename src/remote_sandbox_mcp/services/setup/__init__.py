"""What `setup` finds, tests and writes: hosts of ~/.ssh/config, config.toml, the files of MCP clients, and undoing it.

Asking a person is not here: that is cli/setup.py.
"""
