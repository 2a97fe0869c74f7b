"""The first process of a container that a Docker or podman engine of a machine keeps.

The commands that create the container are not here but in backends/engine.
"""
