"""Setup: finds, tests and writes hosts of ~/.ssh/config, config.toml, the files of MCP clients, and undoes it.

Asking a person is not here: that is cli/setup.py.
"""
