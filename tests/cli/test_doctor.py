from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.cli.main import main
from tests.cli.conftest import Cli, Maker, Outcome, entry, nobody
from tests.support.commands import client_of
from tests.support.pace import at_most
from tests.support.programs import without_bubblewrap
from tests.support.slurm import Cluster
from tests.support.sshd import Sshd, closed_port, silent_port

STEPS = [
    "transport",
    "name",
    "port",
    "host key",
    "login",
    "shell",
    "python3",
    "tmux",
    "GPUs",
    "clock",
    "PATH",
    "containers",
]
H200 = (Path(__file__).parents[1] / "services/probe/data/h200-idle.csv").read_text()
# A greeting of a start-up file, a GPU, and a clock that is an hour ahead.
ODD = f"""\
echo Welcome to the cluster
mkdir -p ~/bin
cat >~/bin/gpus.csv <<'EOF'
{H200.rstrip()}
EOF
printf '#!/bin/sh\\ncase $* in --query-gpu=*) cat ~/bin/gpus.csv ;; esac\\n' >~/bin/nvidia-smi
printf '#!/bin/sh\\necho $(($(/bin/date +%%s) + 3600))\\n' >~/bin/date
chmod +x ~/bin/*
PATH=~/bin:$PATH
"""


def steps(outcome: Outcome, name: str) -> dict[str, dict[str, str]]:
    found = next(sandbox for sandbox in outcome.json["sandboxes"] if sandbox["name"] == name)
    return {step["name"]: step for step in found["steps"]}


def marks(outcome: Outcome, name: str) -> dict[str, str]:
    return {step: told["mark"] for step, told in steps(outcome, name).items()}


def test_a_good_machine_passes_every_step(cli: Cli, good: Sshd) -> None:
    outcome = cli("doctor", good.name, "--json")
    assert outcome.code == 0, outcome.stderr
    # The machine is this computer, which may have Slurm's programs, but no cluster that answers them.
    assert list(marks(outcome, good.name)) == STEPS
    assert set(marks(outcome, good.name).values()) == {"ok"}
    assert outcome.json["ok"] is True
    assert "/usr/bin" in steps(outcome, good.name)["PATH"]["said"]
    assert steps(outcome, good.name)["login"]["said"] == f"as {good.user}"


def test_the_page_is_plain_text_where_nobody_looks(cli: Cli, good: Sshd) -> None:
    page = cli("doctor")
    assert page.code == 0
    assert "\x1b" not in page.stdout
    assert "✓  host key" in page.stdout
    assert f"{good.name}  ssh {good.user}@127.0.0.1:{good.port}" in page.stdout
    assert "✓  walls" in page.stdout or "!  walls" in page.stdout
    assert "config file   " in page.stdout
    assert f"state folder  {os.environ['REMOTE_SANDBOX_MCP_HOME']}" in page.stdout


def home(tmp_path: Path) -> tuple[Path, str]:
    return Path.home(), "it is, or contains, a home folder or one of the system"


def top(tmp_path: Path) -> tuple[Path, str]:
    return Path("/"), "it is, or contains, a home folder or one of the system"


def programs(tmp_path: Path) -> tuple[Path, str]:
    (Path.home() / "bin").mkdir()
    return Path.home() / "bin", "it is in a folder of programs that run under your name"


def shared(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    return tmp_path / "shared", "everybody on this computer can write to it"


def project(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path, ""


@pytest.mark.parametrize("make", [home, top, programs, shared, project], ids=lambda it: it.__name__)
def test_what_agents_may_use_here_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], tuple[Path, str]]
) -> None:
    folder, why = make(tmp_path)
    monkeypatch.chdir(folder)
    config = tmp_path / "config.toml"
    config.write_text('[server]\nallowed_roots = ["/srv", "/data"]\n[local]\nenabled = false\n')
    cli("allow", str(tmp_path / "x"))
    page = cli("doctor", "--config", str(config)).stdout
    first = f"no project in this folder, because {why}" if why else str(folder)
    more = "2 places of the configuration; 1 place that you allowed (remote-sandbox-mcp allow lists them)"
    assert f"agents use    {first}; {more}\n" in page
    assert cli("doctor", "--config", str(config), "--json").json["agents_may_use"] == {
        "project": "" if why else str(folder),
        "why_none": why,
        "configured": [{"path": path, "key": "allowed_roots"} for path in ("/srv", "/data")],
        "allowed": 1,
    }


