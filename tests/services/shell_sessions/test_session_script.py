"""What bash keeps between two commands of a session, and what it makes of commands that end in odd ways."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed, Excerpt
from remote_sandbox_mcp.core.commands.shell_session import (
    AS_BEFORE,
    LEFT_NOTHING,
    ShellSession,
    read_report,
    refusal_of,
    state_script,
    state_text,
    wrap,
)
from remote_sandbox_mcp.services.sessions.shell import _pieces
from tests.support.means import require_program

SESSION = ShellSession("main", "0123")
LARGE = "\n".join(f'y=$((${{y-0}} + 1)) # it\'s "line" \\ {number}' for number in range(24_000)) + "\necho $y $LINENO"


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: bytes
    state: str


class Machine:
    """Runs commands of a session with the real bash of this machine, in a home folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {"HOME": str(home), "PATH": os.environ["PATH"], "SHLVL": "1", "GIVEN": "by the machine"}

    @property
    def kept(self) -> Path:
        return self.home / ".local/state/remote-sandbox/shells/0123.main"

    def run(self, script: str, shell: tuple[str, ...] = ("bash", "-c"), *, cwd: str = "", wait_s: float = 5) -> Ran:
        command = Command(script, cwd=cwd)
        text = wrap(_pieces(), SESSION, command, wait_s)
        done = self._started(text, shell, cwd)
        signal = f"{-done.returncode}" if done.returncode < 0 else ""
        seen = Completed(command.run_id, done.returncode, signal=signal, stderr=Excerpt(done.stderr))
        if why := refusal_of(seen, "main", "gpu1"):
            return Ran(done.returncode, done.stdout, done.stderr, why)
        printed = self._started(state_script(_pieces(), SESSION, command.run_id, sweeps=True), ("bash", "-c"))
        report = read_report(printed.stdout.decode("utf-8", "surrogateescape"), command.run_id)
        return Ran(done.returncode, done.stdout, done.stderr, state_text(report, seen, was_used=False))

    def _started(self, text: str, shell: tuple[str, ...], cwd: str = "") -> subprocess.CompletedProcess[bytes]:
        words = [*shell, text]
        if len(text) > 100_000:
            # As keepers do it: no argument can be so long.
            (self.home / "command").write_text(text)
            words = [*shell, '. "$0"', str(self.home / "command")]
        return subprocess.run(
            words, env=self.environ, cwd=cwd or self.home, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


ENDS = {
    "exit": ("x=1; exit 3", 3, b"", b"", "kept"),
    "errexit": ("set -e\nx=1; false; echo no", 1, b"", b"", "kept"),
    "syntax": ("x=1\nif ; then", 2, b"", b"syntax error near unexpected token", "kept"),
    "unset variable": ("x=1; set -u; echo $nothing; echo no", 127, b"", b"nothing: unbound variable", "kept"),
    "return": ("x=1; return 4; echo on", 0, b"on\n", b"can only `return'", "kept"),
    "in a function": ("x=1; f() { local x=2 y=3; exit 4; }; f", 4, b"", b"", "kept"),
    "own trap": ("x=1; trap 'echo bye $?' EXIT; exit 6", 6, b"bye 6\n", b"", "kept"),
    "own trap that exits": ("set -e; x=1; trap 'exit 9' EXIT; false", 9, b"", b"", "kept"),
    "own trap at the end": ("x=1; trap 'echo bye' EXIT", 0, b"bye\n", b"", "kept"),
    "streams closed": ("x=1; exec 0<&- 1>&- 2>&-", 0, b"", b"", "kept"),
    "no programs": ("x=1; PATH=/nowhere; LD_LIBRARY_PATH=/nowhere", 0, b"", b"", "kept"),
    "exec": ("x=2; exec sh -c 'exit 9'", 9, b"", b"", LEFT_NOTHING),
    "killed": ("x=2; kill -9 $$", -9, b"", b"", AS_BEFORE),
    "ended": ("x=2; kill $$; sleep 9", -15, b"", b"", AS_BEFORE),
    "here-document": ("x=1; cat <<EOF\nto $x\nEOF", 0, b"to 1\n", b"", "kept"),
    "input": ("x=1; cat; echo $# $0 $? $LINENO", 0, b"0 bash 0 1\n", b"", "kept"),
}


@pytest.mark.parametrize(("script", "code", "out", "err", "state"), ENDS.values(), ids=ENDS)
def test_every_end_has_its_own_code_and_keeps_what_it_can(
    machine: Machine, script: str, code: int, out: bytes, err: bytes, state: str
) -> None:
    machine.run("x=1")
    ran = machine.run(script)
    assert (ran.code, ran.out, ran.state) == (code, out, state)
    assert err in ran.err
    assert bool(err) == bool(ran.err)
    assert b"rsm" not in ran.err
    assert machine.run("set +eu; PATH=/usr/bin:/bin; echo $x ${y-}").out == b"1\n"


KEPT = {
    "unset": ("unset GIVEN", "echo ${GIVEN-unset}", b"unset\n"),
    "types": ("declare -A m=([$'a\\nb']='\"'); declare -i i=2", "i+=3; echo $i ${!m[@]} ${m[@]}", b'5 a b "\n'),
    "bytes": ("b=$'\\377\\n\\'\\\\'", 'printf %s "$b"', b"\xff\n'\\"),
    "odd function": ("function a-b:c { echo odd; }; export -f a-b:c", "a-b:c; bash -c a-b:c", b"odd\nodd\n"),
    "alias": ("shopt -s expand_aliases\nalias e='echo A'\nf() { echo f; }", "e; f", b"A\nf\n"),
    "extended patterns": ("shopt -s extglob\nf() { case x in @(x|y)) echo fits ;; esac; }", "f", b"fits\n"),
    "separators": ("IFS=,; w=a,b", "set -- $w; echo $#", b"2\n"),
    "arguments": ("set -- 'p 1' p2", 'echo "$# $1"', b"2 p 1\n"),
    "trap for a signal": ("trap 'echo usr' USR1", "kill -USR1 $$; echo on", b"usr\non\n"),
    "trap for each command": ("trap 'echo D' DEBUG", "echo a", b"D\na\n"),
    "posix": ("set -o posix; set -o noclobber", "echo $SHELLOPTS | grep -c 'noclobber.*posix'", b"1\n"),
    "deleted folder": ("mkdir d; cd d; rmdir ../d", "pwd | sed 's,.*/,,'", b"test_"),
    "previous folder": ("cd /; cd /usr", "pwd; cd -", b"/usr\n/\n"),
    "own tracing": ("set -x", "set +x 2>/dev/null; echo a", b"a\n"),
    "many": ("for i in {1..3000}; do declare v$i=$i; done", "echo $v1 $v3000", b"1 3000\n"),
    "large": (LARGE, "echo $y", b"24000\n"),
}


@pytest.mark.parametrize(("first", "then", "shown"), KEPT.values(), ids=KEPT)
def test_the_next_command_finds_it(machine: Machine, first: str, then: str, shown: bytes) -> None:
    assert machine.run(first).state == "new"
    ran = machine.run(then)
    assert ran.out.startswith(shown)
    assert ran.state.startswith("kept")
    assert b"rsm" not in ran.err


@pytest.mark.parametrize("shell", ["dash", "zsh", "busybox sh"])
def test_another_shell_starts_bash(machine: Machine, shell: str) -> None:
    require_program(shell.split()[0])
    machine.run("x=it\\'s")
    assert machine.run('echo "$x" $LINENO\necho "$BASH_VERSION"', (*shell.split(), "-c")).out.startswith(b"it's 1\n5")
    assert "needs bash as the shell of gpu1" in machine.run(LARGE, (*shell.split(), "-c")).state


def test_a_given_folder_is_where_the_session_stays(machine: Machine) -> None:
    machine.run("cd /usr")
    assert machine.run("pwd", cwd="/").out == b"/\n"
    assert machine.run("pwd").out == b"/\n"


def test_state_is_for_its_owner_alone_and_another_users_is_never_read(machine: Machine) -> None:
    machine.run("umask 000; token=secret")
    assert (machine.kept.stat().st_mode & 0o777, (machine.kept / "state").stat().st_mode & 0o777) == (0o700, 0o600)
    (machine.kept / "state").rename(machine.home / "planted")
    (machine.kept / "state").symlink_to(machine.home / "planted")
    ran = machine.run("echo ${token-none}")
    assert (ran.code, ran.out) == (75, b"")
    assert "belongs to another user, so it was not read" in ran.state
    if os.getuid() == 0:
        (machine.kept / "state").unlink()
        (machine.home / "planted").rename(machine.kept / "state")
        os.chown(machine.kept / "state", 65534, 65534)
        assert "belongs to another user" in machine.run("echo ${token-none}").state


def test_a_lock_holds_while_its_command_lives(machine: Machine) -> None:
    machine.run("x=1")
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    host, deadline = os.uname().nodename, int(time.time()) + 600
    (machine.kept / "lock").write_text(f"{os.getpid()} {stat[19]} {host} {deadline} run-other\n")
    ran = machine.run("x=2", wait_s=0)
    assert "the session main on gpu1 is in use by the command run-other" in ran.state
    # The same process number, of a process that began at another time; then a time that is up.
    (machine.kept / "lock").write_text(f"{os.getpid()} 1 {host} {deadline} run-other\n")
    assert machine.run("echo $x", wait_s=0).out == b"1\n"
    (machine.kept / "lock").write_text("1 1 elsewhere 1000 run-other\n")
    assert machine.run("echo $x", wait_s=0).out == b"1\n"


def test_sessions_of_long_ago_are_swept(machine: Machine) -> None:
    machine.run("x=1")
    for name, age in (("0123.old", 8), ("0123.young", 5)):
        (machine.kept.parent / name).mkdir(mode=0o700)
        then = time.time() - age * 86400
        os.utime(machine.kept.parent / name, (then, then))
    machine.run("x=2")
    assert sorted(it.name for it in machine.kept.parent.iterdir()) == ["0123.main", "0123.young"]
