"""A config.json that came with a project: little of it counts, and nothing before it is accepted."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config import paths, workspace_file
from remote_sandbox_mcp.config.accepted import Acceptance, accept, acceptance, withdraw
from remote_sandbox_mcp.config.load import identity_of, load
from remote_sandbox_mcp.config.paths import ACCEPTED
from remote_sandbox_mcp.config.project_file import PROJECT_READERS, find_project
from remote_sandbox_mcp.config.schema import Configuration, Settings
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Platform
from remote_sandbox_mcp.core.serving import Announced, Logging
from tests.config.test_services import SEED, put
from tests.support.config_reading import HIDDEN, the_problem

HARMLESS = {"default_image": "python:3.12", "default_timeout": 60, "max_concurrent_sandboxes": 2}
EVERYTHING: dict[str, Any] = {
    "opensandbox": {
        **HARMLESS,
        "server_url": "http://127.0.0.1:9",
        "api_key": f"env:{HIDDEN}",
        "use_server_proxy": True,
        "pool": {"x": 1},
    },
    "logging": {"file": "x.log", "level": "DEBUG"},
    "registries": {"registry.example.org": {"user": "u", "password": "command:id"}},
    "http": {"host": "0.0.0.0"},
    "machines": {"hpc": {"host": "login.example.org", "otp": "command:id", "otp_seed": "command:id"}},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def state() -> Path:
    return paths.state_folder({})


def accepted_now() -> None:
    found = find_project()
    assert found
    accept(found.path, found.acceptance, state())


def sets_nothing(configuration: Configuration) -> bool:
    """But that no disposable sandbox is made elsewhere where the file names a server."""
    rules = replace(configuration.settings.rules, refusal="")
    return replace(configuration.settings, rules=rules) == Settings()


@pytest.mark.parametrize("document", [SEED, EVERYTHING], ids=["published", "hostile"])
def test_it_counts_for_nothing_until_it_is_accepted(project: Path, document: object) -> None:
    path = put(project, document)
    configuration = load(environ={})
    told = the_problem(configuration)
    assert told.startswith(f"{path} came with the current folder and counts for nothing until the user accepts it")
    assert told.endswith(f"run remote-sandbox-mcp config allow {path}.")
    assert sets_nothing(configuration)
    refusal = configuration.settings.rules.refusal
    assert refusal.startswith(
        f"{path} names a server, but came with the current folder and is not accepted; look at it"
    )
    assert refusal.endswith("say on='embedded'.")


@pytest.mark.parametrize("environ", [{}, {"OPENSANDBOX_SERVER": "http://127.0.0.1:8"}], ids=["no server", "a server"])
def test_a_file_that_names_no_server_keeps_nobody_from_a_sandbox(project: Path, environ: dict[str, str]) -> None:
    put(project, SEED if environ else {"opensandbox": HARMLESS})
    assert not load(environ=environ).settings.rules.refusal


def test_once_accepted_it_sets_the_few_keys_that_a_project_may(project: Path) -> None:
    put(project, {"opensandbox": HARMLESS | {"auto_cleanup": False, "cleanup_after_minutes": 3}})
    accepted_now()
    configuration = load(environ={})
    assert configuration.problems == ()
    assert configuration.settings.rules == DisposableRules(
        default_image="python:3.12", default_timeout_s=60, max_concurrent=2, auto_cleanup=False, cleanup_after_minutes=3
    )
    assert configuration.sources["opensandbox.default_image"] == str(project / "config.json")
    assert configuration.file == ""


def test_once_accepted_it_still_names_no_key_registry_or_machine(project: Path) -> None:
    put(project, EVERYTHING)
    accepted_now()
    configuration = load(environ={HIDDEN: "as the variable has it"})
    told = the_problem(configuration)
    assert "api_key, use_server_proxy, pool, registries, http, machines passed over" in told
    assert "give the file with --config, or put the rest into config.toml." in told
    assert configuration.machines == ()
    assert configuration.settings == Settings(
        rules=DisposableRules(default_image="python:3.12", default_timeout_s=60, max_concurrent=2),
        platform=Platform(server_url="http://127.0.0.1:9"),
        logging=Logging(level="DEBUG", file=str(project / "x.log")),
    )
    assert "as the variable has it" not in json.dumps(show(configuration))


def test_the_published_file_works(project: Path) -> None:
    put(project)
    accepted_now()
    configuration = load(environ={})
    assert configuration.problems == ()
    said = configuration.settings
    assert said.rules == DisposableRules(default_image="nvda-vision:latest", max_concurrent=4, cleanup_after_minutes=31)
    assert said.platform == Platform(server_url="http://localhost:8080")
    assert said.logging == Logging(level="INFO", file=str(project / "mcp-server.log"))
    assert said.announced == Announced(name="opensandbox", version="0.1.0", description="any")


def test_no_secret_goes_to_the_server_that_a_project_names(project: Path, tmp_path: Path) -> None:
    put(project)
    accepted_now()
    config = tmp_path / "config.toml"
    config.write_text(f'[registries."registry.example.org"]\nuser = "u"\npassword = "{HIDDEN}"\n')
    config.chmod(0o600)
    found = load(config, {"OPEN_SANDBOX_API_KEY": HIDDEN})
    assert "not sent to it; if they are for that server, set OPENSANDBOX_SERVER" in the_problem(found)
    assert found.settings.platform == Platform(server_url="http://localhost:8080")
    own = load(config, {"OPEN_SANDBOX_API_KEY": HIDDEN, "OPENSANDBOX_SERVER": "http://localhost:8080"})
    assert own.problems == ()
    assert own.settings.platform.api_key
    assert own.settings.platform.registries


def test_projects_with_different_servers_do_not_share_their_sandboxes(project: Path) -> None:
    identities = set()
    for port in (8080, 8081):
        put(project, {"opensandbox": {"server_url": f"http://localhost:{port}"}})
        accepted_now()
        identities.add(identity_of(load(environ={})))
    assert len(identities | {identity_of(Configuration())}) == 3


@pytest.mark.parametrize("file", ["../x.log", "/tmp/x.log", ".git/x.log", "main.py", "link.log", "to/x.log"])
def test_a_projects_log_is_a_log_in_the_project(project: Path, tmp_path: Path, file: str) -> None:
    (project / "link.log").symlink_to(tmp_path / ".bashrc")
    (project / "to").symlink_to(tmp_path)
    put(project, {"opensandbox": {}, "logging": {"file": file}})
    accepted_now()
    configuration = load(environ={})
    assert "must be a file of the project whose name ends in .log" in the_problem(configuration)
    assert sets_nothing(configuration)


def test_any_change_of_its_content_asks_again(project: Path) -> None:
    path = put(project, {"opensandbox": HARMLESS})
    accepted_now()
    path.write_text(path.read_text() + " ")
    configuration = load(environ={})
    assert "has changed since it was accepted and counts for nothing" in the_problem(configuration)
    assert sets_nothing(configuration)


def test_the_same_content_at_another_path_asks_again(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(project, {"opensandbox": HARMLESS})
    accepted_now()
    (tmp_path / "clone").mkdir()
    put(tmp_path / "clone", {"opensandbox": HARMLESS})
    monkeypatch.chdir(tmp_path / "clone")
    assert sets_nothing(load(environ={}))


def test_an_acceptance_can_be_taken_back(project: Path) -> None:
    put(project, {"opensandbox": HARMLESS})
    accepted_now()
    assert withdraw("config.json", state())
    assert sets_nothing(load(environ={}))
    assert not withdraw("config.json", state())


def test_acceptances_are_the_owners_alone(project: Path) -> None:
    put(project, {"opensandbox": HARMLESS})
    accepted_now()
    file = state() / ACCEPTED
    assert file.stat().st_mode & 0o777 == 0o600
    # Whoever else could have written it, or a clone that brings one along.
    file.chmod(0o644)
    assert sets_nothing(load(environ={}))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        pytest.param("default_image", "/", "the name of an image", id="a folder as image"),
        pytest.param("default_image", "~/.ssh", "the name of an image", id="the home folder as image"),
        pytest.param("default_image", "./rootfs", "the name of an image", id="its own folder as image"),
        pytest.param("max_concurrent_sandboxes", 6, "must not be above 5", id="more than there may be"),
        pytest.param("max_concurrent_sandboxes", "1000", "must not be above 5", id="more, as text"),
        pytest.param("default_timeout", 0, "seconds above 0", id="no time"),
    ],
)
def test_a_value_beyond_what_a_project_may_set_is_passed_over(project: Path, key: str, value: Any, told: str) -> None:
    put(project, {"opensandbox": {key: value}})
    accepted_now()
    configuration = load(environ={})
    assert told in the_problem(configuration)
    assert sets_nothing(configuration)


def test_no_key_of_a_project_is_for_something_that_runs_or_reads() -> None:
    assert {f"{part}.{key}" for part, keys in PROJECT_READERS.items() for key in keys} == {
        "opensandbox.server_url", "opensandbox.default_image", "opensandbox.default_timeout",
        "opensandbox.max_concurrent_sandboxes", "opensandbox.auto_cleanup", "opensandbox.cleanup_after_minutes",
        "logging.level", "logging.file", "logging.max_size_mb", "server.name", "server.version", "server.description",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", '{"name": "web-app"}', "[]", '{"opensandbox": []}', "\0", "[" * 100_000])
def test_a_projects_own_config_json_is_no_business_of_ours(project: Path, text: str) -> None:
    put(project, text)
    configuration = load(environ={})
    assert configuration.problems == ()
    assert sets_nothing(configuration)


def test_a_pipe_of_that_name_keeps_nobody_waiting(project: Path) -> None:
    os.mkfifo(project / "config.json")
    assert load(environ={}).problems == ()


def test_a_name_of_a_folder_is_no_part_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "x; touch pwned\n#"
    folder.mkdir()
    monkeypatch.chdir(folder)
    put(folder, {"opensandbox": {}})
    assert f"config allow '{tmp_path}/x; touch pwned\N{REPLACEMENT CHARACTER}#/config.json'" in the_problem(
        load(environ={})
    )


def test_a_current_folder_that_is_gone_is_no_trouble(project: Path) -> None:
    project.rmdir()
    assert load(environ={}).problems == ()


def test_a_project_names_no_machine_and_allows_no_sudo(project: Path) -> None:
    machine = {"host": "192.0.2.1", "user": "u", "sudo": "nopasswd"}
    put(project, {"opensandbox": HARMLESS, "machines": {"gpu1": machine}, "sudo": "nopasswd"})
    accepted_now()
    configuration = load(None, {"REMOTE_SANDBOX_LIST": json.dumps([{"name": "gpu1", "host": "192.0.2.2"}])})
    assert [(it.name, it.host, it.sudo) for it in configuration.machines] == [("gpu1", "192.0.2.2", None)]


def test_files_that_are_accepted_at_the_same_moment_are_all_accepted(tmp_path: Path) -> None:
    state = paths.state_folder()
    files = [str(tmp_path / str(number)) for number in range(20)]
    with ThreadPoolExecutor(len(files)) as pool:
        # Each on a descriptor of its own, as in processes of their own.
        list(pool.map(lambda file: accept(file, Acceptance("0" * 64), state), files))
    assert all(acceptance(file) for file in files)


def test_no_file_of_a_project_adds_an_extension(project: Path) -> None:
    """It would run with the rights of the user: only the operator's config.toml names one."""
    attack = project / "attack.py"
    attack.write_text("raise SystemExit\n")
    (project / ".remote-sandbox.toml").write_text(f'extensions = ["{attack}"]\n')
    put(project, {"opensandbox": HARMLESS, "extensions": [str(attack)], "server": {"extensions": [str(attack)]}})
    before = load(None, {})
    assert before.settings.extensions == ()
    assert any("config.json" in problem for problem in before.problems)
    assert any(".remote-sandbox.toml" in problem for problem in before.problems)
    accepted_now()
    found = workspace_file.find(str(project / ".remote-sandbox.toml"))
    assert found
    reported: list[str] = []
    assert "extensions" not in found.settings(reported.append)
    assert any("extensions" in problem for problem in reported)
    accept(found.path, found.acceptance, state())
    after = load(None, {})
    assert after.settings.extensions == ()
    assert any("extensions passed over" in problem for problem in after.problems)
    assert str(attack) not in after.read_from
