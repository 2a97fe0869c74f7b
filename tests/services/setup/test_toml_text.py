from __future__ import annotations

import pytest

from remote_sandbox_mcp.services.setup.json_text import NotEditable
from remote_sandbox_mcp.services.setup.toml_text import add_hosts, add_table, add_to_list, hunks, read, without


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("", 'hosts = ["a", "b"]\n', id="empty"),
        pytest.param("# mine\n", '# mine\nhosts = ["a", "b"]\n', id="a comment alone"),
        pytest.param("default = 'x'", 'default = \'x\'\nhosts = ["a", "b"]\n', id="no line end"),
        pytest.param("[server]\nx = 1\n", 'hosts = ["a", "b"]\n\n[server]\nx = 1\n', id="before the first table"),
        pytest.param(
            "d = 1\n\n# about it\n[server]\n", 'd = 1\nhosts = ["a", "b"]\n\n# about it\n[server]\n', id="its comment"
        ),
        pytest.param('hosts = ["z"] # c\n', 'hosts = ["z", "a", "b"] # c\n', id="one line"),
        pytest.param("hosts = []\n", 'hosts = ["a", "b"]\n', id="an empty list"),
        pytest.param(
            "hosts = [\n  'y', # ] first\n  \"z\" # last\n]\n[server]\n",
            'hosts = [\n  \'y\', # ] first\n  "z", # last\n  "a",\n  "b",\n]\n[server]\n',
            id="lines with comments",
        ),
        pytest.param('hosts = [\n  "z",\n]\n', 'hosts = [\n  "z",\n  "a",\n  "b",\n]\n', id="a comma at the end"),
    ],
)
def test_hosts_are_added_and_all_else_stays_as_it_is(text: str, after: str) -> None:
    assert add_hosts(text, ["a", "b"]) == after
    assert without(hunks(text, after), after) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('hosts = "a"\n', id="no list"),
        pytest.param('x = """\nhosts = ["z"]\n"""\n', id="a text that looks like it"),
        pytest.param("hosts = [\n", id="broken"),
    ],
)
def test_a_list_that_cannot_be_told_for_sure_is_left_alone(text: str) -> None:
    with pytest.raises(NotEditable):
        add_hosts(text, ["a"])


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("", '[server]\nroots = ["~/p"]\n', id="empty"),
        pytest.param("x = 1\n", 'x = 1\n\n[server]\nroots = ["~/p"]\n', id="no table"),
        pytest.param("[server]", '[server]\nroots = ["~/p"]\n', id="no line end"),
        pytest.param("[server]\r\nx = 1\r\n", '[server]\r\nroots = ["~/p"]\r\nx = 1\r\n', id="CRLF"),
        pytest.param(
            "[ server ] # mine\nx = 1\n[other]\nroots = []\n",
            '[ server ] # mine\nroots = ["~/p"]\nx = 1\n[other]\nroots = []\n',
            id="a list of another table",
        ),
        pytest.param(
            '[server]\nx = 1\nroots = ["/a"] # c\n[other]\n',
            '[server]\nx = 1\nroots = ["/a", "~/p"] # c\n[other]\n',
            id="a list that is there",
        ),
        pytest.param(
            "[server]\nroots = [\n  '/a', # first\n]\n",
            "[server]\nroots = [\n  '/a', # first\n  \"~/p\",\n]\n",
            id="lines",
        ),
    ],
)
def test_a_list_of_a_table_grows_and_all_else_stays_as_it_is(text: str, after: str) -> None:
    assert add_to_list(text, "server", "roots", ["~/p"]) == after
    assert without(hunks(text, after), after) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('[server]\nroots = "/a"\n', id="no list"),
        pytest.param("server = { x = 1 }\n", id="an inline table"),
        pytest.param("server.x = 1\n", id="a dotted key"),
        pytest.param('x = """\n[server]\n"""\n[server]\n', id="a text that looks like it"),
        pytest.param("[[server]]\nx = 1\n", id="an array of tables"),
    ],
)
def test_a_list_of_a_table_that_cannot_be_told_for_sure_is_left_alone(text: str) -> None:
    with pytest.raises(NotEditable):
        add_to_list(text, "server", "roots", ["~/p"])


def test_a_table_comes_at_the_end() -> None:
    assert add_table("x = 1 # c", ["m", "gpu 1"], {"host": "h"}) == 'x = 1 # c\n\n[m."gpu 1"]\nhost = "h"\n'


@pytest.mark.parametrize("text", ["m = {a = 1}\n", '[m."gpu 1"]\nhost = "other"\n', "m = 3\n"])
def test_a_table_that_cannot_be_added_is_refused(text: str) -> None:
    with pytest.raises(NotEditable):
        add_table(text, ["m", "gpu 1"], {"host": "h"})


def test_what_was_added_is_taken_out_of_a_file_that_was_changed_since() -> None:
    before = "x = 1\n"
    after = add_table(add_hosts(before, ["a"]), ["machines", "b"], {"host": "h"})
    later = f"# later\n{after}\n[server]\ny = 2\n"
    assert read(without(hunks(before, after), later) or "") == {"x": 1, "server": {"y": 2}}


@pytest.mark.parametrize(
    "later",
    [
        pytest.param('x = 1\n\n[machines.b]\nhost = "other"\n', id="our lines were changed"),
        pytest.param('x = 1\n[server]\n\n[machines.b]\nhost = "h"\nuser = "me"\n', id="a key was added below ours"),
    ],
)
def test_what_cannot_be_told_apart_any_more_is_left_alone(later: str) -> None:
    before = "x = 1\n"
    after = add_table(before, ["machines", "b"], {"host": "h"})
    assert without(hunks(before, after), later) is None
