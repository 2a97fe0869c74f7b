"""Scripts that measure a machine or check it for the doctor.

Their output is not read here but in core/resources; services/probe sends them.
"""
