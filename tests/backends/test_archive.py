"""Files and folders into and out of containers without Python: one archive, and the rules of any sync."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opensandbox.exceptions import SandboxConnectionException

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends.opensandbox.api import Link
from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.commands.command import Command, Completed, Environment, Excerpt, Running
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, SandboxError, Unsupported
from remote_sandbox_mcp.core.progress import Progress, silent
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import FileSlice, Span, Written
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.sync import archive
from remote_sandbox_mcp.services.sync import archive as archive_far
from remote_sandbox_mcp.services.transfers.service import TransferService
from tests.backends.contract.basics import cancel, finish, said
from tests.fronts.mcp.conftest import connected
from tests.support.means import require_program
from tests.support.platform import WITHOUT_PYTHON
from tests.support.trees import File, Folder, Node, differences, put, snapshot
from tests.support.trees import Link as SymbolicLink
from tests.support.waiting import eventually

from .test_shell import HereLink

ODD_NAMES = [b"-rf", b"new\nline", b"end\n", b'it\'s "odd" $HOME *', b"\xff\xfe", b"n" * 255, " é".encode(), b"x..x"]


def tree(*, links: bool = True) -> Folder:
    """A bit of everything; times are to the second, as an archive has them."""
    odd: dict[bytes, Node] = {name: File(10, seed, 0o640, seed * 10**9) for seed, name in enumerate(ODD_NAMES)}
    more: dict[bytes, Node] = {b"run": File(300_000, 1, 0o755), b"empty": Folder({}, 0o700, 5 * 10**9)}
    inner: dict[bytes, Node] = {b"up": SymbolicLink(b"../run"), b"-dash": SymbolicLink(b"nowhere")} if links else {}
    outward: dict[bytes, Node] = {b"out": SymbolicLink(b"/nowhere")} if links else {}
    return Folder({**odd, **more, b"sub": Folder({**odd, **inner}, 0o555, 10**18), **outward})


def member(sandbox: Sandbox) -> Member:
    async def opener() -> Sandbox:
        return sandbox

    return Member(sandbox.description.name, lambda: sandbox.description, opener)


class AtOnce(PlainContainer):
    """Runs each command in one shell and has its files at hand, where the real one starts a hundred processes."""

    def __init__(self, link: Link, disposable: Disposable, environment: Environment) -> None:
        super().__init__(link, disposable, environment)
        self._given, self._init = cast(HereLink, link).environment, environment.init

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        script = "\n".join((*self._init, command.script))
        process = await asyncio.create_subprocess_exec(
            str(shutil.which("sh", path=self._given["PATH"])), "-c", script, env=self._given, cwd=self._given["HOME"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = (Excerpt(text, total=len(text)) for text in await process.communicate())
        return Completed(command.run_id, await process.wait(), stdout=out, stderr=err)

    async def read(self, path: str, span: Span) -> FileSlice:
        data = self._at(path).read_bytes()
        found = data[span.offset : span.offset + span.limit]
        return FileSlice(found, len(data), "", span.offset, span.offset + len(found) < len(data))

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        return Written(self._at(path).write_bytes(data), "")

    def forget(self, run_id: str) -> None:
        pass

    def _at(self, path: str) -> Path:
        return Path(self._given["HOME"], path)


def opened(kind: type[PlainContainer], link: HereLink, folder: Path) -> PlainContainer:
    made = Disposable(id="sb-00000000", provider="opensandbox", name="bare")
    sandbox = kind(cast(Link, link), made, Environment(init=("echo hello",)))
    # Not where others of this machine keep their runs.
    (folder / "runs").mkdir(mode=0o700)
    sandbox._shell._base = str(folder / "runs")
    return sandbox


# What does not depend on the shell and the tar that are there.
once = pytest.mark.parametrize("link", ["busybox"], indirect=True)
# Through the requests of the real one, which may be cut, ended and too large; the others take a tenth of the time.
by_requests = pytest.mark.parametrize("kind", [PlainContainer], ids=["requests"])


@pytest.fixture
def kind() -> type[PlainContainer]:
    return AtOnce


class Place:
    """A container that is this machine, and the copies of a user who has it."""

    def __init__(self, kind: type[PlainContainer], link: HereLink, folder: Path) -> None:
        self.link = link
        self.folder = folder
        self.home = folder / "home"
        self.sandbox = opened(kind, link, folder)
        self.tokens: list[str] = []
        self.allow(allowed_roots=(str(folder), os.environ["HOME"]))

    @property
    def transfers(self) -> TransferService:
        return self.app.transfers

    def allow(self, **settings: Any) -> None:
        self.app = App(Fleet([member(self.sandbox)]), settings=Settings(**settings))

    def replace(self, program: str, text: str) -> None:
        """Another program of that name is found first."""
        folder = self.folder / "programs"
        folder.mkdir(exist_ok=True)
        (folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (folder / program).chmod(0o755)
        self.link.environment["PATH"] = f"{folder}:{self.link.environment['PATH']}"

    def leftovers(self) -> list[str]:
        """Whatever a copy made that is neither its source nor its target."""
        held = [
            f"{place}/.remote-sandbox-{token}" for place in ("/tmp", "/var/tmp", "/dev/shm") for token in self.tokens
        ]
        below = [str(path) for path in self.home.rglob(".remote-sandbox-*")]
        return [path for path in held if os.path.lexists(path)] + below


@pytest.fixture(params=["busybox", "dash"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> HereLink:
    """A PATH with busybox alone, or with dash as its shell and the usual programs."""
    programs = tmp_path / "usual"
    programs.mkdir()
    (tmp_path / "home").mkdir()
    if request.param == "busybox":
        subprocess.run([require_program("busybox"), "--install", "-s", str(programs)], check=True, capture_output=True)
        return HereLink(str(programs), tmp_path / "home")
    (programs / "sh").symlink_to(cast(str, shutil.which("dash")))
    return HereLink(f"{programs}:/usr/bin:/bin", tmp_path / "home")


@pytest.fixture
def between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where folders are made for a while."""
    folder = tmp_path / "between"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


