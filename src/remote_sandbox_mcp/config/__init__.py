"""The operator's configuration: config.toml, environment variables, ~/.ssh/config aliases and secrets."""
