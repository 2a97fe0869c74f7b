"""The queue of a Slurm cluster: one question for all jobs of the user, shared by all sessions on its login node."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from typing import Any, Iterator

from ..outpost.place import base_folder, closing_fd, to_text
from .record import read_json, write_whole
from .tools import MOST_SAID, Said, call

# Between the fields of an answer: a letter that no name or comment has.
UNIT = "\x1f"
ROW_FIELDS = (
    *(("number", "%i"), ("job", "%F"), ("element", "%K"), ("state", "%T"), ("reason", "%r"), ("start", "%S")),
    *(("end", "%e"), ("partition", "%P"), ("nodes", "%N"), ("dependency", "%E"), ("submitted", "%V")),
    *(("command", "%o"), ("comment", "%k"), ("name", "%j")),
)
ROW_NUMBER = re.compile(r"([0-9]{1,12})(?:_[0-9]{1,9})?\Z")
NO_VALUE = ("(null)", "N/A", "None", "Unknown", "n/a")
ROW_TIMES = ("start", "end", "submitted")
# A controller that is down makes its clients try for some ten seconds.
SQUEUE_S = 12.0
QUEUE_TURN_S = 15.0
TROUBLE_S = 5.0
MOST_QUEUE = 16 << 20
# Where sites install Slurm if not beside the other programs.
SLURM_FOLDERS = (
    *("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/opt/slurm/current/bin"),
    "/cm/shared/apps/slurm/current/bin",
)
LOGIN_SHELL_S = 15.0


# Slurm's programs


def find_slurm() -> str:
    """The folder of Slurm's programs, "" where there are none. A login shell is asked once: it may load a module."""
    facts = str(read_json(base_folder(), b"cluster").get("folder", ""))
    found = shutil.which("sbatch") or shutil.which("sbatch", path=os.pathsep.join([facts, *SLURM_FOLDERS]))
    if not found:
        found = ask_login_shell()
        keep_of_cluster({"folder": os.path.dirname(found)})
    return os.path.dirname(found)


def ask_login_shell() -> str:
    try:
        said = call(["bash", "-lc", "command -v sbatch"], LOGIN_SHELL_S)
    except OSError:
        return ""
    last = to_text(said.text).strip().rpartition("\n")[2]
    return last if said.code == 0 and last.startswith("/") else ""


def slurm_call(
    program: str,
    words: "list[Any]",
    seconds: float,
    most: int = MOST_SAID,
    env: "dict[Any, Any] | None" = None,
    **options: "Any",
) -> Said:
    """Run one of Slurm's programs; times come as seconds since the epoch. Raises OSError where there is none."""
    # A site may have its own sbatch in another folder than the rest.
    path = shutil.which(program) or os.path.join(find_slurm(), program)
    if not path.startswith("/"):
        raise FileNotFoundError(2, "Slurm's programs are not found on this machine")
    if env is None:
        # A user's own settings for how the queue is shown would change what is read here.
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))
        }
        env.update(SLURM_TIME_FORMAT="%s", LC_ALL="C")
    return call([path] + words, seconds, most=most, env=env, **options)


LEARNED_NAME: "list[str]" = []


def cluster_name() -> str:
    """The cluster's own name, "" where it cannot be learned now. Clusters often share a home folder."""
    if not LEARNED_NAME:
        LEARNED_NAME.append(str(read_json(base_folder(), b"cluster").get("name", "")) or ask_cluster_name())
    return LEARNED_NAME[0]


def ask_cluster_name() -> str:
    try:
        said = slurm_call("scontrol", ["show", "config"], SQUEUE_S)
    except OSError:
        return ""
    found = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", to_text(said.text)) if said.code == 0 else None
    name = re.sub(r"[^A-Za-z0-9_-]", "_", found.group(1))[:60] if found else ""
    if name:
        keep_of_cluster({"name": name})
    return name


def keep_of_cluster(learned: "dict[str, Any]") -> None:
    write_beside(b"cluster", dict(read_json(base_folder(), b"cluster"), **learned))


def write_beside(name: bytes, value: "dict[str, Any]") -> None:
    """Write a record whole or not at all, in a folder of this machine. A full disk only costs another question."""
    with contextlib.suppress(OSError):
        new = os.path.join(base_folder(), b"." + name + b"-" + os.urandom(4).hex().encode())
        write_whole(new, json.dumps(value).encode())
        os.rename(new, os.path.join(base_folder(), name))


@contextlib.contextmanager
def turn(name: bytes, seconds: float) -> "Iterator[int]":
    """Hold a lock of this machine: its descriptor, or -1 where others have had it for too long."""
    with closing_fd(os.open(os.path.join(base_folder(), name), os.O_RDWR | os.O_CREAT, 0o600)) as fd:
        yield fd if get_lock(fd, time.monotonic() + seconds) else -1


