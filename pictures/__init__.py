"""Makes the pictures of the documentation from real sessions: `make screenshots`."""
