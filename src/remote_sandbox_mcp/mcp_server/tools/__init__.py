"""The tools, one file per subject."""
