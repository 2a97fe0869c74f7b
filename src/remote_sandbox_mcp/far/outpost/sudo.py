"""Starts a command as root or as another user: sudo reads the password from a pipe that the command never gets."""

import json
import os
import select
import stat
import sys
import time
from typing import Any, Callable

from .family import start_process
from .place import Refused, to_text, user_name

# Not searched in PATH: a program that the user can replace must not get the password.
SUDO_PLACES = ("/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo", "/usr/pkg/bin/sudo")
# Some PAM modules wait several seconds before they refuse a wrong password.
SUDO_S = 30.0
# Parts of sudo's messages (we ask for English), each with a reason that programs check and our sentence.
COMPLAINTS = (
    (b"a password is required", "sudo_config", "sudo asks the user %s for a password there, and `sudo` in the "
     "machine's table says nopasswd: write sudo = \"keyring:SERVICE/USER\" (where the password is), or have its "
     "administrator allow it without one"),
    (b"must have a tty", "sudo_config", "sudo demands a terminal there (requiretty): its administrator can write "
     "\"Defaults:%s !requiretty\" into its sudoers"),
    (b"is not in the sudoers", "sudo_config", "the user %s is not in the sudoers file there: its administrator has to "
     "allow it"),
    (b"may not run sudo", "sudo_config", "the user %s may not use sudo there: its administrator has to allow it"),
    (b"is not allowed to", "sudo_config", "sudo lets the user %s run only certain commands there, and as_root needs "
     "all of them: its administrator has to allow it"),
)  # fmt: skip
WRONG_PASSWORD = (
    "sudo refused the password. It was tried once, and the same one is not tried again for a while, because repeated "
    "mistakes lock an account: correct the secret that `sudo` names in the machine's table"
)
# Root's Python runs this: it prints the token, then reads from its input the length of the program, the program and
# its order. A buffer of one byte never reads ahead.
ROOT_LOADER = (
    "import io,os,sys;os.write(2,(sys.argv[1]+chr(10)).encode());r=io.BufferedReader(io.FileIO(0,closefd=False),1);"
    'exec(compile(r.read(int(r.readline())),"root","exec"))'
)


class SudoRefused(Refused):
    """Refusal to start as root."""


