"""Two computers for a test alone: this one with its loopback, and another with outside and private addresses.

Each is a network namespace. Whatever a test does there, the machine that runs it is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.disposables import ORDINARY_USER, SOURCE, SYSTEM_PYTHON
from tests.support.means import IS_ROOT, can_have_namespaces
from tests.support.pace import Deadline

PROGRAMS = ("slirp4netns", "bwrap", "ip", "unshare", "nsenter", "setpriv")
OUTSIDE, OUTSIDE_6 = "198.51.100.1", "2001:db8:5::6"
# The first has the interface, the second is a further one.
OWN, OWN_TOO, OWN_6 = "203.0.113.5", "203.0.113.100", "2001:db8:5::5"
NAMESERVER = "10.77.0.53"
PRIVATE = ("10.77.0.2", "172.16.77.2", "192.168.77.2", "100.100.100.200", "169.254.169.254", "168.63.129.16")
PRIVATE_6 = "fd00:77::1"
NAMES = {
    "outside.example.org": OUTSIDE,
    "private.example.org": PRIVATE[0],
    "loopback.example.org": "127.0.0.1",
    "own.example.org": OWN,
}
ABSTRACT = "display-of-the-user"
START_S = 10.0

HOME_SETUP = f"""set -e
ip link set lo up
ip link add up0 type veth peer name down0 netns $1
ip addr add {OWN}/30 dev up0
ip addr add {OWN_TOO}/32 dev lo
ip -6 addr add {OWN_6}/64 dev up0 nodad
ip link set up0 up
mount -t tmpfs none /dev/net
[ "$3" = without-tun ] || mknod -m 666 /dev/net/tun c 10 200
mount --bind "$2" /etc/resolv.conf
"""
OUT_SETUP = f"""set -e
ip link set lo up
ip addr add 203.0.113.6/30 dev down0
ip -6 addr add {OUTSIDE_6}/64 dev down0 nodad
ip link set down0 up
for address in {OUTSIDE} {NAMESERVER} {" ".join(PRIVATE)}; do ip addr add $address/32 dev lo; done
ip -6 addr add {PRIVATE_6}/128 dev lo
"""
ROUTES = f"ip route add default via 203.0.113.6 && ip -6 route add default via {OUTSIDE_6}"

# Answers "reached" to everything: HTTP and UDP at port 80, an abstract socket, and questions for names at port 53.
ANSWERING = f"""
import socket, struct, threading
NAMES = {NAMES!r}

def serve_tcp(server):
    while True:
        client = server.accept()[0]
        threading.Thread(target=answer, args=(client,), daemon=True).start()

def answer(client):
    with client:
        asked = client.recv(65536).replace(b"\\r\\n", b"|")
        body = b"reached " + asked
        client.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))

def serve_udp(server):
    while True:
        _, whom, _, peer = server.recvmsg(65536, 256)
        server.sendmsg([b"reached"], whom, 0, peer)

def serve_names(server):
    while True:
        asked, whom, _, peer = server.recvmsg(512, 256)
        labels, at = [], 12
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
            at += asked[at] + 1
        kind, address = asked[at + 1 : at + 3], NAMES.get(".".join(labels).lower())
        found = address and kind == b"\\0\\1"
        head = asked[:2] + b"\\x81\\x80\\0\\1" + struct.pack("!H", bool(found)) + b"\\0\\0\\0\\0"
        record = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4" + socket.inet_aton(address) if found else b""
        server.sendmsg([head + asked[12 : at + 5] + record], whom, 0, peer)

abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0{ABSTRACT}")
abstract.listen()
web = [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) for port in (80, 8443)]
datagrams, names = (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(2))
for one, port in ((datagrams, 80), (names, 53)):
    one.bind(("::", port))
    # An answer comes from the very address that was asked.
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
for work in [(serve_tcp, s) for s in (*web, abstract)] + [(serve_udp, datagrams), (serve_names, names)]:
    threading.Thread(target=work[0], args=work[1:], daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""

# A server: makes one sandbox, runs scripts in it, and says what came of them. Without scripts it waits to be killed.
SERVER = """
import asyncio, json, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.errors import SandboxError

async def main():
    told = json.loads(sys.argv[2])
    rules = {key: tuple(value) if isinstance(value, list) else value for key, value in told["rules"].items()}
    provider = EmbeddedProvider(Path(sys.argv[1]), rules=DisposableRules(**rules))
    order = SandboxOrder(network=told["network"], hosts=tuple(told["hosts"]))
    try:
        made = await provider.create(new_disposable_id(), order)
        sandbox = await provider.open(made)
        if told["waits"]:
            print("open", flush=True)
            await asyncio.sleep(60)
        seen = await sandbox.run(Command(told["script"], timeout_s=40))
        said = [seen.exit_code, seen.stdout.head.decode(), seen.stderr.head.decode()]
        print(json.dumps({"said": said, "notes": made.notes}))
    except SandboxError as problem:
        print(json.dumps({"problem": str(problem)}))
    finally:
        await provider.close()

asyncio.run(main())
"""

# Tries every target at once, in the sandbox, and prints which were reached or why not.
PROBE = """
import json, socket, sys, threading
seen = {}

def try_tcp(address, port, device):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as line:
        line.settimeout(4)
        if device:
            line.setsockopt(socket.SOL_SOCKET, 25, device.encode())
        line.connect((address, port))
        line.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        return line.recv(100).decode().rpartition("\\n")[2].split()[0]

def try_udp(address, port, device):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(4)
        line.connect((address, port))
        line.send(b"x")
        return line.recv(100).decode()

def try_abstract(name, port, device):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect("\\0" + name)
        return "reached"

def attempt(kind, address, port=80, device=""):
    try:
        word = {"tcp": try_tcp, "udp": try_udp, "abstract": try_abstract}[kind](address, port, device)
    except Exception as problem:
        word = type(problem).__name__ + ": " + str(problem)
    seen[" ".join((kind, address, device)).strip()] = word

threads = [threading.Thread(target=attempt, args=target) for target in json.loads(sys.argv[1])]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(seen))
"""


def missing() -> str:
    """Why these computers cannot be made here; empty where they can."""
    if not IS_ROOT or not can_have_namespaces():
        return "only root can make network namespaces with interfaces"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Networks:
    """`home` stands for this computer, `out` for all others; both end with `close`."""

    def __init__(self, folder: Path, *, tun: bool = True) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._resolver = folder / "resolv.conf"
        self._resolver.write_text(f"nameserver {NAMESERVER}\n")
        self._resolver.chmod(0o644)
        self.home, self.out = self._hold(), self._hold()
        words = "with-tun" if tun else "without-tun"
        self.run_at(self.home, "sh", "-c", HOME_SETUP, "sh", str(self.out), str(self._resolver), words)
        self.run_at(self.out, "sh", "-c", OUT_SETUP)
        self.run_at(self.home, "sh", "-c", ROUTES)
        for place in (self.home, self.out):
            server = self._keep(*at(place), SYSTEM_PYTHON, "-c", ANSWERING)
            assert server.stdout
            assert server.stdout.readline() == b"ready\n"

    def _keep(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self._processes.append(process)
        return process

    def _hold(self) -> int:
        holder = self._keep("unshare", "--net", "--mount", "sh", "-c", "echo made; exec sleep 3600")
        assert holder.stdout
        assert holder.stdout.readline() == b"made\n"
        return holder.pid

    def run_at(self, place: int, *words: str) -> str:
        done = subprocess.run([*at(place), *words], capture_output=True, text=True, timeout=START_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, folder: Path, told: dict[str, Any], *, ordinary: bool = False) -> subprocess.Popen[bytes]:
        """A server on `home` with one sandbox, as a process."""
        wanted = {"network": True, "hosts": [], "rules": {}, "script": "", "waits": False, **told}
        as_user = ["setpriv", f"--reuid={ORDINARY_USER}", f"--regid={ORDINARY_USER}", "--clear-groups"]
        if ordinary:
            os.chown(folder, ORDINARY_USER, ORDINARY_USER)
        words = [*at(self.home), *(as_user if ordinary else []), SYSTEM_PYTHON if ordinary else sys.executable]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": str(folder)}
        return subprocess.Popen(
            [*words, "-W", "error", "-c", SERVER, str(folder), json.dumps(wanted)],
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
        )

    def ask(self, folder: Path, told: dict[str, Any], *, ordinary: bool = False) -> dict[str, Any]:
        with self.serve(folder, told, ordinary=ordinary) as server:
            said, _ = server.communicate(timeout=50)
        answer: dict[str, Any] = json.loads(said)
        return answer

    def probe(
        self, folder: Path, told: dict[str, Any], targets: list[list[Any]], *, ordinary: bool = False
    ) -> dict[str, str]:
        """What of the targets a sandbox reaches."""
        script = f"{SYSTEM_PYTHON} -c '{PROBE}' '{json.dumps(targets)}'".replace(PROBE, PROBE.replace("'", '"'))
        answer = self.ask(folder, {**told, "script": script}, ordinary=ordinary)
        assert "said" in answer, answer
        assert answer["said"][0] == 0, answer
        seen: dict[str, str] = json.loads(answer["said"][1])
        return seen

    def processes_at_home(self) -> list[str]:
        """Everything that runs on `home` but for what the test itself has put there."""
        mine = {str(process.pid) for process in self._processes}
        ours = os.readlink(f"/proc/{self.home}/ns/net")
        return [name for name in os.listdir("/proc") if name.isdigit() and name not in mine and _network(name) == ours]

    def until_home_is_quiet(self) -> None:
        deadline = Deadline(START_S)
        while left := self.processes_at_home():
            assert not deadline.has_passed(), [Path(f"/proc/{name}/cmdline").read_bytes() for name in left]
            time.sleep(0.02)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()


def at(place: int) -> list[str]:
    return ["nsenter", f"--target={place}", "--net", "--mount", "--"]


def _network(name: str) -> str:
    try:
        return os.readlink(f"/proc/{name}/ns/net")
    except OSError:
        return ""
