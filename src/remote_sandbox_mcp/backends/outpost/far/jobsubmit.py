"""Jobs that are submitted to a cluster's queue: how one is submitted, what has become of it, how it is stopped."""

import os
import re
import shlex
import sys
import time
import zlib

from .files import Refused
from .joblook import CLUSTER
from .jobplace import CLUSTER_NAMES, all_jobs, find_job
from .jobqueue import (
    SQUEUE_S,
    Queue,
    cluster_name,
    find_slurm,
    read_time,
    said_by_slurm,
    slurm_call,
    turn,
    write_beside,
)
from .jobrecord import JOB_STOP_MARK, element_log, read_begun, read_json, write_json, write_whole
from .place import CLOCKS_S, base_folder, is_elsewhere, to_bytes, to_text

MYPY = False
if MYPY:
    from typing import Any

SBATCH_S = 40.0
# How many of one user's jobs are submitted at the same time.
SUBMIT_TURNS = 4
BEING_SUBMITTED_S = 90.0
SCANCEL_S = 15.0
# Between the queue's word that a job is over and the record of its end, which a file server may show later.
END_SHOWS_S = 2.0
END_IS_NEW_S = 15.0
# How long an end by KILL is doubted: the queue may tell that it was for want of memory.
DOUBT_S = 20.0
NO_SACCT_S = 3600.0
MOST_ELEMENTS = 100000
SUBMITTED = re.compile(r"(?m)^(\d{1,12})(?:;\S*)?\s*$")
FOREIGN_NUMBER = re.compile(r"slurm-(\d{1,12}(?:_\d{1,9})?)\Z")
IN_QUEUE = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "DEADLINE",
    "PREEMPTED",
    "NODE_FAIL",
    "BOOT_FAIL",
    "OUT_OF_MEMORY",
)
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
# Of the login itself: on a node these lead nowhere.
LOGIN_ONLY = (b"SSH_", b"TMUX", b"XDG_SESSION_")
LOGIN_ONLY_NAMES = (
    b"DISPLAY",
    b"WAYLAND_DISPLAY",
    b"XDG_RUNTIME_DIR",
    b"XDG_VTNR",
    b"DBUS_SESSION_BUS_ADDRESS",
    b"TMPDIR",
    b"HOSTNAME",
    b"OLDPWD",
    b"RSMCP_JOB_ID",
)
KEY_BYTES = {
    "Enter": b"\r", "Escape": b"\x1b", "Space": b" ", "Tab": b"\t", "BTab": b"\x1b[Z", "BSpace": b"\x7f",
    "Up": b"\x1b[A", "Down": b"\x1b[B", "Right": b"\x1b[C", "Left": b"\x1b[D", "Home": b"\x1b[1~", "End": b"\x1b[4~",
    "IC": b"\x1b[2~", "Insert": b"\x1b[2~", "DC": b"\x1b[3~", "Delete": b"\x1b[3~",
    "PPage": b"\x1b[5~", "PageUp": b"\x1b[5~", "PgUp": b"\x1b[5~",
    "NPage": b"\x1b[6~", "PageDown": b"\x1b[6~", "PgDn": b"\x1b[6~",
}  # fmt: skip
FUNCTION_KEYS = (11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24, 25, 26, 28, 29, 31, 32, 33, 34)


# The script


