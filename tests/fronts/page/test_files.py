"""The files of the page, and the headers on everything."""

from __future__ import annotations

import gzip
import re

import pytest

from tests.fronts.http.conftest import Service
from tests.support.page import Browser

POLICY = ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'")


def test_the_page_is_served_to_anybody_and_revalidated(served: Service) -> None:
    browser = Browser(served.port)
    answer = browser.ask("GET", "/ui/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert b"<html" in answer.body
    tag = answer.headers["ETag"]
    again = browser.ask("GET", "/ui/", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")
    assert browser.ask("GET", "/ui/", If_None_Match='"other"').status == 200
    head = browser.ask("HEAD", "/ui/index.html")
    assert (head.status, head.body, head.headers["ETag"]) == (200, b"", tag)


# What a browser loads before anything is opened: what the page names, and what its modules import.
NAMED = re.compile(rb"""(?:href|src)="([\w.]+)"|from "\./([\w.]+)\"""")
LATER = {(): set(), ("job.js",): {"log.js"}, ("sentences.js",): {"sentences.js"}}


@pytest.mark.parametrize(
    ("more", "most", "most_sent"),
    [
        pytest.param((), 230_000, 85_000, id="at first"),
        pytest.param(("job.js",), 275_000, 100_000, id="with the log of a job"),
        pytest.param(("sentences.js",), 330_000, 120_000, id="in Chinese"),
    ],
)
def test_the_page_is_light(served: Service, more: tuple[str, ...], most: int, most_sent: int) -> None:
    browser, loaded, sent = Browser(served.port), {}, 0
    names = {"index.html", *more}
    while names - loaded.keys():
        for name in names - loaded.keys():
            loaded[name] = browser.ask("GET", f"/ui/{name}").body
            packed = browser.ask("GET", f"/ui/{name}", Accept_Encoding="gzip, br")
            assert packed.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(packed.body) == loaded[name]
            sent += len(packed.body)
        names |= {(one or other).decode() for body in loaded.values() for one, other in NAMED.findall(body)}
    assert {"main.js", "page.css", "saying.js"} <= loaded.keys()
    assert {"terminal.js", "log.js", "sentences.js"} & loaded.keys() == LATER[more]
    assert sum(map(len, loaded.values())) <= most
    assert sent <= most_sent


def test_the_address_without_a_slash_leads_to_the_page(served: Service) -> None:
    answer = Browser(served.port).ask("GET", "/ui")
    assert (answer.status, answer.headers["Location"]) == (308, "/ui/")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/", "/ui/nothing.js", "/ui/api/choices", "/ui/api/nothing", "/ui/../mcp", "/ui/enter",
    ],
)  # fmt: skip
def test_every_answer_has_the_headers_that_keep_other_pages_out(browser: Browser, path: str) -> None:
    answer = browser.ask("GET", path)
    assert all(part in answer.headers["Content-Security-Policy"] for part in POLICY)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    if path.startswith("/ui/api/"):
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../app.py", "/ui/..%2fapp.py", "/ui/%2e%2e/app.py", "/ui//etc/passwd", "/ui/./index.html",
        "/ui/..\\app.py", "/ui/index.html%00.js", "/ui/index.html/", "/ui/files/index.html",
        "/ui/../../../../etc/passwd", "/ui/static.py", "/ui/__init__.py", "/ui/%ff", "/ui/" + "a" * 5000,
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_files(served: Service, path: str) -> None:
    answer = Browser(served.port).ask("GET", path)
    assert answer.status == 404
    assert len(answer.body) < 500


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "PATCH", "OPTIONS"])
def test_files_can_only_be_read(served: Service, method: str) -> None:
    assert Browser(served.port).ask(method, "/ui/index.html").status == 405
