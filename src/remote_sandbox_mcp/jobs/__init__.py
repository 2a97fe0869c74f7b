"""Background jobs: their verbs, what is written down of them, and one round of watching them.

The process that goes round is not here (watchdog, hub), nor is what runs on the machine (backends/outpost/far)."""
