"""Notifications about watched jobs: an event file, a desktop notice, a webhook, the operator's own hooks.

When to notify is not decided here (core/jobs/lifecycle.py decides, services/jobs/supervise.py calls this room).
"""
