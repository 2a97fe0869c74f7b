"""The filter for what leaves this computer: in the scan itself, at no cost, and for every target."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.sync.transfer import Place
from remote_sandbox_mcp.core.workspaces.workspace import SECRET_LIKE
from remote_sandbox_mcp.far.lane import tree
from tests.services.sync.conftest import Pool

FILES = 5000


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class CountedEntry:
    """An entry of a folder that counts what it is asked."""

    def __init__(self, entry: os.DirEntry[bytes], asked: Counter[str]) -> None:
        self.name, self._entry, self._asked = entry.name, entry, asked

    def is_dir(self, follow_symlinks: bool) -> bool:
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def stat(self, follow_symlinks: bool) -> os.stat_result:
        self._asked["stat"] += 1
        return self._entry.stat(follow_symlinks=follow_symlinks)


def test_the_filter_asks_the_file_system_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *(f"{number % 50}/{number:04}.py" for number in range(FILES - 1)), ".env")
    asked: Counter[str] = Counter()
    scandir: Callable[[Any], Any] = os.scandir

    @contextmanager
    def counted(path: Any) -> Iterator[Iterator[CountedEntry]]:
        asked["scandir"] += 1
        with scandir(path) as found:
            yield (CountedEntry(entry, asked) for entry in found)

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **more: Any) -> Any:
            asked[name] += 1
            return real(*given, **more)

        return call

    def cost(rules: list[str]) -> tuple[Counter[str], dict[str, Any]]:
        asked.clear()
        answer: Any = tree.scan(
            {
                "verb": "scan",
                "path": str(tmp_path),
                "rules": rules,
                "watched": [],
                "gitignore": False,
                "squeeze": False,
            },
            lambda data: None,
        )
        return Counter(asked), answer

    monkeypatch.setattr(os, "scandir", counted)
    for name in ("stat", "lstat", "open", "readlink"):
        monkeypatch.setattr(os, name, noted(name))
    without, _ = cost([])
    with_it, answer = cost([*SECRET_LIKE])
    assert without["stat"] >= FILES
    # One less: what is left out is not looked at.
    assert (without - with_it, with_it - without) == (Counter(stat=1), Counter())
    assert (answer["secrets"], answer["secret_count"]) == ([".env"], 1)


async def test_what_was_kept_here_is_in_the_outcome(pool: Pool) -> None:
    write(pool.source, "a", ".env", "b/id_rsa", "b/c")
    outcome = await pool.sync()
    assert (outcome.secrets, outcome.secret_count) == ((".env", "b/id_rsa"), 2)
    assert files_in(pool.target) == {"a", "b/c"}


async def test_a_person_sends_secrets_and_is_told_their_names(pool: Pool) -> None:
    write(pool.source, "a", ".env", ".ssh/known_hosts")
    order = replace(pool.order(), source=Place("", str(pool.source), free=True))
    outcome = await pool.syncs.run(order, pool.listen)
    assert files_in(pool.target) == {"a", ".env", ".ssh/known_hosts"}
    assert (set(outcome.secrets), outcome.secret_count) == ({".env", ".ssh/known_hosts"}, 2)
    again = await pool.syncs.run(order, pool.listen)
    assert (again.secrets, again.secret_count) == ((), 0)


async def test_what_a_machine_says_of_secrets_is_not_believed(pool: Pool) -> None:
    write(pool.source, "a", ".env")
    here, there = Place("", str(pool.target)), Place("x", str(pool.source))
    order = replace(pool.order(excludes=SECRET_LIKE), source=there, target=here)
    outcome = await pool.syncs.run(order, pool.listen)
    assert (outcome.secrets, outcome.secret_count) == ((), 0)


async def test_a_file_that_becomes_a_link_to_a_secret_goes_as_a_link(pool: Pool) -> None:
    write(pool.source, "notes.txt", ".env")

    def swap(verb: str, lane: object) -> None:
        if verb == "send" and not (pool.source / "notes.txt").is_symlink():
            (pool.source / "notes.txt").unlink()
            (pool.source / "notes.txt").symlink_to(".env")

    pool.asking = swap
    await pool.sync()
    arrived = pool.target / "notes.txt"
    assert not arrived.exists() or arrived.read_text() != ".env"


async def test_the_name_of_the_real_file_decides(pool: Pool) -> None:
    write(pool.source, ".env")
    (pool.source / "notes.txt").symlink_to(".env")
    with pytest.raises(BadArgument, match=r"\.env, whose name is that of a secret"):
        await pool.sync(source=pool.source / "notes.txt")
    assert not pool.target.exists()
