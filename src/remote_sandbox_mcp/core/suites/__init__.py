"""Test runners: how to detect the runner of a folder, start it, and read its output.

Nothing is run here: services/suites runs the tests on a sandbox.
"""
