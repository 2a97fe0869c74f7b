"""Submits jobs to the queue of a Slurm cluster: the script of each, its files, and sbatch."""

import os
import re
import shlex
import sys
import time
import zlib
from typing import Any

from ..outpost.place import CLOCKS_S, Refused, is_elsewhere, to_bytes, to_text
from .queue import Queue, cluster_name, find_slurm, is_named, said_by_slurm, slurm_call, turn
from .record import read_json, write_json

SBATCH_S = 40.0
# How many of one user's jobs are submitted at the same time.
SUBMIT_TURNS = 4
SUBMITTED = re.compile(r"(?m)^([0-9]{1,12})(?:;\S*)?\s*$")
MARK = "rsmcp:"
# sbatch was cut off while it waited for the controller's answer.
MAY_HAVE_ARRIVED = re.compile(r"(?i)timed out|zero bytes|unexpected message|communication connection failure")
# Of the login itself: on a node these lead nowhere.
LOGIN_ONLY = (b"SSH_", b"TMUX", b"XDG_SESSION_")
LOGIN_ONLY_NAMES = (
    *(b"DISPLAY", b"WAYLAND_DISPLAY", b"XDG_RUNTIME_DIR", b"XDG_VTNR", b"DBUS_SESSION_BUS_ADDRESS"),
    *(b"TMPDIR", b"HOSTNAME", b"OLDPWD", b"RSMCP_JOB_ID"),
    # Orders to sbatch that would make another job of it.
    *(b"SBATCH_ARRAY_INX", b"SBATCH_WAIT"),
)
SCRIPT = r"""#!/bin/sh
%(options)s
# Made by remote-sandbox-mcp. It runs the command in the file `command` of this folder, writes its log, and notes its
# end here, where the login node finds it.
folder=%(folder)s requeue=%(requeue)s
# A submission that was withdrawn has no folder any more, and does nothing.
[ -e "$folder/order" ] || exit 1
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
    words = ["--job-name=" + str(record["session"])] + list(record["slurm"]["words"])
    text = SCRIPT % {
        "options": "\n".join("#SBATCH " + word.replace("\n", " ") for word in words),
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


def submission_of(slurm: "dict[str, Any]") -> "dict[str, Any]":
    """Build the record of how a job is submitted. Raises Refused."""
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
    """Build the files of a submitted job beside those that every job has."""
    given = [
        "export %s=%s\n" % (name, shlex.quote(str(value)))
        for name, value in sorted(env.items())
        if re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name)
    ]
    cookie = "export RSMCP_JOB_ID=%s\n" % record["id"]
    variables = to_bytes("".join(given) + cookie)
    return {b"input": b"", b"environ.sh": variables, b"script": batch_script(folder, record)}


def mark_of(order: "dict[str, Any]") -> str:
    return MARK + str(order["id"])


def script_of(folder: bytes) -> str:
    return to_text(os.path.join(folder, b"script"))


def is_row_of(row: "dict[str, Any]", folder: bytes, order: "dict[str, Any]") -> bool:
    """Whether a row is of this job: the number that sbatch printed may be that of another one."""
    # A site may write comments of its own, and hand sbatch another script: then the name counts.
    if is_named(row, mark_of(order), script_of(folder)):
        return True
    return bool(row["name"] == order["session"] and not row["comment"].startswith(MARK))


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
    return given + ours + requeue + [script_of(folder)]


class Submissions:
    """Hands prepared jobs to the queue, each once."""

    def __init__(self, rate: float) -> None:
        self.queue = Queue(rate)

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
        number = self.queue.load(newer_than).find(mark_of(order), script_of(folder))
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
        text = to_text(said.text)
        found = SUBMITTED.findall(text) if said.code == 0 else []
        why = said_by_slurm(said.text) or "it did not say why"
        if found:
            self.note_number(folder, found[-1])
        elif said.code and not MAY_HAVE_ARRIVED.search(text):
            raise Refused("slurm", "Slurm refused the job: %s" % why)
        elif not self.learn_number(folder, order, before + 0.001):
            self.raise_unsure("sbatch did not answer within %d s" % SBATCH_S if said.code is None else why)

    def raise_unsure(self, why: str) -> None:
        if self.queue.trouble:
            raise Refused("unsure", "%s, and the queue does not answer; it may be submitted or not" % why)
        raise Refused("slurm", "unable to submit the job: %s, and the queue does not have it" % why)

    def number_of(self, folder: bytes) -> str:
        return str(read_json(folder, b"slurm").get("number", ""))
