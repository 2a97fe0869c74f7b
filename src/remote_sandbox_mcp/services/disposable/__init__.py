"""Disposable sandboxes: create, list, renew while in use, delete, and clean up what is left over.

How a sandbox is built is not here: backends/bubblewrap, backends/opensandbox, backends/engine and
backends/slurm have the providers.
"""
