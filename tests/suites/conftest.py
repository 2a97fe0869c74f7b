"""Tests by other projects need their environments: `make suites` makes them and says where they are."""

from __future__ import annotations

import os
from pathlib import Path

# Read before each test gets a clean environment.
ENVIRONMENTS = os.environ.get("REMOTE_SANDBOX_SUITES", "")
ALL = bool(os.environ.get("ALL"))
collect_ignore_glob = ["*_checks.py"] if ENVIRONMENTS else ["*"]


def python_of(framework: str) -> str:
    return str(Path(ENVIRONMENTS, framework, "bin", "python"))
