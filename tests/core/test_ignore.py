"""What .gitignore lines leave out, by a table and by what git itself says."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.sync import ignore, secret_names
from remote_sandbox_mcp.core.sync.ignore import Ignore

# (what it shows, lines, paths left out, paths kept); a path that ends in a slash is a folder.
TABLE: list[tuple[str, list[bytes], list[bytes], list[bytes]]] = [
    ("nothing", [], [], [b"a", b"a/"]),
    ("plain name at any depth", [b"a"], [b"a", b"a/", b"x/y/a"], [b"A", b"ab", b"a.c", b"xa", b"x/ab"]),
    ("blank lines", [b"", b"   ", b"\r", b"\n", b"!", b"/", b"//", b"!/"], [], [b"a", b" ", b"a/", b"!", b"x/y"]),
    ("comments", [b"#a", b"# *"], [], [b"#a", b"a", b"# *"]),
    ("a quoted hash", [rb"\#a"], [b"#a"], [b"a", rb"\#a"]),
    ("a hash after a space", [b" #a"], [b" #a"], [b"#a"]),
    ("a quoted exclamation mark", [rb"\!a"], [b"!a"], [b"a"]),
    ("spaces at the end", [b"a   "], [b"a"], [b"a   ", b"a "]),
    ("a tab at the end stays", [b"a\t"], [b"a\t"], [b"a"]),
    ("a quoted space at the end", [b"a\\  "], [b"a "], [b"a", b"a  "]),
    ("a space after a quoted backslash", [b"a\\\\ "], [b"a\\"], [b"a\\ ", b"a"]),
    ("spaces in the middle", [b"a b"], [b"a b"], [b"a", b"b"]),
    ("line ends of every kind", [b"a\r\n", b"b\n", b"c\r", b"d \r\n"], [b"a", b"b", b"c", b"d"], [b"a\r", b"c\r"]),
    ("only one carriage return is a line's end", [b"a\r\r\n"], [b"a\r"], [b"a"]),
    ("negation", [b"*.c", b"!a.c"], [b"b.c", b"x/b.c"], [b"a.c", b"x/a.c"]),
    ("the last that fits decides", [b"!a", b"a", b"!b", b"b", b"!b"], [b"a"], [b"b"]),
    ("signs by turns", [b"*", b"!*.c", b"x.*", b"!x.c", b"x.c"], [b"a", b"x.c", b"x.d"], [b"a.c"]),
    ("two marks are a name with one", [b"*", b"!!a"], [b"a"], [b"!a"]),
    ("a folder's negation is not a file's", [b"a", b"!a/"], [b"a", b"x/a"], [b"a/", b"x/a/"]),
    ("a slash in front", [b"/a"], [b"a", b"a/"], [b"x/a"]),
    ("a slash in the middle", [b"a/b"], [b"a/b", b"a/b/"], [b"x/a/b", b"b", b"a", b"a/bc"]),
    ("both slashes", [b"/a/b"], [b"a/b"], [b"x/a/b"]),
    ("a slash at the end", [b"a/"], [b"a/", b"x/a/"], [b"a", b"x/a"]),
    ("slashes in the middle and at the end", [b"a/b/"], [b"a/b/"], [b"a/b", b"x/a/b/"]),
    ("two slashes in a row", [b"//a", b"a//b", b"b//"], [], [b"a", b"a/b", b"b/"]),
    ("the end of a name", [b"*.o"], [b"a.o", b".o", b"x/a.o", b"a.o/"], [b"a.oo", b"o", b"x.o/a"]),
    ("the start of a name", [b"a*"], [b"a", b"ab", b"x/ab"], [b"ba", b"x/ba", b"ab/x"]),
    ("all", [b"*"], [b"a", b".a", b"x/y", b"x/"], []),
    ("all but at the root", [b"/*", b"!/a"], [b"b", b"x/"], [b"a", b"x/b"]),
    ("stars at both ends", [b"*a*"], [b"a", b"bab", b"x/ab"], [b"b", b"ab/x"]),
    ("a star does not cross a slash", [b"a/*"], [b"a/b", b"a/b/"], [b"a/b/c", b"a"]),
    ("a star as a folder", [b"a/*/b"], [b"a/x/b"], [b"a/b", b"a/x/y/b"]),
    ("a question mark", [b"a?c"], [b"abc", b"a.c", b"x/abc"], [b"ac", b"abbc"]),
    ("a question mark is no slash", [b"/a?c", b"x/a?c"], [b"abc", b"x/abc"], [b"a/c", b"x/a/c"]),
    ("a question mark is a byte", [b"?", b"a??"], [b"x", b"\xff", "aé".encode()], ["é".encode()]),
    ("a bracket", [b"[ab]"], [b"a", b"b"], [b"c", b"ab", b"[ab]"]),
    ("a range", [b"[b-d]"], [b"b", b"c", b"d"], [b"a", b"e", b"-"]),
    ("a range of bytes over 127", [b"[\xf0-\xff]"], [b"\xf0", b"\xff"], [b"\xef", b"a"]),
    ("a range backwards", [b"[d-b]"], [b"d"], [b"b", b"c", b"-"]),
    ("a range backwards, negated", [b"[!d-b]"], [b"b", b"c", b"-"], [b"d"]),
    ("a bracket negated", [b"[!ab]"], [b"c", b"!"], [b"a", b"b"]),
    ("a bracket negated with a caret", [b"[^ab]"], [b"c", b"^"], [b"a", b"b"]),
    ("a mark that is not first", [b"[a!^]"], [b"a", b"!", b"^"], [b"b"]),
    ("a closing bracket first", [b"[]a]"], [b"]", b"a"], [b"b", b"a]"]),
    ("a closing bracket first, negated", [b"[!]a]"], [b"b"], [b"]", b"a"]),
    ("a range from a closing bracket", [b"[]-a]"], [b"]", b"^", b"_", b"`", b"a"], [b"b", b"-"]),
    ("dashes at the ends", [b"[-a]", b"[b-]"], [b"-", b"a", b"b"], [b"c"]),
    ("a dash after a range", [b"[a-c-e]"], [b"b", b"-", b"e"], [b"d"]),
    ("a backslash in a bracket", [rb"[\]x]", rb"[\\y]"], [b"]", b"x", b"\\", b"y"], [b"z"]),
    ("quoted ends of a range", [rb"[\b-\d]"], [b"b", b"c", b"d"], [b"a", b"\\"]),
    ("a quoted dash", [rb"[b\-d]"], [b"b", b"-", b"d"], [b"c"]),
    ("digits", [b"a[[:digit:]]"], [b"a0", b"a9"], [b"aa", b"a:", b"ad", b"a"]),
    ("classes and more", [b"[[:upper:]_[:digit:]x-z]"], [b"A", b"_", b"5", b"y"], [b"a", b":", b"["]),
    ("a class negated", [b"[![:alpha:]]"], [b"1", b"-", b"\xff"], [b"a", b"Z"]),
    ("no class without its end", [b"[[:]", b"[[:x]"], [b"[", b":", b"x"], [b"]"]),
    ("a class that nobody knows", [b"[[:nonsense:]]", b"[![:nonsense:]]", b"[[::]]"], [], [b"n", b":", b"[", b"]"]),
    ("a bracket is no slash", [b"x/a[!z]b", b"x/a[+-9]b"], [b"x/acb", b"x/a0b"], [b"x/a/b"]),
    ("a slash in a bracket anchors", [b"a[/b]c"], [b"abc"], [b"a/c", b"x/abc", b"a[/b]c"]),
    (
        "an open bracket",
        [b"[a", b"[", b"a[]", b"a[!]", b"[[:alpha:]", b"a[b/"],
        [],
        [b"a", b"[", b"[a", b"a[]", b"ab/"],
    ),
    ("a lone backslash at the end", [b"a\\", b"\\", b"*\\", b"a\\/"], [], [b"a", b"a\\", b"\\", b"a/"]),
    ("quoted wildcards", [rb"\*", rb"a\?", rb"\[b]"], [b"*", b"a?", b"[b]"], [b"a", b"ab", b"b"]),
    ("quoted letters", [rb"\a\b"], [b"ab"], [b"\\a\\b"]),
    ("two stars and a slash in front", [b"**/a"], [b"a", b"x/a", b"x/y/a"], [b"xa", b"x/ya"]),
    ("the same with a path", [b"**/a/b"], [b"a/b", b"x/a/b", b"x/y/a/b"], [b"b", b"xa/b"]),
    ("two stars at the end", [b"a/**"], [b"a/b", b"a/b/c"], [b"a", b"a/", b"x/a/b"]),
    ("two stars at the end for folders", [b"a/**/"], [b"a/b/", b"a/b/c/"], [b"a/", b"a/b"]),
    ("two stars between", [b"a/**/b"], [b"a/b", b"a/x/b", b"a/x/y/b"], [b"x/a/b", b"ab", b"a/xb"]),
    ("two stars many times", [b"**/**/a/**/**/b/**"], [b"a/b/c", b"x/a/y/b/z/q"], [b"a/b", b"a/c", b"b/a/c"]),
    ("more stars than two", [b"a/***/b"], [b"a/b", b"a/x/y/b"], [b"ab"]),
    ("nothing but two stars", [b"**"], [b"a", b"x/a", b"x/"], []),
    ("two stars for folders", [b"**/"], [b"a/", b"x/a/"], [b"a", b"x/a"]),
    ("two stars below the root", [b"/**"], [b"a", b"x/a"], []),
    ("two stars with a name are one", [b"a/**b", b"c/d**"], [b"a/b", b"a/xb", b"c/d", b"c/dx"], [b"a/x/b", b"c/dx/y"]),
    ("two stars inside a name are one", [b"a**/b"], [b"a/b", b"ax/b"], [b"ab", b"a/x/b"]),
    ("two stars without a slash are one", [b"a**b"], [b"ab", b"axxb", b"y/axb"], [b"a/b"]),
    ("the first fit is not the last", [b"*ab*abc", b"**/a/b/**/c"], [b"ababc", b"a/a/b/c"], [b"abc", b"a/b/d"]),
    ("names that are no text", [b"\xff\xfe", b"*\x80"], [b"\xff\xfe", b"x/a\x80"], [b"\xff", b"\x80a"]),
    ("names with line ends", [b"a*b", b"x/a?b"], [b"a\nb", b"x/a\nb"], [b"a\n", b"ab\n"]),
    (
        "names that look like expressions",
        [b"a.c*", b"(a|b)?", b"$*^"],
        [b"a.c", b"(a|b)c", b"$^"],
        [b"abc", b"ac", b"^"],
    ),
    ("a line longer than any path", [b"*" * 5000, b"[" * 100_000], [], [b"a"]),
]
ROWS = [pytest.param(*row[1:], id=row[0]) for row in TABLE]


def left_out(rules: Ignore, path: bytes) -> bool:
    return rules.leaves_out(path.rstrip(b"/"), path.endswith(b"/"))


@pytest.mark.parametrize(("lines", "out", "kept"), ROWS)
def test_lines_exclude_the_paths_that_they_match(lines: list[bytes], out: list[bytes], kept: list[bytes]) -> None:
    rules = Ignore(lines)
    assert [path for path in out if not left_out(rules, path)] == []
    assert [path for path in kept if left_out(rules, path)] == []


@pytest.mark.parametrize(("lines", "out", "kept"), ROWS)
def test_lines_of_a_file_count_below_its_folder_only(lines: list[bytes], out: list[bytes], kept: list[bytes]) -> None:
    rules = Ignore()
    rules.add(b"in/it", b"\n".join(lines))
    assert [path for path in out if not left_out(rules, b"in/it/" + path)] == []
    assert [path for path in kept if left_out(rules, b"in/it/" + path)] == []
    assert [path for path in [*out, *kept] if left_out(rules, path) or left_out(rules, b"in/item/" + path)] == []


def test_a_gitignore_file_does_not_apply_to_its_own_folder() -> None:
    rules = Ignore()
    rules.add(b"a", b"*\na")
    assert not rules.leaves_out(b"a", True)
    assert rules.leaves_out(b"a/a", True)


def test_deeper_files_win_over_shallower_ones() -> None:
    rules = Ignore()
    rules.add(b"a/b", b"*.c")
    rules.add(b"", b"*.c\nx")
    rules.add(b"a", b"!*.c")
    out = {
        path: rules.leaves_out(path, False) for path in (b"1.c", b"a/1.c", b"a/b/1.c", b"a/b/d/1.c", b"a/b/x", b"b/1.c")
    }
    assert out == {b"1.c": True, b"a/1.c": False, b"a/b/1.c": True, b"a/b/d/1.c": True, b"a/b/x": True, b"b/1.c": True}


@pytest.mark.parametrize(("lines", "out", "kept"), ROWS)
def test_all_files_of_a_folder_are_judged_as_each_of_them(
    lines: list[bytes], out: list[bytes], kept: list[bytes]
) -> None:
    rules = Ignore([*lines, ignore.NAMES_OF_SECRETS])
    rules.add(b"x", b"\n".join(lines))
    for folder in {path.rpartition(b"/")[0] for path in [*out, *kept]}:
        names = [*{path.rpartition(b"/")[2] for path in [*out, *kept]} - {b""}, b".env", b"id_rsa", b"token"]
        each = {name for name in names if rules.leaves_out(folder + b"/" + name if folder else name, False)}
        assert rules.files_left_out(folder, names) == each


def test_own_lines_win_over_files() -> None:
    rules = Ignore([b"*.c", b"!keep", b"/b/"])
    rules.add(b"", b"keep\n!1.c\n!b\nother")
    rules.add(b"a", b"keep\n!1.c")
    assert all(rules.leaves_out(path, True) for path in (b"1.c", b"a/1.c", b"b", b"other"))
    assert not any(rules.leaves_out(path, True) for path in (b"keep", b"a/keep", b"a/b"))


def test_lines_added_for_the_same_folder_follow_the_earlier_ones() -> None:
    rules = Ignore()
    rules.add(b"a", b"x\ny")
    assert rules.leaves_out(b"a/x", False)
    rules.add(b"a", b"!x")
    assert not rules.leaves_out(b"a/x", False)
    assert rules.leaves_out(b"a/y", False)


def test_a_byte_order_mark_counts_in_the_first_line_of_a_file_only() -> None:
    bom = b"\xef\xbb\xbf"
    rules = Ignore([bom + b"own"])
    rules.add(b"", b"\n".join([bom + b"first", bom + b"second"]))
    assert [path for path in (b"own", b"first", b"second") if rules.leaves_out(path, False)] == [b"first"]
    assert all(rules.leaves_out(bom + path, False) for path in (b"own", b"second"))


def test_nothing_below_an_excluded_folder_is_included_again() -> None:
    rules = Ignore([b"/a/", b"!b", b"!/a/b"])
    assert not rules.leaves_out(b"a/b", False)
    assert rules.leaves_out_below(b"a/b", False)
    assert rules.leaves_out_below(b"a/b/c/d", True)
    assert rules.leaves_out_below(b"a", True)
    assert not rules.leaves_out_below(b"a", False)
    assert not rules.leaves_out_below(b"x/a/b", False)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"a*a*a*a*a*a*a*a*b", b"a" * 200),
        (b"*a" * 100 + b"b", b"a" * 255),
        (b"?*" * 100 + b"b", b"a" * 255),
        (b"[a-z]*" * 100 + b"1", b"a" * 255),
        (b"**/a/" * 50 + b"b", b"a/" * 2000 + b"c"),
        (b"**/*a*a*a/" * 50 + b"b", (b"a" * 60 + b"/") * 60 + b"c"),
        (b"a/" + b"**/" * 1000 + b"b", b"a/" * 2000 + b"c"),
        (b"/" + b"*/" * 500 + b"b", b"a/" * 500 + b"c"),
        (b"[[:" * 1000, b"a"),
    ],
    ids=[
        "stars",
        "many stars",
        "question marks",
        "brackets",
        "folders",
        "stars in folders",
        "only **",
        "only *",
        "open",
    ],
)
def test_no_pattern_is_slow(pattern: bytes, path: bytes) -> None:
    begun = time.process_time()
    assert not Ignore([pattern]).leaves_out(path, False)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(("module", "imported"), [(ignore, ["secret_names"]), (secret_names, [])])
def test_the_module_is_python_3_6_and_imports_only_re(module: ModuleType, imported: list[str]) -> None:
    tree = ast.parse(inspect.getsource(module), feature_version=(3, 6))
    assert [node.names[0].name for node in tree.body if isinstance(node, ast.Import)] == ["re"]
    # Imports for types are left out of what is sent.
    for_types = {"collections.abc", "typing"}
    modules = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert [module for module in modules if module not in for_types] == imported


NAMES = ["a", "b", "ab", "a.b", "b b", "a ", "-", "!a", "#a", "[a]", "]", "a\\b", "*", "Ab", "é", "0"]
FOLDERS = ["a", "b", "a/b", "a/a", "b/ab", "a/b/a", "b/ab/[a]", "a.b", "!a"]


class Repository:
    """A real repository, in which git is asked about every path at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[bytes, bool] = {}
        self.git("init", "-q")

    def put(self, path: bytes) -> None:
        """Make a file, or a folder where the path ends in a slash, unless something is there."""
        place = self.root / os.fsdecode(path)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir() if path.endswith(b"/") else place.touch()
            self.paths[path.rstrip(b"/")] = path.endswith(b"/")

    def git(self, *words: str, told: bytes = b"") -> bytes:
        settings = ["-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"]
        nobody = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *settings, *words], cwd=self.root, input=told, env=nobody, stdout=subprocess.PIPE)
        assert done.returncode in (0, 1)
        return done.stdout

    def left_out(self, files: dict[bytes, list[bytes]]) -> set[bytes]:
        """What git leaves out with these .gitignore files and no others."""
        written = [self.root / os.fsdecode(folder) / ".gitignore" for folder in files]
        try:
            for file, lines in zip(written, files.values(), strict=True):
                file.write_bytes(b"\n".join(lines))
            told = b"\0".join(self.paths) + b"\0"
            fields = self.git("check-ignore", "--no-index", "--stdin", "-z", "-v", "-n", told=told).split(b"\0")
        finally:
            for file in written:
                file.unlink(missing_ok=True)
        answers = zip(fields[2::4], fields[3::4], strict=True)
        return {path for pattern, path in answers if pattern and not pattern.startswith(b"!")}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("repository"))
    for folder in FOLDERS:
        repository.put(f"{folder}/".encode())
    for name in NAMES:
        repository.put(name.encode())
        for folder in FOLDERS:
            repository.put(f"{folder}/{name}".encode())
    (repository.root / "b" / "link").symlink_to("ab")
    repository.paths[b"b/link"] = False
    return repository


