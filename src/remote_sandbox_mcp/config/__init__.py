"""What the operator says: environment variables, config.toml, ~/.ssh/config."""
