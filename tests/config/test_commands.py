"""[sandboxes.NAME]: sandboxes behind a command, which only the operator's own file may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config.commands import COMMAND_READERS, read_commands
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.machine import CommandPlace
from remote_sandbox_mcp.services.gate.paths import private_files
from tests.config.test_project_file import accepted_now
from tests.config.test_services import put
from tests.support.config_reading import HIDDEN, A, read, the_problem


def only(configuration: Configuration) -> CommandPlace:
    assert configuration.problems == ()
    (place,) = configuration.commands
    return place


COMMANDS = {
    "any command": ('command = ["ssh", "-T", "gpu1"]', ["ssh", "-T", "gpu1"]),
    "docker": ('container = "web"', ["docker", "exec", "-i", "web", "sh", "-c"]),
    "podman": ('container = "web"\nengine = "podman"', ["podman", "exec", "-i", "web", "sh", "-c"]),
    "docker elsewhere, as a user": (
        'container = "web"\ncontext = "gpu1"\nuser = "dev"',
        ["docker", "--context", "gpu1", "exec", "-i", "--user", "dev", "web", "sh", "-c"],
    ),
    "podman elsewhere": (
        'container = "web"\nengine = "podman"\ncontext = "gpu1"',
        ["podman", "--connection", "gpu1", "exec", "-i", "web", "sh", "-c"],
    ),
    "a pod": ('pod = "web"', ["kubectl", "exec", "-i", "web", "--", "sh", "-c"]),
    "a pod of a namespace": (
        'pod = "ml/web-0"\npod_container = "app"\ncontext = "arn:aws:eks:eu:1:cluster/x"',
        [
            *("kubectl", "--context", "arn:aws:eks:eu:1:cluster/x", "--namespace", "ml", "exec", "-i", "web-0"),
            *("--container", "app", "--", "sh", "-c"),
        ],
    ),
    "a deployment": (
        'pod = "ml/deployment/web"',
        ["kubectl", "--namespace", "ml", "exec", "-i", "deployment/web", "--", "sh", "-c"],
    ),
    "a dev container": (
        'devcontainer = "/home/me/a project/"',
        ["devcontainer", "exec", "--workspace-folder", "/home/me/a project", "sh", "-c"],
    ),
}


@pytest.mark.parametrize(("text", "argv"), COMMANDS.values(), ids=COMMANDS)
def test_a_table_becomes_an_argument_vector(tmp_path: Path, text: str, argv: list[str]) -> None:
    configuration = read(tmp_path, f"[sandboxes.web]\n{text}\n")
    assert list(only(configuration).command) == argv
    assert configuration.default == "web"
    assert configuration.sources["sandboxes.web"] == f"{tmp_path}/config.toml [sandboxes.web]"


def test_what_holds_for_machines_holds_here_too(tmp_path: Path) -> None:
    text = 'command = ["door"]\nshell = "bash -lc"\ninit = "x"\nenv = { A = 1 }\npython = "/opt/python3"\n'
    place = only(read(tmp_path, f"[sandboxes.web]\n{text}connect_timeout_s = 60\n"))
    assert (place.python, place.connect_timeout_s) == ("/opt/python3", 60)
    assert (place.environment.shell, place.environment.init, place.environment.env) == (
        ("bash", "-lc"),
        ("x",),
        {"A": "1"},
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("sandboxes = 1", "must be a table, written as [sandboxes.NAME]", id="a number"),
        pytest.param(
            "[sandboxes]\na = 1", "it must be a table of keys and values, with one of command, container", id="no table"
        ),
        pytest.param(
            "[sandboxes.a]", "must have exactly one of command, container, pod, devcontainer, and has none", id="none"
        ),
        pytest.param(
            "[sandboxes.a]\npod = 'p'\ncontainer = 'c'", "has container and pod", id="two of them"
        ),
        pytest.param("[sandboxes.a]\ncommand = 'docker exec'", "command must be a list of words", id="one line"),
        pytest.param("[sandboxes.a]\ncommand = []", "command must be a list of words", id="no words"),
        pytest.param("[sandboxes.a]\ncommand = ['./run']", "whole path, or by a name that is in PATH", id="relative"),
        pytest.param('[sandboxes.a]\ncommand = ["a\\u0000b"]', "a character that cannot be sent", id="a NUL"),
        pytest.param("[sandboxes.a]\ncontainer = '--privileged'", "the name or the id of a container", id="dash"),
        pytest.param('[sandboxes.a]\ncontainer = "web\\nx"', "must not hold control characters", id="a new line"),
        pytest.param('[sandboxes.a]\ncontainer = "\\u001b[2J"', "must not hold control characters", id="an escape"),
        pytest.param("[sandboxes.a]\ncontainer = 'web sh'", "the name or the id of a container", id="two words"),
        pytest.param("[sandboxes.a]\ncontainer = 'w'\nengine = 'rkt'", "engine must be one of docker", id="engine"),
        pytest.param("[sandboxes.a]\ncontainer = 'w'\nuser = '-u'", "user must be a user of the container", id="user"),
        pytest.param("[sandboxes.a]\npod = 'p'\nengine = 'docker'", "engine goes with container only", id="misfit"),
        pytest.param("[sandboxes.a]\ncommand = ['x']\ncontext = 'y'", "goes with container or pod only", id="context"),
        pytest.param("[sandboxes.a]\npod = 'ns/-x'", "pod must be a pod", id="a pod with a dash"),
        pytest.param("[sandboxes.a]\npod = 'a/b/c/d'", "pod must be a pod", id="a pod with too many parts"),
        pytest.param("[sandboxes.a]\npod = 'p'\ncontext = '--kubeconfig=x'", "not begin with a dash", id="option"),
        pytest.param("[sandboxes.a]\npod = 'p'\npod_container = '-x'", "a container of the pod", id="inner dash"),
        pytest.param("[sandboxes.a]\ndevcontainer = 'project'", "must be whole paths", id="a relative workspace"),
        pytest.param("[sandboxes.'a/b']\ncontainer = 'w'", 'its name must not hold "/"', id="name"),
        pytest.param("[sandboxes.'']\ncontainer = 'w'", "its name is empty", id="no name"),
        pytest.param(f"{A}[sandboxes.a]\ncontainer = 'w'", 'a machine is named "a" as well', id="twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_starts_nothing(tmp_path: Path, text: str, why: str) -> None:
    configuration = read(tmp_path, text)
    assert why in the_problem(configuration)
    assert configuration.commands == ()
    assert configuration.machines or configuration.refusal


def test_arguments_of_a_command_are_never_shown(tmp_path: Path) -> None:
    configuration = read(tmp_path, f'[sandboxes.web]\ncommand = ["door", "--token", "{HIDDEN}"]\n')
    shown = show(configuration)
    assert HIDDEN not in f"{configuration!r}{json.dumps(shown)}"
    assert shown["sandboxes"][0]["command"] == "door ..."


OURS = {
    "REMOTE_PASSWORD": HIDDEN,
    "REMOTE_KEY_PASSPHRASE": HIDDEN,
    "REMOTE_SANDBOX_LIST": json.dumps([{"host": "b", "password": HIDDEN}]),
    "REMOTE_SANDBOX_API_KEY": HIDDEN,
    "OPEN_SANDBOX_API_KEY": HIDDEN,
    "GPU_PASSWORD": HIDDEN,
    "REGISTRY": HIDDEN,
}
NAMED = f"""{A}password = "env:GPU_PASSWORD"
[registries."registry.example.org"]
user = "u"
password = "env:REGISTRY"
[sandboxes.web]
container = "web"
"""


def test_a_command_gets_the_variables_of_a_list_and_no_other(tmp_path: Path) -> None:
    given = {"PATH": "/bin", "HOME": "/h", "USER": "u", "LANG": "C", "LC_TIME": "C", "SSH_AUTH_SOCK": "/s"}
    given |= {"KUBECONFIG": "/k", "DOCKER_HOST": "/d", "KRB5CCNAME": "/t", "XDG_RUNTIME_DIR": "/run"}
    others = {"SECRET_TOKEN": HIDDEN, "AWS_SECRET_ACCESS_KEY": HIDDEN, "LD_PRELOAD": "/x.so", "PYTHONPATH": "."}
    assert dict(only(read(tmp_path, NAMED, **OURS, **given, **others)).environ) == given


def test_a_command_gets_the_users_variables_without_our_secrets(tmp_path: Path) -> None:
    named = json.dumps(["AWS_*", "HTTPS_PROXY", *OURS])
    text = f'[server]\npass_env = {named}\n{NAMED}env = {{ CLOUD = "eu", AWS_REGION = "eu", PATH = "/inside" }}\n'
    given = {"PATH": "/bin", "HOME": "/h", "HTTPS_PROXY": "http://proxy", "AWS_PROFILE": "p", "AWS_REGION": "us"}
    place = only(read(tmp_path, text, **OURS, **given, SECRET_TOKEN=HIDDEN))
    # The table's PATH is meant for the inside; the one of the command is the user's.
    assert dict(place.environ) == {**given, "CLOUD": "eu", "AWS_REGION": "eu"}
    assert place.environment.env["PATH"] == "/inside"


@pytest.mark.parametrize("value", ["*", "A=b", "A B", "", "a*b"])
def test_what_names_no_variable_is_not_passed_on(tmp_path: Path, value: str) -> None:
    configuration = read(tmp_path, f"[server]\npass_env = {json.dumps([value])}\n", SECRET_TOKEN=HIDDEN)
    assert configuration.settings.pass_env == ()


def test_relative_folders_of_path_are_left_out(tmp_path: Path) -> None:
    place = only(read(tmp_path, NAMED, **OURS, PATH=".:/usr/bin::bin:/home/me/bin:/usr/bin", HOME="/h"))
    assert place.environ["PATH"] == "/usr/bin:/home/me/bin"


def test_a_project_names_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table: dict[str, Any] = {"web": {"command": ["sh", "-c"]}}
    put(tmp_path, {"opensandbox": {"command": ["sh"]}, "sandboxes": table})
    assert load(environ={}).commands == ()
    accepted_now()
    configuration = load(environ={})
    assert "command, sandboxes passed over" in the_problem(configuration)
    assert configuration.commands == ()


def test_neither_a_variable_nor_a_config_json_names_a_command(tmp_path: Path) -> None:
    entry = {"name": "x", "host": "192.0.2.1", "user": "u", "command": ["sh"], "container": "web"}
    configuration = load(environ={"REMOTE_SANDBOX_LIST": json.dumps([entry])})
    assert configuration.commands == ()
    assert 'the unknown key "command" is passed over' in configuration.problems[0]
    path = put(tmp_path, {"opensandbox": {}, "sandboxes": {"web": {"command": ["sh"]}}})
    configuration = load(path, {})
    assert configuration.commands == ()
    assert 'unknown key "sandboxes" is passed over' in the_problem(configuration)


def test_a_program_that_a_command_starts_is_closed_to_syncs_and_a_workspace_is_not(tmp_path: Path) -> None:
    program, workspace = tmp_path / "door.sh", tmp_path / "project"
    program.touch()
    workspace.mkdir()
    text = f'[sandboxes.a]\ncommand = ["sh", "{program}"]\n[sandboxes.b]\ndevcontainer = "{workspace}"\n'
    private = private_files(read(tmp_path, text))
    assert str(program) in private
    assert str(workspace) not in private


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=9), max_size=3)
GOOD = st.sampled_from(["web", "ns/web", "docker", "-x", f"--token={HIDDEN}", "/tmp", ["sh", "-c"], ["x", HIDDEN]])
TABLES = st.dictionaries(st.sampled_from([*COMMAND_READERS, "host", "\0"]), VALUES | GOOD, max_size=4)


@settings(max_examples=60, deadline=None)
@given(tables=st.dictionaries(st.text(max_size=6), TABLES | VALUES, max_size=3))
def test_whatever_is_in_the_tables_reading_them_never_fails_and_never_shows_an_argument(tables: dict[str, Any]) -> None:
    problems: list[str] = []
    places = list(read_commands({"sandboxes": tables}, "config.toml", {}, (), (), ("web",), problems.append))
    assert all(problem.endswith(".") and "\n" not in problem and len(problem) < 1200 for problem in problems)
    assert HIDDEN not in f"{problems}{places!r}{[place.shown for place in places if 'command' in place.shown]}"
    for place in places:
        assert place.name not in ("", "web")
        assert all(isinstance(word, str) and "\0" not in word for word in place.command)
        # A preset passes no option on that came from a name.
        assert "--token" not in " ".join(place.command) or place.shown.endswith(" ...")