class RootProcess:
    """The process that runs as root and is the parent of the command; numbers of signals are written to `orders`."""

    def __init__(self, given: "dict[str, Any]", run_id: str) -> None:
        self.program = str(given["program"]).encode()
        self.password = given.get("password")
        self.user = str(given.get("user") or "")
        # Root becomes another user without sudo, which containers do not have.
        self.is_direct = bool(self.user) and os.geteuid() == 0
        self.run_id = run_id
        self.token = os.urandom(12).hex()
        self.orders = -1
        self.said = b""
        self.pid = 0
        # Its wait status, if it ended before the command was known to have begun.
        self.status: "int | None" = None

    def start(self, environment: "dict[bytes, bytes]", out: int, err: int) -> None:
        """Start sudo, which reads the password from the pipe that later carries orders. Raises OSError."""
        words = [] if self.is_direct else self.by_sudo()
        words += [root_python(), "-IS", "-c", ROOT_LOADER, self.token, self.run_id]
        theirs, self.orders = os.pipe()
        try:
            english = dict(environment)
            english[b"LC_ALL"] = b"C"
            self.pid = start_process([word.encode() for word in words], english, out, err, theirs)
        except OSError:
            self.close()
            raise
        finally:
            os.close(theirs)

    def by_sudo(self) -> "list[str]":
        # -k: sudo neither remembers this password for later commands nor uses a remembered one.
        how = ["-n", "-k"] if self.password is None else ["-S", "-k", "-p", self.prompt]
        return [find_sudo(self.user or "root")] + how + (["-H", "-u", self.user] if self.user else []) + ["--"]

    @property
    def prompt(self) -> str:
        return "%s?" % self.token

    def begin(self, order: "dict[str, Any]", given: bytes, err: int, wait: "Callable[[float], None]") -> None:
        """Give the password if it is asked for, then the order; returns when the command starts. Raises SudoRefused.

        `given` is the command's input.

        `err` is the pipe on which sudo and the program print; `wait` waits, and raises if the run is cancelled.
        """
        try:
            asked = self.hear(err, wait)
            if asked == self.prompt and self.password is not None:
                self.send(self.password.encode("utf-8", "surrogateescape") + b"\n")
                asked = self.hear(err, wait)
            self.password = None
            if asked == self.prompt:
                raise SudoRefused("sudo_password", WRONG_PASSWORD)
            self.send(b"%d\n%s%s\n" % (len(self.program), self.program, json.dumps(order).encode()))
            self.send(given)
            self.hear(err, wait)
            self.check_begun()
        except BaseException:
            # When this pipe closes, sudo stops asking and the process that runs as root ends.
            self.close()
            raise

    def check_begun(self) -> None:
        """Read the program's last line: that the command starts, or why it cannot. Raises OSError."""
        what, _, number = self.said.rpartition(b"\n")[2].decode().rpartition(" ")
        if what:
            raise OSError(int(number), os.strerror(int(number)), what)

    def hear(self, err: int, wait: "Callable[[float], None]") -> str:
        """Read until sudo asks for a password, or the program has printed its line; returns the prompt or ""."""
        self.said = b""
        prompt, token = self.prompt.encode(), self.token.encode()
        until = time.monotonic() + SUDO_S
        while time.monotonic() < until:
            has_ended = self.has_ended()
            if not select.select([err], [], [], 0)[0]:
                if has_ended:
                    raise self.complaint()
                wait(0.005)
                continue
            # Byte by byte: what follows the program's line belongs to the command.
            letter = os.read(err, 1)
            self.said += letter
            if self.said.endswith(prompt):
                return self.prompt
            # sudo may quote the command line, and with it the token, but not at the beginning of a line.
            line = self.said[:-1].rpartition(b"\n")[2]
            if letter == b"\n" and line.startswith(token):
                self.said = line[len(token) :].strip()
                return ""
        raise SudoRefused("sudo", "sudo did not let the command begin within %d s%s" % (SUDO_S, self.last_words()))

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def complaint(self) -> SudoRefused:
        if self.user and self.password is None:
            refused = "sudo does not let the user %s run commands as %s there without a password"
            return SudoRefused("sudo_user", refused % (user_name(), self.user) + self.last_words())
        for words, reason, sentence in COMPLAINTS:
            if words in self.said:
                return SudoRefused(reason, sentence % user_name() if "%s" in sentence else sentence)
        if b"incorrect password" in self.said or b"no password was provided" in self.said:
            return SudoRefused("sudo_password", WRONG_PASSWORD)
        return SudoRefused("sudo", "sudo has started nothing%s" % self.last_words())

    def last_words(self) -> str:
        said = self.said.replace(self.prompt.encode(), b"").decode("utf-8", "replace").split()
        return "; it said: %s" % " ".join(said)[-300:] if said else ""

    def send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.orders, data) :]
        except BrokenPipeError:
            # sudo has ended; the reason is on its error stream.
            pass

    def strike(self, number: int) -> None:
        """Have a signal sent to the command and its descendants, which only root may do."""
        if self.orders >= 0 and select.select([], [self.orders], [], 0)[1]:
            self.send(b"%d\n" % number)

    def close(self) -> None:
        if self.orders >= 0:
            os.close(self.orders)
            self.orders = -1


def find_sudo(user: str = "root") -> str:
    for path in SUDO_PLACES:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_uid == 0 and found.st_mode & stat.S_ISUID:
            return path
    raise SudoRefused("sudo_config", "sudo is not installed there, so nothing can be run as %s" % user)


def root_python() -> str:
    """A Python that only root can change, by its real path: a link is its owner's to change. Raises SudoRefused."""
    # Empty where Python cannot tell.
    own = os.path.realpath(sys.executable or "/usr/bin/python3")
    if is_roots_alone(own) and is_roots_alone(os.path.realpath(os.__file__)):
        return own
    usual = os.path.realpath("/usr/bin/python3")
    if is_roots_alone(usual):
        return usual
    raise SudoRefused(
        "sudo_config",
        "nothing is run as root or another user there: it has no Python that only root can change (%s is not); its "
        "administrator can install python3" % own,
    )


def is_roots_alone(path: str) -> bool:
    """Whether only root can change this file: it, and each folder above it; `path` has no links."""
    while True:
        try:
            found = os.stat(path)
        except OSError:
            return False
        # In a sticky folder nobody replaces what is root's.
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        by_others = found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if found.st_gid else 0))
        if found.st_uid != 0 or (by_others and not is_sticky):
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def variables_of(environment: "dict[bytes, bytes]", configured: "dict[str, str]") -> "dict[str, str]":
    """The variables that a command as root gets in addition to sudo's: the language, and configured ones."""
    language = {
        to_text(name): to_text(value)
        for name, value in environment.items()
        if name.startswith(b"LC_") or name in (b"LANG", b"LANGUAGE", b"SHLVL")
    }
    language.update(configured)
    return language
