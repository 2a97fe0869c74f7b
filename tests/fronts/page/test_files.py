"""The files of the page, and the headers on everything."""

from __future__ import annotations

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