@pytest.fixture
async def place(
    kind: type[PlainContainer], link: HereLink, between: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    place = Place(kind, link, tmp_path)

    class Noted(archive_far.FarArchive):
        def __init__(self, sandbox: Sandbox) -> None:
            super().__init__(sandbox)
            place.tokens.append(self._token)

    monkeypatch.setattr(archive, "FarArchive", Noted)
    yield place
    assert place.leftovers() == []
    await place.app.close()


def make(path: Path, entries: dict[bytes, Node]) -> Path:
    put(os.fsencode(path), Folder(entries))
    return path


def seen(path: Path) -> Any:
    return snapshot(os.fsencode(path))


# Folders


@by_requests
async def test_a_folder_arrives_as_it_is(place: Place, tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", tree().entries)
    outcome = await place.transfers.copy_in(str(ours), "~/new/folder", name="bare")
    assert not differences(seen(ours), seen(place.home / "new" / "folder"))
    assert (outcome.synced_type, outcome.sent_files, outcome.made_dirs) == ("directory", 20, 2)
    assert (outcome.bytes, outcome.problem_count) == (300_181, 0)
    assert outcome.wire_bytes > outcome.bytes


async def test_folders_get_their_modes_where_tar_leaves_those_that_are_there(place: Place, tmp_path: Path) -> None:
    """As the tar of busybox does for everybody but root."""
    place.replace("tar", 'exec /bin/tar --no-overwrite-dir "$@"')
    closed = {b"a b": Folder({b"f": File(1)}, 0o500), b"new\nline": Folder({}, 0o550), b"open": Folder({}, 0o750)}
    ours = make(tmp_path / "ours", {b"-closed": Folder(cast(dict[bytes, Node], closed), 0o555)})
    await place.transfers.copy_in(str(ours), "~/new", name="bare")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place.home / "new").rglob("*") if path.is_dir()}
    assert modes == {"-closed": 0o555, "a b": 0o500, "new\nline": 0o550, "open": 0o750}


