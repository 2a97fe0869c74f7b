#!/usr/bin/env python3
"""A small execd for tests: the agent of OpenSandbox inside a container, as its SDK expects it, in plain Python.

Commands with their output as events, status and logs, files, folders, metrics, and a proxy to other ports.
"""

import codecs
import fnmatch
import grp
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("EXECD_PORT", "44772"))
SHELL = shutil.which("bash") or "/bin/sh"
CHUNK = 1 << 18
PRINTED = ("stdout", "stderr")
HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive", "host", "upgrade")


class Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code = status, code


def moment(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def now_ms():
    return int(time.time() * 1000)


def pour(source, target):
    """Until the end of the one, which becomes that of the other; in the kernel, as programs made for it do."""
    out, into = os.pipe()
    try:
        while size := os.splice(source.fileno(), into, 1 << 20):
            while size:
                size -= os.splice(out, target.fileno(), size)
    except OSError:
        pass
    finally:
        os.close(out)
        os.close(into)
        # Both directions: the lines that it is used for are of no use with one alone.
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


# Commands

COMMANDS = {}


class Command:
    """A process group, what it prints, and how it ended."""

    def __init__(self, order):
        folder = place(order.get("cwd") or "") or None
        if folder and not os.path.isdir(folder):
            raise Refused(400, "INVALID_REQUEST_BODY", f"working directory does not exist: {folder}")
        self.id, self.content = uuid.uuid4().hex, order.get("command", "")
        self.background = bool(order.get("background"))
        self.begun, self.ended, self.code, self.error = time.time(), None, None, ""
        self.log = bytearray()
        self.printed = {kind: self.open_log(kind) for kind in (("output",) if self.background else PRINTED)}
        self.process = subprocess.Popen(
            order.get("argv") or [SHELL, "-c", order["command"]],
            cwd=folder,
            # Agents before 1.0.7 pass over a request's variables.
            env={**os.environ, **({} if "EXECD_IS_OLD" in os.environ else order.get("envs") or {})},
            stdin=subprocess.DEVNULL,
            stdout=self.printed["output" if self.background else "stdout"],
            stderr=subprocess.STDOUT if self.background else self.printed["stderr"],
            start_new_session=True,
        )
        COMMANDS[self.id] = self
        if order.get("timeout"):
            timer = threading.Timer(order["timeout"] / 1000, self.kill, (signal.SIGKILL,))
            timer.daemon = True
            timer.start()

    def kill(self, number=signal.SIGTERM):
        if self.ended is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass

    def finish(self):
        code = self.process.wait()
        self.code = code if code >= 0 else -1
        self.error = "" if code == 0 else f"exit status {code}" if code > 0 else f"signal: {-code}"
        self.ended = time.time()

    def open_log(self, kind):
        """What a command prints goes into a file of the temporary folder, as with the published agent."""
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{self.id}.{kind}")
        file = open(path, "wb+")
        os.unlink(path)
        return file

    def read_on(self, kind, count):
        return os.pread(self.printed[kind].fileno(), CHUNK, count)

    def keep_log(self):
        has_ended = False
        while not has_ended:
            has_ended = self.has_ended_in(0.05)
            while data := self.read_on("output", len(self.log)):
                self.log += data
        self.finish()

    def has_ended_in(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tell(self, emit):
        """Line by line, each as an event, until the process has ended."""
        told = [(kind, Lines(kind, emit)) for kind in PRINTED]
        has_ended = False
        while not has_ended:
            # A grandchild may go on, and is not waited for.
            has_ended = self.has_ended_in(0.05)
            for kind, lines in told:
                while data := self.read_on(kind, lines.count):
                    lines.feed(data)
        for kind, lines in told:
            lines.feed(b"")
            self.printed[kind].close()
        self.finish()


class Lines:
    def __init__(self, kind, emit):
        self.kind, self.emit, self.rest, self.count = kind, emit, "", 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data):
        self.count += len(data)
        *lines, self.rest = (self.rest + self.decoder.decode(data, not data)).split("\n")
        if not data and self.rest:
            lines.append(self.rest)
        for line in lines:
            self.emit({"type": self.kind, "text": line.rstrip("\r"), "timestamp": now_ms()})


def known_command(command_id):
    if command_id not in COMMANDS:
        raise Refused(404, "INVALID_REQUEST", f"command not found: {command_id}")
    return COMMANDS[command_id]


# Files


def place(path):
    """Where a path leads: as the published agent does since 1.0.12, a variable's name in it becomes its value."""
    if path == "~" or path.startswith("~/"):
        path = os.environ.get("HOME", "") + path[1:]
    return re.sub(r"\$(?:{([^}]*)}|(\w+|\W))", lambda found: os.environ.get(found[1] or found[2] or "", ""), path)


def describe(path):
    try:
        found = os.lstat(path)
    except OSError as problem:
        raise Refused(404, "FILE_NOT_FOUND", f"file not found: {path}: {problem.strerror}") from None
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"), (stat.S_ISREG, "file"))
    return {
        "path": path,
        "type": next((name for holds, name in kinds if holds(found.st_mode)), "other"),
        "size": found.st_size,
        "mode": int(oct(found.st_mode & 0o7777)[2:]),
        "owner": name_of(pwd.getpwuid, found.st_uid),
        "group": name_of(grp.getgrgid, found.st_gid),
        "modified_at": moment(found.st_mtime),
        "created_at": moment(found.st_ctime),
    }


def name_of(find_member, number):
    try:
        return find_member(number)[0]
    except KeyError:
        return str(number)


def set_access(path, wanted):
    if wanted.get("mode"):
        os.chmod(path, int(str(wanted["mode"]), 8))
    if wanted.get("owner") or wanted.get("group"):
        shutil.chown(path, wanted.get("owner") or None, wanted.get("group") or None)


def walk(folder, depth):
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        yield describe(entry.path)
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path, depth - 1)


