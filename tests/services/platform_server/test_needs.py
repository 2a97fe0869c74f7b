"""What the platform needs and how it is set up; its life is in tests/cli/test_platform.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.problems import parse_toml
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.services.platform_server import life
from remote_sandbox_mcp.services.platform_server.life import Images, PlatformFolder, render
from tests.support.programs import look_in


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for, and no environment of Python's beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    look_in(monkeypatch, folder)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return folder


def program(folder: Path, name: str, script: str = "exit 0") -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def docker(folder: Path, context: str = "unix:///run/user/1/docker.sock") -> None:
    program(folder, "docker", f'[ "$1" = version ] && echo 29.1 && exit\n[ "$1" = context ] && echo {context}')


# Settings


def test_the_server_is_reached_from_here_alone_and_reaches_nothing_here(tmp_path: Path) -> None:
    place = PlatformFolder(tmp_path / 'odd "name"')
    said = parse_toml(render(place, 4321, "the-key", Images("execd:1", "egress:2"), ()))
    assert said["server"] == {"host": "127.0.0.1", "port": 4321, "api_key": "the-key"}
    assert said["docker"] == {"network_mode": "bridge", "publish_host": "127.0.0.1", "no_new_privileges": True}
    assert said["storage"] == {"allowed_host_paths": []}
    assert said["runtime"] == {"type": "docker", "execd_image": "execd:1"}
    assert said["egress"] == {"image": "egress:2", "mode": "dns+nft"}
    assert said["store"] == {"type": "sqlite", "path": f'{tmp_path}/odd "name"/platform/sandboxes.db'}
    assert said["log"]["file_path"] == str(place.log)


def test_folders_that_the_operator_names_may_be_mounted(tmp_path: Path) -> None:
    said = parse_toml(render(PlatformFolder(tmp_path), 4321, "the-key", Images(), ["/srv/data"]))
    assert said["storage"] == {"allowed_host_paths": ["/srv/data"]}


def test_images_are_those_of_the_servers_own_example(path: Path) -> None:
    example = '[runtime]\nexecd_image = "execd:9"\n[egress]\nimage = "egress:9"'
    words = (program(path, "opensandbox-server", f"/bin/cat > \"$2\" <<'END'\n{example}\nEND"),)
    assert life.matching_images(words, os.environ, 10) == Images("execd:9", "egress:9")


@pytest.mark.parametrize("script", ["exit 3", "echo '[runtime]' > \"$2\"", "echo '=' > \"$2\""])
def test_where_there_is_no_example_the_known_images_are_used(path: Path, script: str) -> None:
    words = (program(path, "opensandbox-server", script),)
    assert life.matching_images(words, os.environ, 10) == Images()


def test_the_known_images_are_those_of_the_server_that_is_tested() -> None:
    words = (str(Path(sys.executable).with_name("opensandbox-server")),)
    assert life.matching_images(words, os.environ, 30) == Images()


# The server's command


def test_the_command_of_our_own_environment_comes_first() -> None:
    assert life.server_words() == (str(Path(sys.executable).with_name("opensandbox-server")),)


def test_then_that_of_the_path_and_then_uvx(path: Path) -> None:
    uvx = program(path, "uvx")
    assert life.server_words() == (uvx, "--from", "opensandbox-server>=1.1,<2", "opensandbox-server")
    installed = program(path, "opensandbox-server")
    assert life.server_words() == (installed,)


def test_where_there_is_none_it_is_told_what_to_install(path: Path) -> None:
    with pytest.raises(ConfigError, match="uv tool install opensandbox-server"):
        life.server_words()


# The engine


def test_the_engine_is_the_one_that_the_docker_command_uses(path: Path) -> None:
    docker(path)
    environ = {"PATH": str(path), "HOME": "/h", "DOCKER_CONFIG": "/c", "OPENSANDBOX_X": "1", "AWS_SECRET": "s"}
    assert life.engine_environ(environ) == {
        "PATH": str(path),
        "HOME": "/h",
        "DOCKER_CONFIG": "/c",
        "DOCKER_HOST": "unix:///run/user/1/docker.sock",
    }
    named = life.engine_environ({**environ, "DOCKER_HOST": "tcp://127.0.0.1:2375"})
    assert named["DOCKER_HOST"] == "tcp://127.0.0.1:2375"


@pytest.mark.parametrize("address", ["ssh://me@far", "tcp://192.0.2.1:2376", "unknown"])
def test_an_engine_on_another_machine_is_refused(path: Path, address: str) -> None:
    docker(path, address)
    with pytest.raises(ConfigError, match="on another machine"):
        life.engine_environ()


def test_without_docker_it_is_told_what_to_install(path: Path) -> None:
    with pytest.raises(ConfigError, match="the command docker is not installed"):
        life.engine_environ()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("echo 'Cannot connect. Is it running?' >&2; exit 1", "Is it running; start it", id="down"),
        pytest.param("exit 7", "docker ended with 7", id="silent"),
        pytest.param("exec /bin/sleep 60", r"no answer in 0\.2 s", id="hanging"),
    ],
)
def test_an_engine_that_does_not_answer_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(life, "CALL_S", 0.2 if "sleep" in script else 20)
    program(path, "docker", script)
    with pytest.raises(ConfigError, match=f"does not answer: .*{why}") as told:
        life.engine_environ()
    assert "\n" not in str(told.value)
