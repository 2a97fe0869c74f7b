"""For the build: the README as a package index shows it, where links to files of this repository lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or picture whose target is neither an address nor a place in the same page.
RELATIVE = re.compile(r"(\]\()(?![a-z]+://|#)([^)\s]+\))")


class ReadmeHook(MetadataHookInterface):
    """Makes relative links absolute, below the address of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        base = metadata["urls"]["Homepage"]
        absolute = RELATIVE.sub(rf"\g<1>{base}/\g<2>", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}
