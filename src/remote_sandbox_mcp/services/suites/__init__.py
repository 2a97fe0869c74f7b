"""Test suites on a sandbox: find the runner of a folder, run it, collect its report.

Reading what a test runner prints is pure and not here: core/suites does that.
"""
