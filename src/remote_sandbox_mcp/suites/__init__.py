"""Test suites on any sandbox: found, run and reported."""
