"""Fate of a submitted job: its keeper's record of its end, or else the queue's answer."""

import os
import re
import time
from typing import Any

from ..outpost.place import CLOCKS_S, base_folder, to_bytes, to_text
from .place import all_jobs
from .queue import SQUEUE_S, read_time, said_by_slurm, slurm_call, write_beside
from .record import read_begun, read_json, write_json
from .submit import Submissions, is_row_of

BEING_SUBMITTED_S = 90.0
# Between the queue's word that a job is over and the record of its end, which a file server may show later.
END_SHOWS_S = 2.0
END_IS_NEW_S = 15.0
# How long an end by KILL is doubted: the queue may tell that it was for want of memory.
DOUBT_S = 20.0
# After so long an sbatch that was cut off has surely not arrived.
NEVER_S = 86400.0
NO_SACCT_S = 3600.0
IN_QUEUE = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
OVER = "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE PREEMPTED NODE_FAIL BOOT_FAIL OUT_OF_MEMORY".split()
# Of a state that ends a job from outside: our word for it, and the sentence.
FATES = {
    "TIMEOUT": ("time_limit", "its time limit was reached"),
    "PREEMPTED": ("preempted", "it was preempted: another job needed its place"),
    "NODE_FAIL": ("node_failed", "its node failed"),
    "BOOT_FAIL": ("node_failed", "its node could not be started"),
    "OUT_OF_MEMORY": ("out_of_memory", "it used more memory than it was given"),
    "CANCELLED": ("cancelled", "it was cancelled"),
    "DEADLINE": ("cancelled", "it was cancelled: it could not end before its deadline"),
}
REQUEUED = ("requeued", "the queue put it back after it had begun, and it was not submitted to be run again")
# What Slurm itself writes into a job's output, for when neither queue nor accounting knows the job any more.
LAST_WORDS = (
    (r"oom[-_]kill event|Exceeded job memory limit", "OUT_OF_MEMORY"),
    (r"DUE TO TIME LIMIT", "TIMEOUT"),
    (r"DUE TO PREEMPTION", "PREEMPTED"),
    (r"DUE TO NODE FAILURE", "NODE_FAIL"),
    (r"CANCELLED AT", "CANCELLED"),
)


