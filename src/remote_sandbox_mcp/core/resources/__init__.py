"""Processors, memory and GPUs of a machine: reading them, comparing machines, and the doctor's findings.

No machine is measured here: services/probe sends the scripts of far/probe.
"""
