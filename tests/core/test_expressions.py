"""No regular expression of ours takes more than its share of time, whatever text a stranger has made for it.

Work is not measured here but judged by the expressions themselves: see tests/support/expressions.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.support.expressions import Expression, all_expressions, objection

from remote_sandbox_mcp.core.resources.report import _json_object
from remote_sandbox_mcp.core.suites import golang, javascript, python_pytest, python_unittest, rust_cargo, tap
from remote_sandbox_mcp.core.suites.junit import parse_junit
from remote_sandbox_mcp.core.suites.reading import _COBERTURA, Case, Verdict, failures_of
from remote_sandbox_mcp.core.suites.verdict import recognise
from remote_sandbox_mcp.far.outpost.files import glob_test
from remote_sandbox_mcp.services.sync.archive import _complaints

# One worker reads the whole source, once.
pytestmark = pytest.mark.xdist_group("source")
ENDS_WELL = "once its first lines are there it fits, since what follows may be empty; each line is taken in one way"
LABELS = "every further part begins with a dot, which is in no other"
OWN_FILES = "the operator's own files, and lines of them"
IN_ANOTHER = "runs on the far side, or in a process of its own that is ended after a while"
COMPILED = "only compiled here, to refuse what is no expression; what searches with it is a process of its own"
SHORT_PATTERNS = "patterns of more than 1,000 characters are not looked at"
BY_WRITER = "IgnoreWriter writes them so; see tests/core/test_ignore.py"
MESSAGES = "messages were cut to 2,000 characters before, and names in them are at most 300 long"

TITLES = "each begins where a word does, and neither of its parts is longer than 300 characters"

# Those that cannot be judged by rule: why each takes no more than its share, by a reader who has thought about it.
REVIEWED = {
    "backends.shell.search: '\\\\\\\\.|\\\\[\\\\^?\\\\]?(?:\\\\\\\\.|[^\\\\]\\\\\\\\])*\\": SHORT_PATTERNS,
    "backends.shell.search: to_bytes(search.pattern)": COMPILED,
    "backends.shell.jobs: to_bytes(pattern)": COMPILED,
    "far.shell.search_lines: pattern": IN_ANOTHER,
    "far.lane.chunks: re.escape(mark)": "a plain text",
    "far.outpost.files: to_bytes(pattern)": IN_ANOTHER,
    "far.jobs.work: to_bytes(pattern)": IN_ANOTHER,
    "far.jobs.fate: pattern": "texts of ours, looked for in the last 4,096 bytes of a file",
    "config.commands: '[a-z0-9][a-z0-9.-]*(?:/[a-z0-9][a-z0-9.": OWN_FILES,
    "config.readers: '(?!-)[\\\\w.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f": OWN_FILES,
    "config.readers: '(?:[\\\\w-]+(?:\\\\.[\\\\w-]+)*|\\\\[[0-9A-Fa-f": LABELS,
    "config.readers: f'https?://{_AUTHORITY.pattern}'": LABELS,
    "config.readers: f'https?://{_AUTHORITY.pattern}(?:/[\\\\w.": LABELS,
    "config.ssh_config: '\\\\s*([A-Za-z0-9]+)(?:(?:\\\\s*=\\\\s*|\\\\s+)": OWN_FILES,
    "config.ssh_config: '(?:\"[^\"]*\"|\\'[^\\']*\\'|[^\\\\s\"\\'])+'": OWN_FILES,
    "core.sync.ignore: b'(?:%s)\\\\Z' % b'|'.join(expressions)": BY_WRITER,
    "core.sandboxes.network: f'(?=.{{1,255}}\\\\Z)(?:\\\\*\\\\.)?{_LABEL}(?": LABELS,
    "core.permission: f'({_LABEL}(?:\\\\.{_LABEL})*|\\\\[[0-9a-f:.": LABELS,
    "core.texts.redact: f'\\\\b(?:{programs})(?![\\\\w.-])'": "names of programs, of ours",
    "core.texts.redact: f'[ \\\\t]-{letter}[ \\\\t]{{0,4}}(?=[^\\\\s-]": "a letter",
    "core.suites.detect: f'\\\\b{runner}\\\\b'": "the name of a runner, of ours",
    "core.suites.javascript: '^  ● (.+)\\\\n((?:\\\\n|    .*\\\\n)*)'": ENDS_WELL,
    "core.suites.javascript: '^ ?FAIL  (.+)\\\\n((?:(?! ?FAIL  |⎯).*\\\\n": ENDS_WELL,
    "core.suites.javascript: '^test at (.+):(\\\\d{1,9}):\\\\d+\\\\n✖ (.+) ": ENDS_WELL,
    "core.suites.reading: f\"panicked at (?:'[^\\\\n]*', )?({_NAME}\\\\": MESSAGES,
    "core.suites.reading: f'({_NAME}\\\\.(?:go|rs)):{_LINE}'": MESSAGES,
    "core.suites.python_unittest: '(?<![\\\\w.])[\\\\w.]{1,300} \\\\([\\\\w.<>]{1,": TITLES,
    "core.resources.report: pattern": "texts of ours, tried at the beginning of a key",
    "services.setup.toml_text: '\"(?:[^\"\\\\\\\\\\\\n]|\\\\\\\\.)*\"|\\\\\\'[^\\\\\\'\\\\n]": OWN_FILES,
    "services.setup.toml_text: f'^[ \\\\t]*\\\\[[ \\\\t]*{name}[ \\\\t]*\\\\][^\\\\": OWN_FILES,
    "services.setup.toml_text: f'^[ \\\\t]*{key}[ \\\\t]*=[ \\\\t]*\\\\['": OWN_FILES,
}


@pytest.fixture(scope="module")
def expressions() -> list[Expression]:
    return list(all_expressions())


def test_every_regular_expression_is_linear_or_reviewed(expressions: list[Expression]) -> None:
    """One that is neither: make it linear (a set of characters that ends, a bound, a method of str), or say why."""
    assert len(expressions) > 150
    assert {one.title: why for one in expressions if one.title not in REVIEWED and (why := state_line(one))} == {}


def test_the_list_of_reviewed_expressions_has_no_extras(expressions: list[Expression]) -> None:
    assert {one.title for one in expressions if state_line(one)} >= REVIEWED.keys()


def state_line(one: Expression) -> str:
    if one.text is None:
        return "it is made while the program runs"
    return objection(one.text, one.flags, anchored=one.anchored)


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(r"(a+)+b", id="nested"),
        pytest.param(r"(?:a|a)*b", id="nested choice"),
        pytest.param(r"(?:ab*)*c", id="nested star"),
        pytest.param(r"a+a+b", id="neighbours"),
        pytest.param(r"a.*b.*c", id="two dots"),
        pytest.param(r"\s+$", id="blanks before the end"),
        pytest.param(r"(?m)^\s*x", id="blanks over lines"),
        pytest.param(r"x[^>]*y", id="a beginning inside of what follows"),
        pytest.param(r"process didn't exit: `([^`]+)`[^\n(]*(\([^)\n]+\))", id="what froze the server"),
        pytest.param(r"(?=.*x)(?!.*y)z", id="looking ahead"),
        pytest.param(r"(?i)x[W-Z]*q", id="small and capital"),
    ],
)
def test_slow_expressions_are_detected(expression: str) -> None:
    assert objection(expression)


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(r"(?m)^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED)", id="one on a line"),
        pytest.param(r"`[^`]+`", id="ends at what begins it"),
        pytest.param(r"[^a-z]+", id="fits as far as it goes"),
        pytest.param(r"(?m)^_{3,} (.+?) _{3,}$", id="divided"),
        pytest.param(r"\Aa*b", id="tried once"),
        pytest.param(r"\d{1,9} [a-z]{1,9}(?:, \d{1,9}){0,9}", id="bounded"),
    ],
)
def test_linear_expressions_pass(expression: str) -> None:
    assert objection(expression) == ""


# Attacks: each took minutes, or would not have ended

REPEATS = 150_000
# Read in a fraction of a second; work that grows with the square of it takes many times the limit.
LENGTH, MOST_S = 200_000, 3
LINES = [
    "process didn't exit successfully: `x` ",
    "process didn't exit successfully: `x` (",
    "running 1 test\n",
    "test a ... ",
    "---- a stdout ----\n",
    "error: could not compile `",
    "FAILED a - ",
    "FAILED tests/test_a.py::test_a - x\n",
    "___ a ___\n",
    "___ a _",
    "1 passed, ",
    "=== short test summary info ===\nFAILED t.py::a\n",
    "Tests:  1 passed, ",
    "  ● a\n",
    " FAIL  a\n",
    "test at a:1:1\n✖ a (1ms)\n",
    "--- FAIL: a (0.00s)\n",
    "ok\n",
    "not ok 1 - a\n  ---\n  duration_ms: 1\n",
    f"{'=' * 70}\nFAIL: a\n{'-' * 70}\n",
    "\n",
    " ",
    "a/",
]
READERS: list[Callable[[str], object]] = [
    rust_cargo.read_text,
    python_pytest.read_text,
    python_unittest.read_text,
    golang.read_text,
    golang.read_json,
    javascript.read_jest_text,
    javascript.read_vitest_text,
    javascript.read_mocha_text,
    javascript.read_node_text,
    tap.read_text,
]
# What makes each reader believe that the text is for it.
OPENINGS = (
    "1..1\nrunning 1 test\ntest session starts\nTests:  1 total\n      Tests  1 passed (1)\n  1 passing\n"
    "# tests 1\n# pass 1\n# fail 1\nRan 1 test in 0.1s\nOK\nok  \tpackage\t0.1s\n=== RUN   a\n___ a ___\n"
)


@pytest.mark.parametrize("line", LINES, ids=repr)
def test_repetitive_output_is_read_in_linear_time(line: str) -> None:
    text = OPENINGS + line * (LENGTH // len(line))
    for reader in READERS:
        begun = time.process_time()
        reader(text)
        assert time.process_time() - begun < MOST_S


def test_a_test_named_by_slashes_alone_has_few_parents() -> None:
    assert golang.read_text(f"--- FAIL: {'a/' * REPEATS}a (0.00s)\nFAIL\tpackage\t0.1s\n")


def test_a_class_named_by_dots_alone_is_looked_up_a_few_times() -> None:
    report = f'<testsuite><testcase classname="{"a." * REPEATS}" name="b"><failure/></testcase></testsuite>'
    assert python_pytest.read_report(parse_junit(report.encode()), "").failed == 1


def test_a_long_name_of_a_suite_is_not_kept_for_each_of_its_tests() -> None:
    report = parse_junit(f'<testsuite name="{"a" * 1_000_000}">{"<testcase/>" * 20_000}</testsuite>'.encode())
    assert max(len(suite) for case in report.cases for suite in case.suites) < 1000
    assert javascript.read_node(report).passed == 20_000


@pytest.mark.parametrize("message", ["a" * 2000, "\n" * 2000, "❯ a" * 600, "panicked at 'a" * 140, "a/a.go:" * 280])
def test_the_place_of_a_failure_is_looked_for_in_a_bounded_text(message: str) -> None:
    assert len(failures_of([Case("a", Verdict.FAILED, message=message * 10)] * 50)) == 50


def test_repetitive_coverage_and_complaints_are_read_in_linear_time() -> None:
    assert _COBERTURA.search(b"<coverage " * REPEATS) is None
    assert recognise("", "cargo " * REPEATS + "go test " * REPEATS) is None
    assert _complaints("tar: ./a" + ": a" * REPEATS + ":") == []
    assert _json_object('{"a":[\n' * REPEATS) == {}


@pytest.mark.parametrize("glob", ["a*" * 30 + "b", "/" + "a*" * 30 + "b", "**/" * 30 + "b", "x/" + "**/a/" * 30 + "b"])
def test_a_glob_with_many_stars_is_matched_in_linear_time(glob: str) -> None:
    fits = glob_test(glob)
    assert not fits(b"a" * 4000, b"a" * 4000)
    assert not fits(b"a", b"x/" + b"a/" * 2000 + b"a")


@pytest.mark.parametrize(
    ("glob", "path", "fitting"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("src/**", "src/a/b", True),
        ("src/**", "src", False),
        ("**/er/*", "a/er/b", True),
        ("**/er/*", "er/b", True),
        ("**/a/**/b", "a/a/x/b", True),
        ("src/**.py", "src/a/b.py", True),
        ("src/[a].py", "src/[a].py", True),
        ("src/[a].py", "src/a.py", False),
        ("a/?", "a/b", True),
        ("a/?", "a/bc", False),
        ("/a/b", "a/b", True),
        ("a/b", "a/b/c", False),
    ],
)
def test_globs_that_name_folders(glob: str, path: str, fitting: bool) -> None:
    assert glob_test(glob)(path.rpartition("/")[2].encode(), path.encode()) is fitting