class Fates(Submissions):
    """Tells the state of a submitted job, or of one element of an array."""

    def __init__(self, rate: float) -> None:
        Submissions.__init__(self, rate)
        # For all jobs of one request together.
        self.patient_until = time.monotonic() + END_SHOWS_S
        # When this request told the queue to cancel what it is asked to stop.
        self.cancelled_at = 0.0

    def life_of(self, folder: bytes, order: "dict[str, Any]", element: str = "") -> "dict[str, Any]":
        """Return the end as the keeper has recorded it; without one, the queue's answer."""
        records = records_of(folder, element)
        end, number = read_json(records, b"end"), self.number_of(folder)
        final = read_json(records, b"fate")
        if end and (final or not is_killed(end)):
            if order["slurm"]["requeue"] and not element:
                forget_variables(folder)
            # An end that shows late counts more than what was made of its absence, unless memory was short.
            facts = final if final.get("fate") == "out_of_memory" else self.read_end(end)
            return dict(facts, queue=blank_queue(with_element(number, element)))
        if final:
            return final
        if not number:
            number = self.learn_late_number(folder, order)
        if not number:
            return self.without_number(folder, order)
        number = with_element(self.own_number(folder, order, number) or number, element)
        # A controller that is away keeps us waiting, and meanwhile the job may have ended.
        late = {} if end else read_json(records, b"end")
        if late and not is_killed(late):
            return dict(self.read_end(late), queue=blank_queue(number))
        row = self.own_row(folder, order, number)
        facts = self.by_row(folder, records, order, row) if row else self.without_row(folder, records, number)
        if end:
            facts = self.dispel_doubt(end, facts)
        begun = read_begun(records)
        facts["queue"] = self.queue_of(number, row, begun)
        if facts["state"] in ("ended", "gone"):
            self.note_fate(folder, records, facts)
        return facts

    def own_number(self, folder: bytes, order: "dict[str, Any]", number: str, newer_than: float = 0.0) -> str:
        """The number that sbatch said; if the queue has another job under it, the one with our mark, or ""."""
        row = self.queue.load(newer_than).first_row_of(number)
        if row is None or is_row_of(row, folder, order):
            return number
        return self.learn_number(folder, order)

    def own_row(self, folder: bytes, order: "dict[str, Any]", number: str) -> "dict[str, Any] | None":
        row = self.queue.load().row_of(number)
        return row if row and is_row_of(row, folder, order) else None

    def note_fate(self, folder: bytes, records: bytes, facts: "dict[str, Any]") -> None:
        """Record a final state, so that it is asked no more; and remove the job's variables, which may hold secrets."""
        try:
            # An element that was never begun has no folder yet.
            os.makedirs(records, 0o700, exist_ok=True)
            write_json(records, b"fate", facts)
        except OSError:
            # On a full disk the queue is asked again.
            return
        if folder == records:
            forget_variables(folder)

    def dispel_doubt(self, end: "dict[str, Any]", facts: "dict[str, Any]") -> "dict[str, Any]":
        """Decide about a killed command: by the queue, for want of memory, or by somebody else."""
        if facts.get("fate") == "out_of_memory":
            return dict(facts, exit=end["exit"], signal=end["signal"])
        is_new = abs(time.time() - end["ended"]) < DOUBT_S
        if facts["state"] in ("running", "pending") and is_new and not self.queue.trouble:
            return {"state": "running"}
        return self.read_end(end)

    def read_end(self, end: "dict[str, Any]") -> "dict[str, Any]":
        facts = ended_facts(end["exit"], end["ending"], end["ended"], signal=end["signal"])
        facts["survivors"] = end.get("survivors", [])
        if end["ending"] == "out_of_memory":
            facts.update(fate="out_of_memory", reason=FATES["OUT_OF_MEMORY"][1])
        return facts

    def learn_late_number(self, folder: bytes, order: "dict[str, Any]") -> str:
        """Contact was lost while it was being submitted: its comment in the queue tells its number."""
        is_young = 0 <= time.time() - order["ordered"] < BEING_SUBMITTED_S
        return "" if is_young else self.learn_number(folder, order)

    def without_number(self, folder: bytes, order: "dict[str, Any]") -> "dict[str, Any]":
        queue = dict(blank_queue(""), state="SUBMITTING", age=self.queue.age, trouble=self.queue.trouble)
        if self.queue.asked > order["ordered"] + BEING_SUBMITTED_S and not self.queue.trouble:
            reason = "it was never submitted: the queue does not have it"
            facts: "dict[str, Any]" = {"state": "gone", "reason": reason, "queue": queue}
            if time.time() - order["ordered"] > NEVER_S:
                self.note_fate(folder, folder, facts)
            return facts
        return {"state": "pending", "queue": queue}

    def by_row(self, folder: bytes, records: bytes, order: "dict[str, Any]", row: "dict[str, Any]") -> "dict[str, Any]":
        state, begun = row["state"], read_begun(records)
        if state in OVER:
            return self.over(folder, records, row["number"], state, row["end"], row["nodes"])
        if state not in IN_QUEUE:
            return {"state": "running"}
        # The queue's answer may be older than the start; but one that was to be requeued may wait again.
        waits_again = begun and order["slurm"]["requeue"] and self.queue.asked > float(begun.get("started", 0)) + 5
        return {"state": "pending" if not begun or waits_again else "running"}

    def over(
        self,
        folder: bytes,
        records: bytes,
        number: str,
        state: str,
        ended: float,
        nodes: str = "",
        said: "dict[str, str] | None" = None,
    ) -> "dict[str, Any]":
        """A job that is over by the word of Slurm; its keeper's word counts more, and may come a moment later."""
        end = self.await_end_record(records, ended) if state in ("COMPLETED", "FAILED", "CANCELLED") else {}
        ended = ended or time.time()
        if end:
            return self.read_end(end)
        if is_marked(folder) or is_marked(records):
            return ended_facts(None, "stopped", ended)
        if read_json(records, b"interrupted").get("by") == "requeue":
            return {"state": "gone", "fate": REQUEUED[0], "reason": REQUEUED[1], "ended": ended}
        if state in ("FAILED", "CANCELLED") and slurms_last_words(folder, number) == "OUT_OF_MEMORY":
            state = "OUT_OF_MEMORY"
        if state in FATES:
            fate, why = FATES[state]
            why = "its node %s failed" % nodes if state == "NODE_FAIL" and nodes else why
            if fate == "cancelled":
                return ended_facts(None, "cancelled", ended, fate=fate, reason=why + self.by_whom(number, said))
            if fate == "out_of_memory":
                return ended_facts(137, "out_of_memory", ended, signal="SIGKILL", fate=fate, reason=why)
            return {"state": "gone", "fate": fate, "reason": why, "ended": ended}
        code = read_exit(said["exit"])[0] if said else self.exit_of(number, state)
        return ended_facts(code, "exited", ended, reason=why_no_end(folder, records, number))

    def await_end_record(self, records: bytes, ended: float) -> "dict[str, Any]":
        """The end record; a file server may show it a moment after the queue knows of the end."""
        while os.path.isdir(records):
            # Opening the folder has the file server asked for what is new in it.
            os.listdir(records)
            end = read_json(records, b"end")
            is_new = read_begun(records) and abs(time.time() - ended) < END_IS_NEW_S
            has_said = read_json(records, b"interrupted") or is_marked(records)
            if end or has_said or not is_new or time.monotonic() > self.patient_until:
                return end
            time.sleep(0.1)
        return {}

    def exit_of(self, number: str, state: str) -> int:
        code, is_reported = read_exit(self.show_job(number).get("ExitCode", ""))
        return code if is_reported else 0 if state == "COMPLETED" else 1

    def show_job(self, number: str) -> "dict[str, str]":
        try:
            said = slurm_call("scontrol", ["show", "job", number], SQUEUE_S)
        except OSError:
            return {}
        fields = (word.partition("=") for word in to_text(said.text).split() if said.code == 0)
        return {name: value for name, _, value in fields if value}

    def by_whom(self, number: str, said: "dict[str, str] | None") -> str:
        """Only the accounting tells who has cancelled a job."""
        found = re.search(r"by (\d+)", (said or self.accounted(number)).get("state", ""))
        if not found or int(found.group(1)) == os.getuid():
            return ""
        return " by an administrator" if int(found.group(1)) == 0 else " by the user with the number " + found.group(1)

    def without_row(self, folder: bytes, records: bytes, number: str) -> "dict[str, Any]":
        """The queue forgets jobs some minutes after their end, and has not heard of one that is new."""
        submitted = float(read_json(folder, b"slurm").get("submitted", 0.0))
        begun = read_begun(records)
        # What is cancelled while it is pending leaves the queue at once.
        is_cancelled = self.cancelled_at and self.queue.asked > self.cancelled_at
        if self.queue.asked <= submitted + CLOCKS_S and not is_cancelled:
            return {"state": "running" if begun else "pending"}
        said = self.accounted(number)
        state = said.get("state", "").split(" ")[0].rstrip("+")
        if state and state not in OVER:
            return {"state": "pending" if state in IN_QUEUE else "running"}
        state = state or slurms_last_words(folder, number)
        if state:
            return self.over(folder, records, number, state, read_time(said.get("end", "")), said=said or None)
        return self.forgotten(folder, records, begun)

    def forgotten(self, folder: bytes, records: bytes, begun: "dict[str, Any]") -> "dict[str, Any]":
        """Neither queue nor accounting know it."""
        interrupted = read_json(records, b"interrupted")
        if is_marked(folder) or is_marked(records):
            return ended_facts(None, "stopped", float(interrupted.get("at", 0.0)) or time.time())
        if interrupted.get("by") == "requeue":
            return {"state": "gone", "fate": REQUEUED[0], "reason": REQUEUED[1]}
        if interrupted:
            return {"state": "gone", "reason": "it was told to end from outside, and the queue no longer knows it"}
        what = "it has begun, and left no end" if begun else "it has never begun"
        return {"state": "gone", "reason": "the queue no longer knows it; " + what}

    def queue_of(self, number: str, row: "dict[str, Any] | None", begun: "dict[str, Any]") -> "dict[str, Any]":
        queue = dict(blank_queue(number), age=self.queue.age, trouble=self.queue.trouble)
        queue["restarts"] = int(begun.get("restarts", 0))
        if row is None:
            return dict(queue, state="" if begun else "PENDING")
        for name in ("state", "reason", "start", "end", "partition", "nodes", "dependency"):
            queue[name] = row[name]
        return queue

    # Accounting

    def accounted(self, number: str) -> "dict[str, str]":
        """Ask sacct about a job that the queue has forgotten: once for all such jobs, at the queue's rate."""
        kept = read_json(base_folder(), b"sacct")
        age = time.time() - float(kept.get("tried", 0.0))
        if not 0 <= age < (NO_SACCT_S if kept.get("none") else self.queue.rate):
            kept = self.ask_sacct(sorted(set(self.unknown_numbers()) | {number}))
            write_beside(b"sacct", kept)
        found: "dict[str, str]" = kept.get("rows", {}).get(number, {})
        return found

    def unknown_numbers(self) -> "list[str]":
        """Jobs of ours without an end that the queue does not have."""
        folders = [
            folder for _, folder in all_jobs() if not read_json(folder, b"end") and not read_json(folder, b"fate")
        ]
        numbers = [self.number_of(folder) for folder in folders]
        return [number for number in numbers if number and number not in self.queue.rows]

    def ask_sacct(self, numbers: "list[str]") -> "dict[str, Any]":
        words = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode,End"]
        since = time.strftime("%Y-%m-%d", time.localtime(time.time() - 60 * 86400))
        try:
            said = slurm_call("sacct", words + ["--starttime=" + since, "--jobs=" + ",".join(numbers)], SQUEUE_S)
        except OSError:
            return {"tried": time.time(), "none": True}
        if said.code:
            return {"tried": time.time(), "none": b"disabled" in said.text}
        rows = {}
        for line in to_text(said.text).split("\n"):
            parts = line.split("|")
            if len(parts) == 4:
                rows[parts[0]] = {"state": parts[1][:60], "exit": parts[2][:20], "end": parts[3][:30]}
        return {"tried": time.time(), "rows": rows}


