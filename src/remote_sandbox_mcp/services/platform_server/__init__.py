"""An OpenSandbox server on the user's own Docker engine: start it, stop it, ask how it is.

Using a platform's containers is not here: that is backends/opensandbox.
"""
