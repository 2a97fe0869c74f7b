"""What we remember between processes, in SQLite: transfers, and a cache of chunks."""
