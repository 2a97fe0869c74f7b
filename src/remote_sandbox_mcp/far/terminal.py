"""Shows a program in a terminal to one connection: python3 -c PROGRAM TERM WORD... prints a port and a key."""

# The connection begins with the key and a newline. Then come messages: a letter, four bytes with the length, and as
# many bytes: w is the size of the terminal, rows and columns of two bytes each, and the first message; b is typed into
# it. What goes back are the bytes that it shows. Both end together; tmux detaches then, and its session goes on. The
# exit code is that of the program. Without words it is the user's login shell.

import contextlib
import fcntl
import hmac
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time

HEAD = struct.Struct(">cI")
SIZE = struct.Struct(">HH")
# How long the connection may take to come, and to say its key.
COME_S, KEY_S = 30.0, 3.0
ONE_READ = 1 << 16
# For a terminal that this machine knows nothing of.
OTHER_TERMS = ("xterm-256color", "xterm", "screen", "vt100")

MYPY = False
if MYPY:
    from typing import Any, Optional


def admitted() -> "Optional[socket.socket]":
    """The first connection that knows the key: others on this machine can reach the port, too."""
    key = os.urandom(16).hex().encode()
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen(8)
    os.write(1, b"%d %s\n" % (door.getsockname()[1], key))
    deadline = time.monotonic() + COME_S
    while time.monotonic() < deadline:
        door.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection = door.accept()[0]
            connection.settimeout(KEY_S)
            if hmac.compare_digest(connection.recv(len(key) + 1, socket.MSG_WAITALL), key + b"\n"):
                connection.settimeout(None)
                door.close()
                return connection
            connection.close()
        except OSError:
            continue
    return None


def supported_term(wanted: str) -> str:
    """The kind of terminal as tmux can use it here."""
    try:
        import curses
    except ImportError:
        return wanted
    for term in (wanted,) + OTHER_TERMS:
        with contextlib.suppress(curses.error):
            curses.setupterm(term, 1)
            return term
    return wanted


def resize(terminal: int, size: bytes) -> None:
    rows, columns = SIZE.unpack(size)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def take_input(terminal: int, inbox: bytearray) -> None:
    """Carry out the whole messages that have come."""
    while len(inbox) >= HEAD.size:
        kind, length = HEAD.unpack(inbox[: HEAD.size])
        if len(inbox) < HEAD.size + length:
            return
        body = bytes(inbox[HEAD.size : HEAD.size + length])
        del inbox[: HEAD.size + length]
        if kind == b"w":
            resize(terminal, body)
        while kind == b"b" and body:
            body = body[os.write(terminal, body) :]


def carry(connection: socket.socket, terminal: int) -> None:
    """Pass bytes on in both directions until one side ends."""
    inbox = bytearray()
    while True:
        both: "list[Any]" = [connection, terminal]
        ready = select.select(both, [], [])[0]
        if terminal in ready:
            # Reading fails, instead of returning nothing, when the program in the terminal has ended.
            data = os.read(terminal, ONE_READ)
            if not data:
                return
            connection.sendall(data)
        if connection in ready:
            data = connection.recv(ONE_READ)
            if not data:
                return
            inbox += data
            take_input(terminal, inbox)


def shell_words() -> "list[str]":
    """The user's login shell, begun as sshd begins it."""
    try:
        import pwd

        shell = pwd.getpwuid(os.getuid()).pw_shell
    except (ImportError, KeyError):
        shell = ""
    found = [it for it in (shell, "/bin/bash", "/bin/sh") if it and os.access(it, os.X_OK)]
    return [found[0] if found else "sh", "-l"]


def main(term: str, words: "list[str]") -> int:
    connection = admitted()
    if connection is None:
        return 1
    size = connection.recv(HEAD.size + SIZE.size, socket.MSG_WAITALL)[HEAD.size :]
    os.environ["TERM"] = supported_term(term)
    os.environ.pop("TMUX", None)
    child, terminal = pty.fork()
    if not child:
        try:
            resize(0, size)
            os.execvp(words[0], words)
        finally:
            os._exit(127)
    with contextlib.suppress(OSError):
        carry(connection, terminal)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGHUP)
    os.close(terminal)
    status = os.waitpid(child, 0)[1]
    connection.close()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or shell_words()))
