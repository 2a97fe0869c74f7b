"""Test suites on a sandbox: found in a folder, run, and reported.

Reading what a test runner prints is pure, and lies in core/suites."""
