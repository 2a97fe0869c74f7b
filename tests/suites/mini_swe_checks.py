"""The tests of environments that mini-swe-agent has for its own, on the sandbox that SUITE_SANDBOX names.

They are those of its tests/environments/test_local.py and test_docker.py, which its package does not have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from remote_sandbox_mcp.frameworks.mini_swe import RemoteEnvironment, RemoteEnvironmentConfig

GIVEN = json.loads(os.environ["SUITE_SANDBOX"])
KIND = "remote_sandbox_mcp.frameworks.mini_swe.RemoteEnvironment"
PROMPTS = {"system_template": "You work on {{machine}}.", "instance_template": "{{task}}"}


@pytest.fixture(scope="module")
def environment() -> Iterator[RemoteEnvironment]:
    given = {"sandbox": GIVEN} if isinstance(GIVEN, str) else GIVEN
    made = get_environment({"environment_class": KIND, "env": {"COLOUR": "blue"}, "cwd": "/tmp", **given})
    assert isinstance(made, RemoteEnvironment)
    yield made
    made.cleanup()


def test_config_defaults() -> None:
    config = RemoteEnvironmentConfig()
    assert (config.sandbox, config.cwd, config.env, config.timeout) == ("", "", {}, 30)


def test_basic_execution(environment: RemoteEnvironment) -> None:
    assert environment.execute({"command": "echo hello"}) == {
        "output": "hello\n",
        "returncode": 0,
        "exception_info": "",
    }


def test_env_vars_and_folder(environment: RemoteEnvironment) -> None:
    assert environment.execute({"command": "echo $COLOUR; pwd"})["output"] == "blue\n/tmp\n"
    assert environment.execute({"command": "pwd"}, cwd="/")["output"] == "/\n"


def test_forwarded_variables(environment: RemoteEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED", "here")
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.setattr(environment.config, "forward_env", ["FORWARDED", "COLOUR", "NOT_SET"])
    said = environment.execute({"command": "echo $FORWARDED $COLOUR ${NOT_SET-none}"})["output"]
    assert said == "here blue none\n"


def test_command_failure_and_errors_are_part_of_the_output(environment: RemoteEnvironment) -> None:
    result = environment.execute({"command": "echo out; echo err >&2; exit 42"})
    assert (result["returncode"], result["output"]) == (42, "out\nerr\n")
    result = environment.execute({"command": "if"})
    assert result["returncode"] != 0
    assert "syntax error" in result["output"].lower() or "unexpected" in result["output"].lower()


def test_multiline_command_with_a_document(environment: RemoteEnvironment) -> None:
    assert environment.execute({"command": "cat <<EOF\none\ntwo\nEOF"})["output"] == "one\ntwo\n"


def test_state_is_not_kept_but_files_are(environment: RemoteEnvironment) -> None:
    environment.execute({"command": "X=1; echo kept > /tmp/mini-swe-file"})
    result = environment.execute({"command": "echo $X; cat /tmp/mini-swe-file; rm /tmp/mini-swe-file"})
    assert result["output"] == "\nkept\n"


def test_timeout(environment: RemoteEnvironment) -> None:
    result = environment.execute({"command": "echo begun; sleep 60"}, timeout=1)
    assert (result["returncode"], result["output"]) == (-1, "begun\n")
    assert result["extra"]["exception_type"] == "TimeoutExpired"
    assert "ended after 1 s" in result["exception_info"]


def test_a_folder_that_is_not_there(environment: RemoteEnvironment) -> None:
    result = environment.execute({"command": "true"}, cwd="/nowhere")
    assert result["returncode"] == -1
    assert "/nowhere" in result["exception_info"]


def test_submission(environment: RemoteEnvironment) -> None:
    with pytest.raises(Submitted) as submitted:
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the answer"})
    (message,) = submitted.value.messages
    assert (message["role"], message["content"]) == ("exit", "the answer\n")
    failed = environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1"})
    assert failed["returncode"] == 1


def test_template_variables_and_record(environment: RemoteEnvironment) -> None:
    found = environment.get_template_vars(more="yes")
    assert (found["system"], found["more"], found["cwd"]) == ("Linux", "yes", "/tmp")
    record = environment.serialize()["info"]["config"]
    assert (record["environment_type"], record["environment"]["cwd"]) == (KIND, "/tmp")


def test_an_agent_works_to_its_end(environment: RemoteEnvironment) -> None:
    commands = ("echo one > /tmp/mini-swe-work", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat /tmp/mini-swe-work")
    model = DeterministicModel(outputs=[make_output("next", [{"command": command}]) for command in commands])
    agent = DefaultAgent(model, environment, **PROMPTS)
    result = agent.run("say one")
    assert (result["exit_status"], result["submission"]) == ("Submitted", "one\n")
    environment.execute({"command": "rm /tmp/mini-swe-work"})
