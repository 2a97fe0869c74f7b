"""Lanes over SFTP: the answers of a lane at the far side, from a machine that has nothing but its SFTP server."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import PLAIN, describe
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.backends.ssh.sftp_lane import SftpLane
from remote_sandbox_mcp.core.errors import FileProblem, Unreachable, Unsupported
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sync.transfer import Lane, Order, Place, Reply, numbers, unheard
from remote_sandbox_mcp.core.sync.tree import Tree, child, read_meta
from remote_sandbox_mcp.far.lane.source import ENTRY, PIECE
from remote_sandbox_mcp.far.lane.target import ATTRIBUTES
from remote_sandbox_mcp.far.outpost.wire import COPY, DONE, FILES, PART
from remote_sandbox_mcp.services.sync.service import Syncs
from tests.backends.contract.basics import HOSTILE_NAMES, said
from tests.services.sync.conftest import Chunks
from tests.support.announcements import announced, described
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.line import Line
from tests.support.sshd import Fleet, Sshd
from tests.support.values import read_tree
from tests.support.waiting import eventually

SECOND = 10**9
LONG_AGO = 1_000_000_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def known_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "known_hosts"


@pytest.fixture(scope="module")
def bare(fleet: Fleet) -> Sshd:
    return fleet.machine(python=False)


@pytest.fixture
def far(bare: Sshd) -> Path:
    """A new folder of the machine's user; it goes with the machine."""
    folder = bare.home / f"far-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)
    give(bare, folder)
    return folder


@asynccontextmanager
async def sandbox_of(machine: Machine, known_hosts: Path) -> AsyncIterator[PlainSandbox]:
    sandbox = PlainSandbox(describe(machine, PLAIN), machine.environment, LoginGate(machine, known_hosts))
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.fixture
async def sandbox(bare: Sshd, known_hosts: Path) -> AsyncIterator[PlainSandbox]:
    async with sandbox_of(bare.machine(), known_hosts) as sandbox:
        yield sandbox


@pytest.fixture
async def lane(sandbox: PlainSandbox) -> AsyncIterator[SftpLane]:
    lane = await sandbox.open_lane()
    yield lane
    await lane.close()


@pytest.fixture
async def near() -> AsyncIterator[Lane]:
    lane = await here.open_lane()
    yield lane
    await lane.close()


def give(sshd: Sshd, path: Path) -> None:
    """What the test made there is the machine's user's."""
    subprocess.run(["chown", "-Rh", f"{sshd.uid}:{sshd.uid}", path], check=True)


