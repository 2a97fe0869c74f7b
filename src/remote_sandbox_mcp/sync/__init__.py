"""File sync: two ends, one plan, a few streams."""
