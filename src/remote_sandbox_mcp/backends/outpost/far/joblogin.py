"""Machines where systemd-logind ends a user's processes at logout: what it says, and how a job outlives it."""

import os
import re

from .jobtools import call

KILL_USER_PROCESSES = re.compile(r"^[ \t]*KillUserProcesses[ \t]*=[ \t]*(\S+)", re.M)
EXCLUDED_USERS = re.compile(r"^[ \t]*KillExcludeUsers[ \t]*=(.*)", re.M)


def ends_at_logout(settings: str, user: str) -> bool:
    """Whether logind.conf's text (all its files, in their order) says that this user's processes end at logout."""
    wanted = KILL_USER_PROCESSES.findall(settings)
    excluded = EXCLUDED_USERS.findall(settings)
    if not wanted or wanted[-1].lower() not in ("yes", "true", "1", "on"):
        return False
    return user not in (excluded[-1].split() if excluded else ["root"])


def logind_files(root: str = "/") -> "list[str]":
    """Its settings in the order in which later ones win."""
    folders = [os.path.join(root, name, "systemd") for name in ("usr/lib", "usr/local/lib", "run", "etc")]
    dropped: "dict[str, str]" = {}
    for folder in [os.path.join(folder, "logind.conf.d") for folder in folders]:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.endswith(".conf"):
                dropped[name] = os.path.join(folder, name)
    main = [path for path in (os.path.join(folder, "logind.conf") for folder in folders) if os.path.exists(path)]
    return main[-1:] + [dropped[name] for name in sorted(dropped)]


def logind_settings(root: str = "/") -> str:
    """What is set, by its files; the running one's own word for the most important of it, where it gives it."""
    texts = []
    for path in logind_files(root):
        try:
            with open(path, errors="replace") as file:
                texts.append(file.read())
        except OSError:
            pass
    if root != "/":
        return "\n".join(texts)
    name, path = "org.freedesktop.login1", "/org/freedesktop/login1"
    try:
        said = call(["busctl", "get-property", name, path, name + ".Manager", "KillUserProcesses"], 3.0)
    except OSError:
        return "\n".join(texts)
    word = said.text.split()[-1:] if said.code == 0 else []
    return "\n".join(texts + ["KillUserProcesses=" + word[0].decode()] if word else texts)


def scope_for(job_id: str, user: str, root: str = "/") -> "tuple[list[str], list[str]]":
    """Words to start a job with so that it outlives the login, and what the caller must be told."""
    if not os.path.isdir(os.path.join(root, "run/systemd/system")) or not ends_at_logout(logind_settings(root), user):
        return [], []
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--unit=rsmcp-" + job_id], []
    note = (
        "this machine ends a user's processes at logout (KillUserProcesses=yes), so the job will not outlive the "
        "login; `loginctl enable-linger` mends that for the jobs started afterwards"
    )
    return [], [note]


def scope_works(scope: "list[str]") -> bool:
    """Whether the user's own manager answers."""
    try:
        return call(scope[:-1] + ["true"], 5.0).code == 0
    except OSError:
        return False


def belongs_to_login(cgroup: str) -> bool:
    """Whether a process is in the scope of a login, by the text of its /proc/PID/cgroup: it ends with that."""
    return any(re.search(r"/session-[^/]+\.scope", line) for line in cgroup.splitlines())


def ends_with_login(pid: int) -> bool:
    try:
        with open("/proc/%d/cgroup" % pid) as file:
            return belongs_to_login(file.read())
    except OSError:
        return False