SCRIPT = r"""#!/bin/sh
%(options)s
# Made by remote-sandbox-mcp. It runs the command in the file `command` of this folder, writes its log, and notes its
# end here, where the login node finds it.
folder=%(folder)s requeue=%(requeue)s
for python in python3 %(python)s; do
    if "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then
        exec "$python" -IS "$folder/keeper.py" "$folder" slurm
    fi
done

# This node has no Python. The same in plain shell; only nothing can be typed into the command.
records=$folder log=%(log)s
if [ -n "$SLURM_ARRAY_TASK_ID" ]; then
    records=$folder/elements/$SLURM_ARRAY_TASK_ID log=%(log_head)s-$SLURM_ARRAY_TASK_ID%(log_tail)s
fi
note() {
    printf '%%s\n' "$2" >"$records/.$1.new" && mv -f "$records/.$1.new" "$records/$1"
}
end() {
    printf 'EXIT_CODE=%%d\n' "$1" >>"$log"
    note end "{\"exit\": $1, \"signal\": \"\", \"ending\": \"$2\", \"ended\": $(date +%%s), \"survivors\": []}"
    exit "$1"
}
mkdir -p "$records"
if [ -e "$records/begun" ] && [ "$requeue" = no ]; then
    note interrupted "{\"by\": \"requeue\", \"at\": $(date +%%s)}"
    exit 1
fi
rm -f "$records/interrupted"
# shellcheck source=/dev/null
. "$folder/environ.sh"
umask %(umask)s
note begun "{\"started\": $(date +%%s), \"via\": \"slurm\", \"restarts\": ${SLURM_RESTART_COUNT:-0}}"
cd %(cwd)s 2>>"$log" || end 127 exited
# shellcheck disable=SC2016
%(shell)s '. "$0"' "$folder/command" </dev/null >>"$log" 2>&1 &
command=$! told=
trap 'told=$told.TERM; kill -TERM "$command"' TERM
trap 'told=$told.USR1; kill -USR1 "$command"' USR1
trap 'told=$told.USR2; kill -USR2 "$command"' USR2
while :; do
    before=$told
    wait "$command"
    code=$?
    # Otherwise it was a signal that ended the wait, not the command.
    [ "$told" = "$before" ] && break
done
[ -e "$folder/stop" ] || [ -e "$records/stop" ] && end "$code" stopped
case $told in
*TERM*) note interrupted "{\"by\": \"SIGTERM\", \"at\": $(date +%%s)}" ;;
*) end "$code" exited ;;
esac
exit "$code"
"""


def batch_script(folder: bytes, record: "dict[str, Any]") -> bytes:
    """The script that sbatch is given; what a caller has chosen stands in it as quoted words."""
    head, tail = os.path.splitext(record["log"])
    python = sys.executable or "/usr/bin/python3"
    text = SCRIPT % {
        "options": "\n".join("#SBATCH " + word.replace("\n", " ") for word in shown_words(record)),
        "folder": shlex.quote(to_text(folder)),
        "python": shlex.quote(python),
        "log": shlex.quote(record["log"]),
        "log_head": shlex.quote(head),
        "log_tail": shlex.quote(tail),
        "requeue": "yes" if record["slurm"]["requeue"] else "no",
        "umask": "%03o" % record["umask"],
        "cwd": shlex.quote(record["cwd"]),
        "shell": " ".join(shlex.quote(word) for word in record["shell"]),
    }
    return to_bytes(text)


def shown_words(record: "dict[str, Any]") -> "list[str]":
    return ["--job-name=" + str(record["session"])] + list(record["slurm"]["words"])


def submission_of(slurm: "dict[str, Any]") -> "dict[str, Any]":
    """What is kept of how a job is submitted. Raises Refused."""
    name = cluster_name()
    if not name:
        raise Refused("slurm", why_no_cluster())
    words = [signal_word(str(word)) for word in slurm["words"]]
    if not all(re.match(r"--[a-z][a-z-]*(=|\Z)", word) and "\n" not in word for word in words):
        raise Refused("slurm", "the options of a submitted job must begin with --")
    arrays = [word.partition("=")[2] for word in words if word.startswith("--array=")]
    return {
        "words": words,
        "rate": float(slurm.get("rate", 10.0)),
        "cluster": name,
        "array": arrays[-1] if arrays else "",
        "requeue": "--requeue" in words,
    }


def why_no_cluster() -> str:
    if not find_slurm():
        return "sbatch is not found on this machine, neither in PATH nor by a login shell, so nothing can be submitted"
    return "Slurm's controller does not answer, so nothing can be submitted; try again later"


def signal_word(word: str) -> str:
    """Signals are for the batch step, where the command is; by default Slurm sends them to all others."""
    name, _, value = word.partition("=")
    return "--signal=B:" + value if name == "--signal" and ":" not in value else word