@once
async def test_an_archive_has_no_names_of_secrets(place: Place, tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", {b"a": File(1), b".env": File(2), b".kube": Folder({b"config": File(3)})})
    outcome = await place.transfers.copy_in(str(ours), "~/new", name="bare")
    assert os.listdir(place.home / "new") == ["a"]
    assert (outcome.secrets, outcome.secret_count) == ((".env", ".kube"), 2)
    named = await place.transfers.copy_in(str(ours / ".env"), "~/new", name="bare")
    assert (named.sent_files, sorted(os.listdir(place.home / "new"))) == (1, [".env", "a"])


@by_requests
async def test_a_folder_comes_back_as_it_is(place: Place, tmp_path: Path) -> None:
    entries = {**tree().entries, b"out": File(1)}
    theirs = make(place.home / "theirs", entries)
    where, outcome = await place.transfers.copy_out("theirs/", str(tmp_path / "here"), name="bare")
    assert where == str(tmp_path / "here" / "theirs")
    assert not differences(seen(theirs), seen(Path(where)))
    assert (outcome.synced_type, outcome.sent_files, outcome.problem_count) == ("directory", 20, 0)
    _, again = await place.transfers.copy_out("theirs", str(tmp_path / "here"), name="bare")
    assert (again.sent_files, again.skipped_files) == (0, 20)


async def test_more_names_than_one_command_takes_come_out(place: Place, tmp_path: Path) -> None:
    entries: dict[bytes, Node] = {b"%03d" % number + b"x" * 200: File(1, number) for number in range(900)}
    theirs = make(place.home / "many", entries)
    where, outcome = await place.transfers.copy_out("~/many", str(tmp_path), name="bare")
    assert outcome.sent_files == 900
    assert not differences(seen(theirs), seen(Path(where)))


async def test_the_most_basic_tar_suffices(place: Place, tmp_path: Path) -> None:
    real = shutil.which("tar", path=place.link.environment["PATH"])
    place.replace("tar", f'case $1 in --*) echo no >&2; exit 1 ;; esac; exec {real} "$@"')
    theirs = make(place.home / "theirs", {b"f": File(1), b"sub": Folder({b"-g": File(2)})})
    before = seen(theirs)
    make(theirs / ".git", {b"x": File(1)})
    where, outcome = await place.transfers.copy_out("theirs", str(tmp_path / "here"), name="bare")
    assert not differences(before, seen(Path(where)))
    assert outcome.excluded == (".git",)


@once
@by_requests
async def test_large_archives_go_in_portions(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_far, "PORTION", 70_000)
    ours = make(tmp_path / "ours", {b"large": File(500_000, 1)})
    await place.transfers.copy_in(str(ours), "theirs", name="bare")
    assert place.link.asked.count("put") == 9
    where, _ = await place.transfers.copy_out("theirs", str(tmp_path / "back"), name="bare")
    assert not differences(seen(ours), seen(Path(where)))


async def test_a_folder_is_merged_into_what_is_there(place: Place, tmp_path: Path) -> None:
    there = place.home / "there"
    elsewhere = make(place.home / "elsewhere", {b"kept": File(1)})
    make(
        there,
        {
            b"extra": File(1),
            b"old": File(1),
            b"sub": Folder({b"extra": File(2), b"old": File(3, mode=0o400)}, 0o555),
            b"link to a folder": SymbolicLink(b"../elsewhere"),
            b"link to be a folder": SymbolicLink(b"../elsewhere"),
            b"file to be a folder": File(1),
            b"folder to be a file": Folder({}),
            b"full": Folder({b"extra": File(1)}),
        },
    )
    new: dict[bytes, Node] = {
        b"old": File(9, 2, 0o755),
        b"sub": Folder({b"old": File(8), b"new": File(7)}, 0o750, 3 * 10**9),
        b"link to a folder": File(6),
        b"link to be a folder": Folder({b"f": File(5)}),
        b"file to be a folder": Folder({b"f": File(4)}),
        b"folder to be a file": File(3),
    }
    ours = make(tmp_path / "ours", {**new, b"full": File(1)})
    outcome = await place.transfers.copy_in(str(ours), str(there), name="bare")
    assert [(it.path, it.reason) for it in outcome.problems] == [("full", "a folder that is not empty is in the way")]
    kept = {b"extra", b"sub/extra", b"full", b"full/extra"}
    found = seen(there)
    assert kept < found.keys()
    wanted = {path: it for path, it in seen(ours).items() if path != b"full"}
    assert not differences(wanted, {path: it for path, it in found.items() if path not in kept})
    assert os.listdir(elsewhere) == ["kept"]


# Single files


@once
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("there/new", "there/new"),
        ("~/there", "there/-file"),
        ("new/", "new/-file"),
        ("a/b/../c\n", "a/c\n"),
        ("there/old", "there/old"),
        ("there/link", "there/link"),
        ("there/none", "there/none"),
        ("linked", "there/-file"),
    ],
)
async def test_a_file_goes_to_the_given_path(place: Place, tmp_path: Path, path: str, expected: str) -> None:
    make(place.home / "there", {b"old": File(3), b"link": SymbolicLink(b"../other"), b"none": SymbolicLink(b"nowhere")})
    (place.home / "other").write_text("kept")
    (place.home / "linked").symlink_to("there")
    make(tmp_path / "ours", {b"-file": File(10, 1, 0o751, 123 * 10**9)})
    outcome = await place.transfers.copy_in(str(tmp_path / "ours" / "-file"), path, name="bare")
    found = (place.home / expected).lstat()
    assert (found.st_mode, found.st_size, found.st_mtime) == (0o100751, 10, 123)
    assert (outcome.synced_type, outcome.sent_files, outcome.bytes) == ("file", 1, 10)
    assert (place.home / "other").read_text() == "kept"


