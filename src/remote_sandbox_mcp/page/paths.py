"""Which requests are the page's, and which of them anybody may send."""

from __future__ import annotations

ROOT = "/ui"
API = "/ui/api/"


def is_page(path: str) -> bool:
    """
    >>> [is_page(path) for path in ("/ui", "/ui/", "/ui/api/call", "/uix", "/mcp")]
    [True, True, True, False, False]
    """
    return path == ROOT or path.startswith(f"{ROOT}/")


def is_open_to_strangers(path: str) -> bool:
    """Whether a request is answered without a key: to enter, and for the files, in which nothing is secret.

    >>> [is_open_to_strangers(path) for path in ("/ui/page.js", "/ui/enter", "/ui/api/call", "/mcp")]
    [True, True, False, False]
    """
    return is_page(path) and not path.startswith(API)
