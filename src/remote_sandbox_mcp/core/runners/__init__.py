"""Test runners: which one a folder asks for, how each is started, and what each of their outputs says."""
