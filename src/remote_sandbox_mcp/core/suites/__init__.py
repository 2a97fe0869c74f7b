"""Test runners: which one a folder asks for, how it is started, and what its output says.

Nothing is run here: suites does that."""
