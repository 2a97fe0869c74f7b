"""What we remember between processes, in SQLite: transfers, jobs, watches, disposables, and a cache of chunks."""