def ours(paths: dict[bytes, bool], files: dict[bytes, list[bytes]]) -> set[bytes]:
    rules = Ignore()
    for folder, lines in files.items():
        rules.add(folder, b"\n".join(lines))
    return {path for path, is_dir in paths.items() if rules.leaves_out_below(path, is_dir)}


# Where git does not do what its manual says: a name's `**` that only plain bytes precede crosses slashes after all, and
# `**\/` does not stand for no folder.
UNLIKE_THE_MANUAL = re.compile(rb"\A(?!!\*\*)!?[^*?\[\\]*[^*?\[\\/]\*\*|\*\*\\/")


def as_in_the_manual(pattern: bytes) -> bool:
    return b"/" not in pattern[:-1] or not UNLIKE_THE_MANUAL.search(pattern)


def rows_for_git() -> dict[bytes, tuple[list[bytes], bytes]]:
    """A folder of its own for every path of the table, since some rows have a file and a folder of one name."""
    rows = [row for row in TABLE if all(as_in_the_manual(line) and len(line) < 100 for line in row[1])]
    cases = [(lines, path) for _, lines, out, kept in rows for path in [*out, *kept] if path.isascii()]
    return {b"%d" % number: case for number, case in enumerate(cases)}


def test_git_agrees_on_the_table(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    cases = rows_for_git()
    for top, (_, path) in cases.items():
        repository.put(top + b"/" + path)
    files = {top: lines for top, (lines, _) in cases.items()}
    assert len(cases) > 200
    assert ours(repository.paths, files) == repository.left_out(files)


ATOMS = [*"ab.0é*?/[]-!# \\", "ab", "\\ ", "\\*", "**", "**/", "/**", "/**/", "*/", "[ab]", "[!a]", "[^b]", "[]a]"]
ATOMS += ["[a-c]", "[b-a]", "[+-b]", "[[:alpha:]]", "[![:digit:]]", "[[:punct:]b]"]
PATTERNS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "", "", "!", "/", "!/", "**/", "#", "\\!", "\\#", " "]),
    st.lists(st.sampled_from(ATOMS), min_size=1, max_size=6).map("".join),
    st.sampled_from(["", "", "", "/", "/**", " ", "\\ ", "\r", "\\"]),
).map(str.encode)
LINES = st.lists(PATTERNS.filter(as_in_the_manual), max_size=5)
FILES = st.dictionaries(st.sampled_from([b"", *(folder.encode() for folder in FOLDERS)]), LINES, min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(files=FILES)
@example(files={b"": [b"*", b"!*/", b"!*.b"], b"a": [b"!/b/**", b"*b"], b"a/b": [b"!a*"]})
@example(files={b"": [b"\xef\xbb\xbfa", b"!a/b"], b"b": [b"link/", b"\xef\xbb\xbfb"]})
@example(files={b"": [b"a/**/b", b"[!a]*", b"!**/a"], b"b/ab": [b"!\\[a]", b"[[]*", b"[]]"]})
@example(files={b"": [b"b/link/", b"/a/*", b"!/a/b", b"[[:upper:]]?", b"\\!a", b"\\#a", b"a\\ ", b"b b  "]})
def test_git_agrees_on_any_lines(repository: Repository, files: dict[bytes, list[bytes]]) -> None:
    assert ours(repository.paths, files) == repository.left_out(files)


def test_a_link_to_a_folder_is_a_file(repository: Repository) -> None:
    assert b"b/link" not in repository.left_out({b"": [b"link/"]})
    assert not Ignore([b"link/"]).leaves_out(b"b/link", False)
