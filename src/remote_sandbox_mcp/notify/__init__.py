"""Tells people and their programs of events: a file, the desktop, a webhook, the operator's hooks."""
