"""Sandboxes on this computer, isolated by bubblewrap: the one called `local`, and disposable ones.

The program that runs commands inside them is not here: it is the same outpost as on any machine (far/outpost).
"""

from __future__ import annotations

from ...core.sandboxes.disposable import Traits

KIND = "embedded"
TRAITS = Traits(ends_with_server=True, has_folders_as_images=True, keeps_network_off=True)
