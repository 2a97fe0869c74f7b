"""The cluster whose login node this machine is: submitted jobs, arrays and jobs of others, looked at and stopped."""

import os
import re
import time
from typing import Any

from ..outpost.place import Refused, base_folder, closing_fd, set_mode, to_bytes, to_text
from .fate import IN_QUEUE, OVER, Fates, blank_queue, ended_facts, is_marked, records_of, with_element
from .place import CLUSTER_NAMES, find_job
from .queue import Queue, cluster_name, slurm_call, write_beside
from .record import JOB_STOP_MARK, element_log, read_begun, read_json, write_json, write_whole
from .state import CLUSTER

SCANCEL_S = 15.0
# For so long after its submission the queue may be asked for a job's sake; by the second, it has a reason to give.
SUBMITTED_LATELY_S, REASON_S = 60.0, 3.0
MOST_ELEMENTS = 100000
FOREIGN_NUMBER = re.compile(r"slurm-([0-9]{1,12}(?:_[0-9]{1,9})?)\Z")
KEY_BYTES = {
    "Enter": b"\r", "Escape": b"\x1b", "Space": b" ", "Tab": b"\t", "BTab": b"\x1b[Z", "BSpace": b"\x7f",
    "Up": b"\x1b[A", "Down": b"\x1b[B", "Right": b"\x1b[C", "Left": b"\x1b[D", "Home": b"\x1b[1~", "End": b"\x1b[4~",
    "IC": b"\x1b[2~", "Insert": b"\x1b[2~", "DC": b"\x1b[3~", "Delete": b"\x1b[3~",
    "PPage": b"\x1b[5~", "PageUp": b"\x1b[5~", "PgUp": b"\x1b[5~",
    "NPage": b"\x1b[6~", "PageDown": b"\x1b[6~", "PgDn": b"\x1b[6~",
}  # fmt: skip
FUNCTION_KEYS = (11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24, 25, 26, 28, 29, 31, 32, 33, 34)


