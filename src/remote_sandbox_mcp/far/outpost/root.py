"""Runs as root or another user, as the parent of one command: signals its tree on order, and ends with the keeper."""

import io
import json
import os
import resource
import select
import signal
import sys
from typing import Any

from .family import become_subreaper, collect_children, descendants, hear_signals, start_process, strike


def serve(token: str) -> None:
    """Read the order, run its command, and exit with the command's status."""
    order = json.loads(io.BufferedReader(io.FileIO(0, closefd=False), 1).readline().decode())
    given = read_input(order["input"])
    # The command must not have the pipe that carried the password.
    orders = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    try:
        environment = make_environment(order, become(order["become"]) if order["become"] else {})
        os.chdir(environment[b"PWD"])
        argv = find_shell(order["shells"], order["script"], environment)
    except OSError as problem:
        what = problem.filename if problem.filename in ("shell", "user") else "cwd"
        send_mark(token, "%s %d" % (what, problem.errno or 0))
        os._exit(126)
    send_mark(token, "")
    try:
        Parent(orders).run_to_its_end(start_process(argv, environment, 1, 2, given))
    except OSError as problem:
        os.write(2, b"unable to start the shell: %s\n" % os.strerror(problem.errno or 0).encode())
    os._exit(126)


def read_input(size: int) -> int:
    """The descriptor of the command's input, which comes behind the order: a file without a name, or 0 for nothing."""
    if not size:
        return 0
    import tempfile

    with tempfile.TemporaryFile() as file:
        while size > 0:
            part = os.read(0, min(size, 1 << 16))
            if not part:
                os._exit(126)
            file.write(part)
            size -= len(part)
        file.seek(0)
        return os.dup(file.fileno())


def become(name: str) -> "dict[str, str]":
    """Become another user, which only root can; returns the variables that name that user. Raises OSError."""
    import pwd

    try:
        found = pwd.getpwnam(name)
        os.initgroups(name, found.pw_gid)
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
    except (KeyError, OSError) as problem:
        raise OSError(getattr(problem, "errno", 2), "", "user")
    return {"HOME": found.pw_dir, "USER": name, "LOGNAME": name, "SHELL": found.pw_shell or "/bin/sh"}


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def send_mark(token: str, what: str) -> None:
    os.write(2, raw("%s %s\n" % (token, what)))


def make_environment(order: "dict[str, Any]", own: "dict[str, str]") -> "dict[bytes, bytes]":
    """The environment that sudo gives, with the caller's language and variables; `own` are those of a new user."""
    environment = dict(os.environb)
    # Set by us, so that sudo's messages are in English.
    environment.pop(b"LC_ALL", None)
    for name, value in list(own.items()) + list(order["env"].items()):
        environment[raw(name)] = raw(value)
    home = environment.get(b"HOME", b"/")
    environment[b"PWD"] = raw(order["cwd"]) or (home if os.path.isdir(home) else b"/")
    return environment


def find_shell(shells: "list[list[str]]", script: "list[str]", environment: "dict[bytes, bytes]") -> "list[bytes]":
    """The command line of the first of these shells that exists, with the script."""
    folders = [b""] + environment.get(b"PATH", b"/usr/bin:/bin").split(b":")
    for shell in shells:
        for folder in folders if b"/" not in raw(shell[0]) else [b""]:
            path = os.path.join(folder, raw(shell[0]))
            if os.path.dirname(path) and os.path.isfile(path) and os.access(path, os.X_OK):
                return [path] + [raw(word) for word in shell[1:] + script]
    raise FileNotFoundError(2, os.strerror(2), "shell")


class Parent:
    """Waits for the command's end and for orders, which are numbers of signals to send to its tree."""

    def __init__(self, orders: int) -> None:
        self.orders = orders
        self.status: "int | None" = None
        self.childless = False
        self.is_ending = False
        self.is_alone = False
        become_subreaper()
        self.wakeup = hear_signals(signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def run_to_its_end(self, main: int) -> None:
        self.main = main
        watched = [self.orders, self.wakeup]
        while self.status is None or (self.is_ending and not self.childless):
            for fd in select.select([self.wakeup] if self.is_alone else watched, [], [], self.pause())[0]:
                if fd == self.orders:
                    self.handle()
                else:
                    self.hear_signals()
            if self.is_alone:
                # The tree may still be growing.
                self.strike(signal.SIGKILL)
            self.collect()
        end_like(self.status)

    def pause(self) -> "float | None":
        return 0.02 if self.is_alone else None

    def handle(self) -> None:
        data = os.read(self.orders, 512)
        self.is_alone = not data
        for word in data.split():
            self.strike(int(word))
        self.is_ending = True

    def hear_signals(self) -> None:
        """Pass on signals from a shutdown or an administrator: they are meant for the command."""
        for number in set(os.read(self.wakeup, 512)) - {signal.SIGCHLD}:
            self.strike(number)

    def strike(self, number: int) -> None:
        strike(descendants(os.getpid(), self.main), number)

    def collect(self) -> None:
        self.childless = collect_children(self.note_end)

    def note_end(self, pid: int, status: int) -> None:
        if pid == self.main:
            self.status = status


def end_like(status: int) -> None:
    """Exit with the command's exit code, or die of its signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    # Dying of the same signal must not write a core file of this process.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        # SIGKILL can have no handler.
        pass
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    serve(sys.argv[1])
