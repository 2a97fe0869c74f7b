"""JUnit XML of many hands, some of them hostile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.suites.javascript import read_jest
from remote_sandbox_mcp.core.suites.junit import DEEPEST, BadReport, parse_junit, read_junit
from remote_sandbox_mcp.core.suites.reading import MESSAGE_CHARS, Case, Verdict, bounded, tally
from remote_sandbox_mcp.core.suites.suite import MOST_FAILURES

DATA = Path(__file__).with_name("data") / "runners"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
HOSTILE = [
    pytest.param(
        f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><testsuite><testcase name="&l9;"/></testsuite>',
        "declares XML entities",
        id="billion laughs",
    ),
    pytest.param(
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><testsuite><testcase name="a"/>&e;</testsuite>',
        "declares XML entities",
        id="external entity",
    ),
    pytest.param(
        '<!DOCTYPE x [<!ENTITY % e SYSTEM "http://127.0.0.1:9/x"> %e;]><testsuite/>',
        "declares XML entities",
        id="parameter entity",
    ),
    pytest.param("<testsuite>" * 100_000, f"deeper than {DEEPEST}", id="deep"),
    pytest.param("<html><body/></html>", "no JUnit XML", id="another format"),
    pytest.param("", "no JUnit XML", id="empty"),
    pytest.param("\0\xff<<<>>>", "no JUnit XML", id="noise"),
]


@pytest.mark.parametrize(("text", "why"), HOSTILE)
def test_other_files_are_refused_at_once(text: str, why: str) -> None:
    begun = time.process_time()
    with pytest.raises(BadReport, match=why):
        parse_junit(text.encode())
    assert time.process_time() - begun < 2


def test_an_undeclared_entity_brings_nothing_in() -> None:
    report = parse_junit(
        b'<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><testsuite><testcase name="a"/>&e;</testsuite>'
    )
    assert [case.name for case in report.cases] == ["a"]


def test_an_incomplete_report_is_read_as_far_as_it_goes() -> None:
    data = (DATA / "surefire.xml").read_bytes()
    report = parse_junit(data[: data.index(b'name="skipped"')])
    assert [case.name for case in report.cases] == ["adds", "fails", "throwsOut"]
    assert not report.whole
    assert not read_junit(report).ended


@pytest.mark.parametrize(
    ("inside", "verdict"),
    [
        pytest.param("", Verdict.PASSED, id="passed"),
        pytest.param("<failure/>", Verdict.FAILED, id="failed"),
        pytest.param("<error/>", Verdict.ERROR, id="error"),
        pytest.param("<skipped/>", Verdict.SKIPPED, id="skipped"),
        pytest.param("<skipped/><failure/>", Verdict.SKIPPED, id="to be done"),
        pytest.param("<system-out>failure</system-out>", Verdict.PASSED, id="output"),
        pytest.param("<flakyFailure/><rerunError/>", Verdict.PASSED, id="passed in the end"),
        pytest.param('<j:failure xmlns:j="x"/>', Verdict.FAILED, id="with a prefix"),
    ],
)
def test_verdicts(inside: str, verdict: Verdict) -> None:
    (case,) = parse_junit(f'<testsuite><testcase name="a">{inside}</testcase></testsuite>'.encode()).cases
    assert case.verdict is verdict


@pytest.mark.parametrize("name", ["pytest.xml", "node.xml", "vitest.xml", "surefire.xml"])
def test_every_producer_is_read_without_knowing_it(name: str) -> None:
    reading = read_junit(parse_junit((DATA / name).read_bytes()))
    assert reading.total
    assert reading.failures
    assert reading.runner == (name.removesuffix(".xml") if name[0] in "pv" else "junit")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_encodings(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><testsuite><testcase name="größer"/></testsuite>'
    assert parse_junit(text.encode(encoding)).cases[0].name == "größer"


def test_odd_numbers_are_no_numbers() -> None:
    attributes = 'time="NaN" line="99999999999999999999"'
    (case,) = parse_junit(f'<testsuite><testcase name="a" {attributes}/></testsuite>'.encode()).cases
    assert (case.seconds, case.line) == (0.0, 0)


def test_failures_are_bounded_and_their_total_is_reported() -> None:
    long = "\x1b[31m" + "x" * 100_000 + "\x1b]0;title\x07 the end"
    reading = tally("x", [Case(f"test {n}", Verdict.FAILED, message=long) for n in range(1000)])
    assert reading.failed == 1000
    assert len(reading.failures) == MOST_FAILURES
    assert all(len(failure.message) <= MESSAGE_CHARS for failure in reading.failures)
    assert reading.failures[0].message.startswith("xxx")
    assert reading.failures[0].message.endswith("xxx the end")
    assert "characters left out" in reading.failures[0].message


@given(st.text(), st.integers(20, MESSAGE_CHARS))
def test_bounded_text_is_never_longer_and_has_no_escapes(text: str, limit: int) -> None:
    assert len(bounded(text, limit)) <= limit
    assert "\x1b" not in bounded(text, limit)


@settings(max_examples=100)
@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (parse_junit, read_jest):
        try:
            read(b"<testsuite>" + data)
            read(data)
        except BadReport:
            continue


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b'{"testResults": 1}', b'{"testResults": [{}]}', b"[" * 100_000, b'{"testResults": [null]}']
)
def test_json_that_is_not_of_jest_is_refused(data: bytes) -> None:
    with pytest.raises(BadReport):
        read_jest(data)
