"""What we remember between processes, in SQLite: transfers, jobs and watches, and a cache of chunks."""