def blank_queue(number: str) -> "dict[str, Any]":
    words = {"state": "", "reason": "", "partition": "", "nodes": "", "dependency": "", "trouble": ""}
    return dict(words, number=number, start=0.0, end=0.0, restarts=0, array=None, age=0.0)


def ended_facts(exit_code: "int | None", ending: str, ended: float, **more: "Any") -> "dict[str, Any]":
    facts: "dict[str, Any]" = {"state": "ended", "exit": exit_code, "signal": "", "survivors": []}
    return dict(facts, ending=ending, ended=ended, **more)


def read_exit(said: str) -> "tuple[int, bool]":
    """Slurm's CODE:SIGNAL as the shell's number."""
    found = re.match(r"([0-9]{1,3})(?::([0-9]{1,3}))?\Z", said)
    if not found:
        return 1, False
    code, number = int(found.group(1)), int(found.group(2) or 0)
    return (128 + number, True) if number else (code, True)


def is_killed(end: "dict[str, Any]") -> bool:
    """Whether only the queue may know why it ended."""
    return bool(end["exit"] == 137 and end["ending"] == "exited")


def records_of(folder: bytes, element: str) -> bytes:
    """Return where a job's begin and end are noted."""
    return os.path.join(folder, b"elements", to_bytes(element)) if element else folder


