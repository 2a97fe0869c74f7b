"""Containers of an OpenSandbox platform: created through its SDK, reached over HTTP through its proxies.

How many sandboxes a client may have, and when one ends, is not decided here but in disposable.
"""

from __future__ import annotations

from ...core.disposable import Traits

KIND = "opensandbox"
TRAITS = Traits(is_platform=True)
