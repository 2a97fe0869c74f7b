"""A large and busy lab for the page alone: its files, and a made-up stream of changes, at any speed."""

from __future__ import annotations

import http.server
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from remote_sandbox_mcp.fronts.page.http import EVERYWHERE, files

GPUS, SAMPLE_S = 8, 4.0
# A line is silent for no longer.
ALIVE_S = 5.0
# Jobs whose progress moves with each sample.
MOVING = 40

# A pass, as if somebody had entered before; and when the first GPU is on the page, by its own clock.
BEGIN = """
localStorage.setItem("remote-sandbox-token", "x");
new MutationObserver((_, self) => {
  if (!document.querySelector(".gpu")) return;
  window.shownAt = performance.now();
  self.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
# Tell the page that is open a made-up hour of its machines: 900 samples of each, as they would have come.
HOUR = """
async ([names, now]) => {
  const { feed } = await import("/ui/feed.js");
  const tell = (topic, put) => feed._hear("change", { topic, put, gone: [] });
  const some = (index) => ({ ...feed.rows("machines").get(names[index]) });
  for (let at = now; at < now + 3600; at += 4) {
    names.forEach((name, index) => {
      const row = some(index), shares = Array.from({ length: 8 }, Math.random);
      row.sampled = at;
      const gpu = row.resources.gpu.map((gpu, n) => ({ ...gpu, util_pct: shares[n] * 100 }));
      row.resources = { ...row.resources, gpu };
      tell("machines", { [name]: row });
      tell("trends", { [name]: { add: [[at, Math.random(), Math.random(), shares]] } });
    });
    await new Promise(requestAnimationFrame);
  }
}
"""


@dataclass
class BusyLab:
    """Rows of machines and jobs as the hub sends them; each `step` samples all machines once more."""

    machines: int = 100
    jobs: int = 1000
    now: float = field(default_factory=time.time)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def first(self) -> Iterator[dict[str, Any]]:
        yield whole("about", {"hub": {"version": "1.0.0", "now": self.now, "problems": [], "clients": []}})
        yield whole("machines", {name: self.machine(name) for name in self.names})
        hour = range(900, 0, -15)
        yield whole("trends", {name: {"points": [self.point(4.0 * ago) for ago in hour]} for name in self.names})
        yield whole("jobs", {f"{row['sandbox']}/{row['tmux_session']}": row for row in map(self.job, range(self.jobs))})
        for topic in ("sandboxes", "workspaces", "transfers", "events", "calls", "usage", "running"):
            yield whole(topic, {})

    def step(self) -> Iterator[dict[str, Any]]:
        """All machines are asked within four seconds, and each answer is sent as it comes."""
        for name in self.names:
            self.now += SAMPLE_S / self.machines
            yield {"topic": "machines", "put": {name: self.machine(name)}, "gone": []}
            yield {"topic": "trends", "put": {name: {"add": [self.point(0.0)]}}, "gone": []}
        moving = (self.job(number) for number in range(MOVING))
        yield {"topic": "jobs", "put": {f"{row['sandbox']}/{row['tmux_session']}": row for row in moving}, "gone": []}

    @property
    def names(self) -> list[str]:
        return [f"gpu{number:03}" for number in range(self.machines)]

    def machine(self, name: str) -> dict[str, Any]:
        gpus = [self.gpu(index) for index in range(GPUS)]
        cpu = {"used_pct": self.chance.randrange(100), "load_1m": 58.8, "count": 128}
        memory = {"total_mb": 2097152, "used_mb": 629146 + self.chance.randrange(9999), "used_pct": 30.0}
        resources = {
            "gpu": gpus,
            "cpu": cpu,
            "memory": memory,
            "disk": {"path": "/", "free_gb": 7076.3, "used_pct": 47},
        }
        about = {"name": name, "kind": "ssh", "host": f"{name}.example.org", "user": "ann", "state": "up"}
        return about | {"resources": resources, "idle_score": 0.5, "sampled": self.now}

    def gpu(self, index: int) -> dict[str, Any]:
        is_free = index > 5
        process = {"pid": 1000 + index, "user": "ann", "mem_mb": 118214, "name": "python3", "elapsed": "8m 59s"}
        return {
            **{"index": index, "name": "NVIDIA H200", "state": "free" if is_free else "busy"},
            **{"util_pct": 0 if is_free else self.chance.randrange(100), "mem_total_mb": 143771},
            **{"mem_used_mb": 4 if is_free else 117892, "temperature_c": self.chance.randrange(30, 80)},
            **{"power_w": self.chance.randrange(70, 700), "processes": [] if is_free else [process]},
        }

    def point(self, ago: float) -> list[Any]:
        shares = [round(self.chance.random(), 3) for _ in range(GPUS + 2)]
        return [self.now - ago, shares[0], shares[1], shares[2:]]

    def job(self, number: int) -> dict[str, Any]:
        place = {"sandbox": self.names[number % self.machines], "tmux_session": f"train-{number}"}
        begun = self.now - 3600
        if number >= self.jobs // 4:
            over = {
                "state": "ended",
                "outcome": "failed" if number % 9 == 0 else "succeeded",
                "exit_code": number % 9 == 0,
            }
            return place | over | {"began": begun, "running_s": 60.0 + number, "command": "python3 train.py"}
        step = int(self.now / SAMPLE_S) % 4000
        progress = {"share": step / 4000, "words": f"step {step:,} / 4,000"}
        return place | {
            **{"state": "running", "outcome": "running", "began": begun, "command": "python3 train.py --lr 3e-4"},
            **{"checkpoint": {"text": "{}", "progress": progress}, "eta_ts": self.now + 3600, "can_resume": False},
        }


def whole(topic: str, rows: dict[str, Any]) -> dict[str, Any]:
    return {"topic": topic, "whole": True, "put": rows, "gone": []}


class Answers(http.server.BaseHTTPRequestHandler):
    """What a browser asks for."""

    protocol_version = "HTTP/1.1"
    lab: BusyLab
    pause_s: float
    ended: threading.Event

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/ui/")
        if path == "api/stream":
            self.stream()
        elif found := files().get(path or "index.html"):
            self.answer(found.type, found.body)
        else:
            self.answer("application/json", b'{"usage": [], "calls": [], "events": []}')

    def answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        for name, value in (*EVERYWHERE, (b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))):
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.say(self.lab.first())
        steps = (change for _ in iter(int, 1) for change in self.lab.step())
        while self.rest(self.pause_s / self.lab.machines / 2):
            self.say([next(steps)])

    def rest(self, seconds: float) -> bool:
        """Wait for so long, and say from time to time that the line lives; whether to go on."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > ALIVE_S:
            if self.ended.wait(ALIVE_S):
                return False
            self.wfile.write(b":\n\n")
        return not self.ended.wait(max(0.0, left))

    def say(self, changes: Any) -> None:
        text = "".join(f"event: change\ndata: {json.dumps(change)}\n\n" for change in changes)
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, format: str, *given: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            # The browser has gone.
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    # A browser opens several connections at once, and one that is turned away leaves the page without a module.
    request_queue_size = 128


@contextmanager
def busy_page(lab: BusyLab, pause_s: float = SAMPLE_S) -> Iterator[str]:
    """Serve the page with this lab, one step after each pause; gives its address."""
    ended = threading.Event()
    given = {"lab": lab, "pause_s": pause_s, "ended": ended}
    with Server(("127.0.0.1", 0), type("Answers", (Answers,), given)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ui/"
        finally:
            ended.set()
            server.shutdown()
