"""The lane program on its own: over a pipe, under every Python, with hostile names and frames, by another user."""

from __future__ import annotations

import ast
import asyncio
import fcntl
import hashlib
import json
import os
import random
import secrets
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link import pipe
from remote_sandbox_mcp.backends.link.lane import OutpostLane, _Request
from remote_sandbox_mcp.core.errors import FileProblem, Unreachable
from remote_sandbox_mcp.core.sync.plan import Matcher
from remote_sandbox_mcp.core.sync.transfer import Reply, numbers
from remote_sandbox_mcp.core.sync.tree import Tree
from remote_sandbox_mcp.far import program
from remote_sandbox_mcp.far.lane import chunks
from remote_sandbox_mcp.far.lane import target as far_target
from remote_sandbox_mcp.far.lane.expected import Expected
from remote_sandbox_mcp.far.lane.large import SAME
from remote_sandbox_mcp.far.lane.source import ENTRY, LARGEST_WHOLE, PIECE, Speaker
from remote_sandbox_mcp.far.lane.target import ATTRIBUTES
from remote_sandbox_mcp.far.lane.tree import Root, Survey, inspect_path, is_abandoned, machine_mark, own_stem
from remote_sandbox_mcp.far.outpost import wire
from tests.backends.contract.basics import HOSTILE_NAMES
from tests.support.announcements import announced, described
from tests.support.pipe import SYSTEM_PATH, pythons
from tests.support.values import read_tree
from tests.support.warm import LANE_NURSERY

FILE, LINK = stat.S_IFREG, stat.S_IFLNK
TIME = 1_700_000_000_123_456_789
NOBODY = 65534
DATA = random.Random(7).randbytes(3 << 20)


async def start(*argv: str, environment: dict[str, str] | None = None) -> OutpostLane:
    """A lane in a process of its own."""
    token = secrets.token_hex(16)
    line = await pipe.start([*argv, "-IS", "-c", program.loader(program.LANE), token], environment or {})
    line.write(program.packed(program.LANE))
    lane = OutpostLane(line, "lane")
    await lane.greet(token)
    return lane


async def forked() -> OutpostLane:
    """A lane whose program was loaded before, for tests of what it does."""
    with pytest.MonkeyPatch.context() as patch:
        LANE_NURSERY.fork_lanes(patch)
        return await here.open_lane()


@pytest.fixture
async def lane() -> AsyncIterator[OutpostLane]:
    lane = await forked()
    yield lane
    await lane.close()


@pytest.fixture
async def other() -> AsyncIterator[OutpostLane]:
    lane = await forked()
    yield lane
    await lane.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def ask(
    lane: OutpostLane, verb: str, raw: bytes = b"", heard: Callable[[bytes], None] | None = None, **order: Any
) -> Reply:
    fields: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in order.items()}
    return await asyncio.wait_for(lane.begin({"verb": verb, **fields}, raw, heard=heard), 15)


async def refused(lane: OutpostLane, verb: str, raw: bytes = b"", **order: Any) -> str:
    """The reason for which a request is refused."""
    with pytest.raises(FileProblem) as raised:
        await ask(lane, verb, raw, **order)
    return raised.value.reason


async def scan(lane: OutpostLane, path: Path | str, **order: Any) -> Tree:
    parts: list[bytes] = []
    reply = await ask(lane, "scan", path=str(path), heard=parts.append, **order)
    return read_tree(reply.end, parts)


def listed(tree: Tree) -> dict[str, bytes]:
    """Paths and metas of everything in a tree."""
    found = {}
    for folder in tree.folders:
        for name, meta in tree.entries(folder).items():
            found[os.fsdecode(os.path.join(folder, name))] = meta
    return found


def names(*paths: str | bytes) -> bytes:
    """An announcement: folder, names, an empty field, and so on."""
    split = [os.path.split(os.fsencode(path)) for path in paths]
    return b"\0".join(field for folder, name in split for field in (folder, name, b"")) if split else b""


def entry(data: bytes = b"new", number: int = 0, mode: int = FILE | 0o644, mtime: int = TIME) -> bytes:
    return ENTRY.pack(number, mode, mtime, len(data)) + data


async def receive(
    lane: OutpostLane, root: Path, raw: bytes, *frames: tuple[int, bytes], large: bool = False
) -> dict[str, Any]:
    number = next(numbers)
    expected = {} if large else {"wanted": announced(raw, *frames)}
    done = lane.begin({"verb": "receive", "root": str(root), "large": large, **expected}, raw, number=number)
    for kind, body in frames:
        lane.pass_on(kind, number, body)
    lane.pass_on(wire.DONE, number, b"")
    return (await asyncio.wait_for(done, 15)).end


async def put(lane: OutpostLane, root: Path, name: str, data: bytes = b"new", **more: Any) -> dict[str, Any]:
    return await receive(lane, root, names(name), (wire.FILES, entry(data, **more)))


async def carry(
    source: OutpostLane, target: OutpostLane, roots: tuple[Path, Path], raw: bytes, verb: str = "send", **order: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """From one lane to the other: what each says at the end."""
    number = next(numbers)
    target_raw, large = order.pop("key", raw), verb == "part"
    expected = {} if large else {"wanted": described(roots[0], raw)}
    received = target.begin(
        {"verb": "receive", "root": str(roots[1]), "large": large, **expected}, target_raw, number=number
    )
    said = await asyncio.wait_for(
        source.begin({"verb": verb, "root": str(roots[0]), **order}, raw, number=number, to=target), 15
    )
    return said.end, (await asyncio.wait_for(received, 15)).end


def attributes(path: str | bytes, mode: int, mtime: int = TIME) -> bytes:
    text = os.fsencode(path)
    return ATTRIBUTES.pack(mode, mtime, len(text)) + text


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a folder, by path: a file's bytes, a link's target, None for a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = what
    return found


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# The text of the program, and its process


def test_all_pieces_are_sent_and_none_is_imported() -> None:
    tree = ast.parse(program.source(program.LANE))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"typing", "collections.abc"}


WALLED = (*program.WALLS[:-1], *program.LANE), (*program.WALLS[:-1], *program.OUTPOST)


@pytest.mark.parametrize("parts", WALLED, ids=["lane", "outpost"])
def test_no_piece_takes_a_name_of_another(parts: tuple[str, ...]) -> None:
    """They are joined into one text, where the last meaning of a name would be the only one."""
    owner: dict[str, str] = {}
    for piece in parts:
        for node in ast.parse(program.read_piece(piece)).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            found = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.append(node.name)
            for name in {*found} - {"MYPY"}:
                assert owner.setdefault(name, piece) == piece, name


def test_any_login_shell_passes_the_loader_on() -> None:
    assert not set("'\n\\!") & set(program.loader(program.LANE))


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3] + "/" + path.split("/")[-1])
async def test_it_runs_under_every_python(python: str, tmp_path: Path) -> None:
    source, target, old = tmp_path / "source", tmp_path / "made/on/the/way", DATA[:2_000_000]
    (source / "d").mkdir(parents=True)
    for name in HOSTILE_NAMES.values():
        (source / name).write_bytes(os.fsencode(name))
    (source / "d/link").symlink_to("../nowhere")
    (source / "d/.gitignore").write_text("*.o\n")
    (source / "d/x.o").touch()
    (source / "big").write_bytes(b"inserted" + old)
    lanes = [await start(python, environment={"HOME": str(tmp_path)}) for _ in range(2)]
    ours, theirs = lanes
    # All small ones.
    tree = await scan(ours, "~/source", gitignore=True, squeeze=True)
    small = [path for path, meta in listed(tree).items() if not meta.startswith(b"d") and path != "big"]
    assert sorted(small) == sorted([*HOSTILE_NAMES.values(), "d/.gitignore", "d/link"])
    first = await ask(ours, "follow", path="~/source", rules=[], gitignore=True, since=0)
    os.utime(source / "d/.gitignore")
    then = await ask(ours, "follow", path="~/source", rules=[], gitignore=True, since=first.end["number"])
    assert (first.end["whole"], then.end["whole"], then.end["watched"]) == (True, False, True)
    assert 0 < len(then.out) < len(first.out)
    for squeeze in ("", "zlib"):
        said, arrived = await carry(ours, theirs, (source, target), names(*small), squeeze=squeeze)
        assert (said["problem_count"], arrived["problem_count"], arrived["files"]) == (0, 0, len(small))
    assert listed(await scan(theirs, target)).keys() == {*small, "d"}
    assert (target / "two\nlines").read_bytes() == b"two\nlines"
    umask = os.umask(0)
    os.umask(umask)
    assert {mode_of(folder) for folder in (target, *target.parents[:2])} == {0o777 & ~umask}
    # A large one, whole and then by its changes.
    (target / "big").write_bytes(old)
    assert await send_changes(ours, theirs, source, target, "big") < 300_000
    assert (target / "big").read_bytes() == b"inserted" + old
    await ask(theirs, "finish", attributes("d", 0o2750), root=target)
    await ask(theirs, "touch", attributes("d/.gitignore", 0o4711), root=target)
    assert (mode_of(target / "d"), mode_of(target / "d/.gitignore")) == (0o2750, 0o4711)
    assert (await ask(theirs, "delete", b"d/link\0d/.gitignore\0\0d", root=target)).end["dirs"] == 1
    await asyncio.gather(*(lane.close() for lane in lanes))