def leave_login_behind(environment: "dict[bytes, bytes]") -> None:
    for name in list(environment):
        if name.startswith(LOGIN_ONLY) or name in LOGIN_ONLY_NAMES:
            del environment[name]


def submission_files(folder: bytes, record: "dict[str, Any]", env: "dict[str, Any]") -> "dict[bytes, bytes]":
    """What a submitted job has in its folder beside what every job has."""
    given = [
        "export %s=%s\n" % (name, shlex.quote(str(value)))
        for name, value in sorted(env.items())
        if re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name)
    ]
    cookie = "export RSMCP_JOB_ID=%s\n" % record["id"]
    return {
        b"input": b"",
        b"environ.sh": to_bytes("".join(given) + cookie),
        b"script": batch_script(folder, record),
    }


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


# What is known of a job


def blank_queue(number: str) -> "dict[str, Any]":
    words = {"state": "", "reason": "", "partition": "", "nodes": "", "dependency": "", "trouble": ""}
    return dict(words, number=number, start=0.0, end=0.0, restarts=0, array=None, age=0.0)


def ended_known(exit_code: "int | None", ending: str, ended: float, **more: "Any") -> "dict[str, Any]":
    known: "dict[str, Any]" = {
        "state": "ended",
        "exit": exit_code,
        "signal": "",
        "ending": ending,
        "survivors": [],
        "ended": ended,
    }
    return dict(known, **more)