@once
@pytest.mark.parametrize("name", ["file", "-rf", "end\n", "a\udcff", "link"])
async def test_a_file_comes_out_under_its_name(place: Place, tmp_path: Path, name: str) -> None:
    make(place.home / "d", {b"real": File(9, 1)})
    (place.home / "d" / "link").symlink_to("real")
    if name != "link":
        put(os.fsencode(place.home / "d" / name), File(10, 1, 0o751, 123 * 10**9))
    (tmp_path / "here").mkdir()
    where, outcome = await place.transfers.copy_out(f"~/d/{name}", str(tmp_path / "here"), name="bare")
    assert os.listdir(tmp_path / "here") == [name]
    found = os.lstat(where)
    assert (found.st_mode, found.st_size) == ((0o100644, 9) if name == "link" else (0o100751, 10))
    assert (outcome.synced_type, outcome.sent_files) == ("file", 1)


@once
async def test_a_file_comes_out_into_a_folder_of_its_name(place: Place, tmp_path: Path) -> None:
    make(place.home / "d", {b"name": File(9, 1)})
    (tmp_path / "here" / "name").mkdir(parents=True)
    await place.transfers.copy_out("d/name", str(tmp_path / "here"), name="bare")
    assert (tmp_path / "here" / "name" / "name").stat().st_size == 9


# What is refused


