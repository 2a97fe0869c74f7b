"""Looks after background jobs: what is due is looked at, decided, written down and done."""
