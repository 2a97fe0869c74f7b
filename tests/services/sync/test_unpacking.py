"""Archives that mean harm: nothing of them is ever outside of the folder that they are unpacked into."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.tree import leads_out
from remote_sandbox_mcp.services.sync.unpacking import pack, unpack
from tests.support.trees import File, Folder, Link, Node, differences, put, snapshot

MOST = 1 << 20
Member = tuple[str, dict[str, Any], bytes]


def entry(name: str, data: bytes = b"", **fields: Any) -> Member:
    return name, fields, data


def folder(name: str, **fields: Any) -> Member:
    return entry(name, type=tarfile.DIRTYPE, mode=0o755, **fields)


def link(name: str, target: str) -> Member:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def again(name: str, target: str) -> Member:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def write(path: Path, *members: Member, **options: Any) -> str:
    with tarfile.open(path, "w", errors="surrogateescape", **options) as archive:
        for name, fields, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder beside things that must stay as they are."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


REFUSED: dict[str, tuple[Member, ...]] = {
    "above": (entry("../outside/kept", b"x"),),
    "above, later": (entry("a/../../outside/kept", b"x"),),
    "absolute": (entry("/tmp/absolute", b"x"),),
    "a folder above": (folder("../outside"),),
    "through a link": (link("d", "sub"), entry("d/kept", b"x")),
    "through a link that is hidden in a name": (link("d", "sub"), entry("./d/./kept", b"x")),
    "onto a link": (link("f", "sub"), entry("f", b"x")),
    "a link onto a folder": (folder("f"), link("f", "sub")),
    "a folder where a link is": (link("d", "sub"), folder("d")),
    "a second name of what is outside": (again("f", "../outside/kept"),),
    "a second name by an absolute path": (again("f", "/etc/passwd"),),
    "a second name of a link": (folder("a"), link("a/l", "../x"), again("l", "a/l")),
    "a second name of nothing": (again("f", "none"),),
    "a second name through a link": (folder("a"), entry("a/f", b"x"), link("d", "a"), again("g", "d/f")),
    "twice": (entry("f", b"1"), entry("f", b"2")),
    "no name": (entry("./", b"x"),),
    "a time beyond all times": (entry("f", b"x", mtime=1 << 70),),
    "too much": (entry("f", bytes(MOST)), entry("g", b"x")),
    "too much by second names": (entry("f", bytes(MOST)), again("g", "f")),
}


@pytest.mark.parametrize("members", REFUSED.values(), ids=list(REFUSED))
def test_a_hostile_archive_is_refused(place: Path, tmp_path: Path, members: tuple[Member, ...]) -> None:
    file = write(tmp_path / "archive", *members, format=tarfile.GNU_FORMAT)
    with pytest.raises(FileProblem, match="the archive"):
        unpack(file, str(place), MOST)
    assert os.listdir(tmp_path / "outside") == ["kept"]
    assert (tmp_path / "outside" / "kept").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["archive", "outside", "place"]


LEFT_OUT: dict[str, tuple[Member, str]] = {
    "absolute link": (link("l", "/etc/passwd"), "a link that leads out of the folder"),
    "link above": (link("a/l", "../../outside"), "a link that leads out of the folder"),
    "link above, later": (link("l", "a/../../outside"), "a link that leads out of the folder"),
    "link above, behind another": (link("l", "up/.."), "a link that leads out of the folder"),
    "device": (entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "a device"),
    "disk": (entry("sda", type=tarfile.BLKTYPE, devmajor=8), "a device"),
    "fifo": (entry("fifo", type=tarfile.FIFOTYPE), "a fifo"),
}


@pytest.mark.parametrize(("member", "what"), LEFT_OUT.values(), ids=list(LEFT_OUT))
def test_what_no_copy_should_hold_is_left_out_and_told(place: Path, tmp_path: Path, member: Member, what: str) -> None:
    file = write(tmp_path / "archive", folder("a"), link("up", "."), member, entry("good", b"x"))
    assert unpack(file, str(place), MOST) == [Problem(member[0], f"skipped: it is {what}")]
    assert sorted(os.listdir(place)) == ["a", "good", "up"]
    assert os.listdir(place / "a") == []


@pytest.mark.parametrize(
    ("where", "target", "expected"),
    [
        (b"", "a", False),
        (b"", "./a//b/", False),
        (b"", ".", False),
        (b"", "", False),
        (b"", "..", True),
        (b"a", "..", False),
        (b"a", "./../b", False),
        (b"a/b", "../../c", False),
        (b"a/b", "../../../c", True),
        (b"a/b", "../x/../y", True),
        (b"a", "/", True),
        (b"", "...", False),
        (b"", "..a/b", False),
    ],
)
def test_links_may_lead_up_to_the_top_of_the_tree(where: bytes, target: str, expected: bool) -> None:
    assert leads_out(where, target.encode()) is expected


def test_nothing_unpacked_runs_as_another_user(place: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "archive", folder("d"), entry("d/f", b"x", mode=0o6755), entry("g", b"x", mode=0o40))
    unpack(file, str(place), MOST)
    assert stat.S_IMODE((place / "d" / "f").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "g").stat().st_mode) == 0o440


def test_a_second_name_is_a_file_of_its_own_after_all(place: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "archive", entry("./a/f", b"content", mode=0o700), again("./g", "./a/f"))
    assert unpack(file, str(place), MOST) == []
    assert (place / "g").read_bytes() == b"content"


def cut_in_a_file(data: bytearray) -> bytes:
    return bytes(data[: 512 * 3])


def cut_between_two(data: bytearray) -> bytes:
    return bytes(data[: 512 * 11])


def cut_in_a_header(data: bytearray) -> bytes:
    return bytes(data[:700])


def backwards(data: bytearray) -> bytes:
    """A size below zero, by which the next header is this one."""
    data[124:136] = b"\xff" * 10 + b"\xfe\x00"
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@pytest.mark.parametrize(
    "change", [cut_in_a_file, cut_between_two, cut_in_a_header, backwards, lambda data: b"", lambda data: b"x" * 99]
)
@pytest.mark.timeout(20)
def test_what_is_broken_is_refused(place: Path, tmp_path: Path, change: Callable[[bytearray], bytes]) -> None:
    file = Path(write(tmp_path / "archive", entry("f", b"x" * 5000), entry("g", b"y"), format=tarfile.GNU_FORMAT))
    file.write_bytes(change(bytearray(file.read_bytes())))
    with pytest.raises(FileProblem, match="the archive"):
        unpack(str(file), str(place), MOST)


def test_a_hole_counts_by_its_size(place: Path, tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f"}
    headers["GNU.sparse.realsize"] = str(1 << 40)
    member = entry("f", b"1\n0\n0\n".ljust(512, b"\0"), pax_headers=headers)
    with pytest.raises(FileProblem, match="more than 1 MiB"):
        unpack(write(tmp_path / "archive", member), str(place), MOST)


def test_many_headers_in_a_row_are_no_way_to_end_us(place: Path, tmp_path: Path) -> None:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1
    header = member.tobuf(tarfile.USTAR_FORMAT) + b"x".ljust(512, b"\0")
    (tmp_path / "archive").write_bytes(header * 5000 + bytes(1024))
    with pytest.raises(FileProblem, match="the archive"):
        unpack(str(tmp_path / "archive"), str(place), MOST)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME], ids=["x", "g", "L"])
@pytest.mark.timeout(20)
def test_a_header_without_end_is_not_read(place: Path, tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, 1 << 19
    header = member.tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "archive").write_bytes(header + b"1" * member.size + bytes(1024))
    with pytest.raises(FileProblem, match="a header says what none can"):
        unpack(str(tmp_path / "archive"), str(place), MOST)


@pytest.mark.timeout(20)
def test_an_extended_header_with_a_size_below_zero_does_not_lead_back(place: Path, tmp_path: Path) -> None:
    """Behind a first entry the way back is a circle: the extended header, its entry, and the extended header again."""
    record = b"14 size=-1536\n"
    extended, member = tarfile.TarInfo("extended"), tarfile.TarInfo("f")
    extended.type, extended.size, member.type = tarfile.XHDTYPE, len(record), b"Z"
    blocks = [extended.tobuf(tarfile.USTAR_FORMAT), record.ljust(512, b"\0"), member.tobuf(tarfile.USTAR_FORMAT)]
    first = tarfile.TarInfo("folder")
    first.type = tarfile.DIRTYPE
    (tmp_path / "archive").write_bytes(b"".join([first.tobuf(tarfile.USTAR_FORMAT), *blocks, bytes(1536)]))
    with pytest.raises(FileProblem, match="the archive"):
        unpack(str(tmp_path / "archive"), str(place), MOST)


def test_trees_go_in_and_out_of_archives_of_the_usual_tar(place: Path, tmp_path: Path) -> None:
    names = [b"-rf", b"new\nline", b"\xff\xfe", b"n" * 255, "é".encode(), b"..x", b"end\n"]
    inner = Folder({name: File(9, 1, 0o640, 7 * 10**9) for name in names}, 0o555, 10**18)
    deep = Folder({b"x" * 200: Folder({b"y" * 200: File(5)})})
    links: dict[bytes, Node] = {
        b"up": Link(b"../-rf"),
        b"none": Link(b"nowhere"),
        b"run": File(3, mode=0o755, mtime=-5 * 10**9),
    }
    tree = Folder({b"in": Folder({**inner.entries, **links}), b"deep": deep, b"e": Folder({}, 0o700), b"-rf": inner})
    put(os.fsencode(tmp_path / "tree"), tree)
    files, folders, modes = (str(tmp_path / name) for name in ("files", "folders", "modes"))
    size = pack(str(tmp_path / "tree"), files, folders, modes)
    assert size == sum(map(os.path.getsize, (files, folders, modes)))
    assert Path(modes).read_bytes() == b"555\0./-rf\0"
    for file in (files, folders):
        subprocess.run(["tar", "-xf", file, "-C", str(place)], check=True)
    assert not differences(snapshot(os.fsencode(tmp_path / "tree")), snapshot(os.fsencode(place)))
    (tmp_path / "again").mkdir()
    subprocess.run(["tar", "-cf", str(tmp_path / "archive"), "-C", str(place), "."], check=True)
    assert unpack(str(tmp_path / "archive"), str(tmp_path / "again"), MOST) == []
    assert not differences(snapshot(os.fsencode(place)), snapshot(os.fsencode(tmp_path / "again")))
