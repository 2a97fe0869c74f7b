"""The watchdog: the loop that looks after watched jobs, and its place among the system's services."""
