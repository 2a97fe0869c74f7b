"""Containers of an OpenSandbox platform: created through its SDK, reached over HTTP through its proxies.

How many sandboxes a client may have, and when one ends, is not decided here but in services/disposable.
"""

from __future__ import annotations

from ...core.sandboxes.disposable import Traits

KIND = "opensandbox"
TRAITS = Traits(is_platform=True)
