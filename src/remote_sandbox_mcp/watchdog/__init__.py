"""The watchdog: a daemon of this user that looks after watched jobs, and its place among the system's services."""