def with_element(number: str, element: str) -> str:
    return "%s_%s" % (number, element) if number and element else number


def output_file(folder: bytes, element: str) -> bytes:
    """Return the file with the job's output before its keeper runs, and with Slurm's own messages."""
    return os.path.join(folder, b"slurm-%s.out" % to_bytes(element) if element else b"slurm.out")


def forget_variables(folder: bytes) -> None:
    for name in (b"environ", b"environ.sh"):
        if os.path.lexists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))


def is_marked(folder: bytes) -> bool:
    return os.path.lexists(os.path.join(folder, b"stop"))


def slurms_last_words(folder: bytes, number: str) -> str:
    """The state that Slurm's own lines in the job's output stand for, "" for none."""
    text = tail_of(output_file(folder, number.partition("_")[2]))
    return next((state for pattern, state in LAST_WORDS if re.search(pattern, text)), "")


def why_no_end(folder: bytes, records: bytes, number: str) -> str:
    by = read_json(records, b"interrupted").get("by", "")
    if by:
        return "it was told to end from outside (%s)" % by
    output = output_file(folder, number.partition("_")[2])
    if not read_begun(records) and not os.path.lexists(output):
        return "it left nothing in %s; do the nodes have the same home folder?" % to_text(folder)
    trouble = said_by_slurm(to_bytes(tail_of(output).strip().rpartition("\n")[2]))[:200]
    return "its keeper noted no end" + (": " + trouble if trouble else "")


def tail_of(path: bytes) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            return to_text(file.read())
    except OSError:
        return ""
