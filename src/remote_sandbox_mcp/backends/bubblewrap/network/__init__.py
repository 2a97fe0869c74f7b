"""A private network for a local sandbox: a process outside the sandbox decides what the sandbox can reach.

Which hosts are allowed is not decided here: that is a rule of the configuration, read in config and checked in
core/sandboxes/network.py.
"""