def test_marks_are_ascii_where_the_terminal_knows_no_more(cli: Cli, good: Sshd) -> None:
    page = cli("doctor", good.name, PYTHONIOENCODING="ascii")
    assert page.code == 0
    assert "+  host key" in page.stdout


def test_a_new_host_key_is_remembered_and_then_known(cli: Cli, good: Sshd) -> None:
    first, second = cli("doctor", good.name, "--json"), cli("doctor", good.name, "--json")
    assert "new, and remembered from now on: SHA256:" in steps(first, good.name)["host key"]["said"]
    assert steps(second, good.name)["host key"]["said"] == "known"


def test_a_host_key_of_the_users_own_is_told_with_its_file(cli: Cli, good: Sshd) -> None:
    file = Path.home() / ".ssh/known_hosts"
    file.parent.mkdir()
    file.write_text(good.known_hosts.read_text())
    assert steps(cli("doctor", "--json"), good.name)["host key"]["said"] == "known, from ~/.ssh/known_hosts"


@contextmanager
def no_dns(_: Maker) -> Iterator[dict[str, Any]]:
    yield nobody("bad", host="no-such-host.invalid")


@contextmanager
def closed(_: Maker) -> Iterator[dict[str, Any]]:
    with closed_port() as port:
        yield nobody("bad", port)


@contextmanager
def silent(_: Maker) -> Iterator[dict[str, Any]]:
    with silent_port() as port:
        yield nobody("bad", port, connect_timeout_s=1)


