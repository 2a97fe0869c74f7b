"""Scripts that find, run and collect the tests of a folder.

Their output is not read here but in core/suites; services/suites sends them.
"""
