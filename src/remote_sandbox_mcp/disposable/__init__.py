"""Disposable sandboxes as a caller's verbs: created, listed, kept alive while in use, and deleted.

How a sandbox is built is not decided here: backends have the providers that make them."""
