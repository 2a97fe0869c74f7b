"""The far end of lines over HTTP: starts programs in the container and carries their input and output. Python 3.6+.

A platform lets a client reach the ports of a sandbox through proxies that know HTTP:
    POST /line         starts the program of X-Line-Argv; the answer is a number and a newline, then what it prints
    POST /line/NUMBER  bytes for the input of that program, in the order of the requests
If every proxy on the way passes on an Upgrade of the first request, the connection itself becomes the program's input
and output, and the bridge copies nothing. Every request carries the key that was in the bridge's environment. Without
lines for a while, the bridge ends.
"""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

MYPY = False
if MYPY:
    from typing import IO

PIECE = 1 << 20
IDLE_S = 120
# The most bytes of a request's body.
LARGEST = 64 << 20
PROTOCOL = "remote-sandbox-line"
# The exit code of a bridge that could not print its port and wrote it to the file LINE_PLACE.
IN_PLACE = 75


def widen(pipe: "IO[bytes] | None") -> None:
    """Enlarge a pipe: with the usual 64 KiB, both of its ends wait for each other all the time."""
    with contextlib.suppress(OSError, ValueError):
        fcntl.fcntl(pipe or -1, 1031, PIECE)


class RunningPrograms:
    """The programs that are running."""

    def __init__(self) -> None:
        self.programs = {}  # type: dict[str, subprocess.Popen[bytes]]
        self.count = 0
        self.used = time.time()
        self.lock = threading.Lock()

    def start(self, argv: "list[str]", end: int) -> "tuple[str, subprocess.Popen[bytes]]":
        program = subprocess.Popen(
            argv, stdin=end, stdout=end, stderr=subprocess.STDOUT, bufsize=0, cwd="/", start_new_session=True
        )
        for pipe in (program.stdin, program.stdout):
            widen(pipe)
        with self.lock:
            self.count += 1
            self.programs[str(self.count)] = program
            return str(self.count), program

    def end(self, number: str) -> None:
        """Close a program's input, at which it ends by itself. It is not killed: runs that it started go on."""
        with self.lock:
            program = self.programs.pop(number)
            self.used = time.time()
        for end in (program.stdin, program.stdout):
            with contextlib.suppress(OSError):
                end and end.close()
        threading.Thread(target=program.wait, daemon=True).start()

    def are_idle(self) -> bool:
        with self.lock:
            return not self.programs and time.time() - self.used > IDLE_S


class Visitor(BaseHTTPRequestHandler):
    """One connection from a proxy."""

    server: "BridgeServer"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or -1)
        if self.headers.get("X-Line-Key") != self.server.key or not 0 <= size <= LARGEST:
            self.close_connection = True
            self.answer(403)
            return
        body = self.rfile.read(size)
        parts = self.path.strip("/").split("/")
        if len(parts) == 2:
            self.feed(parts[1], body)
        elif self.headers.get("Upgrade") == PROTOCOL:
            self.hand_over(json.loads(self.headers["X-Line-Argv"]))
        else:
            self.open_line(json.loads(self.headers["X-Line-Argv"]))

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def feed(self, number: str, data: bytes) -> None:
        program = self.server.lines.programs.get(number)
        try:
            if program and program.stdin:
                self.write_all(program.stdin, data)
        except (OSError, ValueError):
            program = None
        self.answer(200 if program else 404)

    def write_all(self, pipe: "IO[bytes]", data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[pipe.write(view) :]

    def hand_over(self, argv: "list[str]") -> None:
        """Give the connection to the program as its input and output, and wait for its end."""
        self.close_connection = True
        self.connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n" % PROTOCOL.encode()
        )
        number, program = self.server.lines.start(argv, self.connection.fileno())
        program.wait()
        self.server.lines.end(number)

    def open_line(self, argv: "list[str]") -> None:
        number, program = self.server.lines.start(argv, subprocess.PIPE)
        self.close_connection = True
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Cache-Control", "no-store")
            # Keeps nginx from buffering the answer.
            self.send_header("X-Accel-Buffering", "no")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.piece(number.encode() + b"\n")
            threading.Thread(target=self.leave_with, args=(program,), daemon=True).start()
            self.report(program)
        except (OSError, ValueError):
            pass
        finally:
            self.server.lines.end(number)

    def report(self, program: "subprocess.Popen[bytes]") -> None:
        assert program.stdout
        data = program.stdout.read(PIECE)
        while data:
            self.piece(data)
            data = program.stdout.read(PIECE)
        self.connection.sendall(b"0\r\n\r\n")

    def piece(self, data: bytes) -> None:
        # One call without a copy; the socket nearly always takes all of it.
        parts = (b"%x\r\n" % len(data), data, b"\r\n")
        sent = self.connection.sendmsg(parts)
        if sent < sum(map(len, parts)):
            self.connection.sendall(b"".join(parts)[sent:])

    def leave_with(self, program: "subprocess.Popen[bytes]") -> None:
        """Wait for the end of this connection, which carries no further request, and close the program's input."""
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        with contextlib.suppress(OSError):
            program.stdin and program.stdin.close()


class BridgeServer(ThreadingMixIn, HTTPServer):
    """The HTTP server. It listens on all addresses, because proxies do not always reach the container's loopback."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, key: str, host: str = "0.0.0.0") -> None:
        self.key = key
        self.lines = RunningPrograms()
        HTTPServer.__init__(self, (host, 0), Visitor)

    def server_bind(self) -> None:
        # The inherited method asks a name server for our own name, which may take long and is not needed.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "bridge", self.server_address[1]

    def service_actions(self) -> None:
        if self.lines.are_idle():
            os._exit(0)

    def handle_error(self, *_: object) -> None:
        pass


def main() -> None:
    """Print the port, and serve in a background process that outlives the command that started us."""
    place = os.environ.pop("LINE_PLACE")
    bridge = BridgeServer(os.environ.pop("LINE_KEY"))
    if os.fork():
        os._exit(say(f"bridge {bridge.server_port}\n".encode(), place))
    os.setsid()
    silence = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(silence, number)
    bridge.serve_forever()


def say(words: bytes, place: str) -> int:
    """Print words; if the disk on which the platform stores output is full, write them to a file in memory."""
    try:
        os.write(1, words)
    except OSError:
        with os.fdopen(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(words)
        return IN_PLACE
    return 0


if __name__ == "__main__":
    main()
