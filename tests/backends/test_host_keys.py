"""The file of host keys that we write: whole lines, and one decision at a time."""

from __future__ import annotations

import fcntl
import multiprocessing
from pathlib import Path

import asyncssh
import pytest

from remote_sandbox_mcp.backends.ssh import host_keys
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.host_keys import HostKeys
from remote_sandbox_mcp.core.errors import HostKeyProblem
from tests.support.sshd import Sshd

ROUNDS = 25


def keys_in(folder: Path) -> HostKeys:
    return HostKeys(folder / "known_hosts", ())


def some_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


def test_a_key_is_found_after_a_last_line_without_an_end(tmp_path: Path) -> None:
    keys, key = keys_in(tmp_path), some_key()
    keys.own.write_text("# by hand")
    keys.remember("a", 22, key)
    assert keys.trusted("a", "", 22) == [key]


def remember_and_forget(folder: Path, host: str) -> None:
    """What one process does beside others: meet a machine again and again."""
    keys, key = keys_in(folder), some_key()
    for _ in range(ROUNDS):
        with keys.deciding():
            keys.remember(host, 22, key)
        keys.forget(host, 22)
    with keys.deciding():
        keys.remember(host, 22, key)


def test_what_one_process_remembers_another_does_not_lose_by_forgetting(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    hosts = ["a", "b", "c"]
    processes = [spawn.Process(target=remember_and_forget, args=(tmp_path, host)) for host in hosts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [len(keys_in(tmp_path).trusted(host, "", 22)) for host in hosts] == [1, 1, 1]


async def test_a_lock_that_is_never_released_is_reported(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "LOCK_S", 0.05)
    with (tmp_path / "known_hosts.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        gate = LoginGate(sshd.machine(known_hosts_files=("/dev/null",)), tmp_path / "known_hosts")
        with pytest.raises(HostKeyProblem, match=r"cannot be remembered in .*: another process has held its lock"):
            await gate.enter()