async def send_changes(ours: OutpostLane, theirs: OutpostLane, source: Path, target: Path, name: str) -> int:
    """A large file by what has changed in it; how many bytes were sent."""
    raw, size, key = b"\0" + name.encode(), (source / name).stat().st_size, b"key"
    begun = (await ask(theirs, "begin", raw + b"\0" + key, root=target, size=size, first=True)).end
    assert begun["fresh"]
    assert begun["old"]["size"] == (target / name).stat().st_size
    mark = (await ask(ours, "mark", raw, root=source)).out
    old_index = (await ask(theirs, "index_old", key + b"\0" + mark, root=target)).out
    matcher, sent = Matcher(old_index, 1 << 20), 0
    new_index = (await ask(ours, "index", raw + b"\0" + mark, root=source)).out
    for span in [*matcher.feed(new_index), *matcher.rest()]:
        if span.place < 0:
            order = {"offset": span.offset, "length": span.length}
            await carry(ours, theirs, (source, target), raw, "part", key=key, **order)
            sent += span.length
        else:
            await receive(theirs, target, key, (wire.COPY, SAME.pack(span.offset, span.place, span.length)), large=True)
    now = (await ask(ours, "check", raw, root=source)).end
    order = {"mode": now["mode"], "mtime": now["mtime"], "size": now["size"], "uses_old": True}
    await ask(theirs, "commit", key, root=target, **order)
    assert (target / name).stat().st_mtime_ns == now["mtime"]
    return sent


@pytest.mark.parametrize(
    "ending",
    [
        b"",
        b"\0",
        wire.HEADER.pack(100, wire.REQUEST, 1) + b"{",
        wire.HEADER.pack(wire.MAX_BODY + 1, wire.REQUEST, 1),
        struct.pack(">IBI", 0xFFFFFFFF, 255, 0xFFFFFFFF) * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["nothing", "half a header", "half a frame", "too long", "longest", "http"],
)
def test_it_ends_cleanly_with_its_line(ending: bytes) -> None:
    argv = [sys.executable, "-IS", "-c", program.loader(program.LANE), "token"]
    done = subprocess.run(argv, input=program.packed(program.LANE) + ending, capture_output=True, timeout=15)
    greeting, _, hello = done.stdout.rpartition(b"token\n")
    assert (done.returncode, greeting, done.stderr) == (0, b"\n", b"")
    assert [kind for kind, _, _ in wire.split_frames(bytearray(hello))] == [wire.HELLO]


NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "no text": b"\xff",
    "no object": b"[]",
    "no verb": b"{}",
    "unknown verb": b'{"verb": "fly"}',
    "list as verb": b'{"verb": []}',
    "a verb of Python's": b'{"verb": "__init__", "root": "ROOT"}',
    "look at nothing": b'{"verb": "look"}',
    "look at NUL": b'{"verb": "look", "path": "a\\u0000b"}',
    "look at a surrogate": b'{"verb": "look", "path": "\\ud800"}',
    "no rules": b'{"verb": "scan", "path": "ROOT", "rules": 3}',
    "follow since nothing": b'{"verb": "follow", "path": "ROOT"}',
    "follow after a path": b'{"verb": "follow", "path": "ROOT", "since": 0, "after": "../x"}',
    "send from nowhere": b'{"verb": "send"}\0a\0b\0',
    "send from nothing": b'{"verb": "send", "root": "ROOT/missing"}\0a\0b\0',
    "a part without a length": b'{"verb": "part", "root": "ROOT", "offset": 0}\0\0file',
    "a part of too many": b'{"verb": "part", "root": "ROOT", "offset": 0, "length": 1}\0a\0b\0c',
    "a part that is no number": b'{"verb": "part", "root": "ROOT", "offset": null, "length": 1}\0\0file',
    "blocks without end": b'{"verb": "blocks", "root": "ROOT", "start": 0, "count": 1, "block": 1e400}\0\0file',
    "commit of nothing": b'{"verb": "commit", "root": "ROOT"}\0key',
    "a size that is none": b'{"verb": "begin", "root": "ROOT", "size": "much"}\0\0x\0key',
    "a size below nothing": b'{"verb": "begin", "root": "ROOT", "size": -1}\0\0x\0key',
    "a size beyond all": b'{"verb": "begin", "root": "ROOT", "size": 1180591620717411303424}\0\0x\0key',
    "a key that is a path": b'{"verb": "begin", "root": "ROOT", "size": 1}\0\0x\0../key',
    "join nothing": b'{"verb": "join", "root": "ROOT", "size": 1, "fresh": true}\0\0x\0key\0.remote-sandbox-part-key',
    "join what is not ours": b'{"verb": "join", "root": "ROOT", "size": 1, "fresh": true}\0\0x\0key\0file',
    "the index of nothing": b'{"verb": "index_old", "root": "ROOT"}\0key\0m',
    "half an attribute": b'{"verb": "finish", "root": "ROOT"}\0abc',
    "deep": b"[" * 100_000,
    "receive nowhere": b'{"verb": "receive"}\0\0a\0',
    "receive into a file": b'{"verb": "receive", "root": "ROOT/file"}\0\0a\0',
    "a folder without end": b'{"verb": "index", "root": "ROOT"}\0' + b"/".join([b"d"] * 40_000) + b"\0f\0m",
}


def ask_raw(lane: OutpostLane, body: bytes) -> asyncio.Future[Reply]:
    """A request as it is."""
    done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    number = next(numbers)
    lane._open[number] = _Request(done, bytearray(), None, None)
    lane.pass_on(wire.REQUEST, number, body)
    return done


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
async def test_a_malformed_request_is_answered_with_an_error(lane: OutpostLane, root: Path, body: bytes) -> None:
    (root / "file").write_bytes(b"old")
    with pytest.raises(FileProblem):
        await asyncio.wait_for(ask_raw(lane, body.replace(b"ROOT", str(root).encode())), 15)
    await ask(lane, "rest")
    assert {path: data for path, data in contents(root).items() if data != b""} == {"file": b"old"}


async def test_frames_for_unknown_requests_are_ignored(lane: OutpostLane, root: Path) -> None:
    for kind in (wire.FILES, wire.PART, wire.COPY, wire.SQUEEZED, wire.DONE, wire.PING, wire.CANCEL, 99):
        lane.pass_on(kind, next(numbers), entry())
    await ask(lane, "rest")
    assert contents(root) == {}


async def test_it_ends_when_its_line_is_closed(root: Path) -> None:
    lane = await here.open_lane()
    assert lane.squeezers[-1] == "zlib"
    waiting = lane.begin({"verb": "receive", "root": str(root), "wanted": ["f644"]}, names("a"), number=next(numbers))
    await lane.close()
    with pytest.raises(Unreachable):
        await waiting
    with pytest.raises(Unreachable):
        await lane.begin({"verb": "rest"})


# What is there: look and scan