def write(path: Path, data: bytes = b"", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def seen(root: Path) -> dict[bytes, tuple[object, ...]]:
    """A tree as a value, with times to the second."""
    found: dict[bytes, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            key = os.path.relpath(path, os.fsencode(root))
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("folder", status.st_mode, status.st_mtime_ns // SECOND)
            else:
                found[key] = (
                    "file",
                    status.st_mode,
                    status.st_mtime_ns // SECOND,
                    Path(os.fsdecode(path)).read_bytes(),
                )
    return found


async def look_over(lane: Lane, root: Path, **order: Any) -> Tree:
    parts: list[bytes] = []
    reply = await lane.begin({"verb": "scan", "path": str(root), **order}, heard=parts.append)
    assert not reply.out
    return read_tree(reply.end, parts)


async def carry(
    source: Lane, target: Lane, roots: tuple[Path, Path], verb: str, raw: bytes, key: bytes = b"", **order: Any
) -> tuple[Reply, Reply]:
    """Send something from one lane to the other; what each says of it."""
    number, large = next(numbers), verb == "part"
    expected: dict[str, Any] = {"large": True} if large else {"wanted": described(roots[0], raw)}
    received = target.begin({"verb": "receive", "root": str(roots[1]), **expected}, key or raw, number=number)
    sent = source.begin({"verb": verb, "root": str(roots[0]), **order}, raw, number=number, to=target)
    return await sent, await received


def named(*paths: bytes) -> bytes:
    return b"\0".join(b"\0".join((*path.rpartition(b"/")[::2], b"")) for path in paths)


def packed(path: bytes, mode: int, mtime: int) -> bytes:
    return ATTRIBUTES.pack(mode, mtime, len(path)) + path


async def sync(source: Lane, target: Lane, roots: tuple[Path, Path]) -> tuple[Reply, Reply]:
    """Everything that a scan of the source finds; nothing is compared and nothing deleted."""
    tree = await look_over(source, roots[0])
    entries = [(child(folder, n), read_meta(m)) for folder in tree.folders for n, m in tree.entries(folder).items()]
    files = [path for path, meta in entries if meta.kind != "d"]
    folders = sorted(
        ((path, meta) for path, meta in entries if meta.kind == "d"), key=lambda each: -each[0].count(b"/")
    )
    said, arrived = await carry(source, target, roots, "send", named(*files))
    raw = b"".join(packed(path, meta.mode, meta.mtime) for path, meta in folders)
    finished = await target.begin({"verb": "finish", "root": str(roots[1])}, raw)
    assert (finished.end["made"], finished.end["problems"]) == (len(folders), [])
    return said, arrived


def plant(root: Path) -> None:
    """Names, modes, times, links, empty folders, and many files."""
    for number, name in enumerate(HOSTILE_NAMES.values()):
        write(root / "names" / name, name.encode("utf-8", "surrogateescape") * number)
        (root / "folders" / name).mkdir(parents=True)
    for mode in (0o644, 0o600, 0o444, 0o755, 0o4755, 0o2711):
        write(root / "modes" / f"{mode:o}", b"x", mode)
    for at in range(300):
        write(root / f"many/{at % 7}/{at}", os.urandom(at * 11))
    write(root / "large enough", os.urandom(MIB))
    (root / "empty/in/side").mkdir(parents=True)
    (root / "empty/in").chmod(0o555)
    links = root / "links"
    links.mkdir()
    for name, target in {"file": "../many/0/0", "folder": "../many", "dangling": "no\nwhere", "far": "/etc"}.items():
        (links / name).symlink_to(target)
    os.utime(root / "many/0/0", ns=(0, LONG_AGO * SECOND + 999_999_999))
    os.utime(root / "empty/in", ns=(0, LONG_AGO * SECOND + 1))


# Whole trees


async def test_names_of_secrets_stay_on_their_side(
    bare: Sshd, sandbox: PlainSandbox, far: Path, tmp_path: Path
) -> None:
    for name in ("a", ".env", ".docker/config.json", ".docker/Dockerfile"):
        write(tmp_path / name, b"ours")
    give(bare, write(far / ".env", b"theirs"))
    give(bare, write(far / "old", b"theirs"))

    async def opened(name: str) -> Sandbox:
        return sandbox

    syncs = Syncs(opened, here.open_lane, Chunks())
    order = Order(source=Place("", str(tmp_path)), target=Place("bare", str(far)), delete_extras=True)
    outcome = await syncs.run(order, unheard)
    await syncs.close()
    assert {str(path.relative_to(far)) for path in far.rglob("*") if path.is_file()} == {
        "a",
        ".env",
        ".docker/Dockerfile",
    }
    assert (far / ".env").read_bytes() == b"theirs"
    assert set(outcome.secrets) == {".env", ".docker/config.json"}


async def test_a_tree_goes_there_and_back(bare: Sshd, lane: SftpLane, near: Lane, far: Path, tmp_path: Path) -> None:
    plant(tmp_path / "here")
    ways = ((near, lane, (tmp_path / "here", far / "new/er")), (lane, near, (far / "new/er", tmp_path / "back")))
    for source, target, roots in ways:
        said, arrived = await sync(source, target, roots)
        count = sum(value[0] != "folder" for value in seen(tmp_path / "here").values())
        assert (said.end["problems"], arrived.end["problems"], arrived.end["files"]) == ([], [], count)
        assert seen(roots[1]) == seen(tmp_path / "here")
    assert (far / "new").stat().st_mode & 0o777 == 0o755
    assert (far / "new/er/many/0/0").stat().st_uid == bare.uid
    assert lane.moved == 2 * sum(path.lstat().st_size for path in (tmp_path / "here").rglob("*") if is_file(path))


def is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


async def test_a_scan_gives_the_same_answer_as_another_lanes(lane: SftpLane, near: Lane, bare: Sshd, far: Path) -> None:
    plant(far)
    for path in (far, *far.rglob("*")):
        if not path.is_symlink():
            os.utime(path, (LONG_AGO, LONG_AGO))
    write(far / "left/out.o")
    write(far / "left/node_modules/x")
    write(far / "left/.gitignore", b"*.o\n!keep.o\n/deep\n")
    write(far / "left/keep.o")
    write(far / "left/deep/x")
    write(far / ".remote-sandbox-sync-0-1-2-3")
    os.mkfifo(far / "pipe")
    for path in (far, *(far / "left").rglob("*"), far / "left", far / "pipe"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    give(bare, far)
    order: dict[str, Any] = {"rules": ["node_modules", "7"], "watched": ["node_modules", ".git"], "gitignore": True}
    ours, theirs = await look_over(lane, far, **order), await look_over(near, far, **order)
    assert ours.coarse
    assert not theirs.coarse
    assert (ours.folders, ours.counts, list(ours.folders)) == (theirs.folders, theirs.counts, list(theirs.folders))
    assert (ours.hits, ours.leftovers, ours.gitignores) == (theirs.hits, theirs.leftovers, theirs.gitignores)
    assert (ours.problems, ours.unread) == (theirs.problems, 0)
    assert [problem.reason for problem in ours.problems] == ["skipped: it is a fifo"]
    assert ours.hits == ("node_modules",)
    assert (ours.path, ours.real) == (theirs.path, theirs.real)


async def test_folders_with_many_names_are_read_to_the_end(lane: SftpLane, bare: Sshd, far: Path) -> None:
    for at in range(350):
        (far / f"{at}").touch()
    give(bare, far)
    assert (await look_over(lane, far)).counts == {b"": 350}


async def test_unreadable_entries_are_reported_and_counted(lane: SftpLane, bare: Sshd, far: Path) -> None:
    for name in ("closed", "not searched", "fine"):
        write(far / name / "file")
    write(far / "broken/.gitignore")
    (far / "broken/.gitignore").unlink()
    os.mkfifo(far / "broken/.gitignore")
    give(bare, far)
    (far / "closed").chmod(0o000)
    (far / "not searched").chmod(0o400)
    tree = await look_over(lane, far, gitignore=True)
    told = {problem.path: problem.reason for problem in tree.problems}
    assert told.pop("broken/.gitignore") in ("is not a file", "skipped: it is a fifo")
    assert told == {"closed": "Permission denied", "not searched": "Permission denied"}
    assert tree.unread == 3
    assert set(tree.folders) == {b"", b"fine", b"broken"}
    with pytest.raises(FileProblem, match="Permission denied") as refused:
        await lane.begin({"verb": "scan", "path": str(far / "closed")})
    assert refused.value.reason == "EACCES"


async def test_what_is_at_a_path(lane: SftpLane, bare: Sshd, far: Path) -> None:
    file = write(far / "file", b"12345", 0o640)
    os.utime(file, (LONG_AGO, LONG_AGO))
    (far / "to file").symlink_to("file")
    (far / "nowhere").symlink_to("not/there")
    give(bare, far)

    async def look(path: str) -> tuple[str, str, str]:
        end = (await lane.begin({"verb": "look", "path": path})).end
        assert end["home"] == str(bare.home)
        return end["kind"], end["path"], end["real"]

    below = str(far.relative_to(bare.home))
    assert await look("~") == ("dir", str(bare.home), str(bare.home))
    assert await look(f"~/{below}/") == ("dir", str(far), str(far))
    assert await look(f"{below}/file") == ("file", str(file), str(file))
    assert await look(f"{far}/to file") == ("file", f"{far}/to file", str(file))
    assert (await look(f"{far}/nowhere"))[0] == "other"
    assert await look(f"{far}/a/b/c") == ("missing", f"{far}/a/b/c", f"{far}/a/b/c")
    assert (await look("/dev/null"))[0] == "other"
    assert (await look("/"))[1:] == ("/", "/")
    with pytest.raises(FileProblem, match="Not a directory"):
        await look(f"{far}/file/x")
    end = (await lane.begin({"verb": "scan", "path": f"{far}/to file"})).end
    assert (end["kind"], end["meta"]) == ("file", f"f640 5 {LONG_AGO * SECOND}")
    assert (await lane.begin({"verb": "scan", "path": f"{far}/gone"})).end["kind"] == "missing"


# Safety


async def test_a_link_is_never_followed(lane: SftpLane, bare: Sshd, far: Path) -> None:
    write(far / "outside/victim", b"old")
    (far / "root").mkdir()
    (far / "root/way").symlink_to("../outside")
    (far / "root/file").symlink_to("../outside/victim")
    (far / "top").symlink_to("root")
    give(bare, far)
    top = far / "top"
    arrived = await receive(lane, top, {b"way/victim": b"new", b"way/in/side": b"new", b"file": b"new"})
    assert {path for path, _ in arrived["problems"]} == {"way/victim", "way/in/side"}
    assert {reason for _, reason in arrived["problems"]} == {"a symbolic link is in the way, and is not followed"}
    # The link itself was replaced.
    assert (far / "root/file").read_bytes() == b"new"
    finished = (await lane.begin({"verb": "finish", "root": str(top)}, packed(b"way", 0o700, 0))).end
    deleted = (await lane.begin({"verb": "delete", "root": str(top)}, b"way/victim\0\0way/in")).end
    cleared = (await lane.begin({"verb": "clear", "root": str(top)}, b"way/victim")).end
    touched = (await lane.begin({"verb": "touch", "root": str(top)}, packed(b"way/victim", 0o600, 0))).end
    assert [len(end["problems"]) for end in (finished, deleted, cleared, touched)] == [1, 2, 1, 1]
    assert seen(far / "outside") == {b"victim": ("file", 0o100644, *seen(far / "outside")[b"victim"][2:])}
    assert (far / "outside/victim").read_bytes() == b"old"
    said = (await lane.begin({"verb": "send", "root": str(top)}, named(b"way/victim"))).end
    assert said["problem_count"] == 1
    assert (await lane.begin({"verb": "digests", "root": str(top)}, named(b"way/victim"))).out == bytes(16)


@pytest.mark.parametrize("name", [b"..", b".", b"a/../b"])
async def test_names_that_lead_out_are_refused(lane: SftpLane, far: Path, name: bytes) -> None:
    arrived = await receive(lane, far, {}, raw=b"\0" + name + b"\0", data=b"x")
    assert arrived["problem_count"] == 1
    arrived = await receive(lane, far / "deep", {}, raw=b"../up\0x\0", data=b"x")
    assert arrived["problem_count"] == 1
    assert (await lane.begin({"verb": "delete", "root": str(far)}, b"../" + far.name.encode() + b"\0\0")).end[
        "problem_count"
    ] == 1
    assert seen(far) == {b"deep": seen(far)[b"deep"]}
    for verb, order in (("begin", b"\0" + name + b"\0key"), ("begin", b"\0name\0../key")):
        with pytest.raises(FileProblem, match="is not the name of a file"):
            await lane.begin({"verb": verb, "root": str(far), "size": 1}, order)


async def receive(
    lane: SftpLane, root: Path, files: dict[bytes, bytes], *, raw: bytes = b"", data: bytes = b""
) -> dict[str, Any]:
    """Frames of our own making; `raw` names one file whose content is `data`."""
    number = next(numbers)
    wanted = announced(raw or named(*files))
    received = lane.begin({"verb": "receive", "root": str(root), "wanted": wanted}, raw or named(*files), number=number)
    for at, content in enumerate(files.values() if files else [data]):
        lane.pass_on(FILES, number, ENTRY.pack(at, 0o100644, LONG_AGO * SECOND, len(content)) + content)
        await lane.room()
    lane.pass_on(DONE, number, b"")
    return (await received).end


async def test_a_file_that_its_user_changed_since_the_scan_is_kept(lane: SftpLane, far: Path) -> None:
    for name in ("old", "edited", "extra", "mode"):
        (far / name).write_bytes(b"before")
        os.utime(far / name, (LONG_AGO, LONG_AGO))
    (far / "link").symlink_to("old")
    scanned = {name: meta for folder in [b""] for name, meta in (await look_over(lane, far)).entries(folder).items()}
    for name in ("edited", "extra", "mode", "appeared"):
        (far / name).write_bytes(b"edited")
    (far / "link").unlink()
    (far / "link").symlink_to("elsewhere")
    before = seen(far)
    names = [b"old", b"edited", b"appeared", b"link"]
    found = [scanned.get(name, b"").decode() for name in names]
    number, raw = next(numbers), named(*names)
    received = lane.begin(
        {"verb": "receive", "root": str(far), "wanted": announced(raw), "found": found}, raw, number=number
    )
    for at, _ in enumerate(names):
        lane.pass_on(FILES, number, ENTRY.pack(at, 0o100644, 5 * SECOND, 3) + b"new")
    lane.pass_on(DONE, number, b"")
    told = (await received).end
    assert {path for path, reason in told["problems"] if "kept as it is" in reason} == {"edited", "appeared", "link"}
    kept = {"root": str(far), "found": [scanned[b"extra"].decode()]}
    assert (await lane.begin({"verb": "delete", **kept}, b"extra\0\0")).end["files"] == 0
    assert (await lane.begin({"verb": "clear", **kept}, b"extra")).end["problem_count"] == 1
    mode = {"root": str(far), "found": [scanned[b"mode"].decode()]}
    assert (await lane.begin({"verb": "touch", **mode}, packed(b"mode", 0o600, 0))).end["problem_count"] == 1
    await lane.begin({"verb": "begin", "root": str(far), "size": 2}, b"\0edited\0key")
    order = {"size": 2, "mode": 0o600, "mtime": 0, "found": scanned[b"edited"].decode()}
    with pytest.raises(FileProblem, match="kept as it is"):
        await lane.begin({"verb": "commit", "root": str(far), **order}, b"key")
    after = {name: what for name, what in seen(far).items() if not name.startswith(b".remote-sandbox-")}
    assert (far / "old").read_bytes() == b"new"
    assert {**after, b"old": before[b"old"]} == before


async def test_a_file_that_comes_as_a_link_is_refused(lane: SftpLane, far: Path) -> None:
    number, link = next(numbers), b"/etc/passwd"
    received = lane.begin({"verb": "receive", "root": str(far), "wanted": ["f644"]}, named(b"a"), number=number)
    lane.pass_on(FILES, number, ENTRY.pack(0, 0o120777, 0, len(link)) + link)
    lane.pass_on(DONE, number, b"")
    assert "not what its machine listed" in (await received).end["problems"][0][1]
    assert not os.path.lexists(far / "a")


async def test_frames_that_are_not_what_was_announced_fail(lane: SftpLane, far: Path) -> None:
    for kind, body in ((FILES, ENTRY.pack(7, 0o100644, 0, 0)), (FILES, b"x"), (PART, b""), (COPY, b"")):
        number = next(numbers)
        received = lane.begin({"verb": "receive", "root": str(far), "wanted": ["f644"]}, named(b"a"), number=number)
        lane.pass_on(kind, number, body)
        lane.pass_on(DONE, number, b"")
        with pytest.raises(FileProblem) as refused:
            await received
        assert refused.value.reason == "broken"
    lane.pass_on(FILES, next(numbers), b"for nobody")
    assert not seen(far)


async def test_one_file_that_fails_stops_no_other(
    lane: SftpLane, near: Lane, bare: Sshd, tmp_path: Path, far: Path
) -> None:
    for name in ("one", "two", "unreadable", "gone", "piped"):
        write(far / name, name.encode())
    (far / "in the way").mkdir()
    give(bare, far)
    (far / "unreadable").chmod(0o000)
    (far / "gone").unlink()
    (far / "piped").unlink()
    os.mkfifo(far / "piped")
    paths = named(b"one", b"unreadable", b"gone", b"piped", b"in the way", b"two")
    said, _ = await carry(lane, near, (far, tmp_path), "send", paths)
    told = dict(said.end["problems"])
    assert told == {
        "unreadable": "Permission denied",
        "gone": "No such file or directory",
        "piped": "is no longer a file",
        "in the way": "is no longer a file",
    }
    assert {name: value[3] for name, value in seen(tmp_path).items()} == {b"one": b"one", b"two": b"two"}
    arrived_there = await receive(lane, far, {b"one": b"1", b"in the way": b"1", b"two": b"2"})
    assert arrived_there["problems"] == [["in the way", "Is a directory"]]
    assert (arrived_there["files"], arrived_there["bytes"]) == (2, 2)
    assert (far / "two").read_bytes() == b"2"
    assert not list(far.glob(".remote-sandbox-*"))


async def test_a_folder_that_is_closed_to_writing_is_opened_for_it(lane: SftpLane, bare: Sshd, far: Path) -> None:
    write(far / "closed/old")
    give(bare, far)
    (far / "closed").chmod(0o555)
    arrived = await receive(lane, far, {b"closed/%d" % at: b"" for at in range(9)} | {b"closed/new/er": b"x"})
    assert (arrived["problems"], arrived["files"]) == ([], 10)
    await lane.begin({"verb": "finish", "root": str(far)}, packed(b"closed", 0o555, LONG_AGO * SECOND))
    assert (far / "closed").stat().st_mode & 0o777 == 0o555
    deleted = (await lane.begin({"verb": "delete", "root": str(far)}, b"closed/old\0closed/new/er\0\0closed/new")).end
    assert (deleted["files"], deleted["dirs"], deleted["problems"]) == (2, 1, [])


async def test_a_root_that_cannot_be_made_fails_the_request(lane: SftpLane, bare: Sshd, far: Path) -> None:
    write(far / "file")
    give(bare, far)
    for root, reason in ((far / "file", "ENOTDIR"), (far / "file/below", "ENOTDIR"), (Path("/proc/x"), "ENOENT")):
        with pytest.raises(FileProblem) as refused:
            await receive(lane, root, {b"x": b"x"})
        assert refused.value.reason == reason
    with pytest.raises(FileProblem) as refused:
        await lane.begin({"verb": "send", "root": str(far / "gone")}, named(b"x"))
    assert refused.value.reason == "ENOENT"


async def test_a_full_disk_is_reported_as_such(lane: SftpLane, far: Path) -> None:
    """SFTP calls it a failure, as it calls much else."""
    failure = OSError(errno.EIO, "Failure")
    folder = os.fsencode(far)
    assert (await lane._remote.explain(failure, folder, 1 << 62)).errno == errno.ENOSPC
    assert await lane._remote.explain(failure, folder, 1) is failure
    assert await lane._remote.explain(failure, folder + b"/gone") is failure
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert await lane._remote.explain(denied, folder, 1 << 62) is denied


async def test_links_are_made_the_right_way_round_whatever_sshd_says_it_is(
    lane: SftpLane, bare: Sshd, far: Path
) -> None:
    """OpenSSH's SFTP server behind Dropbear: nobody says that it takes the names in the other order."""
    lane._remote.client._handler._nonstandard_symlink = False
    number = next(numbers)
    target = b"aim-%d" % number
    wanted = [f"l777 0 0 {target.decode()}"] * 2
    received = lane.begin({"verb": "receive", "root": str(far), "wanted": wanted}, named(b"one", b"two"), number=number)
    for at in range(2):
        lane.pass_on(FILES, number, ENTRY.pack(at, stat.S_IFLNK | 0o777, 0, len(target)) + target)
    lane.pass_on(DONE, number, b"")
    assert (await received).end["problems"] == []
    assert seen(far) == {b"one": ("link", target), b"two": ("link", target)}
    assert not os.path.lexists(os.fsencode(bare.home) + b"/" + target)


# Large files


async def test_a_large_file_in_parts_over_two_lanes(
    sandbox: PlainSandbox, lane: SftpLane, near: Lane, far: Path, tmp_path: Path
) -> None:
    size = 10 * MIB + 12345
    write(tmp_path / "here/in/large", os.urandom(size), 0o640)
    write(tmp_path / "back/in/large", b"old")
    os.utime(tmp_path / "here/in/large", (LONG_AGO, LONG_AGO))
    other = await sandbox.open_lane()
    for sources, targets, roots in (
        ([near, near], [lane, other], (tmp_path / "here", far)),
        ([lane, other], [near, near], (far, tmp_path / "back")),
    ):
        begun = (
            await targets[0].begin(
                {"verb": "begin", "root": str(roots[1]), "size": size, "first": True}, b"in\0large\0key"
            )
        ).end
        assert begun["fresh"]
        raw = b"in\0large\0key\0" + begun["partial"].encode()
        targets[1].begin({"verb": "join", "root": str(roots[1]), "size": size, "fresh": True}, raw)
        spans = [(at, min(MIB, size - at)) for at in range(0, size, MIB)]
        carried = (
            carry(
                sources[at // MIB % 2], targets[at // MIB % 2], roots, "part", b"in\0large", b"key", offset=at, length=n
            )
            for at, n in spans
        )
        assert sum(arrived.end["bytes"] for _, arrived in await asyncio.gather(*carried)) == size
        checked = (await sources[0].begin({"verb": "check", "root": str(roots[0])}, b"in\0large")).end
        assert (checked["size"], checked["mtime"], checked["mode"]) == (size, LONG_AGO * SECOND, 0o640)
        await targets[0].begin({"verb": "commit", "root": str(roots[1]), **checked}, b"key")
        await targets[1].begin({"verb": "leave", "root": str(roots[1])}, b"key")
        assert seen(roots[1]) == seen(tmp_path / "here") | {b"in": seen(roots[1])[b"in"]}
    digest = (await lane.begin({"verb": "digests", "root": str(far)}, named(b"in/large", b"in/gone"))).out
    assert digest == hashlib.sha256((far / "in/large").read_bytes()).digest()[:16] + bytes(16)
    await other.close()


async def test_holes_arrive_as_zeros_after_an_interrupted_transfer(lane: SftpLane, bare: Sshd, far: Path) -> None:
    write(far / ".remote-sandbox-part-key", b"junk" * MIB, 0o400)
    write(far / "large", b"old")
    give(bare, far)
    begun = await lane.begin({"verb": "begin", "root": str(far), "size": 3 * MIB, "first": True}, b"\0large\0key")
    assert begun.end == {"fresh": True, "partial": ".remote-sandbox-part-key"}
    end = await part(lane, far, PIECE.pack(0, MIB), PIECE.pack(MIB, 0) + b"x" * 100, PIECE.pack(2 * MIB, MIB))
    assert end["bytes"] == 2 * MIB + 100
    with pytest.raises(FileProblem) as refused:
        await part(lane, far, PIECE.pack(3 * MIB, 0) + b"x")
    assert refused.value.reason == "bounds"
    assert (far / "large").read_bytes() == b"old"
    await lane.begin(
        {"verb": "commit", "root": str(far), "size": 3 * MIB, "mode": 0o600, "mtime": LONG_AGO * SECOND}, b"key"
    )
    assert (far / "large").read_bytes() == bytes(MIB) + b"x" * 100 + bytes(2 * MIB - 100)
    assert os.listdir(far) == ["large"]
    with pytest.raises(FileProblem) as refused:
        await part(lane, far, PIECE.pack(0, 0))
    assert refused.value.reason == "broken"


async def part(lane: SftpLane, root: Path, *bodies: bytes) -> dict[str, Any]:
    number = next(numbers)
    received = lane.begin({"verb": "receive", "root": str(root), "large": True}, b"key", number=number)
    for body in bodies:
        lane.pass_on(PART, number, body)
    lane.pass_on(DONE, number, b"")
    return (await received).end


async def test_a_partial_file_stays_until_it_is_begun_again(lane: SftpLane, far: Path) -> None:
    for content in (b"first", b"next!"):
        await lane.begin({"verb": "begin", "root": str(far), "size": 5, "first": True}, b"\0large\0key")
        await part(lane, far, PIECE.pack(0, 0) + content)
        await lane.begin({"verb": "leave", "root": str(far)}, b"key")
        assert (far / ".remote-sandbox-part-key").read_bytes() == content
    (far / ".remote-sandbox-part-key").unlink()
    (far / ".remote-sandbox-part-key").mkdir()
    with pytest.raises(FileProblem, match="in the way") as refused:
        await lane.begin({"verb": "begin", "root": str(far), "size": 5}, b"\0large\0key")
    assert refused.value.reason == "in_the_way"


async def test_a_source_that_shrinks_or_is_replaced_is_noticed(
    lane: SftpLane, near: Lane, bare: Sshd, far: Path, tmp_path: Path
) -> None:
    write(far / "large", b"x" * 3 * MIB)
    give(bare, far)
    await near.begin({"verb": "begin", "root": str(tmp_path), "size": 3 * MIB}, b"\0large\0key")
    roots = (far, tmp_path)
    os.truncate(far / "large", MIB + 5)
    _, arrived = await carry(lane, near, roots, "part", b"\0large", b"key", offset=0, length=3 * MIB)
    assert arrived.end["bytes"] == MIB + 5
    write(far / "other", b"y")
    (far / "other").rename(far / "large")
    assert (await lane.begin({"verb": "check", "root": str(far)}, b"\0large")).end["size"] == 1
    with pytest.raises(FileProblem, match="No such file"):
        await carry(lane, near, roots, "part", b"\0gone", b"key", offset=0, length=1)


# Other verbs


async def test_delete_clear_touch_and_tidy(lane: SftpLane, bare: Sshd, far: Path) -> None:
    for name in ("a/b/file", "a/b/other", "full/kept", "full/gone", "way/x", "t", ".remote-sandbox-part-new"):
        write(far / name)
    for name in (".remote-sandbox-part-old", "a/.remote-sandbox-sync-old", "not ours"):
        os.utime(write(far / name), (LONG_AGO, LONG_AGO))
    (far / "link").symlink_to("a")
    give(bare, far)

    async def ask(verb: str, raw: bytes) -> dict[str, Any]:
        return (await lane.begin({"verb": verb, "root": str(far)}, raw)).end

    leftovers = [name.encode() for name in (await look_over(lane, far)).leftovers]
    assert len(leftovers) == 3
    assert await ask("tidy", b"\0".join([*leftovers, b"not ours", b"gone"])) == {"removed": 2}
    deleted = await ask("delete", b"a/b/file\0a/b/other\0full/gone\0never\0link\0full\0\0a\0a/b\0full\0never")
    assert (deleted["files"], deleted["dirs"]) == (4, 2)
    assert deleted["problems"] == [["full", "Is a directory"]]
    cleared = await ask("clear", b"way\0way/x\0full\0never")
    assert dict(cleared["problems"]) == {"full": "Directory not empty", "never": "No such file or directory"}
    touched = await ask("touch", packed(b"t", 0o600, LONG_AGO * SECOND + 5) + packed(b"full", 0o700, 0))
    assert touched["problems"] == [["full", "is no longer a file"]]
    assert set(seen(far)) == {b"full", b"full/kept", b"t", b".remote-sandbox-part-new", b"not ours"}
    assert seen(far)[b"t"] == ("file", 0o100600, LONG_AGO, b"")


async def test_requests_are_done_in_their_order(lane: SftpLane, bare: Sshd, far: Path) -> None:
    """None of it waits for an answer."""
    write(far / "name")
    give(bare, far)
    root, number = str(far), next(numbers)
    cleared = lane.begin({"verb": "clear", "root": root}, b"name")
    received = lane.begin({"verb": "receive", "root": root, "wanted": ["f644"]}, named(b"name/file"), number=number)
    lane.begin({"verb": "begin", "root": root, "size": 3}, b"name\0large\0key")
    begun = lane.begin({"verb": "receive", "root": root, "large": True}, b"key", number=number + 1_000_000_000)
    lane.pass_on(PART, number + 1_000_000_000, PIECE.pack(0, 0) + b"abc")
    lane.pass_on(DONE, number + 1_000_000_000, b"")
    lane.pass_on(FILES, number, ENTRY.pack(0, 0o100600, 0, 1) + b"x")
    lane.pass_on(DONE, number, b"")
    committed = lane.begin({"verb": "commit", "root": root, "size": 3, "mode": 0o600, "mtime": 0}, b"key")
    finished = lane.begin({"verb": "finish", "root": root}, packed(b"name", 0o500, LONG_AGO * SECOND))
    looked = lane.begin({"verb": "scan", "path": root})
    rested = lane.begin({"verb": "rest"})
    replies = await asyncio.gather(cleared, received, begun, committed, finished, looked, rested)
    assert not any(reply.end.get("problems") for reply in replies)
    assert set(seen(far)) == {b"name", b"name/file", b"name/large"}
    assert f"d500 0 {LONG_AGO * SECOND}".encode() in replies[5].out


async def test_a_source_waits_for_a_slow_target(lane: SftpLane, far: Path) -> None:
    number = next(numbers)
    raw = named(*(b"%d" % at for at in range(20)))
    received = lane.begin({"verb": "receive", "root": str(far), "wanted": announced(raw)}, raw, number=number)
    for at in range(20):
        room = asyncio.ensure_future(lane.room())
        await asyncio.sleep(0)
        assert room.done() == (at < 8)
        room.cancel()
        lane.pass_on(FILES, number, ENTRY.pack(at, 0o100600, 0, MIB) + bytes(MIB))
    lane.pass_on(DONE, number, b"")
    await lane.room()
    assert (await received).end["bytes"] == 20 * MIB


async def test_what_sftp_cannot_do_is_refused(lane: SftpLane, far: Path) -> None:
    assert (lane.knows_pieces, lane.squeezers) == (False, ())
    for verb in ("mark", "index", "index_old", "blocks", "partial_blocks"):
        with pytest.raises(FileProblem) as refused:
            await lane.begin({"verb": verb, "root": str(far)}, b"\0x")
        assert refused.value.reason == "unsupported"
    with pytest.raises(FileProblem, match="not known here"):
        await lane.begin({"verb": "shout"})
    with pytest.raises(FileProblem, match="cannot be understood"):
        await lane.begin({"verb": "part", "root": str(far)}, b"")


# The line


async def test_a_cut_fails_all_requests_of_a_lane(
    bare: Sshd, near: Lane, known_hosts: Path, far: Path, tmp_path: Path
) -> None:
    for at in range(50):
        write(tmp_path / f"{at}", os.urandom(100_000))
    async with Line(bare.port) as line, sandbox_of(bare.machine(port=line.port), known_hosts) as sandbox:
        lane = await sandbox.open_lane()
        names = named(*(b"%d" % at for at in range(50)))
        both = asyncio.ensure_future(carry(near, lane, (tmp_path, far), "send", names))

        async def arrived() -> int:
            return len(list(far.iterdir()))

        await eventually(arrived, bool, "the first files", pause_s=0)
        scanning = lane.begin({"verb": "scan", "path": "/usr"})
        line.cut()
        for awaited in (both, scanning, lane.begin({"verb": "rest"})):
            with pytest.raises(Unreachable, match="was cut"):
                await awaited
        assert not lane.is_alive
        await lane.room()
        lane.pass_on(FILES, 1, b"too late")
        with pytest.raises(Unreachable):
            await lane.begin({"verb": "look", "path": "~"})
        await lane.close()
        again = await sandbox.open_lane()
        assert (await again.begin({"verb": "look", "path": "~"})).end["kind"] == "dir"
        await again.close()


async def test_a_lane_that_is_idle_notices_the_cut(bare: Sshd, known_hosts: Path) -> None:
    async with Line(bare.port) as line, sandbox_of(bare.machine(port=line.port), known_hosts) as sandbox:
        lane = await sandbox.open_lane()
        line.cut()
        await eventually(lambda: asyncio.sleep(0, lane.is_alive), lambda alive: not alive, "it to be noticed")


async def test_a_lane_that_is_closed_ends_at_once_and_gives_its_session_back(fleet: Fleet, known_hosts: Path) -> None:
    sshd = fleet.machine(python=False, max_sessions=1)
    async with sandbox_of(sshd.machine(), known_hosts) as sandbox:
        for _ in range(3):
            lane = await sandbox.open_lane()
            await lane.begin({"verb": "rest"})
            scanning = lane.begin({"verb": "scan", "path": "/usr"})
            await lane.close()
            with pytest.raises(Unreachable):
                await scanning
        assert await said(sandbox, "echo x") == b"x\n"


async def test_a_lane_may_be_closed_at_any_moment(
    sandbox: PlainSandbox, near: Lane, bare: Sshd, far: Path, tmp_path: Path
) -> None:
    for at in range(200):
        write(tmp_path / f"{at}", os.urandom(20_000))
        write(far / f"from/{at}", os.urandom(20_000))
    write(tmp_path / "large", os.urandom(4 * MIB))
    write(far / "from/large", os.urandom(4 * MIB))
    give(bare, far)
    names = named(*(b"%d" % at for at in range(200)))
    for steps in (0, 3, 20, 100, 400):
        lane = await sandbox.open_lane()
        lane.begin({"verb": "begin", "root": str(far), "size": 4 * MIB}, b"\0large\0key")
        work = [
            carry(near, lane, (tmp_path, far), "send", names),
            carry(near, lane, (tmp_path, far), "part", b"\0large", b"key", offset=0, length=4 * MIB),
            carry(lane, near, (far / "from", tmp_path / "back"), "send", names),
            carry(lane, near, (far / "from", tmp_path), "part", b"\0large", b"key", offset=0, length=4 * MIB),
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        for _ in range(steps):
            await asyncio.sleep(0)
        await lane.close()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        # This machine was never told of the large file, and may find time to say so.
        told = (Unreachable, FileProblem)
        assert not [each for each in ended if isinstance(each, Exception) and not isinstance(each, told)]


async def test_without_sftp_there_is_no_lane(fleet: Fleet, known_hosts: Path) -> None:
    only_commands = (
        'ForceCommand case "$SSH_ORIGINAL_COMMAND" in *sftp*) exit 1;; *) exec sh -c "$SSH_ORIGINAL_COMMAND";; esac'
    )
    sshd = fleet.machine(python=False, extra_config=[only_commands])
    async with sandbox_of(sshd.machine(), known_hosts) as sandbox:
        with pytest.raises(Unsupported, match="neither python3 nor SFTP"):
            await sandbox.open_lane()
    with pytest.raises(Unsupported):
        await FakeSandbox().open_lane()
