from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Cli, Maker, at_a_terminal, entry, nobody
from tests.support.means import folders_inside, require_local
from tests.support.sshd import Sshd, closed_port, wait_until


@pytest.mark.parametrize(
    ("words", "stdout", "code"),
    [
        pytest.param(["echo a | tr a b; exit 7"], b"b\n", 7, id="one argument is shell source"),
        pytest.param(["echo", "a  b", "$HOME", "*"], b"a  b $HOME *\n", 0, id="several are words"),
        pytest.param(["--", "echo", "-n", "--", "x"], b"-n -- x\n"[3:-1], 0, id="words may look like options"),
        pytest.param(["--", "printf", "%s", "--json"], b"--json", 0, id="options after the dashes are words"),
        pytest.param(["printf '\\377\\0\\033[31m'"], b"\xff\0\x1b[31m", 0, id="bytes come as they are"),
        pytest.param(["kill -TERM $$"], b"", 143, id="a signal"),
        pytest.param(["--timeout", "0.5", "echo begun; sleep 60"], b"begun\n", 124, id="timeout"),
        pytest.param(["--cwd", "/usr", "pwd"], b"/usr\n", 0, id="folder"),
    ],
)
def test_output_and_exit_code_are_the_commands(
    cli: Cli, good: Sshd, words: list[str], stdout: bytes, code: int
) -> None:
    outcome = cli("exec", *words)
    assert (outcome.raw, outcome.code) == (stdout, code), outcome.stderr


def test_both_streams_stay_apart(cli: Cli, good: Sshd) -> None:
    outcome = cli("exec", "echo out; echo err >&2")
    assert (outcome.stdout, outcome.stderr, outcome.code) == ("out\n", "err\n", 0)


def test_a_timeout_is_told(cli: Cli, good: Sshd) -> None:
    said = cli("exec", "--timeout", "0.5", "sleep 60").stderr
    assert re.search(r"the command was ended after \d\.\d s", said), said


def test_it_runs_where_it_is_told_to(cli: Cli, good: Sshd, made: Maker) -> None:
    vault = made("vault", auth="password")
    cli.machines.append(entry(vault))
    assert cli("exec", "--sandbox", "vault", "whoami").stdout == f"{vault.user}\n"
    assert cli("exec", "whoami").stdout == f"{good.user}\n"