class SlurmCluster(Fates):
    """The cluster as one request sees it."""

    def state(self, folder: bytes, order: "dict[str, Any]", element: str = "") -> "dict[str, Any]":
        """State of a submitted job, and what belongs to it; or of one element of an array."""
        self.ask_after_submission(folder)
        array = order["slurm"]["array"]
        if element and element not in array_elements(array):
            reason = "%s has no element %s" % (order["session"], element)
            return {"state": "missing", "reason": reason, "order": order, "begun": {}, "folder": folder}
        if element:
            order = dict(order, log=element_log(order["log"], element), log_start=0)
        if array and not element:
            facts = read_json(folder, b"fate") or self.array_state(folder, order)
        else:
            facts = self.life_of(folder, order, element)
        records = records_of(folder, element)
        return dict(facts, order=order, begun=read_begun(records), folder=folder, element=element, via="slurm")

    def ask_after_submission(self, folder: bytes) -> None:
        """Ask the queue ahead of its time once after a submission: its last answer cannot say why that job waits."""
        # Once more where it had no reason to give yet: the scheduler finds one within seconds.
        noted = read_json(folder, b"slurm")
        submitted = float(noted.get("submitted", 0.0))
        if not 0.0 <= time.time() - submitted < SUBMITTED_LATELY_S:
            return
        row = self.queue.load(submitted).first_row_of(str(noted.get("number", "")))
        if row and row["state"] in IN_QUEUE and not row["reason"]:
            later = submitted + REASON_S
            self.queue.load(later if time.time() >= later else submitted)

    # Arrays

    def array_state(self, folder: bytes, order: "dict[str, Any]") -> "dict[str, Any]":
        """One job with counts: it is over when all of its elements are."""
        done, number = read_json(folder, b"elements.json"), self.number_of(folder)
        counts = {"pending": 0, "running": 0, "ended": 0, "failed": 0, "gone": 0}
        lives: "dict[str, dict[str, Any]]" = {}
        path = os.path.join(folder, b"elements")
        begun = {to_text(name) for name in os.listdir(path)} if os.path.isdir(path) else set()
        for element in array_elements(order["slurm"]["array"]):
            # An array may have thousands of elements: files are read only of those that have some, and are not over.
            facts = done.get(element) or {}
            if not facts and element not in begun:
                facts = self.still_waits(folder, order, with_element(number, element))
            facts = facts or self.life_of(folder, order, element)
            lives[element] = facts
            counts[facts["state"]] += 1
            counts["failed"] += 1 if facts["state"] == "ended" and facts["exit"] != 0 else 0
        over = {element: facts for element, facts in lives.items() if facts["state"] in ("ended", "gone")}
        if len(over) > len(done):
            write_json(folder, b"elements.json", over)
        facts = self.sum_up(list(lives.values()), counts)
        shown = self.show_first(number, lives)
        facts["queue"] = dict(shown, number=number, array=counts)
        if facts["state"] in ("ended", "gone"):
            self.note_fate(folder, folder, facts)
        return facts

    def still_waits(self, folder: bytes, order: "dict[str, Any]", number: str) -> "dict[str, Any]":
        """An element that is pending by the queue's word alone, nothing for any other."""
        row = self.own_row(folder, order, number)
        if row is None or row["state"] not in IN_QUEUE:
            return {}
        return {"state": "pending", "queue": self.queue_of(number, row, {})}

    def show_first(self, number: str, lives: "dict[str, dict[str, Any]]") -> "dict[str, Any]":
        """Return the queue's row of the first element that runs, or else of the first that is pending."""
        for state in ("running", "pending"):
            for facts in lives.values():
                if facts["state"] == state:
                    return dict(facts.get("queue") or blank_queue(number))
        return blank_queue(number)

    def sum_up(self, lives: "list[dict[str, Any]]", counts: "dict[str, int]") -> "dict[str, Any]":
        for state in ("running", "pending"):
            if counts[state]:
                return {"state": state}
        last = max([float(facts.get("ended") or 0.0) for facts in lives] or [0.0]) or time.time()
        for facts in lives:
            if facts["state"] == "gone":
                return dict(facts, ended=last)
        for ending in ("cancelled", "out_of_memory", "stopped"):
            for facts in lives:
                if facts["ending"] == ending:
                    return dict(facts, ended=last)
        failed = [facts for facts in lives if facts["exit"] != 0]
        return dict(failed[0] if failed else ended_facts(0, "exited", last), ended=last)

    # Stopping

    def stop(self, facts: "dict[str, Any]", grace: float, deadline: float) -> "dict[str, Any]":
        """Cancel what is pending, have its keeper end what runs, and cancel that after the grace."""
        folder, element = facts["folder"], facts["element"]
        records = records_of(folder, element)
        os.makedirs(records, 0o700, exist_ok=True)
        mark_stop(records, grace)
        begun = time.time()
        cancel_at = min(time.monotonic() + grace + 3.0, deadline - 3.0)
        is_signalled = is_cancelled = False
        while time.monotonic() < deadline:
            number, sure = self.target(folder, facts["order"], element, begun)
            if number and not is_signalled:
                is_signalled = self.signal_job(sure, number, facts["state"] == "pending")
            if number and not is_cancelled and time.monotonic() >= cancel_at:
                is_cancelled = self.scancel(sure, number)
            facts = self.state(folder, facts["order"] if not element else read_json(folder, b"order"), element)
            if facts["state"] not in ("running", "pending"):
                break
            time.sleep(1.0 if facts["queue"]["array"] else 0.2)
            self.queue = Queue(self.queue.rate)
        return facts

    def target(self, folder: bytes, order: "dict[str, Any]", element: str, since: float) -> "tuple[str, list[str]]":
        """The number for scancel, "" where none is surely ours, and the condition that makes one sure."""
        # A job that the queue does not show is cancelled by its number and its name together.
        number = self.number_of(folder)
        is_shown = number and self.queue.load().first_row_of(with_element(number, element))
        number = self.own_number(folder, order, number, 0.0 if is_shown else since) if number else ""
        if not number or self.queue.first_row_of(with_element(number, element)):
            return with_element(number, element), []
        # With commas it would be a list of names, and a condition counts for no single element.
        is_name = "," not in order["session"] and not element
        return (number, ["--name=" + order["session"]]) if is_name else ("", [])

    def signal_job(self, sure: "list[str]", number: str, is_pending: bool) -> bool:
        """Cancel what has not begun, wake the keeper of what has; then the queue is asked ahead of its time, once."""
        if "_" in number and is_pending:
            # With a condition, Slurm 22.05 cancels all pending elements of the array, not the one that was named.
            done = self.scancel([], number)
        else:
            done = "_" in number or self.scancel(sure + ["--state=PENDING"], number)
            self.scancel(sure + ["--signal=TERM", "--batch"], number)
        self.cancelled_at = time.time()
        self.queue.load(self.cancelled_at)
        return done

    def scancel(self, words: "list[str]", number: str) -> bool:
        try:
            return bool(slurm_call("scancel", words + [number], SCANCEL_S).code == 0)
        except OSError:
            return False

    # Typing

    def type_into(self, facts: "dict[str, Any]", text: str, keys: "list[str]") -> None:
        if not facts["begun"].get("input"):
            what = "one element of the array, as NAME[3]" if facts["order"]["slurm"]["array"] else ""
            why = "type into " + what if what else "its node has no Python, so nothing can be typed into it"
            raise Refused("unsupported", why)
        path = os.path.join(records_of(facts["folder"], facts["element"]), b"input")
        with closing_fd(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)) as fd:
            os.write(fd, to_bytes(text) + b"".join(key_bytes(key) for key in keys))

    # Jobs that others have submitted

    def foreign(self, session: str) -> "dict[str, Any] | None":
        """A job that was not submitted by us, by its number."""
        found = FOREIGN_NUMBER.match(session)
        if not found:
            return None
        number, _, element = found.group(1).partition("_")
        rows = [row for row in self.queue.load().rows.values() if row["job"] == number]
        folder = self.folder_of(rows[0]) if rows else None
        if folder:
            return self.state(folder, read_json(folder, b"order"), element)
        return self.describe_foreign(found.group(1), True)

    def folder_of(self, row: "dict[str, Any]") -> "bytes | None":
        """The folder of a job of ours, by its mark or by its script; None for a job with another number than that."""
        mark, _, job_id = row["comment"].split(" ")[0].rpartition(":")
        script = os.path.dirname(row["command"])
        folder = find_job(job_id if mark == "rsmcp" else os.path.basename(script))
        return folder if folder and self.number_of(folder) in ("", row["job"]) else None

    def describe_foreign(self, number: str, with_log: bool) -> "dict[str, Any]":
        self.queue.load()
        rows = [self.queue.rows[number]] if number in self.queue.rows else self.queue.elements.get(number, [])
        order: "dict[str, Any]" = {"id": "slurm-" + number, "session": "slurm-" + number}
        facts: "dict[str, Any]" = {"order": order, "begun": {}, "foreign": True, "via": "slurm", "number": number}
        if not rows:
            reason = "the queue had no job of yours with the number %s when it was asked %d s ago"
            reason = reason % (number, self.queue.age)
            return dict(facts, state="missing", foreign=False, reason=self.queue.trouble or reason)
        lives = [self.foreign_life(row) for row in rows]
        counts = {
            state: sum(life["state"] == state for life in lives) for state in ("pending", "running", "ended", "gone")
        }
        counts["failed"] = sum(life["state"] == "ended" and life["exit"] != 0 for life in lives)
        first = next((row for row, life in zip(rows, lives) if life["state"] in ("running", "pending")), rows[0])
        order.update(command=first["name"], ordered=first["submitted"])
        facts.update(self.sum_up(lives, counts), queue=self.queue_of(number, first, {}))
        if first["element"] and number == first["job"]:
            facts["queue"]["array"] = counts
        if facts["state"] != "pending":
            facts["begun"] = {"started": first["start"], "via": "slurm"}
        if with_log:
            order["log"] = self.output_of(first["number"])
        return facts

    def foreign_life(self, row: "dict[str, Any]") -> "dict[str, Any]":
        if row["state"] not in OVER:
            return {"state": "pending" if row["state"] in IN_QUEUE else "running"}
        nowhere = b"/nonexistent"
        facts = self.over(nowhere, nowhere, row["number"], row["state"], row["end"], row["nodes"])
        # It has no keeper that could have noted its end.
        return dict(facts, reason="") if facts.get("ending") == "exited" else facts

    def output_of(self, number: str) -> str:
        """Return where a job's output goes; asked once."""
        kept = read_json(base_folder(), b"outputs")
        if number not in kept:
            kept[number] = self.show_job(number).get("StdOut", "")
            write_beside(b"outputs", dict(list(kept.items())[-200:]))
        return str(kept[number])

    def list_foreign(self) -> "list[dict[str, Any]]":
        """List jobs in the queue that are not ours, newest first; what holds an allocation of ours is no job."""
        rows = [row for row in self.queue.load().rows.values() if row["state"] not in OVER]
        # One of each array, which may have thousands of elements.
        firsts = {row["job"]: row for row in rows if not row["name"].startswith("rsmcp-")}
        numbers = [number for number, row in firsts.items() if self.folder_of(row) is None]
        return [self.describe_foreign(number, False) for number in sorted(numbers, key=int, reverse=True)]

    def stop_foreign(self, facts: "dict[str, Any]", deadline: float) -> "dict[str, Any]":
        number = facts["number"]
        if not self.scancel([], number):
            raise Refused("slurm", "scancel could not stop job %s; is it yours?" % number)
        while facts["state"] in ("running", "pending") and time.monotonic() < deadline:
            cluster = SlurmCluster(self.queue.rate)
            cluster.queue.load(time.time())
            facts = cluster.describe_foreign(number, True)
            time.sleep(1.0 if facts["state"] in ("running", "pending") else 0.0)
        return dict(facts, ending="stopped") if facts.get("ending") == "cancelled" else facts


