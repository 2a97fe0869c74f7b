"""For a container's health check: asks /healthz with the key and a name of the configuration."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

from remote_sandbox_mcp.config.load import load

http = load(Path("/config/config.toml")).settings.http
headers = {"Host": http.allowed_hosts[0]} if http.allowed_hosts else {}
if http.api_key is not None:
    headers["Authorization"] = f"Bearer {http.api_key.reveal()}"
asked = urllib.request.Request(f"http://127.0.0.1:{http.port}/healthz", headers=headers)
with urllib.request.urlopen(asked, timeout=8) as answer:
    sys.exit(0 if answer.status == 200 else 1)
