"""Background jobs: the verbs on jobs and watches, their records, and one round of the watchdog.

The loop that repeats the round is not here (services/watchdog, hub), nor is the program that runs on the machine
(far/jobs).
"""