def read_fields(text: str) -> "dict[str, str]":
    """What `scontrol show job` says, by its names."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split()) if value}


def read_exit(said: str) -> "tuple[int, bool]":
    """Slurm's CODE:SIGNAL as the shell's number."""
    code, _, number = said.partition(":")
    if number.isdigit() and int(number):
        return 128 + int(number), True
    return (int(code), True) if code.isdigit() else (1, False)


class SlurmCluster:
    """The cluster whose login node this machine is, as one request sees it."""

    def __init__(self, rate: float) -> None:
        self.queue = Queue(rate)
        # For all jobs of one request together.
        self.patient_until = time.monotonic() + END_SHOWS_S
        # When this request told the queue to cancel what it is asked to stop.
        self.cancelled_at = 0.0

    # Submitting

    submission_of = staticmethod(submission_of)
    files_of = staticmethod(submission_files)
    leave_login_behind = staticmethod(leave_login_behind)

    def submit(self, folder: bytes, order: "dict[str, Any]") -> None:
        """Hand a prepared job to the queue, once, however often it is tried. Raises Refused."""
        lock = b"submit-%d.lock" % (zlib.crc32(to_bytes(order["id"])) % SUBMIT_TURNS)
        with turn(lock, SBATCH_S + 10.0) as held:
            if held < 0:
                raise Refused("unsure", "others have been submitting for too long; it may be submitted or not")
            if not os.path.lexists(os.path.join(folder, b"order")):
                raise Refused("slurm", "another attempt to submit it was refused just now")
            if self.number_of(folder) or self.find_again(folder, order):
                return
            # sbatch has the lock for as long as it lives, even if this process is killed.
            self.call_sbatch(folder, order, held)

    def find_again(self, folder: bytes, order: "dict[str, Any]") -> bool:
        """Whether an earlier attempt has submitted it, without being able to note that. Raises Refused."""
        if not os.path.lexists(os.path.join(folder, b"submitting")):
            write_json(folder, b"submitting", {"at": time.time()})
            return False
        if self.learn_number(folder, order, time.time()):
            return True
        tried = float(read_json(folder, b"submitting").get("at", 0.0))
        if is_elsewhere(order) and time.time() - tried < SBATCH_S + CLOCKS_S:
            raise Refused("unsure", "another login node of the cluster may just be submitting it")
        if self.queue.trouble:
            raise Refused("unsure", "the queue does not answer (%s); it may be submitted or not" % self.queue.trouble)
        return False

    def learn_number(self, folder: bytes, order: "dict[str, Any]", newer_than: float = 0.0) -> str:
        number = self.queue.load(newer_than).find_by_comment(mark_of(order))
        if number:
            self.note_number(folder, number)
        return number

    def note_number(self, folder: bytes, number: str) -> None:
        write_json(folder, b"slurm", {"number": number, "submitted": time.time()})

    def call_sbatch(self, folder: bytes, order: "dict[str, Any]", held: int) -> None:
        environment = dict(os.environb)
        leave_login_behind(environment)
        words = [to_bytes(word) for word in sbatch_words(folder, order)]
        before = time.time()
        try:
            said = slurm_call("sbatch", words, SBATCH_S, env=environment, pass_fds=(held,))
        except OSError as problem:
            raise Refused("slurm", "unable to run sbatch: %s" % problem.strerror)
        found = SUBMITTED.search(to_text(said.text)) if said.code == 0 else None
        if found:
            self.note_number(folder, found.group(1))
        elif said.code:
            raise Refused("slurm", "Slurm refused the job: %s" % (said_by_slurm(said.text) or "it did not say why"))
        elif not self.learn_number(folder, order, before + 0.001):
            self.raise_unsure()

    def raise_unsure(self) -> None:
        if self.queue.trouble:
            raise Refused("unsure", "sbatch did not answer within %d s; it may be submitted or not" % SBATCH_S)
        raise Refused("slurm", "sbatch did not answer within %d s, and the queue does not have the job" % SBATCH_S)

    # Looking

    def number_of(self, folder: bytes) -> str:
        return str(read_json(folder, b"slurm").get("number", ""))

    def state(self, folder: bytes, order: "dict[str, Any]", element: str = "") -> "dict[str, Any]":
        """State of a submitted job, and what belongs to it; or of one element of an array."""
        if element and element not in array_elements(order["slurm"]["array"]):
            reason = "%s has no element %s" % (order["session"], element)
            return {"state": "missing", "reason": reason, "order": order, "begun": {}, "folder": folder}
        if element:
            order = dict(order, log=element_log(order["log"], element))
        known = read_json(folder, b"fate") if not element else {}
        if not known and order["slurm"]["array"] and not element:
            known = self.array_state(folder, order)
        elif not known:
            known = self.life_of(folder, order, element)
        records = records_of(folder, element)
        return dict(known, order=order, begun=read_begun(records), folder=folder, element=element, via="slurm")

    def life_of(self, folder: bytes, order: "dict[str, Any]", element: str = "") -> "dict[str, Any]":
        """Its end as its keeper has noted it; without one, what the queue says."""
        records = records_of(folder, element)
        end, number = read_json(records, b"end"), self.number_of(folder)
        if end and not self.is_doubted(end):
            return dict(self.read_end(records, end), queue=blank_queue(with_element(number, element)))
        final = read_json(records, b"fate")
        if final:
            return final
        if not number:
            number = self.learn_late_number(folder, order)
        if not number:
            return self.without_number(order)
        self.queue.load()
        number = with_element(number, element)
        row = self.queue.rows.get(number)
        known = self.by_row(folder, records, order, row) if row else self.without_row(folder, records, order, number)
        if end:
            known = self.dispel_doubt(records, end, known)
        begun = read_begun(records)
        known["queue"] = self.queue_of(number, row, begun)
        if known["state"] in ("ended", "gone"):
            # An element that has never begun has no folder of its own yet.
            os.makedirs(records, 0o700, exist_ok=True)
            write_json(records, b"fate", known)
        return known

    def is_doubted(self, end: "dict[str, Any]") -> bool:
        is_killed = end["exit"] == 137 and end["ending"] == "exited"
        return bool(is_killed and 0 <= time.time() - end["ended"] < DOUBT_S)

    def dispel_doubt(self, records: bytes, end: "dict[str, Any]", known: "dict[str, Any]") -> "dict[str, Any]":
        """Of a command that was killed: by the queue, for want of memory, or by somebody else."""
        if known.get("fate") == "out_of_memory":
            return dict(known, exit=end["exit"], signal=end["signal"])
        if known["state"] in ("running", "pending") and not self.queue.trouble:
            return {"state": "running"}
        return self.read_end(records, end)

    def read_end(self, records: bytes, end: "dict[str, Any]") -> "dict[str, Any]":
        known = ended_known(end["exit"], end["ending"], end["ended"], signal=end["signal"])
        known["survivors"] = end.get("survivors", [])
        if end["ending"] == "out_of_memory":
            known.update(fate="out_of_memory", reason=FATES["OUT_OF_MEMORY"][1])
        return known

    def learn_late_number(self, folder: bytes, order: "dict[str, Any]") -> str:
        """Contact was lost while it was being submitted: its comment in the queue tells its number."""
        is_young = 0 <= time.time() - order["ordered"] < BEING_SUBMITTED_S
        return "" if is_young else self.learn_number(folder, order)

    def without_number(self, order: "dict[str, Any]") -> "dict[str, Any]":
        queue = dict(blank_queue(""), state="SUBMITTING", age=self.queue.age, trouble=self.queue.trouble)
        if self.queue.asked > order["ordered"] + BEING_SUBMITTED_S and not self.queue.trouble:
            return {"state": "gone", "reason": "it was never submitted: the queue does not have it", "queue": queue}
        return {"state": "pending", "queue": queue}

    def by_row(self, folder: bytes, records: bytes, order: "dict[str, Any]", row: "dict[str, Any]") -> "dict[str, Any]":
        state, begun = row["state"], read_begun(records)
        if state in OVER:
            return self.over(folder, records, order, row["number"], state, row["end"], row["nodes"])
        if state not in IN_QUEUE:
            return {"state": "running"}
        # The queue's answer may be older than the start; but one that was to be requeued may wait again.
        waits_again = begun and order["slurm"]["requeue"] and self.queue.asked > float(begun.get("started", 0)) + 5
        return {"state": "pending" if not begun or waits_again else "running"}

    def over(
        self,
        folder: bytes,
        records: bytes,
        order: "dict[str, Any]",
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
            return self.read_end(records, end)
        if is_marked(folder) or is_marked(records):
            return ended_known(None, "stopped", ended)
        if read_json(records, b"interrupted").get("by") == "requeue":
            return {"state": "gone", "fate": REQUEUED[0], "reason": REQUEUED[1], "ended": ended}
        if state in ("FAILED", "CANCELLED") and slurms_last_words(folder, number) == "OUT_OF_MEMORY":
            state = "OUT_OF_MEMORY"
        if state in FATES:
            fate, why = FATES[state]
            why = "its node %s failed" % nodes if state == "NODE_FAIL" and nodes else why
            if fate == "cancelled":
                return ended_known(None, "cancelled", ended, fate=fate, reason=why + self.by_whom(number, said))
            if fate == "out_of_memory":
                return ended_known(137, "out_of_memory", ended, signal="SIGKILL", fate=fate, reason=why)
            return {"state": "gone", "fate": fate, "reason": why, "ended": ended}
        code = read_exit(said["exit"])[0] if said else self.exit_of(number, state)
        trouble = last_line_of(output_file(folder, number.partition("_")[2]))
        return ended_known(
            code, "exited", ended, reason="its keeper noted no end" + (": " + trouble if trouble else "")
        )

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
        code, is_known = read_exit(self.show_job(number).get("ExitCode", ""))
        return code if is_known else 0 if state == "COMPLETED" else 1

    def show_job(self, number: str) -> "dict[str, str]":
        try:
            said = slurm_call("scontrol", ["show", "job", number], SQUEUE_S)
        except OSError:
            return {}
        return read_fields(to_text(said.text)) if said.code == 0 else {}

    def by_whom(self, number: str, said: "dict[str, str] | None") -> str:
        """Only the accounting tells who has cancelled a job."""
        found = re.search(r"by (\d+)", (said or self.accounted(number)).get("state", ""))
        if not found or int(found.group(1)) == os.getuid():
            return ""
        return " by an administrator" if int(found.group(1)) == 0 else " by the user with the number " + found.group(1)

    def without_row(self, folder: bytes, records: bytes, order: "dict[str, Any]", number: str) -> "dict[str, Any]":
        """The queue forgets jobs some minutes after their end, and has not heard of one that is new."""
        submitted = float(read_json(folder, b"slurm").get("submitted", 0.0))
        begun = read_begun(records)
        # What was cancelled while it was pending leaves the queue at once.
        is_cancelled = self.cancelled_at and self.queue.asked > self.cancelled_at
        if self.queue.asked <= submitted + CLOCKS_S and not is_cancelled:
            return {"state": "running" if begun else "pending"}
        said = self.accounted(number)
        state = said.get("state", "").split(" ")[0].rstrip("+")
        if state and state not in OVER:
            return {"state": "pending" if state in IN_QUEUE else "running"}
        state = state or slurms_last_words(folder, number)
        if state:
            return self.over(folder, records, order, number, state, read_time(said.get("end", "")), said=said or None)
        return self.forgotten(folder, records, begun)

    def forgotten(self, folder: bytes, records: bytes, begun: "dict[str, Any]") -> "dict[str, Any]":
        """Neither queue nor accounting know it."""
        interrupted = read_json(records, b"interrupted")
        if is_marked(folder) or is_marked(records):
            return ended_known(None, "stopped", float(interrupted.get("at", 0.0)) or time.time())
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
        """What sacct says of a job that the queue has forgotten: asked once for all such jobs, at the queue's rate."""
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

    # Arrays

    def array_state(self, folder: bytes, order: "dict[str, Any]") -> "dict[str, Any]":
        """One job with counts: it is over when all of its elements are."""
        done = read_json(folder, b"elements.json")
        counts = {"pending": 0, "running": 0, "ended": 0, "failed": 0, "gone": 0}
        lives = {}
        for element in array_elements(order["slurm"]["array"]):
            known = done.get(element) or self.life_of(folder, order, element)
            lives[element] = known
            counts[known["state"]] += 1
            counts["failed"] += 1 if known["state"] == "ended" and known["exit"] != 0 else 0
        over = {element: known for element, known in lives.items() if known["state"] in ("ended", "gone")}
        if len(over) > len(done):
            write_json(folder, b"elements.json", over)
        known = self.sum_up(list(lives.values()), counts)
        number = self.number_of(folder)
        shown = self.show_first(number, lives)
        known["queue"] = dict(shown, number=number, array=counts)
        if known["state"] in ("ended", "gone"):
            write_json(folder, b"fate", known)
        return known

    def show_first(self, number: str, lives: "dict[str, dict[str, Any]]") -> "dict[str, Any]":
        """What the queue says of the first element that runs, or else of the first that is pending."""
        for state in ("running", "pending"):
            for known in lives.values():
                if known["state"] == state:
                    return dict(known.get("queue") or blank_queue(number))
        return blank_queue(number)

    def sum_up(self, lives: "list[dict[str, Any]]", counts: "dict[str, int]") -> "dict[str, Any]":
        for state in ("running", "pending"):
            if counts[state]:
                return {"state": state}
        last = max([float(known.get("ended") or 0.0) for known in lives] or [0.0]) or time.time()
        for known in lives:
            if known["state"] == "gone":
                return dict(known, ended=last)
        for ending in ("cancelled", "out_of_memory", "stopped"):
            for known in lives:
                if known["ending"] == ending:
                    return dict(known, ended=last)
        failed = [known for known in lives if known["exit"] != 0]
        return dict(failed[0] if failed else ended_known(0, "exited", last), ended=last)

    # Stopping

    def stop(self, known: "dict[str, Any]", grace: float, deadline: float) -> "dict[str, Any]":
        """Cancel what is pending, have its keeper end what runs, and cancel that after the grace."""
        folder, element = known["folder"], known["element"]
        records = records_of(folder, element)
        os.makedirs(records, 0o700, exist_ok=True)
        mark_stop(records, grace)
        cancel_at = min(time.monotonic() + grace + 3.0, deadline - 3.0)
        is_told = is_cancelled = False
        while time.monotonic() < deadline:
            number = self.number_of(folder)
            if number and not is_told:
                is_told = self.tell(with_element(number, element))
            if number and not is_cancelled and time.monotonic() >= cancel_at:
                is_cancelled = self.scancel([], with_element(number, element))
            known = self.state(folder, known["order"] if not element else read_json(folder, b"order"), element)
            if known["state"] not in ("running", "pending"):
                break
            time.sleep(0.2)
            self.queue = Queue(self.queue.rate)
        return known

    def tell(self, number: str) -> bool:
        """Cancel what has not begun, wake the keeper of what has; then the queue is asked ahead of its time, once."""
        done = self.scancel(["--state=PENDING"], number)
        self.scancel(["--signal=TERM", "--batch"], number)
        self.cancelled_at = time.time()
        self.queue.load(self.cancelled_at)
        return done

    def scancel(self, words: "list[str]", number: str) -> bool:
        try:
            return bool(slurm_call("scancel", words + [number], SCANCEL_S).code == 0)
        except OSError:
            return False

    # Typing

    def type_into(self, known: "dict[str, Any]", text: str, keys: "list[str]") -> None:
        if not known["begun"].get("input"):
            what = "one element of the array, as NAME[3]" if known["order"]["slurm"]["array"] else ""
            why = "type into " + what if what else "its node has no Python, so nothing can be typed into it"
            raise Refused("unsupported", why)
        path = os.path.join(records_of(known["folder"], known["element"]), b"input")
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, to_bytes(text) + b"".join(key_bytes(key) for key in keys))
        finally:
            os.close(fd)

    # Jobs that others have submitted

    def foreign(self, session: str) -> "dict[str, Any] | None":
        """A job that was not submitted by us, by its number."""
        found = FOREIGN_NUMBER.match(session)
        return self.describe_foreign(found.group(1), True) if found else None

    def describe_foreign(self, number: str, with_log: bool) -> "dict[str, Any]":
        self.queue.load()
        rows = [self.queue.rows[number]] if number in self.queue.rows else self.queue.elements.get(number, [])
        order: "dict[str, Any]" = {"id": "slurm-" + number, "session": "slurm-" + number}
        known: "dict[str, Any]" = {"order": order, "begun": {}, "foreign": True, "via": "slurm", "number": number}
        if not rows:
            reason = "the queue does not have a job with the number " + number
            return dict(known, state="missing", foreign=False, reason=self.queue.trouble or reason)
        lives = [self.foreign_life(row) for row in rows]
        counts = {
            state: sum(life["state"] == state for life in lives) for state in ("pending", "running", "ended", "gone")
        }
        counts["failed"] = sum(life["state"] == "ended" and life["exit"] != 0 for life in lives)
        first = next((row for row, life in zip(rows, lives) if life["state"] in ("running", "pending")), rows[0])
        order.update(command=first["name"], ordered=first["submitted"])
        known.update(self.sum_up(lives, counts), queue=self.queue_of(number, first, {}))
        if first["element"] and number == first["job"]:
            known["queue"]["array"] = counts
        if known["state"] != "pending":
            known["begun"] = {"started": first["start"], "via": "slurm"}
        if with_log:
            order["log"] = self.output_of(first["number"])
        return known

    def foreign_life(self, row: "dict[str, Any]") -> "dict[str, Any]":
        if row["state"] not in OVER:
            return {"state": "pending" if row["state"] in IN_QUEUE else "running"}
        nowhere = b"/nonexistent"
        return self.over(nowhere, nowhere, {}, row["number"], row["state"], row["end"], row["nodes"])

    def output_of(self, number: str) -> str:
        """Where a job's output goes; asked once."""
        kept = read_json(base_folder(), b"outputs")
        if number not in kept:
            kept[number] = self.show_job(number).get("StdOut", "")
            write_beside(b"outputs", dict(list(kept.items())[-200:]))
        return str(kept[number])

    def list_foreign(self) -> "list[dict[str, Any]]":
        """Those in the queue that are not ours, newest first; what holds an allocation of ours is no job."""
        numbers = []
        for row in self.queue.load().rows.values():
            mark = row["comment"].split(" ")[0]
            is_ours = mark.startswith("rsmcp:") and find_job(mark[6:]) is not None
            if row["state"] not in OVER and not is_ours and not row["name"].startswith("rsmcp-"):
                numbers.append(row["job"] if row["element"] else row["number"])
        return [self.describe_foreign(number, False) for number in sorted(set(numbers), key=int, reverse=True)]

    def stop_foreign(self, known: "dict[str, Any]", deadline: float) -> "dict[str, Any]":
        number = known["number"]
        if not self.scancel([], number):
            raise Refused("slurm", "scancel could not stop job %s; is it yours?" % number)
        while known["state"] in ("running", "pending") and time.monotonic() < deadline:
            known = SlurmCluster(self.queue.rate).described_now(number)
            time.sleep(1.0 if known["state"] in ("running", "pending") else 0.0)
        return dict(known, ending="stopped") if known.get("ending") == "cancelled" else known

    def described_now(self, number: str) -> "dict[str, Any]":
        self.queue.load(time.time())
        return self.describe_foreign(number, True)