def get_lock(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        except OSError:
            # A file system without locks: then sessions may ask side by side.
            return True


def said_by_slurm(text: bytes) -> str:
    """Join the messages of a program of Slurm into one harmless line."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in to_text(text).splitlines() if line.strip()]
    shown = "; ".join(lines).encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in shown)[-300:].strip()


# The queue


def read_rows(text: str) -> "list[dict[str, Any]]":
    """The jobs of squeue's answer; lines of another kind are passed over."""
    rows = []
    for line in text.split("\n"):
        values = line.split(UNIT, len(ROW_FIELDS) - 1)
        number = ROW_NUMBER.match(values[0])
        # The job's own number goes to scancel: only one that the row's number begins with.
        if len(values) == len(ROW_FIELDS) and number and values[1] == number.group(1):
            row: "dict[str, Any]" = {}
            for (name, _), value in zip(ROW_FIELDS, values):
                value = "" if value.strip() in NO_VALUE else value.strip()[:1000]
                row[name] = read_time(value) if name in ROW_TIMES else value
            rows.append(row)
    return rows


def read_time(value: str) -> float:
    """Seconds since the epoch; releases that do not know SLURM_TIME_FORMAT print local time. 0 for none."""
    if re.match(r"[0-9]+\Z", value):
        return float(value[:15])
    try:
        return time.mktime(time.strptime(value[:19], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def is_named(row: "dict[str, Any]", mark: str, script: str) -> bool:
    """Whether a row is of the job with this mark in its comment, or with this script."""
    return bool(row["comment"].split(" ")[0] == mark or row["command"] == script)


class Queue:
    """The queue as it was asked last by any session of this user; asked again when the site's rate allows it."""

    def __init__(self, rate: float) -> None:
        # 0: as it was told last.
        self.rate = rate
        self.asked = 0.0
        self.trouble = ""
        self.rows: "dict[str, dict[str, Any]]" = {}
        self.elements: "dict[str, list[dict[str, Any]]]" = {}
        self.is_loaded = False

    def load(self, newer_than: float = 0.0) -> "Queue":
        """Learn what the queue has. Only with `newer_than` it may be asked ahead of its time: after a stop, say."""
        if self.is_loaded and self.asked >= newer_than:
            return self
        kept = read_json(base_folder(), b"queue")
        if not self.is_fresh(kept, newer_than):
            # While another session waits for a controller that is away, the last answer will do.
            patience = QUEUE_TURN_S if newer_than or not kept.get("asked") else 2.0
            with turn(b"queue.lock", patience) as lock:
                kept = read_json(base_folder(), b"queue")
                if lock >= 0 and not self.is_fresh(kept, newer_than):
                    kept = self.ask(kept)
                    write_beside(b"queue", dict(kept, rate=self.rate))
        self.take(kept)
        return self

    def is_fresh(self, kept: "dict[str, Any]", newer_than: float) -> bool:
        tried = float(kept.get("tried", 0.0))
        self.rate = max(0.5, self.rate or float(kept.get("rate", 10.0)))
        # Every question to a controller that is away takes its time.
        pause = max(self.rate, TROUBLE_S) if kept.get("trouble") else self.rate
        return 0 <= time.time() - tried < pause and float(kept.get("begun", 0.0)) >= newer_than

    def ask(self, kept: "dict[str, Any]") -> "dict[str, Any]":
        """One question for all jobs. Where it is not answered, the last answer stays, with its age."""
        asked = time.time()
        form = UNIT.join(field for _, field in ROW_FIELDS)
        words = ["--noheader", "--array", "--states=all", "--user=%d" % os.getuid(), "--format=" + form]
        try:
            said = slurm_call("squeue", words, SQUEUE_S, MOST_QUEUE)
        except OSError as problem:
            return dict(kept, begun=asked, tried=time.time(), trouble=str(problem.strerror))
        if said.code is None:
            return dict(kept, begun=asked, tried=time.time(), trouble="squeue did not answer within %d s" % SQUEUE_S)
        if said.code:
            return dict(kept, begun=asked, tried=time.time(), trouble=said_by_slurm(said.text) or "squeue failed")
        rows = read_rows(to_text(said.text))
        return {"begun": asked, "tried": time.time(), "asked": asked, "trouble": "", "rows": rows}

    def take(self, kept: "dict[str, Any]") -> None:
        self.asked, self.trouble = float(kept.get("asked", 0.0)), str(kept.get("trouble", ""))
        self.rows, self.elements, self.is_loaded = {}, {}, True
        for row in kept.get("rows", []):
            self.rows[row["number"]] = row
            if row["element"]:
                self.elements.setdefault(row["job"], []).append(row)

    def row_of(self, number: str) -> "dict[str, Any] | None":
        """A job, or an element of an array: one that was cancelled before any element began has a single row."""
        return self.rows.get(number) or self.rows.get(number.partition("_")[0])

    def first_row_of(self, number: str) -> "dict[str, Any] | None":
        """Return the job's row, or the first element of an array as a whole."""
        return self.row_of(number) or next(iter(self.elements.get(number, [])), None)

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.asked) if self.asked else 0.0

    def find(self, mark: str, script: str) -> str:
        """The number of the job with this mark in its comment, or with this script, "" for none."""
        for row in self.rows.values():
            if is_named(row, mark, script):
                return str(row["job"])
        return ""