def test_output_is_written_as_it_comes(cli: Cli, good: Sshd) -> None:
    process = cli.start("exec", "echo first; echo wrong >&2; sleep 314.1")
    assert (process.stdout.readline(), process.stderr.readline()) == (b"first\n", b"wrong\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == (b"", b"remote-sandbox-mcp: the command was told to stop\n")


def test_a_command_whose_reader_closes_the_pipe_is_ended(cli: Cli, good: Sshd) -> None:
    process = cli.start("exec", "echo first; yes 314.2")
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    assert process.wait(10) == 128 + signal.SIGPIPE
    with process.stderr as complaints:
        assert complaints.read() == b""
    wait_until(lambda: "314.2" not in str(good.processes()), what="the command to end")


def test_output_that_cannot_be_written_is_an_error_and_a_closed_stream_is_not(cli: Cli, good: Sshd) -> None:
    full = subprocess.run(f"{COMMAND} exec 'seq 9' >/dev/full", shell=True, env=cli.env, capture_output=True)
    told = b"its output cannot be written here (No space left on device), so it does not run any more"
    assert (full.returncode, full.stderr) == (2, b"remote-sandbox-mcp: %s\n" % told)
    shut = subprocess.run(f"{COMMAND} exec 'seq 9; exit 7' >&-", shell=True, env=cli.env, capture_output=True)
    assert (shut.returncode, shut.stderr) == (7, b"")


def test_a_terminal_is_shown_output_as_it_comes_and_no_escapes_cut_in_two(cli: Cli, good: Sshd) -> None:
    printed = "printf 'a\\033]0;ti'; sleep 0.1; printf 'tle\\007b\\303'; sleep 1; printf '\\244\\n'"
    seen = at_a_terminal(cli, "exec", printed)
    assert "ti" not in seen
    assert seen.endswith("abä\r\n")


def test_long_output_keeps_its_ends_with_a_note_between(cli: Cli, good: Sshd) -> None:
    outcome = cli("exec", "echo first; head -c 6000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert outcome.code == 0
    assert outcome.raw.startswith(b"first\nxxx")
    assert outcome.raw.endswith(b"xxx\nlast\n")
    assert b" of 6000012 bytes left out; all of it is in /" in outcome.raw
    assert len(outcome.raw) < 4_100_000


def test_a_reader_who_has_had_enough_is_no_error(cli: Cli, good: Sshd) -> None:
    done = subprocess.run(
        f"{COMMAND} exec 'seq 1 200000' | head -n 1", shell=True, env=cli.env, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"1\n", b"")


def test_json_is_what_exec_bash_returns(cli: Cli, good: Sshd) -> None:
    outcome = cli("exec", "--json", "echo out; echo err >&2; exit 3")
    assert outcome.json == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    assert (outcome.code, outcome.stderr) == (3, "")


def test_no_connection_is_255_with_the_sentence(cli: Cli) -> None:
    with closed_port() as port:
        cli.machines = [nobody("gone", port)]
        plain, told = cli("exec", "ls"), cli("exec", "--json", "ls")
    sentence = (
        f"unable to open gone ([127.0.0.1]:{port}): nothing listens on that port; check port, or whether sshd runs"
    )
    assert (plain.code, plain.stdout, plain.stderr) == (255, "", f"remote-sandbox-mcp: {sentence}\n")
    assert told.code == 255
    assert told.json == {
        "error": sentence, "code": "unreachable", "connection_error": True, "outcome": "not_started"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--sandbox", "shard", "ls"], "no sandbox is named 'shard'; did you mean shared?", id="name"),
        pytest.param([], "command is empty", id="nothing"),
        pytest.param(["--timeout", "0", "ls"], "timeout_s is 0, but must be between", id="timeout"),
        pytest.param(["--cwd", "/nowhere", "ls"], "unable to enter /nowhere: No such file", id="folder"),
    ],
)
def test_mistakes_are_one_sentence_and_2(cli: Cli, good: Sshd, words: list[str], sentence: str) -> None:
    outcome = cli("exec", *words)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("remote-sandbox-mcp: ")
    assert sentence in outcome.stderr


def test_a_mistake_as_json_is_what_exec_bash_returns(cli: Cli, good: Sshd) -> None:
    outcome = cli("exec", "--json", "--sandbox", "shard", "ls")
    assert (outcome.code, outcome.json["code"]) == (2, "unknown_sandbox")


def test_an_unknown_name_comes_with_the_problems_of_the_configuration(cli: Cli) -> None:
    cli.machines = [{"name": "gpu1", "user": "me"}]
    outcome = cli("exec", "--sandbox", "gpu1", "ls")
    assert outcome.code == 2
    assert "host is missing" in outcome.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_command_there(cli: Cli, good: Sshd, number: signal.Signals) -> None:
    process = cli.start("exec", "trap '' INT HUP; sleep 271.8 & wait")
    wait_until(lambda: "271.8" in str(good.processes()), what="the command to run")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert stderr == b"remote-sandbox-mcp: the command was told to stop\n"
    wait_until(lambda: "271.8" not in str(good.processes()), what="the command to end")


def test_a_terminal_is_shown_nothing_that_could_take_hold_of_it(cli: Cli, good: Sshd) -> None:
    seen = at_a_terminal(cli, "exec", "printf 'a\\033]0;title\\007b\\033[31mred\\a\\n'")
    assert seen.endswith("abred␇\r\n")
    assert "title" not in seen


def test_a_terminal_is_shown_that_the_command_still_runs(cli: Cli, good: Sshd) -> None:
    seen = at_a_terminal(cli, "exec", "sleep 1.5; echo done")
    assert "0:00:0" in seen
    assert "Ctrl-C stops it" in seen
    assert seen.rstrip().endswith("done")


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    text = cli("exec", "--help").stdout
    assert "[--] COMMAND..." in text
    assert "124 after a timeout, 255 without a connection" in " ".join(text.split())


def test_the_local_sandbox_needs_no_machine(cli: Cli) -> None:
    require_local()
    outcome = cli("exec", "cd; pwd; ls")
    own = folders_inside(Path(os.environ["REMOTE_SANDBOX_MCP_HOME"], "local/local"))[0]
    assert (outcome.code, outcome.stdout) == (0, f"{own}\n"), outcome.stderr
    assert not Path("/home/sandbox").exists()


def test_it_runs_on_several_at_once_and_fails_where_one_does(cli: Cli, good: Sshd) -> None:
    cli.machines.append(entry(good, name="again"))
    outcome = cli("exec", "--on", f"{good.name},again", "echo hello; printf '\\033[2Jcleared'")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines().count("hello") == 2
    assert outcome.stdout.count(": exit 0 after") == 2
    assert "\033" not in outcome.stdout
    with closed_port() as port:
        cli.machines.append(entry(good, name="dead", port=port))
        outcome = cli("exec", "--all", "true")
        assert outcome.code == 1
        assert all(f"{name}: exit 0" in outcome.stdout for name in (good.name, "again"))
        assert "dead: unable to open dead" in outcome.stdout