# Files and words of a job


def mark_of(order: "dict[str, Any]") -> str:
    return "rsmcp:%s" % order["id"]


def sbatch_words(folder: bytes, order: "dict[str, Any]") -> "list[str]":
    """The caller's options first: of two, sbatch takes the last one."""
    given = [str(word) for word in order["slurm"]["words"]]
    comments = [word.partition("=")[2] for word in given if word.startswith("--comment=")]
    output = to_text(folder).replace("%", "%%") + ("/slurm-%a.out" if order["slurm"]["array"] else "/slurm.out")
    ours = [
        "--parsable",
        "--job-name=" + order["session"],
        "--comment=" + " ".join([mark_of(order)] + comments),
        "--output=" + output,
        "--error=" + output,
        "--open-mode=append",
        "--export=ALL",
        "--chdir=" + order["cwd"],
    ]
    requeue = [] if order["slurm"]["requeue"] else ["--no-requeue"]
    return given + ours + requeue + [to_text(os.path.join(folder, b"script"))]


def records_of(folder: bytes, element: str) -> bytes:
    """Where a job's begin and end are noted."""
    return os.path.join(folder, b"elements", to_bytes(element)) if element else folder


def with_element(number: str, element: str) -> str:
    return "%s_%s" % (number, element) if number and element else number