def save_parts(raw, boundary):
    """The pairs of metadata and content in a multipart body, put in their places."""
    mark, view, metadata, contents = b"--" + boundary, memoryview(raw), [], []
    at = raw.find(mark)
    while raw[at + len(mark) : at + len(mark) + 2] == b"\r\n":
        head = raw.find(b"\r\n\r\n", at)
        end = raw.find(b"\r\n" + mark, head + 2)
        name = re.search(rb'[; ]name="?([^";]+)', raw[at:head])[1]
        (metadata if name == b"metadata" else contents).append(view[head + 4 : end])
        at = end + 2
    for about, content in zip(metadata, contents):  # noqa: B905 - older Pythons know no strict
        wanted = json.loads(bytes(about))
        wanted["path"] = place(wanted["path"])
        os.makedirs(os.path.dirname(wanted["path"]) or "/", exist_ok=True)
        with open(wanted["path"], "wb") as file:
            file.write(content)
        set_access(wanted["path"], wanted)


# Requests


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def answer_any(self):
        url = urllib.parse.urlsplit(self.path)
        self.query, path = urllib.parse.parse_qs(url.query), urllib.parse.unquote(url.path)
        try:
            through = re.match(r"/proxy/(\d+)(/.*)?$", path)
            if through and int(through[1]) != PORT:
                return self.pass_on(int(through[1]), (through[2] or "/") + ("?" + url.query if url.query else ""))
            self.route(through[2] or "/" if through else path)
        except Refused as refused:
            self.reply({"code": refused.code, "message": str(refused)}, refused.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except OSError as problem:
            missing = isinstance(problem, FileNotFoundError)
            code = ("RUNTIME_ERROR", "FILE_NOT_FOUND")[missing]
            self.reply({"code": code, "message": str(problem)}, 404 if missing else 500)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer_any

    def route(self, path):
        for method, pattern, action in ROUTES:
            if method == self.command and (fits := re.fullmatch(pattern, path)):
                return action(self, *fits.groups())
        raise Refused(404, "NOT_FOUND", "404 page not found")

    def first(self, name, usual=""):
        return self.query.get(name, [usual])[0]

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(data)

    def order(self):
        try:
            return json.loads(self.body() or b"{}")
        except ValueError as problem:
            raise Refused(400, "INVALID_REQUEST_BODY", str(problem)) from None

    def reply(self, value=None, status=200, raw=None, kind="application/json", headers=()):
        data = raw if raw is not None else b"" if value is None else json.dumps(value).encode()
        self.head(status, ("Content-Type", kind), ("Content-Length", str(len(data))), *headers)
        self.wfile.write(data)
        self.wfile.flush()

    def head(self, status, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def emit(self, event):
        self.chunk(json.dumps(event).encode() + b"\n\n")

    def pass_on(self, port, path):
        if "upgrade" in self.headers.get("Connection", "").lower():
            return self.pass_on_upgrade(port, path)
        body = self.body()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        far = http.client.HTTPConnection("127.0.0.1", port)
        try:
            far.request(self.command, path, body, headers)
            line = far.sock
            answer = far.getresponse()
        except OSError:
            return self.reply(raw=b"Bad Gateway\n", status=502, kind="text/plain")
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
        if not answer.chunked:
            data = answer.read()
            far.close()
            return self.reply(raw=data, status=answer.status, headers=kept, kind=answer.getheader("Content-Type", ""))
        self.head(answer.status, *kept, ("Transfer-Encoding", "chunked"))
        self.stream(answer, line)

    def pass_on_upgrade(self, port, path):
        """As a proxy does that was made for it: what is said from the far side's answer on is passed both ways."""
        self.close_connection = True
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            return self.reply(raw=b"Bad Gateway\n", status=502, kind="text/plain")
        with far:
            for end in (far, self.connection):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            far.sendall(f"{self.command} {path} HTTP/1.1\r\n{headers}\r\n".encode())
            inward = threading.Thread(target=pour, args=(self.connection, far), daemon=True)
            inward.start()
            pour(far, self.connection)
            inward.join()

    def stream(self, answer, far):
        """Until either side ends."""
        threading.Thread(target=self.leave_with, args=(far,), daemon=True).start()
        try:
            while data := answer.read1(CHUNK):
                self.chunk(data)
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except http.client.HTTPException:
            self.close_connection = True
        finally:
            answer.close()

    def leave_with(self, far):
        """Who is at the near end may leave without a word from the far one."""
        try:
            gone = not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        if gone:
            try:
                far.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    # Commands

    def run(self):
        order = self.order()
        if not (order.get("command") or order.get("argv")):
            raise Refused(400, "INVALID_REQUEST_BODY", "command is required")
        command = Command(order)
        self.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        self.emit({"type": "init", "text": command.id, "timestamp": now_ms()})
        if command.background:
            threading.Thread(target=command.keep_log, daemon=True).start()
        else:
            try:
                command.tell(self.emit)
            except OSError:
                command.kill(signal.SIGKILL)
                raise
        self.conclude(command)

    def conclude(self, command):
        if command.code:
            error = {"ename": "CommandExecError", "evalue": str(command.code), "traceback": [command.error]}
            self.emit({"type": "error", "timestamp": now_ms(), "error": error})
        else:
            spent = int((time.time() - command.begun) * 1000)
            self.emit({"type": "execution_complete", "execution_time": spent, "timestamp": now_ms()})
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def interrupt(self):
        known_command(self.first("id")).kill()
        self.reply()

    def status(self, command_id):
        command = known_command(command_id)
        seen = {"id": command.id, "content": command.content, "running": command.ended is None}
        seen["started_at"] = moment(command.begun)
        if command.ended is not None:
            seen.update(exit_code=command.code, finished_at=moment(command.ended))
            seen.update({"error": command.error} if command.error else {})
        self.reply(seen)

    def logs(self, command_id):
        log, cursor = known_command(command_id).log, int(self.first("cursor", "0"))
        end = len(log)
        headers = [("EXECD-COMMANDS-TAIL-CURSOR", str(end))]
        self.reply(raw=bytes(log[cursor:end]), kind="text/plain; charset=utf-8", headers=headers)

    # Files and folders

    def describe_files(self):
        self.reply({path: describe(place(path)) for path in self.query.get("path", [])})

    def remove_files(self):
        for path in map(place, self.query.get("path", [])):
            if os.path.lexists(path):
                os.unlink(path)
        self.reply()

    def move_files(self):
        for entry in self.order():
            source, target = place(entry["src"]), place(entry["dest"])
            describe(source)
            os.makedirs(os.path.dirname(target) or "/", exist_ok=True)
            os.replace(source, target)
        self.reply()

    def change_access(self):
        for path, wanted in self.order().items():
            describe(place(path))
            set_access(place(path), wanted)
        self.reply()

    def search_files(self):
        top, pattern = place(self.first("path")), self.first("pattern", "*")
        describe(top)
        found = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
        self.reply([describe(path) for path in found if fnmatch.fnmatch(os.path.relpath(path, top), pattern)])

    def upload(self):
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1]
        save_parts(self.body(), boundary.encode())
        self.reply()

    def download(self):
        path = place(self.first("path"))
        size = describe(path)["size"]
        with open(path, "rb") as file:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if not wanted:
                self.head(200, ("Content-Type", "application/octet-stream"), ("Content-Length", str(size)))
                return shutil.copyfileobj(file, self.wfile, 1 << 20)
            begin, end = int(wanted[1]), min(int(wanted[2] or size), size - 1)
            if begin >= size:
                raise Refused(416, "INVALID_RANGE", f"{path} has {size} bytes")
            file.seek(begin)
            headers = [("Content-Range", f"bytes {begin}-{end}/{size}")]
            self.reply(raw=file.read(end - begin + 1), status=206, kind="application/octet-stream", headers=headers)

    def list_folder(self):
        folder = place(self.first("path"))
        describe(folder)
        self.reply(list(walk(folder, int(self.first("depth", "1")))))

    def make_folders(self):
        for path, wanted in self.order().items():
            os.makedirs(place(path), exist_ok=True)
            set_access(place(path), wanted or {})
        self.reply()

    def remove_folders(self):
        for path in map(place, self.query.get("path", [])):
            shutil.rmtree(path, ignore_errors=True)
        self.reply()

    def measure(self):
        with open("/proc/meminfo") as file:
            memory = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in file}
        load = os.getloadavg()[0] * 100 / os.cpu_count()
        used = memory["MemTotal"] - memory["MemAvailable"]
        seen = {"cpu_count": os.cpu_count(), "cpu_used_pct": load, "mem_total_mib": memory["MemTotal"]}
        self.reply({**seen, "mem_used_mib": used, "timestamp": now_ms()})


ONE = r"([^/]+)"
ROUTES = [
    ("GET", "/ping", Request.reply),
    ("POST", "/command", Request.run),
    ("DELETE", "/command", Request.interrupt),
    ("GET", f"/command/status/{ONE}", Request.status),
    ("GET", f"/command/{ONE}/logs", Request.logs),
    ("GET", "/files/info", Request.describe_files),
    ("DELETE", "/files", Request.remove_files),
    ("POST", "/files/mv", Request.move_files),
    ("POST", "/files/permissions", Request.change_access),
    ("GET", "/files/search", Request.search_files),
    ("POST", "/files/upload", Request.upload),
    ("GET", "/files/download", Request.download),
    ("GET", "/directories/list", Request.list_folder),
    ("POST", "/directories", Request.make_folders),
    ("DELETE", "/directories", Request.remove_folders),
    ("GET", "/metrics", Request.measure),
]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("0.0.0.0", PORT), Request).serve_forever()