@contextmanager
def not_ssh(_: Maker) -> Iterator[dict[str, Any]]:
    import socketserver
    import threading

    class Farewell(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"\x1b[31m220 mail.example.org ready\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Farewell) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield nobody("bad", server.server_address[1])
        server.shutdown()


@contextmanager
def strict(made: Maker) -> Iterator[dict[str, Any]]:
    yield entry(made("vault", auth="password"), name="bad", strict_host_keys=True)


@contextmanager
def refused(made: Maker) -> Iterator[dict[str, Any]]:
    yield entry(made("vault", auth="password"), name="bad", password="not this one")


@contextmanager
def no_key(made: Maker) -> Iterator[dict[str, Any]]:
    vault = made("vault", auth="password")
    yield nobody("bad", vault.port, key_file="/nowhere/id_ed25519")


@contextmanager
def no_shell(made: Maker) -> Iterator[dict[str, Any]]:
    yield entry(made("shut", shell="/usr/sbin/nologin"), name="bad")


@contextmanager
def no_such_shell(made: Maker) -> Iterator[dict[str, Any]]:
    yield entry(made("vault", auth="password"), name="bad", shell=["/nowhere/fancysh", "-c"])


BAD = [
    pytest.param(no_dns, "name", "cannot be found", "Check host", id="unknown name"),
    pytest.param(closed, "port", "nothing listens", "Check port", id="closed port"),
    pytest.param(silent, "port", "says nothing within 1 s", "overloaded", id="silent port"),
    pytest.param(not_ssh, "port", "does not speak SSH", "Check that it is SSH", id="another service"),
    pytest.param(strict, "host key", "strict_host_keys is on", "ssh-keyscan -p", id="strict"),
    pytest.param(refused, "login", "refused", "By hand: ssh -p", id="refused login"),
    pytest.param(no_key, "login", "/nowhere/id_ed25519: No such file", "By hand: ssh -p", id="no key"),
    pytest.param(no_shell, "shell", "This account is currently not available", "By hand: ssh -p", id="no shell"),
    pytest.param(no_such_shell, "shell", "unable to start /nowhere/fancysh", "Check", id="no such shell"),
]


@pytest.mark.parametrize(("trouble", "step", "said", "remedy"), BAD)
def test_a_failed_step_says_why_and_what_to_do(
    cli: Cli, made: Maker, trouble: Callable[[Maker], Any], step: str, said: str, remedy: str
) -> None:
    with trouble(made) as machine:
        cli.machines = [machine]
        outcome = cli("doctor", "bad", "--json")
    assert outcome.code == 1, outcome.stderr
    told = steps(outcome, "bad")[step]
    assert told["mark"] == "failed"
    assert said in told["said"]
    assert remedy in told["remedy"]
    seen = list(marks(outcome, "bad").values())
    assert "failed" not in seen[: STEPS.index(step)]
    assert set(seen[STEPS.index(step) + 1 :]) <= {"skipped"}
    assert outcome.seconds < at_most(8)


def test_a_changed_host_key_is_refused_until_it_is_forgotten(cli: Cli, made: Maker) -> None:
    machine = made("reborn")
    cli.machines = [entry(machine)]
    assert cli("doctor", "reborn").code == 0
    machine.change_host_key()
    page = cli("doctor", "reborn")
    assert page.code == 1
    assert "✗  host key   the host key has changed since it was first seen (now SHA256:" in page.stdout
    assert "→ If that is expected, run: remote-sandbox-mcp hosts forget reborn" in page.stdout
    assert "–  skipped    login, shell, python3, tmux, GPUs, clock, PATH, containers" in page.stdout
    assert "Not usable: reborn." in page.stdout
    assert cli("hosts", "forget", "reborn").code == 0
    assert cli("doctor", "reborn").code == 0


def test_a_machine_without_python_is_usable_and_says_what_that_means(cli: Cli, made: Maker) -> None:
    cli.machines = [entry(made("bare", python=False, tmux=False))]
    outcome = cli("doctor", "bare", "--json")
    assert outcome.code == 0, outcome.stderr
    seen = steps(outcome, "bare")
    assert seen["python3"]["mark"] == seen["tmux"]["mark"] == "warning"
    assert "there is no python3, so the plain way is used" in seen["python3"]["said"]
    assert seen["PATH"]["mark"] == "ok"


def test_noise_gpus_and_a_wrong_clock_are_told(cli: Cli, made: Maker) -> None:
    cli.machines = [entry(made("odd", bashrc=ODD))]
    outcome = cli("doctor", "odd", "--json")
    assert outcome.code == 0, outcome.stderr
    seen = steps(outcome, "odd")
    assert seen["shell"]["mark"] == seen["clock"]["mark"] == "warning"
    assert "Start-up files print “Welcome to the cluster”" in seen["shell"]["said"]
    assert seen["clock"]["said"] == "60 minutes ahead of ours"
    assert "NVIDIA H200" in seen["GPUs"]["said"]
    assert seen["GPUs"]["mark"] == "ok"


def test_a_jump_host_is_what_the_name_and_the_port_are_of(cli: Cli, sshd: Sshd, made: Maker) -> None:
    inner = made("vault", auth="password")
    cli.machines = [entry(sshd, name="gate"), entry(inner, name="inner", jump="gate")]
    outcome = cli("doctor", "inner", "--json")
    assert outcome.code == 0, outcome.stderr
    assert steps(outcome, "inner")["name"]["said"] == "127.0.0.1 (the first jump host)"
    assert str(sshd.port) in steps(outcome, "inner")["port"]["said"]


def test_dead_machines_delay_nobody_and_each_other_not(cli: Cli, good: Sshd) -> None:
    with silent_port() as one, silent_port() as two:
        dead = [nobody("one", one, connect_timeout_s=3), nobody("two", two, connect_timeout_s=3)]
        cli.machines = [*dead, *cli.machines]
        outcome = cli("doctor", "one", "two", good.name, "--json")
    assert outcome.code == 1
    assert set(marks(outcome, good.name).values()) == {"ok"}
    took = {sandbox["name"]: sandbox["seconds"] for sandbox in outcome.json["sandboxes"]}
    assert took[good.name] < 3 <= took["one"]
    assert outcome.seconds < at_most(6)


def test_an_unknown_name_is_a_mistake(cli: Cli, good: Sshd) -> None:
    outcome = cli("doctor", "shard")
    assert outcome.code == 2
    assert outcome.stderr == (
        f"remote-sandbox-mcp: no sandbox is named 'shard'; did you mean {good.name}? there are: {good.name}, local\n"
    )


def test_problems_of_the_configuration_are_shown(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[local]\nenabled = false\n[machines.gpu1]\nprot = 22\nhost = ""\n')
    page = cli("--config", str(config), "doctor", REMOTE_SANDBOX_LIST="")
    assert page.code == 1
    assert f"config file   {config}" in page.stdout
    assert "!  " in page.stdout
    assert "gpu1" in page.stdout
    assert "No machine that is configured can be used" in page.stdout
    assert "The local sandbox is switched off" in page.stdout
    assert cli("--config", str(config), "doctor", "--json", REMOTE_SANDBOX_LIST="").json["problems"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("machines = [\n", "it is not valid TOML", id="no TOML"),
        pytest.param("[machines.gpu1]\nuser = 'me'\n", "host is missing", id="one machine"),
    ],
)
def test_not_all_is_well_with_a_mistake_in_the_configuration(
    cli: Cli, good: Sshd, tmp_path: Path, text: str, told: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    page = cli("doctor", good.name, "--config", str(config))
    assert page.code == 1
    assert told in page.stdout
    assert "(not there)" not in page.stdout
    assert "All is well" not in page.stdout
    assert page.stdout.endswith("\nThe configuration has mistakes, told above: correct them.\n")
    assert cli("doctor", good.name, "--config", str(config), "--json").json["ok"] is False


def test_where_no_command_can_run_anywhere_all_is_not_well(cli: Cli, tmp_path: Path) -> None:
    cli.command = (*without_bubblewrap(*cli.command),)
    page = cli("doctor", PATH=str(tmp_path))
    assert page.code == 1
    assert "No command can run anywhere" in page.stdout
    assert "All is well" not in page.stdout
    outcome = cli("doctor", "--json", PATH=str(tmp_path))
    assert (outcome.code, outcome.json["ok"]) == (1, False)
    listed = cli("sandboxes", PATH=str(tmp_path))
    assert "local cannot be used here: the local sandbox needs bubblewrap" in " ".join(listed.stdout.split())


def test_a_local_sandbox_that_cannot_run_is_no_failure_beside_a_machine(cli: Cli, good: Sshd, tmp_path: Path) -> None:
    cli.command = (*without_bubblewrap(*cli.command),)
    outcome = cli("doctor", "--json", PATH=str(tmp_path))
    assert outcome.code == 0
    walls = steps(outcome, "local")["walls"]
    assert walls["mark"] == "warning"
    assert "not offered: the local sandbox needs bubblewrap" in walls["said"]


def test_a_proxy_command_takes_the_place_of_name_and_port(cli: Cli, sshd: Sshd) -> None:
    config = Path.home() / ".ssh/config"
    config.parent.mkdir(mode=0o700)
    proxy = "bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'"
    config.write_text(
        f"Host tunnel\nHostName {sshd.host}\nPort {sshd.port}\nUser {sshd.user}\n"
        f"IdentityFile {sshd.key_file}\nProxyCommand {proxy}\n"
    )
    cli.machines = [{"ssh_alias": "tunnel"}]
    outcome = cli("doctor", "tunnel", "--json")
    assert outcome.code == 0, outcome.stdout
    assert steps(outcome, "tunnel")["port"] == {
        "name": "port", "mark": "skipped", "said": "a proxy command makes the connection", "remedy": ""
    }  # fmt: skip
    assert marks(outcome, "tunnel")["PATH"] == "ok"


def test_a_machine_over_openssh_says_so_and_why(cli: Cli, sshd: Sshd) -> None:
    login = {"host": sshd.host, "port": sshd.port, "user": sshd.user, "key_file": sshd.key_file}
    cli.machines = [{"name": "far", "transport": "openssh", **login}, {"name": "gone", **login, "transport": "openssh"}]
    with closed_port() as port:
        cli.machines[1]["port"] = port
        outcome = cli("doctor", "far", "gone", "--json")
    seen, gone = steps(outcome, "far"), steps(outcome, "gone")
    assert seen["transport"]["said"] == 'openssh: transport = "openssh" is configured'
    assert seen["port"]["said"] == "OpenSSH's client makes the connection"
    assert (seen["login"]["said"], seen["python3"]["mark"], seen["PATH"]["mark"]) == (f"as {sshd.user}", "ok", "ok")
    assert gone["login"]["said"] == "nothing listens on that port"
    assert "By hand: 'ssh'" in gone["login"]["remedy"]


# The login node of a cluster


def test_a_cluster_is_told_by_what_can_be_done_there(cli: Cli, slurm: Cluster) -> None:
    machine = entry(slurm.login)
    cli.machines = [machine | {"name": "plain"}, machine | {"name": "cluster", "slurm": True}]
    cli.machines += [machine | {"name": "strict", "slurm": {"partition": "nowhere"}}]
    outcome = cli("doctor", "plain", "cluster", "strict", "--json")
    seen = steps(outcome, "plain")["slurm"]
    assert (seen["mark"], "slurm = true under [machines.plain] makes it a cluster" in seen["said"]) == ("ok", True)
    assert "controller" not in steps(outcome, "plain")
    seen = steps(outcome, "cluster")
    assert [*seen][-6:] == ["slurm", "controller", "sbatch", "sacct", "shared home", "modules"]
    assert re.fullmatch(r"\d\d\.\d\d\.\d+", seen["slurm"]["said"])
    assert seen["controller"]["said"].startswith("answers; partitions for you: main (default), ")
    assert re.fullmatch(r"takes jobs; a small job would start at \S+ in main", seen["sbatch"]["said"])
    assert "Slurm accounting storage is disabled" in seen["sacct"]["said"]
    assert "nodes must see the same home folder" in seen["shared home"]["said"]
    refused = steps(outcome, "strict")["sbatch"]
    assert (refused["mark"], "Invalid partition name" in refused["said"]) == ("warning", True)


# A sandbox behind a command


def test_a_command_is_checked_to_the_path_inside(cli: Cli, good: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[sandboxes.door]\ncommand = {client_of(good)}\n")
    outcome = cli("doctor", "door", "--json", "--config", str(file))
    assert outcome.code == 0, outcome.stdout
    assert list(marks(outcome, "door")) == ["command", *STEPS[5:-1]]
    assert set(marks(outcome, "door").values()) == {"ok"}
    assert steps(outcome, "door")["command"]["said"].startswith("gave a shell in ")
    assert "door  command ssh ..." in cli("doctor", "door", "--config", str(file)).stdout


def test_a_command_that_fails_is_told_with_its_words_and_what_to_do(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """[sandboxes.door]\ncommand = ["sh", "-c", "echo 'no such \\u001b[31mcontainer' >&2; exit 1"]\n"""
        """[sandboxes.gone]\ncommand = ["no-such-program"]\n"""
    )
    outcome = cli("doctor", "door", "gone", "--json", "--config", str(file))
    assert outcome.code == 1
    assert steps(outcome, "door")["command"] == {
        "name": "command",
        "mark": "failed",
        "said": "its command sh ended with status 1 without giving a shell, and said: no such container",
        "remedy": "Run it in a terminal to see more",
    }
    assert set(list(marks(outcome, "door").values())[1:]) == {"skipped"}
    assert steps(outcome, "gone")["command"]["said"] == "its command no-such-program cannot be found"


def test_a_damaged_state_file_fails_the_check_up_and_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("REMOTE_SANDBOX_MCP_HOME", str(state))
    (state / "state.db").write_bytes(b"no database" * 1000)
    config = tmp_path / "config.toml"
    config.write_text("[local]\nenabled = false\n")
    config.chmod(0o600)
    words = ["--config", str(config), "doctor"]
    assert main([*words, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], "doctor --repair" in told["state_problem"]) == (False, True)
    assert main([*words, "--repair"]) == 0
    assert "was damaged. A copy is" in capsys.readouterr().out
    assert [file.read_bytes()[:11] for file in state.glob("state.db.damaged-*")] == [b"no database"]
    assert main([*words, "--repair", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copy"] == ""