async def test_failures_have_the_same_sentences_as_a_syncs(place: Place, tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", {b"name": File(1)})
    make(place.home / "there", {b"name": Folder({}), b"file": File(1)})
    os.mkfifo(place.home / "fifo")
    put_in, take_out = place.transfers.copy_in, place.transfers.copy_out
    with pytest.raises(FileProblem, match=r"bare:there/file is not a folder, but .*ours is"):
        await put_in(str(ours), "there/file", name="bare")
    with pytest.raises(FileProblem, match=r"name is a folder, but .*name is a file"):
        await put_in(str(ours / "name"), "there", name="bare")
    with pytest.raises(FileProblem, match="none does not exist"):
        await put_in(str(tmp_path / "none"), "there", name="bare")
    with pytest.raises(FileProblem, match=r"bare: .*(File exists|Not a directory)"):
        await put_in(str(ours), "there/file/below", name="bare")
    with pytest.raises(FileProblem, match="bare:none does not exist"):
        await take_out("none", str(tmp_path), name="bare")
    with pytest.raises(FileProblem, match="bare:fifo is neither a file nor a folder"):
        await take_out("fifo", str(tmp_path), name="bare")


@once
async def test_the_rules_of_a_sync_hold(place: Place, tmp_path: Path, clean_environment: Path) -> None:
    project = Folder({b"f": File(1), b".git": Folder({b"x": File(1)}), b"a": Folder({b"node_modules": Folder({})})})
    ours = make(clean_environment / "ours", {b"p": project, b".hidden": File(1)})
    outcome = await place.transfers.copy_in(str(ours), "theirs", name="bare")
    assert set(seen(place.home / "theirs")) == {b".hidden", b"p", b"p/f", b"p/a"}
    assert outcome.excluded == (".git", "node_modules")
    put(os.fsencode(place.home / "theirs" / "q"), project)
    where, outcome = await place.transfers.copy_out("theirs", str(tmp_path), name="bare")
    # What begins with a dot comes by its very path.
    assert set(seen(Path(where))) == {b"p", b"p/f", b"p/a", b"q", b"q/f", b"q/a"}
    assert [each.path for each in outcome.problems] == [".hidden"]
    await place.transfers.copy_out("theirs/.hidden", where, name="bare")
    assert (Path(where) / ".hidden").exists()
    assert outcome.excluded == (".git", "node_modules")
    # The user's own keys and start-up files.
    (clean_environment / ".ssh").mkdir()
    with pytest.raises(BadArgument, match="hidden part of your home"):
        await place.transfers.copy_in(str(clean_environment / ".ssh"), "x", name="bare")
    await place.transfers.copy_in(str(clean_environment), "all", name="bare")
    assert set(os.listdir(place.home / "all")) == {"ours", "xdg"}
    make(place.home / clean_environment.name, {b".bashrc": File(1), b"good": File(1)})
    await place.transfers.copy_out(clean_environment.name, str(clean_environment.parent), name="bare")
    assert not (clean_environment / ".bashrc").exists()
    assert (clean_environment / "good").exists()


@once
async def test_local_paths_stay_within_the_roots(place: Place, tmp_path: Path) -> None:
    root = make(tmp_path / "root", {b"f": File(1), b"out": SymbolicLink(b"/etc/passwd")})
    place.allow(allowed_roots=(str(root),))
    for path in ("/etc/passwd", str(root / "out"), str(root / ".." / "home")):
        with pytest.raises(BadArgument, match="remote-sandbox-mcp allow"):
            await place.transfers.copy_in(path, "x", name="bare")
    await place.transfers.copy_in(str(root / "f"), "x", name="bare")
    with pytest.raises(BadArgument, match="remote-sandbox-mcp allow"):
        await place.transfers.copy_out("x", str(tmp_path), name="bare")
    assert os.listdir(place.home) == ["x"]


@once
async def test_more_bytes_than_allowed_are_refused(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST", 1 << 20)
    ours = make(tmp_path / "ours", {b"f": File((1 << 20) + 1)})
    with pytest.raises(FileProblem, match=r"ours holds more than 1 MiB, the most that is copied at once.*copy parts"):
        await place.transfers.copy_in(str(ours), "x", name="bare")
    make(place.home / "y", {b"f": File(1 << 20)})
    with pytest.raises(FileProblem, match="bare:y holds more than 1 MiB"):
        await place.transfers.copy_out("y", str(tmp_path / "here"), name="bare")
    assert os.listdir(place.home) == ["y"]
    assert not (tmp_path / "here").exists()


async def test_without_tar_the_error_says_what_to_do(place: Place, tmp_path: Path) -> None:
    programs = tmp_path / "few"
    programs.mkdir()
    for name in os.listdir(tmp_path / "usual") if len(os.listdir(tmp_path / "usual")) > 1 else os.listdir("/usr/bin"):
        found = shutil.which(name, path=place.link.environment["PATH"])
        if found and "tar" not in name:
            (programs / name).symlink_to(found)
    place.link.environment["PATH"] = str(programs)
    with pytest.raises(Unsupported, match=r"bare: copying files needs python3 or tar there.*install tar"):
        await place.transfers.copy_in(str(make(tmp_path / "ours", {})), "x", name="bare")
    with pytest.raises(Unsupported, match="install tar"):
        await place.transfers.copy_out("~", str(tmp_path / "here"), name="bare")
    assert os.listdir(place.home) == []


# What goes wrong on the way


@once
async def test_a_container_cannot_write_outside_of_the_folder(place: Place, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "hostile", "w") as hostile:
        for name in ("good", "../escaped"):
            found = tarfile.TarInfo(name)
            found.size = 1
            hostile.addfile(found, io.BytesIO(b"x"))
    place.replace("tar", f"cat {tmp_path}/hostile")
    make(place.home / "d", {b"f": File(1)})
    with pytest.raises(FileProblem, match=r"bare:d was not copied: the archive cannot be unpacked: .*escaped"):
        await place.transfers.copy_out("d", str(tmp_path / "here"), name="bare")
    assert not (tmp_path / "here").exists()


async def test_an_archive_that_was_cut_off_leaves_nothing(place: Place, tmp_path: Path) -> None:
    real = shutil.which("tar", path=place.link.environment["PATH"])
    place.replace("tar", f"{real} \"$@\" | head -c 600; echo 'tar: write error: No space left on device' >&2; exit 1")
    make(place.home / "d", {b"f": File(5000)})
    with pytest.raises(FileProblem, match=r"the archive is cut off \(tar: write error: No space left on device\)"):
        await place.transfers.copy_out("d", str(tmp_path / "here"), name="bare")
    assert not (tmp_path / "here").exists()


async def test_an_archive_that_cannot_be_unpacked_replaces_nothing(place: Place, tmp_path: Path) -> None:
    place.replace("tar", "echo half >old; echo 'tar: write error: No space left on device' >&2; exit 1")
    there = make(place.home / "there", {b"old": File(10, 1)})
    before = seen(there)
    ours = make(tmp_path / "ours", {b"old": File(20, 2)})
    with pytest.raises(FileProblem, match="bare: tar: write error: No space left on device"):
        await place.transfers.copy_in(str(ours), "there", name="bare")
    assert not differences(before, seen(there))


@once
@by_requests
async def test_a_cut_line_leaves_what_was_there(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_far, "PORTION", 20_000)
    cuts: list[int] = []

    async def cut(verb: str, process: asyncio.subprocess.Process) -> None:
        if verb == "put" and place.link.asked.count("put") > 2 and len(cuts) < 5:
            cuts.append(process.pid)
            raise SandboxConnectionException("cut")

    place.link.watch = cut
    there = make(place.home / "there", {b"old": File(10, 1)})
    before = seen(there)
    ours = make(tmp_path / "ours", {b"old": File(100_000, 2)})
    with pytest.raises(SandboxError):
        await place.transfers.copy_in(str(ours), "there", name="bare")
    assert not differences(before, seen(there))


@once
@by_requests
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_cancelled_copy_leaves_nothing(place: Place, tmp_path: Path, direction: str) -> None:
    place.replace("tar", f"touch {tmp_path}/begun; exec sleep 50")
    ours = make(tmp_path / "ours", {b"f": File(10)})
    make(place.home / "theirs", {b"f": File(10)})
    copying: Any = (
        place.transfers.copy_in(str(ours), "new", name="bare")
        if direction == "in"
        else place.transfers.copy_out("theirs", str(tmp_path / "here"), name="bare")
    )
    task = asyncio.ensure_future(copying)
    await eventually(lambda: asyncio.to_thread((tmp_path / "begun").exists), bool, "tar")
    await cancel(task)
    assert place.leftovers() == []
    assert seen(place.home / "new") == {}
    assert not (tmp_path / "here").exists()


@once
async def test_old_leftovers_are_removed(place: Place, tmp_path: Path) -> None:
    make(place.home / "there" / ".remote-sandbox-archive-old", {b"part-000000": File(1)})
    await place.transfers.copy_in(str(make(tmp_path / "ours", {b"f": File(1)})), "there", name="bare")
    assert os.listdir(place.home / "there") == ["f"]


@once
async def test_files_that_tar_could_not_read_are_reported(place: Place, tmp_path: Path) -> None:
    lines = r"tar: ./a: Cannot open: Permission denied\ntar: can'\''t open '\''./b c'\'': Permission denied\n"
    place.replace("find", f"printf '{lines}tar: error exit delayed\\n' >&2; printf '.\\000./f\\000'")
    make(place.home / "d", {b"f": File(1)})
    _, outcome = await place.transfers.copy_out("d", str(tmp_path / "here"), name="bare")
    assert {(it.path, it.reason) for it in outcome.problems} == {
        ("a", "Permission denied"),
        ("b c", "Permission denied"),
    }
    assert outcome.sent_files == 1


# As a client sees it


@once
@by_requests
async def test_the_tools_copy_both_ways(place: Place, tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", tree(links=False).entries)
    async with connected(place.app) as tools:
        done = await tools.call("upload_files", sandbox_id="bare", files=[{"path": "~/p", "local_path": str(ours)}])
        assert done["files"] == [{"path": "~/p", "size": 300_160, "files": 17}]
        done = await tools.call("download_files", sandbox_id="bare", paths=["~/p"], local_dir=str(tmp_path / "out"))
        assert not differences(seen(ours), seen(Path(done["files"][0]["local_path"])))
        refused = await tools.fail("sync_local_to_remote", local_path=str(ours), remote_path="~/q", sandbox_name="bare")
        assert refused["code"] == "unsupported"
        assert "upload_files" in refused["error"]


# In real containers


@pytest.fixture
async def container(provider: OpenSandboxProvider) -> AsyncIterator[Sandbox]:
    made = await provider.create(new_disposable_id(), SandboxOrder(image=WITHOUT_PYTHON, network=True, name="real"))
    sandbox = await provider.open(made)
    assert isinstance(sandbox, PlainContainer)
    yield sandbox
    await sandbox.close()
    await provider.delete(made)


@pytest.mark.xdist_group("platform")
@pytest.mark.timeout(180)
async def test_a_container_takes_and_gives_folders(container: Sandbox, tmp_path: Path, between: Path) -> None:
    app = App(Fleet([member(container)]), settings=Settings(allowed_roots=(str(tmp_path),)))
    name = container.description.name
    large = File(20 << 20, 1, 0o444)
    ours = make(tmp_path / "ours", {**tree().entries, b"large": large, b"out": File(1, mode=0o666)})
    for _ in range(2):
        outcome = await app.transfers.copy_in(str(ours), "~/theirs", name=name)
        assert (outcome.sent_files, outcome.problem_count) == (21, 0)
    where, outcome = await app.transfers.copy_out("theirs", str(tmp_path / "back"), name=name)
    assert not differences(seen(ours), seen(Path(where)))
    assert outcome.problem_count == 0
    listed = "ls -A ~ /tmp /var/tmp | grep -c remote-sandbox-archive; ls -A ~/theirs | grep -c remote-sandbox; :"
    assert await said(container, listed) == b"0\n0\n"
    await finish(container, "mkdir p; echo x >p/secret; echo y >p/f; chmod 0 p/secret; ln -s /etc/passwd p/out")
    where, outcome = await app.transfers.copy_out("p", str(tmp_path), name=name)
    assert os.listdir(where) == ["f"]
    assert {it.path for it in outcome.problems} == {"secret", "out"}
    with pytest.raises(FileProblem, match="Permission denied"):
        await app.transfers.copy_in(str(ours), "/usr/lib", name=name)
    with pytest.raises(FileProblem, match="Permission denied"):
        await app.transfers.copy_out("p/secret", str(tmp_path), name=name)
    await app.transfers.close()
