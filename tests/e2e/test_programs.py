"""Programs of this computer through the running server: no planted one runs, and none sees a secret of the client."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.means import require_local
from tests.support.programs import plant
from tests.support.server import serve
from tests.support.sshd import Sshd, wait_until

HIDDEN = "s3cr3t-of-the-client"


def path_with(folder: Path) -> dict[str, str]:
    """As `conda init` leaves it: a folder of the user's comes first."""
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def trap(file: Path) -> Path:
    """A program in the place of another; the file that says that it was run."""
    marker = file.parent.parent / f"{file.name}-was-run"
    plant(file, f"/usr/bin/touch {marker}; exit 1")
    return marker


@pytest.mark.parametrize("hub", [True, False], ids=["hub", "no hub"])
async def test_a_program_that_was_planted_in_path_after_the_start_is_not_run(tmp_path: Path, hub: bool) -> None:
    require_local()
    folder = tmp_path / "miniconda3" / "bin"
    folder.mkdir(parents=True)
    async with serve(tmp_path, local=True, hub=hub, env=path_with(folder)) as server:
        await server.call("list_sandboxes")
        traps = [trap(folder / name) for name in ("bwrap", "slirp4netns", "du", "sh", "python3", "klist", "ps")]
        made = await server.call("create_sandbox")
        assert await server.output("echo walled", sandbox_name=made["sandbox_id"]) == "walled\n"
        assert await server.output("echo walled", sandbox_name="local") == "walled\n"
        # It may have no network here; what matters is what was started for it.
        await server.ask("create_sandbox", network=True)
        assert [marker.name for marker in traps if marker.exists()] == []


async def test_a_program_in_a_folder_of_path_that_everybody_can_write_is_not_run(tmp_path: Path) -> None:
    require_local()
    folder = tmp_path / "shared" / "bin"
    traps = [trap(folder / name) for name in ("bwrap", "slirp4netns", "a-door")]
    folder.chmod(0o1777)
    door = '[sandboxes.web]\ncommand = ["a-door", "exec"]\n'
    async with serve(tmp_path, local=True, config=door, env=path_with(folder)) as server:
        assert await server.output("echo walled", sandbox_name="local") == "walled\n"
        await server.ask("create_sandbox", network=True)
        problem = await server.fail("exec_bash", command="true", sandbox_name="web")
        assert f"was found, but it is not used, because {folder} can be written by everybody" in problem["error"]
        assert [marker.name for marker in traps if marker.exists()] == []


async def test_the_path_of_a_later_client_does_not_choose_our_programs(tmp_path: Path) -> None:
    require_local()
    folder = tmp_path / "theirs" / "bin"
    marker = trap(folder / "bwrap")
    async with serve(tmp_path, local=True) as first:
        await first.call("list_sandboxes")
        async with serve(tmp_path, local=True, env=path_with(folder)) as second:
            assert second.worker == first.worker
            assert await second.output("echo walled", sandbox_name="local") == "walled\n"
    assert not marker.exists()


def needs(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "USER": "me", "LANG": "C.UTF-8", "SSH_AUTH_SOCK": "/nowhere/agent"}


async def test_a_door_sees_what_it_needs_and_no_secret_of_the_client(tmp_path: Path) -> None:
    program = plant(tmp_path / "own" / "door", f'env >{tmp_path}/env; exec sh -c "$@"')
    door = '[sandboxes.web]\ncommand = ["door"]\nenv = { PROJECT = "lab" }\n[server]\npass_env = ["AWS_*"]\n'
    env = needs(tmp_path) | path_with(program.parent) | {"SECRET_TOKEN": HIDDEN, "AWS_PROFILE": "work"}
    async with serve(tmp_path, config=door, env=env) as server:
        assert await server.output("echo $PROJECT", sandbox_name="web") == "lab\n"
    seen = (tmp_path / "env").read_text()
    wanted = needs(tmp_path) | {"AWS_PROFILE": "work", "PROJECT": "lab"}
    assert {f"{name}={value}" for name, value in wanted.items()} <= set(seen.splitlines())
    assert f"\nPATH={program.parent}:" in f"\n{seen}"
    assert HIDDEN not in seen


@pytest.mark.parametrize("transport", ["asyncssh", "openssh"])
async def test_a_proxy_command_sees_what_it_needs_and_no_secret_of_the_client(
    machine: Sshd, tmp_path: Path, transport: str
) -> None:
    proxy = f"bash -c 'env >{tmp_path}/env; exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'"
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").write_text(
        f"Host far\n HostName {machine.host}\n Port {machine.port}\n User {machine.user}\n"
        f" IdentityFile {machine.key_file}\n ProxyCommand {proxy}\n"
    )
    table = f'[machines.far]\nssh_alias = "far"\ntransport = "{transport}"\n'
    env = needs(tmp_path) | {"SECRET_TOKEN": HIDDEN}
    async with serve(tmp_path, config=table, env=env) as server:
        assert await server.output("whoami", sandbox_name="far") == f"{machine.user}\n"
    wait_until((tmp_path / "env").exists, what="what the program has seen")
    seen = (tmp_path / "env").read_text()
    assert {f"{name}={value}" for name, value in needs(tmp_path).items()} <= set(seen.splitlines())
    assert any(line.startswith("PATH=/") for line in seen.splitlines())
    assert HIDDEN not in seen