def output_file(folder: bytes, element: str) -> bytes:
    """What a job prints before its keeper runs, and what Slurm itself says of it."""
    return os.path.join(folder, b"slurm-%s.out" % to_bytes(element) if element else b"slurm.out")


def is_marked(folder: bytes) -> bool:
    return os.path.lexists(os.path.join(folder, b"stop"))


def mark_stop(records: bytes, grace: float) -> None:
    """A record for us and for the plain script, and the mode that keepers look at."""
    lock = os.path.join(records, b"lock")
    if not os.path.lexists(lock):
        write_whole(lock, b"")
    if not is_marked(records):
        write_json(records, b"stop", {"grace": grace})
    os.chmod(lock, 0o600 | JOB_STOP_MARK)


def slurms_last_words(folder: bytes, number: str) -> str:
    """The state that Slurm's own lines in the job's output stand for, "" for none."""
    text = tail_of(output_file(folder, number.partition("_")[2]))
    return next((state for pattern, state in LAST_WORDS if re.search(pattern, text)), "")


def last_line_of(path: bytes) -> str:
    return said_by_slurm(to_bytes(tail_of(path).strip().rpartition("\n")[2]))[:200]


def tail_of(path: bytes) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            return to_text(file.read())
    except OSError:
        return ""


def key_bytes(key: str) -> bytes:
    """What a terminal sends for a key, by its tmux name."""
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
