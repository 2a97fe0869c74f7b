"""State that processes of the same user share, in SQLite: transfers, jobs, watches, disposable sandboxes, sessions.

No decision is made here: services decide, and read and write their rows through this room.
"""
