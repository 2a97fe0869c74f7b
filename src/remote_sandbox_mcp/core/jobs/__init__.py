"""Background jobs as values: their states, their watches, and the decision on what happens next.

Nothing is started or stored here: services/jobs does that, and far/jobs runs on the machine.
"""