async def test_what_is_at_a_path(lane: OutpostLane, tmp_path: Path, clean_environment: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    kinds = {"dir": "dir", "file": "file", "link": "dir", "dangling": "other", "fifo": "other", "x/y": "missing"}
    for name, kind in kinds.items():
        found = (await ask(lane, "look", path=tmp_path / name)).end
        assert (name, found["kind"], found["path"]) == (name, kind, str(tmp_path / name))
        assert found["real"] == os.path.realpath(tmp_path / name)
        assert found["home"] == os.path.realpath(clean_environment)
    assert await refused(lane, "look", path=tmp_path / "file/x") == "ENOTDIR"


HOMELY = {"nothing": ("", ""), "home": ("~", ""), "in it": ("~/a/b", "/a/b"), "relative": ("a/../b", "/b")}


@pytest.mark.parametrize(("path", "found"), HOMELY.values(), ids=HOMELY)
async def test_paths_start_at_home(lane: OutpostLane, clean_environment: Path, path: str, found: str) -> None:
    assert (await ask(lane, "look", path=path)).end["path"] == f"{clean_environment}{found}"


async def test_a_tree_with_odd_names(lane: OutpostLane, root: Path) -> None:
    for name in HOSTILE_NAMES.values():
        (root / name).mkdir()
        (root / name / name).write_bytes(b"x")
        os.utime(root / name / name, ns=(TIME, TIME))
        (root / name / name).chmod(0o4640)
    tree = await scan(lane, root)
    found = listed(tree)
    assert sorted(found) == sorted([*HOSTILE_NAMES.values(), *(f"{name}/{name}" for name in HOSTILE_NAMES.values())])
    assert {found[f"{name}/{name}"] for name in HOSTILE_NAMES.values()} == {b"f4640 1 %d" % TIME}
    for name in HOSTILE_NAMES.values():
        assert found[name] == b"d%o 0 %d" % (mode_of(root / name), (root / name).stat().st_mtime_ns)
    assert (tree.kind, tree.counts[b""], tree.counts[b"-rf"], tree.problem_count) == ("dir", 0, 1, 0)
    assert listed(await scan(lane, root, squeeze=True)) == found


async def test_links_are_listed_and_not_followed(lane: OutpostLane, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    (root / "folder").symlink_to("../outside")
    (root / "dangling").symlink_to(b"no \xff where")
    tree = await scan(lane, root)
    assert tree.folders == {b"": b"dangling\0l777 0 0 no \xff where\0folder\0l777 0 0 ../outside"}
    assert tree.counts == {b"": 2}


async def test_a_link_that_was_named_is_followed(lane: OutpostLane, root: Path, tmp_path: Path) -> None:
    (root / "a").touch()
    (tmp_path / "link").symlink_to("root")
    tree = await scan(lane, tmp_path / "link")
    assert list(listed(tree)) == ["a"]
    assert (tree.path, tree.real) == (str(tmp_path / "link"), os.path.realpath(root))
    (tmp_path / "to file").symlink_to("root/a")
    assert (await scan(lane, tmp_path / "to file")).meta.startswith(b"f644 0 ")


async def test_special_files_are_skipped_and_reported(lane: OutpostLane, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "file").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        tree = await scan(lane, root)
    assert list(listed(tree)) == ["file"]
    told = {problem.path: problem.reason for problem in tree.problems}
    assert told == {"fifo": "skipped: it is a fifo", "socket": "skipped: it is a socket"}
    # It was read, so that what else is missing may be deleted.
    assert (tree.problem_count, tree.unread, tree.counts[b""]) == (2, 0, 1)


async def test_temporary_files_of_syncs_are_never_listed(lane: OutpostLane, root: Path) -> None:
    (root / "d").mkdir()
    for path in (".remote-sandbox-sync-x", "d/.remote-sandbox-part-y", "d/.remote-sandboxes"):
        (root / path).touch()
    tree = await scan(lane, root)
    assert sorted(listed(tree)) == ["d", "d/.remote-sandboxes"]
    assert sorted(tree.leftovers) == [".remote-sandbox-sync-x", "d/.remote-sandbox-part-y"]


async def test_excluded_folders_are_not_read(lane: OutpostLane, root: Path) -> None:
    for folder in (".git/objects", "src/.git", "src/deep", "build"):
        (root / folder).mkdir(parents=True)
    for path in ("a.o", "src/b.o", "src/keep.o", "src/deep/c", "build/x", ".git/config"):
        (root / path).touch()
    rules = [".git", "*.o", "!keep.o", "/build/"]
    tree = await scan(lane, root, rules=rules, watched=[".git", "node_modules"])
    assert sorted(listed(tree)) == ["src", "src/deep", "src/deep/c", "src/keep.o"]
    assert tree.hits == (".git",)


async def test_gitignore_files_count_if_asked_for(lane: OutpostLane, root: Path) -> None:
    (root / "d").mkdir()
    for path in ("a.o", "b", "d/a.o", "d/b"):
        (root / path).touch()
    (root / ".gitignore").write_bytes(b"*.o\n\xff\n")
    (root / "d/.gitignore").write_text("!a.o\nb\n")
    tree = await scan(lane, root, gitignore=True)
    assert sorted(listed(tree)) == [".gitignore", "b", "d", "d/.gitignore", "d/a.o"]
    assert sorted(tree.gitignores) == [(b"", b"*.o\n\xff\n"), (b"d", b"!a.o\nb\n")]
    everything = await scan(lane, root)
    assert (len(listed(everything)), everything.gitignores) == (7, ())


async def test_a_gitignore_that_is_a_pipe_or_folder_is_reported_and_not_waited_for(
    lane: OutpostLane, root: Path
) -> None:
    (root / "d/.gitignore").mkdir(parents=True)
    os.mkfifo(root / ".gitignore")
    tree = await scan(lane, root, gitignore=True)
    assert sorted(listed(tree)) == ["d", "d/.gitignore"]
    assert {problem.path for problem in tree.problems} == {".gitignore", "d/.gitignore"}


async def test_a_long_listing_comes_in_parts(lane: OutpostLane, root: Path) -> None:
    (root / "a").mkdir()
    for number in range(5):
        (root / f"d{number}").mkdir()
        for inner in range(190):
            os.close(os.open(root / f"d{number}" / f"{inner:0250}", os.O_CREAT))
    parts: list[bytes] = []
    reply = await ask(lane, "scan", path=root, heard=parts.append)
    assert len(parts) > 1
    assert len(listed(read_tree(reply.end, parts))) == 956


async def test_a_tree_that_is_a_file_missing_or_neither(lane: OutpostLane, root: Path) -> None:
    (root / "file").write_bytes(b"12345")
    os.utime(root / "file", ns=(TIME, TIME))
    tree = await scan(lane, root / "file")
    assert (tree.kind, tree.meta, tree.folders) == ("file", b"f644 5 %d" % TIME, {})
    assert (await scan(lane, root / "missing")).kind == "missing"
    assert (await scan(lane, "/dev/null")).kind == "other"


def test_an_entry_that_vanishes_during_the_scan_is_reported(root: Path) -> None:
    for name in "abc":
        (root / name).mkdir()
    order = {"path": str(root)}
    survey = Survey(order, inspect_path(order))
    walk = survey.walk()
    assert next(walk)[0] == b""
    (root / "b").rmdir()
    assert [folder for folder, _, _ in walk] == [b"c", b"a"]
    assert survey.result()["problems"] == [["b", "No such file or directory"]]
    assert survey.result()["unread"] == 1


# Another user, for whom modes mean something; whoever runs the tests may be root


@pytest.fixture
def yard() -> Iterator[Path]:
    """A folder of the other user's."""
    folder = Path(tempfile.mkdtemp(prefix="rsmcp-lane-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture
async def stranger(yard: Path) -> AsyncIterator[OutpostLane]:
    """A lane of somebody who is not root."""
    python, prefix = sys.executable, []
    if os.geteuid() == 0:
        python = str(shutil.which("python3", path=SYSTEM_PATH))
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    lane = await start(*prefix, python, environment={"HOME": str(yard), "PATH": SYSTEM_PATH})
    yield lane
    await lane.close()


def give(path: Path) -> Path:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def make_folder(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return give(path)


def make_file(path: Path, data: bytes = b"old", mode: int = 0o644) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return give(path)


async def test_an_unreadable_folder_is_reported_and_listed(stranger: OutpostLane, yard: Path) -> None:
    make_file(make_folder(yard / "open", 0o755) / "a")
    make_file(make_folder(yard / "closed", 0o755) / "secret")
    (yard / "closed").chmod(0o000)
    tree = await scan(stranger, yard)
    assert sorted(listed(tree)) == ["closed", "open", "open/a"]
    assert b"closed" not in tree.folders
    assert (tree.unread, [problem.path for problem in tree.problems]) == (1, ["closed"])


async def test_a_top_folder_that_cannot_be_read_is_refused(stranger: OutpostLane, yard: Path) -> None:
    make_folder(yard / "closed", 0o000)
    assert await refused(stranger, "scan", path=yard / "closed") == "EACCES"


async def test_an_unreadable_file_is_reported_and_the_others_are_sent(
    stranger: OutpostLane, lane: OutpostLane, yard: Path, root: Path
) -> None:
    make_file(yard / "a")
    make_file(yard / "closed", mode=0)
    said, arrived = await carry(stranger, lane, (yard, root), names("closed", "a"))
    assert said["problems"] == [["closed", "Permission denied"]]
    assert (arrived["files"], contents(root)) == (1, {"a": b"old"})
    digests = (await ask(stranger, "digests", names("closed", "a"), root=yard)).out
    assert digests == bytes(16) + hashlib.sha256(b"old").digest()[:16]


async def test_read_only_folders_are_written_to_and_get_their_modes_back(stranger: OutpostLane, yard: Path) -> None:
    folder = make_folder(yard / "closed", 0o755)
    make_folder(folder / "empty", 0o755)
    for name in ("file", "extra", "kind"):
        make_file(folder / name)
    folder.chmod(0o555)
    assert (await put(stranger, yard, "closed/file"))["files"] == 1
    # Others see no less of it meanwhile.
    assert mode_of(folder) == 0o755
    folder.chmod(0o555)
    assert (await put(stranger, yard, "closed/new/file"))["files"] == 1
    folder.chmod(0o555)
    assert (await ask(stranger, "clear", b"closed/kind", root=yard)).end["problem_count"] == 0
    folder.chmod(0o555)
    assert (await ask(stranger, "clear", b"closed/empty", root=yard)).end["problem_count"] == 0
    folder.chmod(0o555)
    assert (await ask(stranger, "delete", b"closed/extra\0\0", root=yard)).end["files"] == 1
    folder.chmod(0o555)
    begun = await ask(stranger, "begin", b"closed\0big\0key", root=yard, size=3, first=True)
    assert begun.end["fresh"]
    await receive(stranger, yard, b"key", (wire.PART, PIECE.pack(0, 0) + b"big"), large=True)
    await ask(stranger, "commit", b"key", root=yard, mode=0o444, mtime=TIME, size=3)
    await ask(stranger, "finish", attributes("closed/new", 0o500) + attributes("closed", 0o555), root=yard)
    assert (mode_of(folder), folder.stat().st_mtime_ns, mode_of(folder / "new")) == (0o555, TIME, 0o500)
    (folder / "new").chmod(0o755)
    assert contents(folder) == {"big": b"big", "file": b"new", "new": None, "new/file": b"new"}


async def test_folders_of_other_users_are_not_forced_open(stranger: OutpostLane, tmp_path: Path, yard: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("there is nobody else")
    (yard / "theirs").mkdir(mode=0o755)
    (yard / "theirs/file").write_bytes(b"old")
    arrived = await put(stranger, yard, "theirs/file")
    assert (arrived["files"], arrived["problems"]) == (0, [["theirs/file", "Operation not permitted"]])
    for verb, raw in (
        ("delete", b"theirs/file\0\0"),
        ("clear", b"theirs/file"),
        ("touch", attributes("theirs/file", 0)),
    ):
        assert (await ask(stranger, verb, raw, root=yard)).end["problem_count"] == 1
    assert contents(yard) == {"theirs": None, "theirs/file": b"old"}
    assert mode_of(yard / "theirs") == 0o755


# Small files and links


MODES = [0o644, 0o600, 0o444, 0o000, 0o777, 0o4755, 0o2755, 0o1644, 0o7777]


@pytest.mark.parametrize("mode", MODES, ids=oct)
async def test_modes_and_times_arrive(lane: OutpostLane, root: Path, mode: int) -> None:
    for name, mtime in (("a", TIME), ("b", 0), ("c", -5), ("d", 4_000_000_000_000_000_001)):
        assert (await put(lane, root, name, mode=FILE | mode, mtime=mtime))["files"] == 1
        assert (mode_of(root / name), (root / name).stat().st_mtime_ns) == (mode, mtime)


@pytest.fixture(params=["named at the end", "renamed", "without /proc"])
def put_new(
    request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Puts a file where the scan found nothing, in each of the ways that file systems leave us."""
    if request.param == "without /proc":
        monkeypatch.setattr(far_target, "DESCRIPTORS", str(root / "none"))
    target = far_target.Target(Root(os.fsencode(root)))
    if request.param == "renamed":
        target.use_names()

    def put_new(name: bytes, data: bytes = b"new", mode: int = 0o644) -> None:
        expected = Expected(b"f%o %d %d" % (mode, len(data), TIME), b"")
        target.put(b"", name, expected, TIME, memoryview(data))

    yield put_new
    target.close()


@pytest.mark.parametrize("mode", [0o644, 0o400, 0o4755])
def test_a_new_file_has_its_content_mode_and_time(put_new: Callable[..., None], root: Path, mode: int) -> None:
    put_new(b"f", mode=mode)
    assert ((root / "f").read_bytes(), mode_of(root / "f")) == (b"new", mode)
    assert (root / "f").stat().st_mtime_ns == TIME
    assert sorted(os.listdir(root)) == ["f"]


@pytest.mark.parametrize("other", ["file", "link"])
def test_a_new_file_never_replaces_one_that_appeared_meanwhile(
    put_new: Callable[..., None], root: Path, other: str
) -> None:
    (root / "f").symlink_to("mine") if other == "link" else (root / "f").write_text("mine")
    with pytest.raises(OSError, match="was changed at the target"):
        put_new(b"f")
    assert os.readlink(root / "f") == "mine" if other == "link" else (root / "f").read_text() == "mine"
    assert os.listdir(root) == ["f"]


def test_a_new_file_is_put_where_the_same_file_appeared_meanwhile(put_new: Callable[..., None], root: Path) -> None:
    put_new(b"f")
    put_new(b"f")
    assert (root / "f").read_bytes() == b"new"


async def test_a_file_arrives_from_a_lane_as_it_is(lane: OutpostLane, other: OutpostLane, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (ours / "d/e").mkdir(parents=True)
    files = {"empty": b"", "small": b"x", "d/e/most": DATA[:LARGEST_WHOLE], "d/zeros": bytes(300_000)}
    for name, data in files.items():
        (ours / name).write_bytes(data)
        (ours / name).chmod(0o640)
        os.utime(ours / name, ns=(TIME, TIME))
    (ours / "d/link").symlink_to("to/nowhere")
    for squeeze in ("", "zlib"):
        roots = (ours, theirs / (squeeze or "raw"))
        said, arrived = await carry(lane, other, roots, names(*files, "d/link"), squeeze=squeeze)
        assert said == {"problems": [], "problem_count": 0, "unread": 0}
        assert (arrived["files"], arrived["bytes"]) == (5, sum(map(len, files.values())) + len("to/nowhere"))
        assert (
            listed(await scan(other, roots[1])).items()
            >= {
                path: meta for path, meta in listed(await scan(lane, ours)).items() if not meta.startswith(b"d")
            }.items()
        )
        assert contents(roots[1]) == contents(ours)


async def test_a_link_is_replaced_and_not_written_through(lane: OutpostLane, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"old")
    (root / "a").symlink_to("../outside")
    await put(lane, root, "a")
    assert contents(root) == {"a": b"new"}
    assert not (root / "a").is_symlink()
    await put(lane, root, "a", b"../outside", mode=LINK | 0o777)
    assert contents(root) == {"a": "../outside"}
    assert (root / "a").lstat().st_mtime_ns == TIME
    assert (tmp_path / "outside").read_bytes() == b"old"


async def test_another_name_of_an_old_file_keeps_the_old_content(lane: OutpostLane, root: Path) -> None:
    (root / "a").write_bytes(b"old")
    os.link(root / "a", root / "b")
    await put(lane, root, "a")
    assert contents(root) == {"a": b"new", "b": b"old"}


# A folder or a name that would lead out of the tree, or is none.
ESCAPES: dict[str, tuple[bytes, bytes]] = {
    "up": (b"", b".."),
    "here": (b"", b"."),
    "a path up": (b"", b"../outside"),
    "a path": (b"", b"a/b"),
    "an absolute path": (b"", b"/tmp/rsmcp-escaped"),
    "a folder up": (b"..", b"outside"),
    "a folder up, later": (b"d/../..", b"outside"),
    "an absolute folder": (b"/tmp", b"rsmcp-escaped"),
    "a folder without a name": (b"d//e", b"x"),
    "a folder with an end": (b"d/", b"x"),
    "a folder that is a link": (b"link", b"secret"),
    "a folder below a link": (b"link/deep", b"secret"),
    "a folder that is a file": (b"file", b"x"),
    "a link to its own folder": (b"self", b"file"),
}


@pytest.fixture
def trap(root: Path, tmp_path: Path) -> Path:
    """A tree from which something could lead out."""
    (tmp_path / "outside/deep").mkdir(parents=True)
    for path in ("outside/secret", "outside/deep/secret"):
        (tmp_path / path).write_bytes(b"old")
    (root / "d").mkdir()
    (root / "file").write_bytes(b"old")
    (root / "link").symlink_to("../outside")
    (root / "self").symlink_to(".")
    return root


def unharmed(trap: Path) -> dict[str, Any]:
    """What is around a trap, with modes."""
    around = trap.parent
    return {path: (what, mode_of(around / path)) for path, what in contents(around).items()}


@pytest.mark.parametrize(("folder", "name"), ESCAPES.values(), ids=ESCAPES)
async def test_no_name_leads_out_of_a_tree(lane: OutpostLane, trap: Path, folder: bytes, name: bytes) -> None:
    before, raw = unharmed(trap), folder + b"\0" + name
    arrived = await receive(lane, trap, raw + b"\0\0\0good\0", (wire.FILES, entry() + entry(number=1)))
    assert (arrived["files"], arrived["problem_count"]) == (1, 1)
    (trap / "good").unlink()
    assert await refused(lane, "begin", raw + b"\0key", root=trap, size=3, first=True)
    assert await refused(lane, "join", raw + b"\0key\0.remote-sandbox-part-x", root=trap, size=3, fresh=True)
    assert unharmed(trap) == before
    assert not os.path.lexists("/tmp/rsmcp-escaped")


@pytest.mark.parametrize(("folder", "name"), ESCAPES.values(), ids=ESCAPES)
async def test_nothing_outside_of_a_tree_is_read(lane: OutpostLane, trap: Path, folder: bytes, name: bytes) -> None:
    raw = folder + b"\0" + name
    for verb in ("send", "digests"):
        sending = lane.begin({"verb": verb, "root": str(trap)}, raw + b"\0")
        done = (await asyncio.gather(asyncio.wait_for(sending, 15), return_exceptions=True))[0]
        if isinstance(done, FileProblem):
            assert done.reason == "name"
        else:
            assert isinstance(done, Reply)
            assert done.end.get("problem_count", 1) == 1
            assert done.out in (b"", bytes(16))
    for verb, tail in (("index", b"\0\n"), ("check", b""), ("mark", b""), ("blocks", b""), ("part", b"")):
        order = {"root": trap, "start": 0, "count": 1, "block": 9, "offset": 0, "length": 9}
        assert await refused(lane, verb, raw + tail, **order)


OUTWARDS = [b"..", b".", b"../outside", b"../outside/secret", b"/tmp/rsmcp-escaped", b"d/../../outside/secret"]
OUTWARDS += [b"d//e", b"d/", b"link/secret", b"link/deep", b"file/x", b"self/file", b"self/d", b"d/.."]


@pytest.mark.parametrize("path", OUTWARDS, ids=os.fsdecode)
async def test_no_path_leads_out_of_a_tree(lane: OutpostLane, trap: Path, path: bytes) -> None:
    before = unharmed(trap)
    for verb, raw in (
        ("delete", path + b"\0\0"),
        ("delete", b"\0\0" + path),
        ("clear", path),
        ("touch", attributes(path, 0o777)),
        ("finish", attributes(path, 0o777)),
    ):
        end = (await ask(lane, verb, raw, root=trap)).end
        assert (verb, end["problem_count"]) == (verb, 1)
    assert (await ask(lane, "tidy", path, root=trap)).end["removed"] == 0
    assert unharmed(trap) == before
    assert not os.path.lexists("/tmp/rsmcp-escaped")


BROKEN: dict[str, tuple[int, bytes]] = {
    "a name that was not announced": (wire.FILES, entry(number=2)),
    "the last name there can be": (wire.FILES, entry(number=0xFFFFFFFF)),
    "half a head": (wire.FILES, entry(b"")[:7]),
    "a length that lies": (wire.FILES, ENTRY.pack(1, FILE | 0o644, TIME, 100) + b"short"),
    "a length beyond all": (wire.FILES, ENTRY.pack(1, FILE | 0o644, TIME, 0xFFFFFFFF) + b"short"),
    "more than a small file": (wire.FILES, entry(bytes(LARGEST_WHOLE + 1), number=1)),
    "a part": (wire.PART, PIECE.pack(0, 0) + b"x"),
    "a copy": (wire.COPY, SAME.pack(0, 0, 1)),
    "an unknown kind": (99, b"x"),
    "a kind for others": (wire.OUT, b"x"),
    "a request's answer": (wire.END, b"{}"),
    "an empty compressed frame": (wire.SQUEEZED, b""),
    "a compressed frame without a way": (wire.SQUEEZED, bytes([wire.FILES])),
    "an unknown way": (wire.SQUEEZED, bytes([wire.FILES]) + b"q" + zlib.compress(entry(number=1))),
    "not compressed": (wire.SQUEEZED, bytes([wire.FILES]) + b"z" + entry(number=1)),
    "not compressed, otherwise": (wire.SQUEEZED, bytes([wire.FILES]) + b"s" + entry(number=1)),
    "compressed and cut off": (wire.SQUEEZED, bytes([wire.FILES]) + b"z" + zlib.compress(entry(number=1))[:-5]),
    "a compressed part": (wire.SQUEEZED, bytes([wire.PART]) + b"z" + zlib.compress(PIECE.pack(0, 0) + b"x")),
    "compressed twice": (
        wire.SQUEEZED,
        bytes([wire.SQUEEZED]) + b"z" + zlib.compress(bytes([wire.FILES]) + b"z" + zlib.compress(entry(number=1))),
    ),
}


@pytest.mark.parametrize(("kind", "body"), BROKEN.values(), ids=BROKEN)
async def test_frames_that_were_not_announced_are_refused(
    lane: OutpostLane, root: Path, kind: int, body: bytes
) -> None:
    with pytest.raises(FileProblem) as raised:
        await receive(lane, root, names("a", "b"), (wire.FILES, entry()), (kind, body), (wire.FILES, entry(number=1)))
    assert raised.value.reason == "broken"
    # What had arrived by then stays, and nothing else comes.
    assert contents(root) == {"a": b"new"}
    assert (await put(lane, root, "b"))["files"] == 1


async def test_a_compressed_frame_that_expands_too_far_is_refused(lane: OutpostLane, root: Path) -> None:
    (root / "a").write_bytes(b"old")
    bomb = zlib.compress(bytes(wire.MAX_BODY + 1), 9)
    assert len(bomb) < 100_000
    with pytest.raises(FileProblem, match="too long"):
        await receive(lane, root, names("a"), (wire.SQUEEZED, bytes([wire.FILES]) + b"z" + bomb))
    assert contents(root) == {"a": b"old"}
    # What was used for it is bounded, too.
    status = Path(f"/proc/{process_of(lane)}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 300_000


def process_of(lane: OutpostLane) -> int:
    process = lane._line._process  # type: ignore[attr-defined]
    return int(process.pid)


async def test_compressed_frames_are_expanded(lane: OutpostLane, root: Path) -> None:
    body = bytes([wire.FILES]) + b"z" + zlib.compress(entry(bytes(100_000)))
    arrived = await receive(lane, root, names("a"), (wire.SQUEEZED, body))
    assert (arrived["files"], arrived["bytes"], contents(root)) == (1, 100_000, {"a": bytes(100_000)})


async def test_a_file_that_cannot_be_written_is_reported_and_the_rest_goes_on(lane: OutpostLane, root: Path) -> None:
    (root / "folder/x").mkdir(parents=True)
    raw = names("folder", "link", "nul", "empty", "long", "good")
    bad_links = [entry(data, number, LINK | 0o777) for number, data in ((2, b"a\0b"), (3, b""), (4, b"x" * 5000))]
    arrived = await receive(
        lane, root, raw, (wire.FILES, entry()), (wire.FILES, b"".join(bad_links)), (wire.FILES, entry(number=5))
    )
    assert (arrived["files"], arrived["bytes"]) == (1, 3)
    assert sorted(path for path, _ in arrived["problems"]) == ["empty", "folder", "long", "nul"]
    assert contents(root) == {"folder": None, "folder/x": None, "good": b"new"}


async def test_folders_on_the_way_are_closed_to_others_until_they_are_finished(lane: OutpostLane, root: Path) -> None:
    await put(lane, root, "a/b/c")
    assert (mode_of(root / "a"), mode_of(root / "a/b")) == (0o700, 0o700)
    await ask(lane, "finish", attributes("a/b", 0o750) + attributes("a", 0o1777, 7), root=root)
    assert (mode_of(root / "a/b"), mode_of(root / "a"), (root / "a").stat().st_mtime_ns) == (0o750, 0o1777, 7)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """For folders deeper than Python's own tools could remove them."""
    yield tmp_path / "deep"
    subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)


async def test_very_many_and_very_deep_folders_are_no_trouble(lane: OutpostLane, deep: Path) -> None:
    paths = [*("/".join(["d"] * depth) + "/x" for depth in (1, 100, 1100)), *(f"f{number}/x" for number in range(100))]
    records = b"".join(entry(number=number) for number in range(len(paths)))
    for order in (paths, paths[::-1]):
        arrived = await receive(lane, deep, names(*order), (wire.FILES, records))
        assert (arrived["files"], arrived["problem_count"]) == (len(paths), 0)
    assert len(os.listdir(f"/proc/{process_of(lane)}/fd")) < 100


# Files that are not what they were


async def test_a_file_that_changed_since_the_scan_is_sent_as_it_is_now(
    lane: OutpostLane, other: OutpostLane, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "ours").mkdir()
    for name in ("grown", "shrunk", "folder", "gone", "fifo", "link"):
        (tmp_path / "ours" / name).write_bytes(b"12345")
    await scan(lane, tmp_path / "ours")
    (tmp_path / "ours/grown").write_bytes(b"1234567890")
    (tmp_path / "ours/shrunk").write_bytes(b"1")
    for name in ("folder", "gone", "fifo", "link"):
        (tmp_path / "ours" / name).unlink()
    (tmp_path / "ours/folder").mkdir()
    os.mkfifo(tmp_path / "ours/fifo")
    (tmp_path / "ours/link").symlink_to("x")
    raw = names("grown", "shrunk", "folder", "gone", "fifo", "link")
    said, arrived = await carry(lane, other, (tmp_path / "ours", root), raw)
    assert contents(root) == {"grown": b"1234567890", "shrunk": b"1", "link": "x"}
    assert (root / "grown").stat().st_mtime_ns == (tmp_path / "ours/grown").stat().st_mtime_ns
    told = {path: reason for path, reason in said["problems"]}
    assert told == {
        "folder": "is no longer a file",
        "fifo": "is no longer a file",
        "gone": "No such file or directory",
    }
    assert arrived["files"] == 3
    zeros = (await ask(lane, "digests", names("folder", "gone", "fifo", "link"), root=tmp_path / "ours")).out
    assert zeros == bytes(64)


async def test_a_small_file_that_became_large_is_reported(
    lane: OutpostLane, other: OutpostLane, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "log").write_bytes(DATA[: LARGEST_WHOLE + 10])
    said, _ = await carry(lane, other, (tmp_path, root), names("log"))
    assert [path for path, _ in said["problems"]] == ["log"]
    assert "changed while it was read" in said["problems"][0][1]
    # It has another size, so that the next sync sees it.
    assert (root / "log").read_bytes() == DATA[:LARGEST_WHOLE]


async def test_a_file_with_a_wrong_size_is_reported(lane: OutpostLane, other: OutpostLane, root: Path) -> None:
    kernel = Path("/sys/kernel")
    name = next(
        path.name
        for path in kernel.iterdir()
        if path.is_file() and os.access(path, os.R_OK) and path.stat().st_size == 4096
    )
    said, arrived = await carry(lane, other, (kernel, root), names(name))
    assert [path for path, _ in said["problems"]] == [name]
    assert (arrived["files"], (root / name).read_bytes()) == (1, (kernel / name).read_bytes())
    # One that says it is empty is sent as empty.
    said, _ = await carry(lane, other, (Path("/proc"), root), names("version"))
    assert (said["problem_count"], (root / "version").read_bytes()) == (0, b"")


async def test_a_large_file_that_shrank_is_sent_at_its_new_size(
    lane: OutpostLane, other: OutpostLane, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "big").write_bytes(DATA)
    raw, roots = b"\0big", (tmp_path, root)
    for squeeze in ("", "zlib"):
        await ask(other, "begin", b"\0big\0key", root=root, size=len(DATA), first=True)
        os.truncate(tmp_path / "big", 1_500_000)
        for offset in range(0, len(DATA), 1 << 20):
            order = {"offset": offset, "length": 1 << 20, "squeeze": squeeze}
            await carry(lane, other, roots, raw, "part", key=b"key", **order)
        size = (await ask(lane, "check", raw, root=tmp_path)).end["size"]
        await ask(other, "commit", b"key", root=root, mode=0o644, mtime=TIME, size=size)
        assert (root / "big").read_bytes() == DATA[:1_500_000]
        (root / "big").unlink()
        (tmp_path / "big").write_bytes(DATA)


def test_a_read_error_does_not_break_the_frames(root: Path) -> None:
    reading, writing = os.pipe()
    folder = os.open(root, os.O_RDONLY)
    try:
        speaker = Speaker(7, "", lambda data: wire.write_all(writing, data), writing)
        with pytest.raises(OSError):
            speaker.say_part(folder, 0, 100)
        speaker.done()
        frames = wire.split_frames(bytearray(os.read(reading, 1000)))
    finally:
        for fd in (reading, writing, folder):
            os.close(fd)
    assert frames == [(wire.PART, 7, PIECE.pack(0, 0) + bytes(100)), (wire.DONE, 7, b"")]


async def test_a_large_file_that_was_replaced_is_noticed(lane: OutpostLane, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    os.utime(tmp_path / "big", ns=(TIME, TIME))
    await ask(lane, "blocks", b"\0big", root=tmp_path, start=0, count=1, block=1 << 20)
    (tmp_path / "new").write_bytes(DATA[1:])
    os.replace(tmp_path / "new", tmp_path / "big")
    assert (await ask(lane, "check", b"\0big", root=tmp_path)).end["size"] == len(DATA) - 1
    await ask(lane, "blocks", b"\0big", root=tmp_path, start=0, count=1, block=1 << 20)
    (tmp_path / "big").unlink()
    assert (await ask(lane, "check", b"\0big", root=tmp_path)).end["size"] == len(DATA) - 1


# Large files


def part(offset: int, data: bytes = b"", hole: int = 0) -> tuple[int, bytes]:
    return wire.PART, PIECE.pack(offset, hole) + data


async def begin(
    lane: OutpostLane, root: Path, size: int, raw: bytes = b"\0big\0key", first: bool = True
) -> dict[str, Any]:
    return (await ask(lane, "begin", raw, root=root, size=size, first=first)).end


async def join(lane: OutpostLane, root: Path, size: int, begun: dict[str, Any]) -> None:
    raw = b"\0big\0key\0" + begun["partial"].encode()
    await ask(lane, "join", raw, root=root, size=size, fresh=begun["fresh"])


async def commit(lane: OutpostLane, root: Path, size: int, **more: Any) -> dict[str, Any]:
    order = {"mode": 0o640, "mtime": TIME, "size": size, **more}
    return (await ask(lane, "commit", b"key", root=root, **order)).end


async def test_two_lanes_write_one_file(lane: OutpostLane, other: OutpostLane, root: Path) -> None:
    (root / "big").write_bytes(b"old")
    size = len(DATA)
    begun = await begin(lane, root, size)
    assert (begun["fresh"], begun["partial"], begun["old"]["size"]) == (True, ".remote-sandbox-part-key", 3)
    await join(other, root, size, begun)
    steps = range(0, size, 100_000)
    frames = [part(at, DATA[at : at + 100_000]) for at in steps]
    arrived = await asyncio.gather(
        receive(lane, root, b"key", *frames[::2], large=True), receive(other, root, b"key", *frames[1::2], large=True)
    )
    assert sum(end["bytes"] for end in arrived) == size
    # The old one is there until the new one is.
    assert (root / "big").read_bytes() == b"old"
    end = await commit(lane, root, size)
    await ask(other, "leave", b"key", root=root)
    await ask(other, "leave", b"never heard of", root=root)
    assert (root / "big").read_bytes() == DATA
    assert (mode_of(root / "big"), (root / "big").stat().st_mtime_ns) == (0o640, TIME)
    assert list(contents(root)) == ["big"]
    assert end["state"] == (await begin(lane, root, size))["old"]["state"]


async def test_holes_stay_holes(lane: OutpostLane, other: OutpostLane, tmp_path: Path, root: Path) -> None:
    size = 50 << 20
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(size)
        file.seek(20 << 20)
        file.write(b"in the middle")
    await begin(other, root, size)
    _, arrived = await carry(lane, other, (tmp_path, root), b"\0sparse", "part", key=b"key", offset=0, length=size)
    assert arrived["bytes"] == size
    await commit(other, root, size)
    assert (root / "big").read_bytes() == (tmp_path / "sparse").read_bytes()
    assert (root / "big").stat().st_blocks <= (tmp_path / "sparse").stat().st_blocks + 8


async def test_a_hole_in_what_is_resumed_is_zeros(lane: OutpostLane, root: Path) -> None:
    (root / ".remote-sandbox-part-key").write_bytes(b"x" * 300_000)
    assert not (await begin(lane, root, 300_000))["fresh"]
    await receive(lane, root, b"key", part(100, hole=200_000), part(5, b"data"), large=True)
    await commit(lane, root, 300_000)
    assert (root / "big").read_bytes() == b"x" * 5 + b"data" + b"x" * 91 + bytes(200_000) + b"x" * 99_900


async def test_a_partial_file_of_a_dead_transfer_is_resumed(lane: OutpostLane, other: OutpostLane, root: Path) -> None:
    await begin(other, root, len(DATA))
    await receive(other, root, b"key", part(1 << 20, DATA[1 << 20 : 2 << 20]), large=True)
    await other.close()
    begun = await begin(lane, root, len(DATA))
    assert (begun["fresh"], begun["partial"]) == (False, ".remote-sandbox-part-key")
    (root / "whole").write_bytes(DATA)
    order = {"root": root, "start": 0, "count": 3, "block": 1 << 20}
    ours = (await ask(lane, "blocks", b"\0whole", **order)).out
    theirs = (await ask(lane, "partial_blocks", b"key", **order)).out
    assert [ours[at : at + 16] == theirs[at : at + 16] for at in (0, 16, 32)] == [False, True, False]


async def test_a_partial_file_that_another_transfer_writes_is_not_used(
    lane: OutpostLane, other: OutpostLane, root: Path
) -> None:
    mine = await begin(lane, root, 6)
    theirs = await begin(other, root, 6)
    assert theirs["fresh"]
    assert theirs["partial"].startswith(mine["partial"] + "-")
    await receive(lane, root, b"key", part(0, b"mine.."), large=True)
    await receive(other, root, b"key", part(0, b"theirs"), large=True)
    await commit(other, root, 6)
    assert (root / "big").read_bytes() == b"theirs"
    await commit(lane, root, 6)
    assert contents(root) == {"big": b"mine.."}


async def test_a_file_is_begun_once(lane: OutpostLane, root: Path) -> None:
    await begin(lane, root, 6)
    await receive(lane, root, b"key", part(0, b"first."), large=True)
    assert await refused(lane, "begin", b"d\0other\0key", root=root, size=3, first=True) == "busy"
    await commit(lane, root, 6)
    assert contents(root) == {"big": b"first."}


async def test_a_file_that_could_not_be_begun_is_not_locked(lane: OutpostLane, other: OutpostLane, root: Path) -> None:
    for size in (-1, 1 << 70):
        assert await refused(lane, "begin", b"\0big\0key", root=root, size=size, first=True)
    assert (await begin(other, root, 3))["partial"] == ".remote-sandbox-part-key"


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("../outside", path)], ids=["fifo", "folder", "link"]
)
async def test_something_else_by_a_partial_files_name_is_not_written_to(
    lane: OutpostLane, trap: Path, tmp_path: Path, make: Any
) -> None:
    make(trap / ".remote-sandbox-part-key")
    before = sorted(contents(tmp_path / "outside").items())
    await refused(lane, "begin", b"\0big\0key", root=trap, size=3, first=True)
    assert sorted(contents(tmp_path / "outside").items()) == before
    assert not (trap / "big").exists()


BEYOND: dict[str, tuple[tuple[int, bytes], str]] = {
    "a part at the end": (part(6, b"x"), "bounds"),
    "a part over the end": (part(3, b"xxxx"), "bounds"),
    "a part far away": (part((1 << 64) - 1, b"x"), "bounds"),
    "a hole over the end": (part(3, hole=4), "bounds"),
    "a hole beyond all": (part(0, hole=(1 << 64) - 1), "bounds"),
    "half a part": ((wire.PART, b"abc"), "broken"),
    "a copy over the end": ((wire.COPY, SAME.pack(3, 0, 4)), "bounds"),
    "a copy from behind the old file": ((wire.COPY, SAME.pack(0, 2, 4)), "stale"),
    "a copy from far away": ((wire.COPY, SAME.pack(0, (1 << 64) - 1, 4)), "broken"),
    "half a copy": ((wire.COPY, SAME.pack(0, 0, 1)[:-1]), "broken"),
    "a small file": ((wire.FILES, entry()), "broken"),
}


@pytest.mark.parametrize(("frame", "reason"), BEYOND.values(), ids=BEYOND)
async def test_a_part_that_does_not_fit_is_refused(
    lane: OutpostLane, root: Path, frame: tuple[int, bytes], reason: str
) -> None:
    (root / "big").write_bytes(b"old!")
    await begin(lane, root, 6)
    with pytest.raises(FileProblem) as raised:
        await receive(lane, root, b"key", part(0, b"good"), frame, part(0, b"late"), large=True)
    assert raised.value.reason == reason
    written = (root / ".remote-sandbox-part-key").read_bytes()
    assert (len(written), b"late" in written) == (6, False)
    assert (root / "big").read_bytes() == b"old!"


async def test_a_part_of_a_file_that_was_not_begun_is_refused(lane: OutpostLane, root: Path) -> None:
    for frame in (part(0, b"x"), (wire.COPY, SAME.pack(0, 0, 1))):
        with pytest.raises(FileProblem):
            await receive(lane, root, b"key", frame, large=True)
    await begin(lane, root, 3)
    # There is no old file to copy from.
    with pytest.raises(FileProblem):
        await receive(lane, root, b"key", (wire.COPY, SAME.pack(0, 0, 1)), large=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"OLD"),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: path.open("ab").close() or path.chmod(0o600),
        lambda path: os.truncate(path, 1),
    ],
    ids=["written", "touched", "mode", "cut"],
)
async def test_an_old_file_that_changed_while_it_was_used_is_noticed(
    lane: OutpostLane, root: Path, change: Any
) -> None:
    for uses_old in (True, False):
        (root / "big").write_bytes(b"old")
        await begin(lane, root, 3)
        await receive(lane, root, b"key", (wire.COPY, SAME.pack(0, 0, 3)), large=True)
        change(root / "big")
        if uses_old:
            with pytest.raises(FileProblem) as raised:
                await commit(lane, root, 3, uses_old=True)
            assert raised.value.reason == "stale"
        else:
            await commit(lane, root, 3)
            assert contents(root) == {"big": b"old"}


async def test_only_what_changed_is_sent(lane: OutpostLane, other: OutpostLane, tmp_path: Path, root: Path) -> None:
    changes = {
        "the same": DATA,
        "a byte before": b"x" + DATA,
        "a byte in the middle": DATA[:1_500_000] + b"x" + DATA[1_500_000:],
        "some bytes less": DATA[:1_000_000] + DATA[1_010_000:],
        "more behind": DATA + DATA[:10_000],
    }
    for name, data in changes.items():
        (tmp_path / name).write_bytes(data)
        (root / name).write_bytes(DATA)
        assert await send_changes(lane, other, tmp_path, root, name) <= 2 * chunks.MOST_CHUNK
        assert (root / name).read_bytes() == data


async def test_an_answer_may_be_longer_than_a_frame(lane: OutpostLane, root: Path) -> None:
    await begin(lane, root, 100_000)
    heard: list[bytes] = []
    await ask(lane, "partial_blocks", b"key", root=root, start=0, count=70_000, block=1, heard=heard.append)
    assert (len(heard) > 1, len(b"".join(heard))) == (True, 16 * 70_000)


# Pieces


def opened(folder: Path, data: bytes) -> int:
    (folder / "file").write_bytes(data)
    return os.open(folder / "file", os.O_RDWR)


def pieces(fd: int, mark: bytes) -> list[bytes]:
    found = [(offset, bytes(piece)) for offset, piece in chunks.cut(fd, mark)]
    assert [offset for offset, _ in found] == [sum(len(piece) for _, piece in found[:at]) for at in range(len(found))]
    return [piece for _, piece in found]


TEXT = b"".join(b"line %d of a log that goes on and on\n" % number for number in range(80_000))
DEGENERATE: dict[str, bytes] = {
    "nothing": b"",
    "a byte": b"x",
    "less than a piece": DATA[: chunks.LEAST_CHUNK - 1],
    "a piece": DATA[: chunks.MOST_CHUNK],
    "a byte more": DATA[: chunks.MOST_CHUNK + 1],
    "a window": DATA[: chunks.WINDOW],
    "a window and a byte": DATA[: chunks.WINDOW + 1],
    "random": DATA,
    "zeros": bytes(3 << 20),
    "one letter": b"a" * (3 << 20),
    "two letters": b"ab" * (3 << 19),
    "text": TEXT,
    "mostly zeros": bytes(1 << 20) + DATA[: 1 << 20] + bytes(1 << 20),
}


@pytest.mark.parametrize("data", DEGENERATE.values(), ids=DEGENERATE)
def test_pieces_are_the_file_and_within_bounds(tmp_path: Path, data: bytes) -> None:
    fd = opened(tmp_path, data)
    try:
        for mark in {chunks.choose_mark(fd, len(data)), b"\n", b"\0\0", b"a", b""}:
            found = pieces(fd, mark)
            assert b"".join(found) == data
            assert all(chunks.LEAST_CHUNK <= len(piece) <= chunks.MOST_CHUNK for piece in found[:-1])
            assert len(found) <= len(data) // chunks.LEAST_CHUNK + 1
            index = chunks.index_of(fd, mark)
            expected = [chunks.CHUNK.pack(len(piece), hashlib.sha256(piece).digest()[:16]) for piece in found]
            assert index == b"".join(expected)
    finally:
        os.close(fd)


def sentences() -> bytes:
    words = [b"what", b"is", b"said", b"here", b"and", b"there"]
    return b"".join(b" ".join(random.Random(n).sample(words, 5)) + b"\n" for n in range(40_000))


# Sentences are made for the one test that needs them, not by each process that reads this file.
@pytest.mark.parametrize("make", [lambda: DATA, sentences], ids=["random", "text"])
def test_an_insertion_moves_the_pieces_and_keeps_them(tmp_path: Path, make: Callable[[], bytes]) -> None:
    data = make()
    fd = opened(tmp_path, data)
    mark = chunks.choose_mark(fd, len(data))
    before = pieces(fd, mark)
    os.close(fd)
    # Cut about as often as wanted.
    assert len(data) / len(before) < 2 * chunks.WANTED_CHUNK
    for at in (0, len(data) // 2):
        fd = opened(tmp_path, data[:at] + b"inserted" + data[at:])
        after = pieces(fd, mark)
        os.close(fd)
        assert len(set(after) - set(before)) <= 4


def test_a_file_may_shrink_while_it_is_cut(tmp_path: Path) -> None:
    fd = opened(tmp_path, DATA)
    cutting = chunks.cut(fd, b"\n")
    first = bytes(next(cutting)[1])
    os.ftruncate(fd, 100_000)
    rest = b"".join(bytes(piece) for _, piece in cutting)
    os.close(fd)
    # What was read by then, and no more.
    assert DATA.startswith(first + rest)
    assert len(first + rest) == chunks.WINDOW


def test_blocks_of_one_size(tmp_path: Path) -> None:
    fd = opened(tmp_path, b"aaaabbbbcc")
    expected = [hashlib.sha256(block).digest()[:16] for block in (b"bbbb", b"cc", b"")]
    assert chunks.same_size_blocks(fd, 1, 3, 4) == b"".join(expected)
    os.close(fd)


def test_holes_are_distinguished_from_data(tmp_path: Path) -> None:
    size, block = 8 << 20, 1 << 20
    fd = opened(tmp_path, b"")
    os.ftruncate(fd, size)
    os.pwrite(fd, DATA[:block], 3 * block)
    whole = list(chunks.holes_and_data(fd, 0, size))
    assert whole == [(0, 3 * block, False), (3 * block, block, True), (4 * block, 4 * block, False)]
    assert list(chunks.holes_and_data(fd, 3 * block + 5, 100)) == [(3 * block + 5, 100, True)]
    assert list(chunks.holes_and_data(fd, 5 * block, block)) == [(5 * block, block, False)]
    assert list(chunks.holes_and_data(fd, 0, 0)) == []
    # Beyond its end there is nothing that could be known.
    assert list(chunks.holes_and_data(fd, size, 10)) == [(size, 10, True)]
    os.ftruncate(fd, 0)
    assert list(chunks.holes_and_data(fd, 0, size)) == [(0, size, True)]
    os.close(fd)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 63), st.booleans()), max_size=12), st.integers(0, 64), st.integers(0, 64))
