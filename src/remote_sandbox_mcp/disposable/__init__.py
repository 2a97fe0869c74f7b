"""Disposable sandboxes: create, list, renew while in use, delete, and clean up what is left over.

How a sandbox is built is not here: backends/bubblewrap and backends/opensandbox have the providers.
"""
