"""Files, in terms of files alone."""

from __future__ import annotations

import asyncio
import posixpath
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.core.sandboxes.files import FileSlice, Match, Search, Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox

from .basics import HOSTILE_NAMES, Basics, refusal, table, write_all

TEN = b"0123456789"
LINES = b"one\ntwo\nthree\nno end"
SPANS = {
    "all": (TEN, Span(), FileSlice(TEN, 10, "", 0, False)),
    "middle": (TEN, Span(3, 4), FileSlice(b"3456", 10, "", 3, True)),
    "up to the end": (TEN, Span(3, 7), FileSlice(b"3456789", 10, "", 3, False)),
    "from the end": (TEN, Span(-3), FileSlice(b"789", 10, "", 7, False)),
    "from the end, part": (TEN, Span(-3, 2), FileSlice(b"78", 10, "", 7, True)),
    "from before the beginning": (TEN, Span(-99, 2), FileSlice(b"01", 10, "", 0, True)),
    "at the end": (TEN, Span(10), FileSlice(b"", 10, "", 10, False)),
    "beyond the end": (TEN, Span(99), FileSlice(b"", 10, "", 99, False)),
    "empty file": (b"", Span(), FileSlice(b"", 0, "", 0, False)),
    "first line": (LINES, Span(line=1, lines=1), FileSlice(b"one\n", 20, "", 0, True)),
    "lines": (LINES, Span(line=2, lines=2), FileSlice(b"two\nthree\n", 20, "", 4, True)),
    "last line": (LINES, Span(line=4, lines=9), FileSlice(b"no end", 20, "", 14, False)),
    "line beyond the end": (LINES, Span(line=9, lines=9), FileSlice(b"", 20, "", 20, False)),
    "lines, limited": (LINES, Span(limit=6, line=1, lines=3), FileSlice(b"one\ntw", 20, "", 0, True)),
}
TREE = {
    "a.py": b"import os\nprint('A')\n",
    "b.txt": b"print me\r\n\nImport\n",
    "src/c.py": b"import sys\n",
    "src/deep/er/d.py": b"x = 1  # import nothing",
    "src/blob.bin": b"import\0os\n",
    "srcs/e.py": b"",
}
SEARCHES: dict[str, tuple[dict[str, Any], list[tuple[str, int, str]]]] = {
    "name": (
        {"glob": "*.py"},
        [("a.py", 0, ""), ("src/c.py", 0, ""), ("src/deep/er/d.py", 0, ""), ("srcs/e.py", 0, "")],
    ),
    "any": ({"glob": "*.t?t"}, [("b.txt", 0, "")]),
    "one folder": ({"glob": "src/*.py"}, [("src/c.py", 0, "")]),
    "any depth": ({"glob": "src/**/*.py"}, [("src/c.py", 0, ""), ("src/deep/er/d.py", 0, "")]),
    "any folder": ({"glob": "**/er/*"}, [("src/deep/er/d.py", 0, "")]),
    "pattern": (
        {"pattern": "import"},
        [("a.py", 1, "import os"), ("src/c.py", 1, "import sys"), ("src/deep/er/d.py", 1, "x = 1  # import nothing")],
    ),
    "expression": (
        {"pattern": "^(print|Imp).*[etr)]$"},
        [("a.py", 2, "print('A')"), ("b.txt", 1, "print me"), ("b.txt", 3, "Import")],
    ),
    "empty line": ({"pattern": "^$"}, [("b.txt", 2, "")]),
    "any case": ({"pattern": "IMPORT$", "ignore_case": True}, [("b.txt", 3, "Import")]),
    "both": ({"glob": "*.txt", "pattern": "print"}, [("b.txt", 1, "print me")]),
    "nothing": ({"glob": "*.rs", "pattern": "import"}, []),
}


