"""One script per measurement of a machine: its CPU, memory, disks and GPUs and who uses them; and the doctor's checks.

The script's output is not parsed here but in core/resources/report.py; its score is in core/resources/usage.py.
"""
