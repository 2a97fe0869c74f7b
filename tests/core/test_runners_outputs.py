"""What the runners printed and wrote, as recorded, and what is read from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.suites import golang, javascript, python_pytest, python_unittest, rust_cargo, tap
from remote_sandbox_mcp.core.suites.junit import parse_junit, read_junit
from remote_sandbox_mcp.core.suites.reading import Reading
from remote_sandbox_mcp.core.texts.text import harmless

BEGUN = "===== test session starts =====\n"
DATA = Path(__file__).with_name("data") / "runners"
Reader = Callable[[str], "Reading | None"]


def text(name: str) -> str:
    return harmless((DATA / name).read_bytes())


def pytest_xml(name: str) -> Reading:
    return python_pytest.read_report(parse_junit((DATA / f"{name}.xml").read_bytes()), text(f"{name}.txt"))


def vitest_xml(name: str) -> Reading:
    return javascript.read_vitest(parse_junit((DATA / f"{name}.xml").read_bytes()), text(f"{name}.txt"))


def counts(reading: Reading | None) -> tuple[int, int, int, int]:
    assert reading is not None
    return reading.passed, reading.failed, reading.skipped, reading.errors


def printed(reader: Reader, name: str) -> Callable[[], Reading | None]:
    return lambda: reader(text(name))


READ: dict[str, Callable[[], Reading | None]] = {
    "pytest.xml": lambda: pytest_xml("pytest"),
    "pytest-broken.xml": lambda: pytest_xml("pytest-broken"),
    "pytest-none.xml": lambda: pytest_xml("pytest-none"),
    "vitest.xml": lambda: vitest_xml("vitest"),
    "vitest-unhandled.xml": lambda: vitest_xml("vitest-unhandled"),
    "node.xml": lambda: javascript.read_node(parse_junit((DATA / "node.xml").read_bytes())),
    "surefire.xml": lambda: read_junit(parse_junit((DATA / "surefire.xml").read_bytes())),
    "jest.json": lambda: javascript.read_jest((DATA / "jest.json").read_bytes()),
    "go.jsonl": printed(golang.read_json, "go.jsonl"),
    "go-panic.jsonl": printed(golang.read_json, "go-panic.jsonl"),
    "node-tap.txt": printed(tap.read_text, "node-tap.txt"),
}
for start, reader in {
    "pytest": python_pytest.read_text,
    "unittest": python_unittest.read_text,
    "cargo": rust_cargo.read_text,
    "go-": golang.read_text,
    "jest": javascript.read_jest_text,
    "vitest": javascript.read_vitest_text,
    "mocha": javascript.read_mocha_text,
    "node": javascript.read_node_text,
}.items():
    READ = {file.name: printed(reader, file.name) for file in DATA.glob(f"{start}*.txt")} | READ

# passed, failed, skipped, errors
COUNTS = {
    "pytest.xml": (3, 5, 2, 2),
    "pytest.txt": (4, 5, 2, 2),  # A test whose tear-down breaks has passed too, pytest says.
    "pytest-q.txt": (4, 5, 2, 2),
    "pytest-v.txt": (3, 1, 0, 0),
    "pytest-broken.xml": (0, 0, 0, 1),
    "pytest-broken.txt": (0, 0, 0, 1),
    "pytest-none.xml": (0, 0, 0, 0),
    "pytest-none.txt": (0, 0, 0, 0),
    "pytest-crash.txt": (1, 1, 0, 0),
    "unittest.txt": (2, 4, 2, 3),
    "unittest-short.txt": (2, 4, 2, 3),
    "unittest-3.8.txt": (2, 4, 2, 3),
    "unittest-none.txt": (0, 0, 0, 0),
    "cargo.txt": (3, 3, 1, 0),
    "cargo-crash.txt": (0, 0, 0, 0),
    "cargo-broken.txt": (0, 0, 0, 0),
    "go.jsonl": (2, 2, 1, 1),
    "go-v.txt": (2, 2, 1, 1),
    "go-plain.txt": (0, 3, 0, 1),
    "go-panic.jsonl": (1, 1, 0, 0),
    "jest.json": (2, 2, 2, 1),
    "jest.txt": (2, 2, 2, 1),
    "vitest.xml": (2, 2, 2, 1),
    "vitest.txt": (2, 2, 2, 1),
    "vitest-unhandled.xml": (0, 0, 2, 1),
    "vitest-unhandled.txt": (0, 0, 2, 1),
    "vitest-coverage.txt": (4, 0, 2, 0),
    "mocha.txt": (2, 2, 1, 0),
    "node.xml": (3, 2, 2, 1),
    "node.txt": (4, 3, 2, 0),  # It counts a test that has subtests as one more, and a file that breaks as failed.
    "node-tap.txt": (3, 3, 2, 0),
    "surefire.xml": (2, 1, 1, 1),
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_the_counts_are_those_of_the_runner(name: str) -> None:
    assert counts(READ[name]()) == COUNTS[name]


def test_every_recording_is_read() -> None:
    assert sorted(COUNTS) == sorted(READ)


PLACES = {
    "pytest.xml": [
        ("tests/test_sums.py::test_text[c::d]", "tests/test_sums.py", 25, "assert 'c::d' == 'a/b'"),
        ("tests/test_sums.py::test_text[[x]]", "tests/test_sums.py", 25, "assert '[x]' == 'a/b'"),
        ("tests/test_sums.py::TestGroup::test_in_a_class", "tests/test_sums.py", 31, "ValueError: two\nlines <&>"),
        ("tests/test_sums.py::TestOld::test_old", "tests/test_sums.py", 36, "1 != 2"),
        ("tests/test_sums.py::test_setup", "tests/test_sums.py", 9, "no database"),
        ("tests/test_sums.py::test_teardown", "tests/test_sums.py", 15, "cannot put it away"),
        ("tests/test_sums.py::test_deeper", "tests/test_sums.py", 58, "x is 2"),
    ],
    "pytest-broken.xml": [("test_broken.py", "test_broken.py", 1, "No module named 'nothing_like_this'")],
    "pytest-broken.txt": [("test_broken.py", "test_broken.py", 1, "No module named 'nothing_like_this'")],
    "unittest.txt": [
        ("tests.test_broken", "/home/dev/ut/tests/test_broken.py", 1, "No module named"),
        ("tests.test_sums.Broken (setUpClass)", "/home/dev/ut/tests/test_sums.py", 39, "no database"),
        ("tests.test_sums.Sums.test_raises", "/home/dev/ut/tests/test_sums.py", 13, "no luck"),
        ("tests.test_sums.Sums.test_fails", "/home/dev/ut/tests/test_sums.py", 10, "3 != 4 : one and two"),
        ("tests.test_sums.Sums.test_parts (n=0)", "/home/dev/ut/tests/test_sums.py", 30, "0 != 1"),
        ("tests.test_sums.Sums.test_parts (n=2)", "/home/dev/ut/tests/test_sums.py", 30, "2 != 1"),
        ("tests.test_sums.Sums.test_unexpected", "", 0, "unexpected success"),
    ],
    "cargo.txt": [
        ("tests::gives_an_error", "", 0, 'Error: "no luck"'),
        ("tests::should_have_panicked", "src/lib.rs", 31, "did not panic as expected"),
        ("tests::fails", "src/lib.rs", 22, "left: 3\n right: 4"),
    ],
    "go.jsonl": [
        ("example.com/sums/bad", "bad/bad_test.go", 5, "undefined: undefined"),
        ("example.com/sums/sums TestFails", "sums_test.go", 16, "want 4"),
        ("example.com/sums/sums TestTable/c", "sums_test.go", 25, "no luck"),
    ],
    "go-panic.jsonl": [
        (
            "example.com/sums/panics TestPanics",
            "/home/dev/go/proj/panics/p_test.go",
            7,
            "assignment to entry in nil map",
        )
    ],
    "jest.json": [
        ("fails", "/home/dev/js-jest/src/sums.test.js", 5, "Expected: 4"),
        ("group throws", "/home/dev/js-jest/src/sums.test.js", 12, "no luck"),
        ("/home/dev/js-jest/src/broken.test.js", "/home/dev/js-jest/src/broken.test.js", 1, "Cannot find module"),
    ],
    "vitest.xml": [
        ("src/broken.test.ts", "src/broken.test.ts", 1, "Cannot find module './nothing'"),
        ("src/sums.test.ts > fails", "src/sums.test.ts", 6, "expected 3 to be 4"),
        ("src/sums.test.ts > group > throws", "src/sums.test.ts", 13, "no luck"),
    ],
    "node.xml": [
        ("/home/dev/node/test/broken.test.js", "/home/dev/node/test/broken.test.js", 0, "exitCode: 1"),
        ("fails", "/home/dev/node/test/sums.test.js", 6, "3 !== 4"),
        ("group > throws", "/home/dev/node/test/sums.test.js", 12, "no luck"),
    ],
    "mocha.txt": [("fails", "test/sums.js", 3, "3 == 4"), ("group throws", "test/sums.js", 7, "no luck")],
    "surefire.xml": [
        ("org.example.SumsTest.fails", "SumsTest.java", 14, "expected: <4> but was: <3>"),
        ("org.example.SumsTest.throwsOut", "SumsTest.java", 19, "no luck"),
    ],
}
# The same, as text tells it.
PLACES["pytest.txt"] = sorted(PLACES["pytest.xml"], key=lambda row: "setup" in row[0] or "teardown" in row[0])
PLACES["go-v.txt"] = PLACES["go.jsonl"]
PLACES["vitest.txt"] = PLACES["vitest.xml"]


@pytest.mark.parametrize("name", sorted(PLACES))
def test_failures_have_an_id_a_place_and_a_message(name: str) -> None:
    reading = READ[name]()
    assert reading is not None
    assert [(one.id, one.file, one.line) for one in reading.failures] == [row[:3] for row in PLACES[name]]
    for failure, (*_, said) in zip(reading.failures, PLACES[name], strict=True):
        assert said in failure.message.replace("E       ", "")


ENDINGS = {
    "pytest-crash.txt": "",
    "cargo-crash.txt": "ended without a result (signal: 6, SIGABRT: process abort signal); 0 of its 2 tests are known",
    "cargo-broken.txt": "sums could not be compiled",
    "go-panic.jsonl": "a test binary panicked (assignment to entry in nil map",
    "go-plain.txt": "a test binary panicked",
    "vitest-unhandled.xml": "vitest caught 2 unhandled errors; 4 tests were not run",
    "vitest-unhandled.txt": "vitest caught 2 unhandled errors; 4 tests were not run",
}


@pytest.mark.parametrize("name", sorted(READ))
def test_incomplete_output_is_recognized(name: str) -> None:
    reading = READ[name]()
    assert reading is not None
    assert reading.ended is (name not in ENDINGS)
    assert ENDINGS.get(name, "") in reading.problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pytest-broken.xml", "could not be collected were not run: 1 module"),
        ("pytest-broken.txt", "could not be collected were not run: 1 module"),
        ("unittest.txt", "not imported, so not run: tests.test_broken"),
        ("jest.json", "1 test file could not be loaded"),
        ("jest.txt", "1 test file could not be loaded"),
        ("vitest.xml", "1 test file could not be loaded"),
        ("node.xml", "1 test file could not be loaded"),
        ("pytest-v.txt", "pytest stopped before its end: stopping after 1 failures"),
        ("pytest.xml", ""),
        ("cargo.txt", ""),
        ("go.jsonl", ""),
    ],
)
def test_tests_that_were_never_run_are_reported(name: str, problem: str) -> None:
    reading = READ[name]()
    assert reading is not None
    assert problem in reading.problem
    assert bool(reading.problem) is bool(problem)


def test_the_slowest_come_first() -> None:
    reading = pytest_xml("pytest")
    assert reading.slowest[0].id == "tests/test_sums.py::TestGroup::test_in_a_class"
    assert reading.slowest[0].seconds == 0.051
    assert len(reading.slowest) == 5


def test_ids_without_the_printed_summary_are_made_from_file_and_class() -> None:
    report = parse_junit((DATA / "pytest.xml").read_bytes())
    alone, both = python_pytest.read_report(report, ""), python_pytest.read_report(report, text("pytest.txt"))
    assert [one.id for one in alone.failures] == [one.id for one in both.failures]


def test_ids_are_relative_to_where_pytest_ran_and_not_to_its_root() -> None:
    report = parse_junit((DATA / "pytest.xml").read_bytes())
    below = text("pytest.txt").replace(" tests/test_sums.py::", " test_sums.py::")
    assert python_pytest.read_report(report, below).failures[0].id == "test_sums.py::test_text[c::d]"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(f"{BEGUN}a.py::t1 PASSED [ 50%]\na.py::t2[x y] FAILED [100%]\n", (1, 1, 0, 0), id="verbose"),
        pytest.param(f"{BEGUN}tests/a.py ..s\n", (2, 0, 1, 0), id="letters"),
        pytest.param(f"{BEGUN}collected 3 items\n", (0, 0, 0, 0), id="nothing yet"),
        pytest.param(
            "== 2 passed, 1 warning in 0.10s ==\n=== 1 failed, 3 passed in 61.00s (0:01:01) ===\n",
            (5, 1, 0, 0),
            id="several runs",
        ),
        pytest.param("3 passed, 2 deselected, 4 subtests passed in 0.01s\n", (3, 0, 0, 0), id="other words"),
    ],
)
def test_incomplete_output_of_pytest_is_counted_as_far_as_it_goes(
    output: str, expected: tuple[int, int, int, int]
) -> None:
    assert counts(python_pytest.read_text(output)) == expected


def test_failures_of_the_same_name_and_of_several_runs_keep_their_own_messages() -> None:
    one = "___ test_a ___\nE  one\na.py:3: E\n___ test_a ___\nE  two\nb.py:4: E\n=== short test summary info ===\n"
    one += "FAILED a.py::test_a - one\nFAILED b.py::test_a - two\n=== 2 failed in 0.1s ===\n"
    reading = python_pytest.read_text(one + one.replace(".py", "2.py"))
    assert reading is not None
    places = [(failure.id, failure.file, failure.line) for failure in reading.failures]
    names = ("a.py", 3), ("b.py", 4), ("a2.py", 3), ("b2.py", 4)
    assert places == [(f"{name}::test_a", name, line) for name, line in names]


def test_cargo_that_stops_at_the_first_failing_target_does_not_claim_all() -> None:
    first, _, _ = text("cargo.txt").partition("     Running tests/whole.rs")
    reading = rust_cargo.read_text(first)
    assert reading is not None
    assert reading.problem == "without --no-fail-fast cargo stops at the first target that fails"


def test_incomplete_output_of_unittest_is_counted_as_far_as_it_goes() -> None:
    reading = python_unittest.read_text(text("unittest.txt").partition("\n\n===")[0])
    assert counts(reading) == (2, 4, 2, 3)
    assert reading is not None
    assert not reading.ended


def test_an_incomplete_line_of_go_events_is_ignored() -> None:
    whole = text("go.jsonl")
    cut = golang.read_json(whole[: whole.index('"Test":"TestSkipped"') + 200])
    assert counts(cut) == (1, 1, 0, 1)
    assert cut is not None
    assert not cut.ended


def test_go_without_v_does_not_claim_that_nothing_passed() -> None:
    reading = golang.read_text("ok  \texample.com/sums\t0.005s\n")
    assert reading is not None
    assert not reading.ended
    assert "does not tell how many tests passed" in reading.problem


READERS = (
    python_pytest.read_text, python_unittest.read_text, rust_cargo.read_text, golang.read_json, golang.read_text,
    javascript.read_jest_text, javascript.read_vitest_text, javascript.read_mocha_text, javascript.read_node_text,
    tap.read_text,
)  # fmt: skip

TAP = [
    pytest.param("1..2\nok 1 - a\nnot ok 2 - b\n  ---\n  message: no\n  ...\n", (1, 1, 0, 0), "", id="plain"),
    pytest.param(
        "TAP version 13\nok 1 a # SKIP no\nnot ok 2 b # TODO later\n1..2\n", (0, 0, 2, 0), "", id="directives"
    ),
    pytest.param("1..3\nok 1\n", (1, 0, 0, 0), "it planned 3 tests and told of 1", id="fewer than planned"),
    pytest.param("1..3\nok 1\nBail out! no disk\n", (1, 0, 0, 0), "Bail out! no disk", id="bail out"),
    pytest.param("    ok 1 - x\n    not ok 2 - y\n    1..2\nnot ok 1 - z\n1..1\n", (1, 1, 0, 0), "", id="subtests"),
]


@pytest.mark.parametrize(("output", "expected", "problem"), TAP)
def test_tap(output: str, expected: tuple[int, int, int, int], problem: str) -> None:
    reading = tap.read_text(output)
    assert counts(reading) == expected
    assert reading is not None
    assert reading.problem == problem


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("output", ["", "hello\n", "make: *** [all] Error 2\n", "ok\nFAIL\n", "\x00\n{\n[]"])
def test_other_output_is_not_mistaken_for_test_results(reader: Reader, output: str) -> None:
    assert reader(output) is None


SEEN = [
    pytest.param("test_a (pkg.test_x.T.test_a) ... ok\n", id="a test"),
    pytest.param("noisetest_a (pkg.test_x.T) ... ok\n", id="a test of an old Python, after some noise"),
    pytest.param("ERROR: setUpClass (pkg.test_x.T)\n", id="a class that cannot be set up"),
    pytest.param("setUpModule (pkg.test_x) ... skipped 'no'\n", id="a module that skips itself in its set-up"),
    pytest.param("pkg.test_x (unittest.loader.ModuleSkipped.pkg.test_x) ... skipped 'no'\n", id="on import"),
    pytest.param("pkg.test_x (unittest.loader.ModuleSkipped) ... skipped 'no'\n", id="on import, in an old Python"),
    pytest.param("pkg.test_x (unittest.loader._FailedTest) ... ERROR\n", id="a module that cannot be imported"),
]


@pytest.mark.parametrize("output", SEEN)
def test_modules_that_unittest_ran_are_found_in_its_output(output: str) -> None:
    assert python_unittest.unseen(output, ["pkg.test_x", "test_x", "pkg.test_a"]) == ["test_x", "pkg.test_a"]


def test_a_test_with_the_name_of_a_module_does_not_stand_for_it() -> None:
    assert python_unittest.unseen("test_b (test_a.T.test_b) ... ok\n", ["test_a", "test_b"]) == ["test_b"]


def all_unseen(output: str) -> None:
    python_unittest.unseen(output, [f"test_{number}" for number in range(100_000)])


NASTY = [
    "a" * 3_000_000,
    "".join(f"a{number} (b.c{number}) " for number in range(100_000)),
    "a (" + "b." * 1_000_000,
    "::a" * 100_000,
    "test_a (a.B" + " (" * 100_000 + " ... ",
    "ok 1 - " + " #" * 100_000 + " " * 100_000,
    "not ok " + " " * 300_000,
    "9" * 300_000 + " passed in 1s",
    "==== " + "1 passed, " * 30_000,
    "Ran " + "9" * 5000 + " tests in 1.0s\nOK\n",
    "____ " + "a ___ " * 50_000,
    "  1) a\n" + "      b\n" * 50_000,
    "Tests: " + "1 failed, " * 30_000,
    "      Tests  " + "(1) | " * 50_000,
    "--- FAIL: Test (0.00s)\n" + "a.go" * 100_000 + "\nFAIL\tx\t1s\n",
    "ok  \tx\t1s\n=== RUN   TestA\n" * 10_000,
    "={70}\nFAIL: a (b)\n-{70}\n".replace("{70}", "").replace("=", "=" * 70).replace("-", "-" * 70) * 3_000,
    "FAILED " + "a - " * 100_000,
    '{"Action":"fail","Test":"a/' + "/" * 1000 + '","Elapsed":1e999}\n',
]


@pytest.mark.parametrize("reader", [*READERS, all_unseen])
def test_hostile_output_is_read_quickly(reader: Reader) -> None:
    """What is read here was printed by anybody's code, and a regular expression stops for nobody."""
    for output in NASTY:
        begun = time.process_time()
        reader(f"TAP version 13\n1..1\n===== test session starts =====\n{output}\n")
        assert time.process_time() - begun < 2, output[:40]
