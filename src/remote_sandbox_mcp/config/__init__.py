"""The operator's configuration: config.toml, config.json, environment variables, ~/.ssh/config and secrets.

Nothing is opened here: app.py makes sandboxes and services from the Configuration that `load` returns.
"""
