"""Where programs of this computer are started and looked up, read from the source: nothing by its bare name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote_sandbox_mcp
from tests.support.syntax import parsed

# One worker reads the whole source, once.
pytestmark = pytest.mark.xdist_group("source")
SOURCE = Path(remote_sandbox_mcp.__file__).parent
FINDER = "local/processes/programs.py"
LOOKUPS = {"which", "find_executable", "get_exec_path"}
SEARCHING = {"execvp", "execvpe", "execlp", "execlpe", "spawnvp", "spawnlp", "spawnvpe", "posix_spawnp", "system"}
SHELLS = {"popen", "getoutput", "getstatusoutput", "create_subprocess_shell", "subprocess_shell"}
STARTS = {"run", "Popen", "call", "check_call", "check_output", "create_subprocess_exec", "execv", "execve"}
# Every file that starts a program, with where the first word comes from. A new one is looked at by a person.
STARTERS = {
    "backends/bubblewrap/bwrap.py": "find_helper; to try a network, our own Python",
    "backends/bubblewrap/disk.py": "find_helper",
    "backends/bubblewrap/network/enter.py": "bubblewrap's path, which find_helper found",
    "backends/bubblewrap/network/frames.py": "the path of slirp4netns, which find_helper found",
    "backends/link/pipe.py": "words of by_path and find_helper, and our own Python",
    "backends/shell/patterns.py": "our own Python",
    "backends/ssh/connection.py": "by_path",
    "backends/ssh/openssh.py": "find_chosen and find_helper",
    "cli/browser.py": "find_helper",
    "config/openssh.py": "find_chosen",
    "config/secrets.py": "by_path",
    "services/hub_contact/starting.py": "/bin/sh, and our own Python",
    "local/notify/program.py": "by_path",
    "services/platform_server/life.py": "find_chosen",
    "local/processes/process.py": "find_helper",
    "services/session.py": "find_helper",
    "services/setup/clients.py": "find_chosen",
    "services/watchdog/manager.py": "find_helper",
}


def near_files() -> Iterator[tuple[str, ast.AST]]:
    """All files of the program that run on this computer."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        if not name.startswith("far/"):
            yield name, parsed(file)


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Each call, with the name before the dot and the one behind it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            yield owner.id if isinstance(owner, ast.Name) else "", node.func.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield "", node.func.id, node


def starts(tree: ast.AST) -> Iterator[ast.Call]:
    for owner, name, call in calls(tree):
        if owner in ("subprocess", "asyncio", "os") and name in STARTS and (owner, name) != ("asyncio", "run"):
            yield call


def test_programs_are_looked_up_in_one_place() -> None:
    found = {
        f"{file}:{call.lineno} {name}"
        for file, tree in near_files()
        for owner, name, call in calls(tree)
        if name in LOOKUPS and owner in ("shutil", "os", "spawn")
    }
    imported = {
        file
        for file, tree in near_files()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("shutil", "distutils.spawn", "subprocess")
        for name in node.names
        if name.name in LOOKUPS | STARTS
    }
    assert (found, imported) == (set(), set())


def test_no_program_is_searched_for_where_it_is_started_or_by_a_shell() -> None:
    found = {
        f"{file}:{call.lineno} {name}"
        for file, tree in near_files()
        for owner, name, call in calls(tree)
        if name in SEARCHING | SHELLS and owner in ("os", "subprocess", "asyncio", "loop")
    }
    by_shell = {
        f"{file}:{call.lineno}"
        for file, tree in near_files()
        for call in starts(tree)
        if any(keyword.arg == "shell" for keyword in call.keywords)
    }
    assert (found, by_shell) == (set(), set())


def test_every_start_is_known_and_none_begins_with_a_bare_name() -> None:
    assert {file for file, tree in near_files() if any(starts(tree))} == set(STARTERS)
    bare = {
        f"{file}:{call.lineno} {word}"
        for file, tree in near_files()
        for call in starts(tree)
        for word in first_words(call, tree)
        if not word.startswith("/")
    }
    assert bare == set()


def first_words(call: ast.Call, tree: ast.AST) -> Iterator[str]:
    """The program of a start, as far as it is written down: itself, in a list, or in a list that has a name."""
    first: ast.AST = call.args[0]
    if isinstance(first, ast.Starred):
        first = first.value
    if isinstance(first, ast.Name):
        lists = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and any(ast.dump(it) == ast.dump(_stored(first)) for it in node.targets)
        ]
    else:
        lists = [first]
    for words in lists:
        head = words.elts[0] if isinstance(words, ast.List | ast.Tuple) and words.elts else words
        if isinstance(head, ast.Constant) and isinstance(head.value, str):
            yield head.value


def _stored(name: ast.Name) -> ast.Name:
    return ast.Name(name.id, ast.Store())


def test_no_program_inherits_our_variables_but_what_a_person_runs_in_setup() -> None:
    inheriting = {
        file
        for file, tree in near_files()
        for call in starts(tree)
        if isinstance(call.func, ast.Attribute) and not call.func.attr.startswith("exec")
        if not any(keyword.arg == "env" for keyword in call.keywords)
    }
    assert inheriting == {"services/setup/clients.py"}
