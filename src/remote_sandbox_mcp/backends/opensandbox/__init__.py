"""Containers of an OpenSandbox platform: made through its SDK, opened with an outpost over plain HTTP."""

from __future__ import annotations

from ...core.disposable import Traits

KIND = "opensandbox"
TRAITS = Traits(is_platform=True)
