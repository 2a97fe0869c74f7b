"""Containers of an OpenSandbox platform: made through its SDK, opened with an outpost over plain HTTP."""
