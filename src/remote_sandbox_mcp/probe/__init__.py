"""One script per look at a machine: its CPU, memory, disks and GPUs and who uses them; and the doctor's checks.

The text that the script prints is not parsed here but in core/usage_report.py; its score is in core/usage.py.
"""
