from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.services.setup.json_text import NotEditable, put, read, remove

PATH = ("mcpServers", "ours")
OURS = {"command": "us"}

CASES = [
    pytest.param("", '{\n  "mcpServers": {\n    "ours": {\n      "command": "us"\n    }\n  }\n}\n', id="empty"),
    pytest.param("{}", '{"mcpServers": {"ours": {"command": "us"}}}', id="one line"),
    pytest.param(
        '{"mcpServers": {"a": {}}, "x": 1}',
        '{"mcpServers": {"a": {}, "ours": {"command": "us"}}, "x": 1}',
        id="one line with others",
    ),
    pytest.param(
        '{\n\t"mcpServers": {\n\t\t"a": {"b": [1,2]}\n\t},\n\t"x":  1\n}\n',
        '{\n\t"mcpServers": {\n\t\t"a": {"b": [1,2]},\n\t\t"ours": {\n\t\t\t"command": "us"\n\t\t}\n\t},'
        '\n\t"x":  1\n}\n',
        id="tabs, and odd blanks that stay",
    ),
    pytest.param(
        '{\n    "x": 1\n}',
        '{\n    "x": 1,\n    "mcpServers": {\n        "ours": {\n            "command": "us"\n        }\n    }\n}',
        id="no servers yet, four blanks",
    ),
    pytest.param(
        '{\n  "mcpServers": {},\n  "x": 1\n}\n',
        '{\n  "mcpServers": {\n    "ours": {\n      "command": "us"\n    }\n  },\n  "x": 1\n}\n',
        id="an empty object between lines",
    ),
    pytest.param(
        '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
        '{\r\n  "mcpServers": {\r\n    "a": {},\r\n    "ours": {\r\n      "command": "us"\r\n    }\r\n  }\r\n}\r\n',
        id="line ends of Windows",
    ),
]


@pytest.mark.parametrize(("text", "after"), CASES)
def test_a_member_is_added_and_all_else_stays_as_it_is(text: str, after: str) -> None:
    assert put(text, PATH, OURS) == after


@pytest.mark.parametrize("text", [case.values[0] for case in CASES if "mcpServers" in str(case.values[0])])
def test_what_was_added_can_be_removed(text: str) -> None:
    assert json.loads(remove(put(text, PATH, OURS), PATH)) == json.loads(text)


def test_a_value_that_is_there_is_replaced() -> None:
    text = '{\n  "mcpServers": {\n    "ours": {"command": "them"},\n    "a": {}\n  }\n}\n'
    assert put(text, PATH, OURS) == text.replace('{"command": "them"}', '{\n      "command": "us"\n    }')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param('{\n  // mine\n  "servers": {}\n}', "comments", id="comments"),
        pytest.param('{"a": 1,}', "comments, or a mistake", id="a trailing comma"),
        pytest.param("[1]", "no JSON object", id="a list"),
        pytest.param('{"mcpServers": []}', "'mcpServers' is no object", id="a list of servers"),
        pytest.param('{"mcpServers": {}, "mcpServers": {"a": {}}, "mcpServers": 1}', "is no object", id="twice"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(text: str, why: str) -> None:
    with pytest.raises(NotEditable, match=why):
        put(text, PATH, OURS)


DOCUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(DOCUMENTS, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_whatever_the_document_it_says_the_same_and_ours(
    document: dict[str, Any], indent: int | str | None, is_ascii: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii)
    changed = put(text, ("~servers", "ours"), OURS)
    assert read(changed) == {**document, "~servers": {"ours": OURS}}
    assert read(remove(changed, ("~servers", "ours"))) == {**document, "~servers": {}}