def array_elements(spec: str) -> "list[str]":
    """The ids of an array's elements, such as 0-9%2, 1,3,5 or 0-15:4."""
    found: "list[str]" = []
    for part in spec.partition("%")[0].split(","):
        whole = re.match(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\Z", part.strip())
        if whole:
            first, last = int(whole.group(1)), int(whole.group(2) or whole.group(1))
            step = max(1, int(whole.group(3) or 1))
            found.extend(str(each) for each in range(first, min(last, first + MOST_ELEMENTS * step) + 1, step))
    return found[:MOST_ELEMENTS]


def mark_stop(records: bytes, grace: float) -> None:
    """A record for us and for the plain script, and the mode that keepers look at."""
    lock = os.path.join(records, b"lock")
    if not os.path.lexists(lock):
        write_whole(lock, b"")
    if not is_marked(records):
        write_json(records, b"stop", {"grace": grace})
    set_mode(lock, 0o600 | JOB_STOP_MARK)


def key_bytes(key: str) -> bytes:
    """Return the bytes that a terminal sends for a key, by its tmux name."""
    before = b""
    while re.match(r"[CMS]-.", key):
        kind, key = key[0], key[2:]
        if kind == "M":
            before += b"\x1b"
        elif kind == "C" and len(key) == 1:
            return before + bytes([ord(key.upper()) & 31])
    if re.match(r"F\d+\Z", key):
        return before + b"\x1b[%d~" % FUNCTION_KEYS[int(key[1:]) - 1]
    return before + KEY_BYTES.get(key, to_bytes(key))


CLUSTER.append(SlurmCluster)
CLUSTER_NAMES.append(cluster_name)