def test_holes_and_data_lie_side_by_side(writes: list[tuple[int, bool]], start: int, length: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(64 << 12)
        for at, far in writes:
            os.pwrite(file.fileno(), b"x" * (5000 if far else 1), at << 12)
        offset, data = start << 12, file.read()
        for begin, size, filled in chunks.holes_and_data(file.fileno(), start << 12, length << 12):
            assert (begin, size > 0) == (offset, True)
            assert filled or not any(data[begin : begin + size])
            offset += size
        assert offset == (start + length) << 12


# Folders, deletions, leftovers


async def test_deletion(lane: OutpostLane, trap: Path, tmp_path: Path) -> None:
    for folder in ("e/deep", "full"):
        (trap / folder).mkdir(parents=True)
    (trap / "full/kept").touch()
    raw = b"\0".join([b"file", b"link", b"missing", b"d"]) + b"\0\0" + b"\0".join([b"e/deep", b"e", b"full", b"gone"])
    end = (await ask(lane, "delete", raw, root=trap)).end
    assert (end["files"], end["dirs"]) == (2, 2)
    # What is gone is gone, what is not empty stays without a word; a folder is no file.
    assert [path for path, _ in end["problems"]] == ["d"]
    assert contents(trap) == {"d": None, "full": None, "full/kept": b"", "self": "."}
    assert (tmp_path / "outside/secret").read_bytes() == b"old"
    assert (await ask(lane, "delete", b"", root=trap)).end["problem_count"] == 0


async def test_clearing(lane: OutpostLane, trap: Path) -> None:
    (trap / "full").mkdir()
    (trap / "full/kept").touch()
    end = (await ask(lane, "clear", b"file\0link\0d\0full\0missing", root=trap)).end
    assert sorted(path for path, _ in end["problems"]) == ["full", "missing"]
    assert contents(trap) == {"full": None, "full/kept": b"", "self": "."}
    # What was in the way is not remembered as a folder.
    (trap / "full/kept").unlink()
    await put(lane, trap, "full/x")
    await ask(lane, "clear", b"full/x\0full", root=trap)
    assert (await put(lane, trap, "full"))["files"] == 1


async def test_finishing(lane: OutpostLane, trap: Path, tmp_path: Path) -> None:
    raw = attributes("new/deep", 0o4750, 5) + attributes("new", 0o500, 6) + attributes("d", 0o755, -7)
    end = (await ask(lane, "finish", raw + attributes("link", 0o777) + attributes("file", 0o777), root=trap)).end
    assert (end["made"], sorted(path for path, _ in end["problems"])) == (3, ["file", "link"])
    assert (mode_of(trap / "new/deep"), (trap / "new/deep").stat().st_mtime_ns) == (0o4750, 5)
    assert (mode_of(trap / "new"), (trap / "new").stat().st_mtime_ns) == (0o500, 6)
    assert (trap / "d").stat().st_mtime_ns == -7
    assert (mode_of(tmp_path / "outside"), mode_of(trap / "file")) == (0o755, 0o644)
    # A target that is missing is made, even if there is nothing for it.
    await ask(lane, "finish", root=trap / "made/deep")
    assert (trap / "made/deep").is_dir()


async def test_touching(lane: OutpostLane, trap: Path, tmp_path: Path) -> None:
    (trap / "out").symlink_to("../outside/secret")
    raw = b"".join(attributes(name, 0o4711, -3) for name in ("file", "d", "out", "link/secret", "missing"))
    end = (await ask(lane, "touch", raw, root=trap)).end
    assert sorted(path for path, _ in end["problems"]) == ["d", "link/secret", "missing", "out"]
    assert (mode_of(trap / "file"), (trap / "file").stat().st_mtime_ns) == (0o4711, -3)
    assert (mode_of(tmp_path / "outside/secret"), mode_of(trap / "d")) == (0o644, 0o755)


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# The name of a leftover, how old it is, and whether it may go.
HOUR_S = 3600


def leftovers() -> dict[str, tuple[str, float, bool]]:
    mine, mark, dead = own_stem().decode(), machine_mark(), ended_process()
    return {
        "of a living process": (f"{mine}1", 0, False),
        "of a living process, old": (f"{mine}2", 9 * HOUR_S, False),
        "of a dead process": (f".remote-sandbox-sync-{mark}-{dead}-12345-1", 0, True),
        "of a dead process whose start nobody knew": (f".remote-sandbox-sync-{mark}-{dead}-0-1", 0, True),
        "of another process with that number": (f".remote-sandbox-sync-{mark}-{os.getpid()}-1-1", 0, True),
        "of another machine, new": (".remote-sandbox-sync-0123abcd-1-2-3", 0, False),
        "of another machine, with the time of what it will be": (
            ".remote-sandbox-sync-0123abcd-1-2-4",
            2 * HOUR_S,
            False,
        ),
        "of who knows whom, new": (".remote-sandbox-x", 0, False),
        "of who knows whom, with another time": (".remote-sandbox-y", 2 * HOUR_S, False),
        "a partial file that nobody writes": (".remote-sandbox-part-a", 0, True),
        "what is not ours": ("remote-sandbox-old", 9 * HOUR_S, False),
    }


@pytest.mark.parametrize("name", [b".remote-sandbox-sync-0123abcd-1-2-3", b".remote-sandbox-x"])
@pytest.mark.parametrize(("age_s", "goes"), [(HOUR_S / 2, False), (2 * HOUR_S, True)], ids=["new", "old"])
def test_leftovers_of_unknown_processes_are_removed_after_an_hour_without_a_change(
    name: bytes, age_s: float, goes: bool
) -> None:
    changed = time.time() - age_s
    assert is_abandoned(name, os.stat_result((0o100600, 1, 1, 1, 0, 0, 0, 0, 0, changed))) is goes


@pytest.mark.parametrize("folder", ["", "d"], ids=["at the top", "in a folder"])
async def test_leftovers_are_removed_unless_a_transfer_needs_them(lane: OutpostLane, root: Path, folder: str) -> None:
    place = root / folder
    place.mkdir(exist_ok=True)
    rows = leftovers()
    for name, age, _ in rows.values():
        (place / name).touch()
        found = (place / name).stat().st_mtime - age
        os.utime(place / name, (found, found))
    raw = b"\0".join(os.path.join(folder, name).encode() for name, _, _ in rows.values())
    assert (await ask(lane, "tidy", raw, root=root)).end["removed"] == sum(goes for _, _, goes in rows.values())
    assert {row: not (place / name).exists() for row, (name, _, _) in rows.items()} == {
        row: goes for row, (_, _, goes) in rows.items()
    }


async def test_a_partial_file_that_is_being_written_stays(lane: OutpostLane, other: OutpostLane, root: Path) -> None:
    partial = (await begin(other, root, 5))["partial"].encode()
    assert (await ask(lane, "tidy", partial, root=root)).end["removed"] == 0
    await ask(other, "leave", b"key", root=root)
    assert (await ask(lane, "tidy", partial + b"\0../x\0\0missing", root=root)).end["removed"] == 1


async def test_leftovers_of_a_killed_lane_are_removed_by_the_next(lane: OutpostLane, root: Path) -> None:
    dying = await here.open_lane()
    stem = f".remote-sandbox-sync-{machine_mark()}-{process_of(dying)}-"
    started = Path(f"/proc/{process_of(dying)}/stat").read_text().rpartition(")")[2].split()[19]
    left = root / f"{stem}{started}-1"
    left.touch()
    assert (await ask(lane, "tidy", os.fsencode(left.name), root=root)).end["removed"] == 0
    await dying.close()
    assert (await ask(lane, "tidy", os.fsencode(left.name), root=root)).end["removed"] == 1


# Letting go


async def test_after_a_rest_request_the_tree_is_opened_anew(lane: OutpostLane, tmp_path: Path) -> None:
    root = tmp_path / "root"
    await put(lane, root, "d/a", b"1")
    root.rename(tmp_path / "moved")
    # A lane holds on to the folder that it began with.
    await put(lane, root, "d/a", b"2")
    assert contents(tmp_path) == {"moved": None, "moved/d": None, "moved/d/a": b"2"}
    await ask(lane, "rest")
    await put(lane, root, "d/a", b"3")
    assert contents(tmp_path) == {
        "moved": None,
        "moved/d": None,
        "moved/d/a": b"2",
        "root": None,
        "root/d": None,
        "root/d/a": b"3",
    }


async def test_a_rest_request_closes_everything(lane: OutpostLane, root: Path) -> None:
    before = set(os.listdir(f"/proc/{process_of(lane)}/fd"))
    (root / "big").write_bytes(DATA)
    await begin(lane, root, 5)
    await put(lane, root, "a/b/c")
    await ask(lane, "blocks", b"\0big", root=root, start=0, count=1, block=9)
    assert set(os.listdir(f"/proc/{process_of(lane)}/fd")) > before
    await ask(lane, "rest")
    assert set(os.listdir(f"/proc/{process_of(lane)}/fd")) == before
    with (root / ".remote-sandbox-part-key").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_files_being_received_at_a_rest_request_are_dropped(lane: OutpostLane, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    number = next(numbers)
    received = lane.begin({"verb": "receive", "root": str(first), "wanted": ["f644"]}, names("late"), number=number)
    await ask(lane, "rest")
    # The folder that is opened next may well get the number of the one that was closed.
    await put(lane, second, "x")
    lane.pass_on(wire.FILES, number, entry())
    lane.pass_on(wire.DONE, number, b"")
    with pytest.raises(FileProblem):
        await asyncio.wait_for(received, 15)
    assert contents(tmp_path) == {"first": None, "second": None, "second/x": b"new"}


# Nonsense


PATHS = st.sampled_from(
    [b"", b"a", b"d", b"link", b"file", b"..", b".", b"/", b"/tmp", b"../outside", b"link/deep", b"a\xff\n"]
)
SOME_NAMES = PATHS | st.binary(max_size=6)
RAWS = st.lists(SOME_NAMES, max_size=5).map(b"\0".join) | st.binary(max_size=40)
NUMBERS = st.sampled_from([-1, 0, 1, 5, 1 << 16, 1 << 63, 1 << 70]) | st.none() | st.text(max_size=3) | st.booleans()
VERBS = ["look", "rest", "scan", "send", "part", "check", "mark", "index", "digests", "texts", "blocks", "receive"]
MORE_VERBS = [
    "follow",
    "clear",
    "delete",
    "finish",
    "touch",
    "tidy",
    "begin",
    "join",
    "commit",
    "leave",
    "index_old",
    "partial_blocks",
]
ORDERS = st.dictionaries(
    st.sampled_from(
        ["size", "offset", "start", "mtime", "mode", "first", "fresh", "large", "uses_old", "squeeze", "since"]
    ),
    NUMBERS,
    max_size=6,
)
ATTRIBUTED = st.builds(
    lambda path, mode: ATTRIBUTES.pack(mode, TIME, len(path)) + path, SOME_NAMES, st.integers(0, 1 << 16)
)
RECORDS = st.builds(
    lambda number, mode, data: entry(data, number, mode),
    st.integers(0, 4),
    st.sampled_from([FILE | 0o644, LINK, 0, 0xFFFFFFFF]),
    SOME_NAMES,
)
PARTS = st.builds(lambda at, hole, data: PIECE.pack(at, hole) + data, st.integers(0, 9), st.integers(0, 9), SOME_NAMES)
COPIES = st.builds(SAME.pack, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
BODIES = st.lists(RECORDS, max_size=3).map(b"".join) | PARTS | COPIES | st.binary(max_size=60)
SQUEEZED = st.builds(
    lambda kind, body: bytes([kind]) + b"z" + zlib.compress(body), st.sampled_from([40, 41, 42, 43]), BODIES
)
KINDS = st.sampled_from([wire.FILES, wire.PART, wire.COPY, wire.DONE, wire.REQUEST]) | st.integers(0, 255)
IDS = st.integers(1 << 30, (1 << 30) + 2)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
    """Frames of a few requests, some of which make sense."""
    frames = []
    for _ in range(draw(st.integers(1, 8))):
        number = draw(IDS)
        if draw(st.booleans()):
            verb = draw(st.sampled_from(VERBS + MORE_VERBS))
            # Any number of blocks is read that is asked for: that is not tried here.
            order = {**draw(ORDERS), "verb": verb, "root": "ROOT", "path": "ROOT", "count": 2, "block": 3, "length": 9}
            frames.append(
                (
                    wire.REQUEST,
                    number,
                    json.dumps(order).encode() + b"\0" + draw(RAWS | st.lists(ATTRIBUTED, max_size=2).map(b"".join)),
                )
            )
        elif draw(st.booleans()):
            frames.append((wire.SQUEEZED, number, draw(SQUEEZED)))
        else:
            frames.append((draw(KINDS), number, draw(BODIES)))
    return frames


@pytest.fixture(scope="module")
async def fuzzed() -> AsyncIterator[OutpostLane]:
    lane = await here.open_lane()
    yield lane
    await lane.close()


@pytest.mark.anyio
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=conversations())
async def test_nonsense_does_no_harm(fuzzed: OutpostLane, frames: Sequence[tuple[int, int, bytes]]) -> None:
    with tempfile.TemporaryDirectory(prefix="rsmcp-lane-") as name:
        folder = Path(name)
        root, outside = folder / "root", folder / "outside"
        for path in (root / "d", outside / "deep"):
            path.mkdir(parents=True)
        for path in (root / "file", outside / "secret", outside / "deep/secret"):
            path.write_bytes(b"old")
        (root / "link").symlink_to("../outside")
        for kind, number, body in frames:
            fuzzed.pass_on(kind, number, body.replace(b"ROOT", os.fsencode(root)))
        await ask(fuzzed, "rest")
        assert contents(outside) == {"deep": None, "deep/secret": b"old", "secret": b"old"}
        assert sorted(os.listdir(folder)) == ["outside", "root"]
        assert {mode_of(path) for path in (outside, outside / "deep")} == {0o755}