class FileContract(Basics):
    """Files, in terms of files alone."""

    @pytest.mark.parametrize(
        "data", **table({"empty": b"", "bytes": bytes(range(256)), "large": b"0123456\n" * 300_000})
    )
    @pytest.mark.line
    async def test_what_was_written_is_read(self, sandbox: Sandbox, folder: str, data: bytes) -> None:
        written = await sandbox.write(f"{folder}/file", data)
        found = await sandbox.read(f"{folder}/file", Span(limit=len(data)))
        assert found.data == data or not "the same bytes"
        assert (written.size, written.created) == (len(data), True)
        assert (found.size, found.version, found.more) == (len(data), written.version, False)

    @pytest.mark.parametrize("name", **table(HOSTILE_NAMES))
    async def test_any_name_can_be_used(self, sandbox: Sandbox, folder: str, name: str) -> None:
        path = f"{folder}/{name}"
        await sandbox.write(path, b"a needle\n")
        assert (await sandbox.read(path, Span())).data == b"a needle\n"
        (entry,) = (await sandbox.list(folder)).entries
        assert (entry.path, entry.kind, entry.size) == (path, "file", 9)
        assert (await sandbox.search(Search(folder, glob="*"))).matches == (Match(path),)
        assert (await sandbox.search(Search(folder, pattern="needle"))).matches == (Match(path, 1, "a needle"),)
        assert (await sandbox.search(Search(path, pattern="needle"))).matches == (Match(path, 1, "a needle"),)

    @pytest.mark.parametrize("name", **table(HOSTILE_NAMES))
    async def test_any_folder_can_be_used(self, sandbox: Sandbox, folder: str, name: str) -> None:
        path = f"{folder}/{name}/file"
        await sandbox.write(path, b"")
        assert [entry.path for entry in (await sandbox.list(f"{folder}/{name}")).entries] == [path]
        found = await sandbox.list(folder, recursive=True)
        assert [(entry.path, entry.is_dir) for entry in found.entries] == [(f"{folder}/{name}", True), (path, False)]
        assert (await sandbox.search(Search(f"{folder}/{name}", glob="*"))).matches == (Match(path),)

    async def test_paths_start_at_home(self, sandbox: Sandbox, home: str, folder: str) -> None:
        relative = posixpath.relpath(folder, home)
        await sandbox.write(f"{relative}/file", b"x")
        for path in (f"{folder}/file", f"~/{relative}/file", f"{relative}/../{relative}//./file"):
            assert (await sandbox.read(path, Span())).data == b"x"
        for path in (relative, f"~/{relative}/"):
            assert [entry.path for entry in (await sandbox.list(path)).entries] == [f"{folder}/file"]

    # Reading

    @pytest.mark.parametrize(("data", "span", "expected"), **table(SPANS))
    async def test_a_span_is_read(
        self, sandbox: Sandbox, folder: str, data: bytes, span: Span, expected: FileSlice
    ) -> None:
        written = await sandbox.write(f"{folder}/file", data)
        assert await sandbox.read(f"{folder}/file", span) == replace(expected, version=written.version)

    async def test_what_is_not_there_or_no_file_is_not_read(self, sandbox: Sandbox, folder: str) -> None:
        await sandbox.write(f"{folder}/file", b"")
        assert await refusal(sandbox.read(f"{folder}/none", Span())) == "ENOENT"
        assert await refusal(sandbox.read(f"{folder}/none/file", Span())) == "ENOENT"
        assert await refusal(sandbox.read(folder, Span())) == "is_dir"

    # Writing

    async def test_a_write_says_what_is_there_now(self, sandbox: Sandbox, folder: str) -> None:
        first = await sandbox.write(f"{folder}/made/on/the/way/file", b"1")
        second = await sandbox.write(f"{folder}/made/on/the/way/file", b"22")
        assert (first.created, second.created, second.size) == (True, False, 2)
        assert first.version != second.version
        assert (await sandbox.read(f"{folder}/made/on/the/way/file", Span())).version == second.version

    @pytest.mark.line
    async def test_only_the_expected_version_is_replaced(self, sandbox: Sandbox, folder: str) -> None:
        path = f"{folder}/file"
        first = await sandbox.write(path, b"1", expected="")
        second = await sandbox.write(path, b"2", expected=first.version)
        assert await refusal(sandbox.write(path, b"3", expected=first.version)) == "stale"
        assert await refusal(sandbox.write(path, b"3", expected="")) in ("exists", "stale")
        assert await refusal(sandbox.write(f"{folder}/none", b"3", expected=second.version)) == "stale"
        found = await sandbox.read(path, Span())
        assert (found.data, found.version) == (b"2", second.version)
        assert [entry.path for entry in (await sandbox.list(folder)).entries] == [path]

    async def test_a_folder_is_not_replaced(self, sandbox: Sandbox, folder: str) -> None:
        await sandbox.write(f"{folder}/file", b"1")
        assert await refusal(sandbox.write(folder, b"2")) in ("not_a_file", "is_dir")
        assert (await sandbox.read(f"{folder}/file", Span())).data == b"1"

    async def test_readers_see_the_old_file_or_the_new_one(self, sandbox: Sandbox, folder: str) -> None:
        path, states = f"{folder}/file", (b"a" * 300_000, b"b" * 500_000)
        await sandbox.write(path, states[0])
        writes = [sandbox.write(path, states[n % 2]) for n in range(10)]
        reads = [sandbox.read(path, Span(limit=600_000)) for _ in range(10)]
        done = await asyncio.gather(*(each for pair in zip(writes, reads, strict=True) for each in pair))
        assert all(found.data in states for found in done if isinstance(found, FileSlice))
        assert len((await sandbox.list(folder)).entries) == 1

    # Listing

    async def test_a_listing_is_in_the_order_of_names(self, sandbox: Sandbox, folder: str) -> None:
        names = ["B", "a", "a-b", "ab", "b", "é", "日", "\udcff"]
        await write_all(sandbox, folder, {name: name.encode("utf-8", "surrogateescape") for name in reversed(names)})
        await sandbox.write(f"{folder}/a.d/x", b"")
        found = await sandbox.list(folder)
        expected = sorted((*names, "a.d"), key=lambda name: name.encode("utf-8", "surrogateescape"))
        assert [entry.path for entry in found.entries] == [f"{folder}/{name}" for name in expected]
        assert {entry.path: entry.kind for entry in found.entries}[f"{folder}/a.d"] == "dir"
        assert (found.truncated, found.problems) == (False, ())

    @pytest.mark.line
    async def test_a_recursive_listing_has_everything_once(self, sandbox: Sandbox, folder: str) -> None:
        await write_all(sandbox, folder, TREE)
        found = await sandbox.list(folder, recursive=True)
        paths = [posixpath.relpath(entry.path, folder) for entry in found.entries]
        assert sorted(paths) == sorted((*TREE, "src", "src/deep", "src/deep/er", "srcs"))
        for parent in ("", "src"):
            inside = [path for path in paths if posixpath.dirname(path) == parent]
            assert inside == sorted(inside)
        sizes = {posixpath.relpath(entry.path, folder): entry.size for entry in found.entries if not entry.is_dir}
        assert sizes == {name: len(data) for name, data in TREE.items()}

    @pytest.mark.parametrize("recursive", [False, True], ids=["flat", "recursive"])
    async def test_a_listing_says_that_there_is_more(self, sandbox: Sandbox, folder: str, recursive: bool) -> None:
        await write_all(sandbox, folder, {f"{n:02}": b"" for n in range(20)})
        for limit, truncated in ((1, True), (19, True), (20, False), (21, False)):
            found = await sandbox.list(folder, recursive=recursive, limit=limit)
            assert [entry.path[-2:] for entry in found.entries] == [f"{n:02}" for n in range(min(limit, 20))]
            assert found.truncated is truncated

    async def test_a_file_is_listed_as_itself(self, sandbox: Sandbox, folder: str) -> None:
        await sandbox.write(f"{folder}/file", b"x")
        (entry,) = (await sandbox.list(f"{folder}/file")).entries
        assert (entry.path, entry.kind, entry.size) == (f"{folder}/file", "file", 1)

    async def test_what_is_not_there_is_not_listed_or_searched(self, sandbox: Sandbox, folder: str) -> None:
        assert await refusal(sandbox.list(folder)) == "ENOENT"
        assert await refusal(sandbox.search(Search(folder, glob="*"))) == "ENOENT"

    # Searching

    @pytest.mark.parametrize(("asked", "expected"), **table(SEARCHES))
    @pytest.mark.line
    async def test_a_search_finds(
        self, sandbox: Sandbox, folder: str, asked: dict[str, Any], expected: list[tuple[str, int, str]]
    ) -> None:
        await write_all(sandbox, folder, TREE)
        found = await sandbox.search(Search(folder, **asked))
        assert [(posixpath.relpath(match.path, folder), match.line, match.text) for match in found.matches] == expected
        assert (found.truncated, found.problems) == (False, ())

    @pytest.mark.parametrize("asked", [{"glob": "*"}, {"pattern": "x"}], ids=["files", "lines"])
    async def test_a_search_says_that_there_may_be_more(
        self, sandbox: Sandbox, folder: str, asked: dict[str, Any]
    ) -> None:
        await write_all(sandbox, folder, {f"{n:02}": b"x" for n in range(12)})
        for limit, truncated in ((1, True), (11, True), (12, False), (13, False)):
            found = await sandbox.search(Search(folder, limit=limit, **asked))
            assert [match.path[-2:] for match in found.matches] == [f"{n:02}" for n in range(min(limit, 12))]
            assert found.truncated is truncated

    async def test_a_bad_expression_is_refused(self, sandbox: Sandbox, folder: str) -> None:
        await sandbox.write(f"{folder}/file", b"(\n")
        assert await refusal(sandbox.search(Search(folder, pattern="("))) == "pattern"
