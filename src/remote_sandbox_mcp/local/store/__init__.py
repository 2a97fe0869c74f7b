"""What processes of the same user share, in SQLite: transfers, jobs, watches, disposable sandboxes, sessions.

No decision is made here: jobs, transfers and disposable decide, and read and write their rows through this room.
"""
