#!/usr/bin/env python3
"""A small egress control for tests: what runs beside a sandbox in its network, as the platform expects it.

Says which policy it was given, to whoever has its token. Of a policy it holds one thing alone: with a packet filter
wished for, nothing beyond the sandbox's own bridge is reached.
"""

import fcntl
import json
import os
import signal
import socket
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 18080
TOKEN = os.environ.get("OPENSANDBOX_EGRESS_TOKEN", "")
MODE = os.environ.get("OPENSANDBOX_EGRESS_MODE", "dns")
POLICY = json.loads(os.environ.get("OPENSANDBOX_EGRESS_RULES") or "null")
SIOCDELRT = 0x890C


def close_the_way_out():
    """Take the default route away: to 0.0.0.0, with a mask of 0.0.0.0."""
    any_address = struct.pack("=H14x", socket.AF_INET)
    route = struct.pack("@L16s16s16sH", 0, any_address, bytes(16), any_address, 1).ljust(120, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCDELRT, route)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/healthz":
            return self.say(200, {"status": "ok"})
        if self.headers.get("OPENSANDBOX-EGRESS-AUTH") != TOKEN:
            return self.say(401, {"reason": "unauthorized"})
        if self.path != "/policy":
            return self.say(404, {})
        return self.say(200, {"status": "ok", "enforcementMode": MODE, "policy": POLICY})

    def say(self, status, words):
        body = json.dumps(words).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nobody reads it."""


if __name__ == "__main__":
    # The first process of a container is ended by nothing that it does not take up itself.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if MODE == "dns+nft" and POLICY and POLICY["defaultAction"] == "deny" and not POLICY["egress"]:
        close_the_way_out()
    ThreadingHTTPServer(("", PORT), Answer).serve_forever()
