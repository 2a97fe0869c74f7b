"""Sandboxes on this computer, walled in by bubblewrap: the one called `local`, and disposable ones.

The outpost that runs inside the walls is not here: it is the same as on any other machine."""

from __future__ import annotations

from ...core.disposable import Traits

KIND = "embedded"
TRAITS = Traits(ends_with_server=True, has_folders_as_images=True, keeps_network_off=True)
