"""The file tools as a client sees them: reading in parts, writing with a guard, editing exactly, searching."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from mcp import Client, ClientSession
from mcp.types import CallToolResult, ImageContent, Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fronts.mcp.server import build
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.images import WEBP_LOSSY, gif, jpeg, png
from tests.support.server import Caller

NOTES = "/home/fake/notes.txt"
BINARY = bytes(range(256))


@pytest.mark.parametrize(
    ("span", "content", "truncated", "offset"),
    [
        ({}, "one\ntwo\nthree\n", False, None),
        ({"max_bytes": 3}, "one", True, None),
        ({"offset": 4}, "two\nthree\n", False, 4),
        ({"offset": 4, "max_bytes": 3}, "two", True, 4),
        ({"offset": -6}, "three\n", False, 8),
        ({"offset": -1000}, "one\ntwo\nthree\n", False, None),
        ({"offset": 1000}, "", False, 1000),
        ({"start_line": 2}, "two\nthree\n", False, 4),
        ({"start_line": 2, "line_count": 1}, "two\n", True, 4),
        ({"line_count": 2}, "one\ntwo\n", True, None),
        ({"start_line": 3, "line_count": 5}, "three\n", False, 8),
        ({"start_line": 9}, "", False, 14),
    ],
    ids=str,
)
async def test_a_file_is_read_in_parts(
    tools: Caller, span: dict[str, int], content: str, truncated: bool, offset: int | None
) -> None:
    seen = await tools.call("read_remote_file", remote_path="~/notes.txt", **span)
    size = max(14, offset or 0)
    expected = {"size": size, "truncated": truncated, "content": content} | ({"offset": offset} if offset else {})
    expected |= {"next_offset": (offset or 0) + len(content)} if truncated else {}
    assert seen | {"size": size} == expected


async def test_the_parts_of_a_file_make_up_the_whole(tools: Caller, fake: FakeSandbox) -> None:
    fake.files[NOTES] = "".join(f"line {number} äöü\n" for number in range(500)).encode()
    whole, offset = b"", 0
    while True:
        part = await tools.call("read_remote_file", remote_path=NOTES, offset=offset, max_bytes=97)
        text: str = part["content"]
        whole += base64.b64decode(text) if part.get("encoding") else text.encode()
        offset = len(whole)
        if not part["truncated"]:
            break
    assert whole == fake.files[NOTES]


@pytest.mark.parametrize("data", [BINARY, b"\xff", b"a\0b", b"\xed\xa0\x80"], ids=["all", "latin", "nul", "surrogate"])
async def test_what_is_not_text_makes_the_round_trip_in_base64(tools: Caller, fake: FakeSandbox, data: bytes) -> None:
    encoded = base64.b64encode(data).decode()
    written = await tools.call("write_remote_file", remote_path="~/b", content=encoded, encoding="base64")
    assert written == {"size": len(data), "created": True}
    assert fake.files["/home/fake/b"] == data
    seen = await tools.call("read_remote_file", remote_path="~/b")
    assert seen == {"size": len(data), "truncated": False, "content": encoded, "encoding": "base64"}


# Images

SHOWN = {"png": png(640, 480), "jpeg": jpeg(), "gif": gif(), "webp": WEBP_LOSSY}


def shown(answer: CallToolResult) -> list[tuple[str, bytes]]:
    """The images of a result, as a client shows them to its model."""
    parts = [part for part in answer.content if isinstance(part, ImageContent)]
    return [(part.mime_type, base64.b64decode(part.data)) for part in parts]


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("named", ["~/plot", "~/notes.txt"], ids=["no suffix", "the suffix of a text"])
async def test_an_image_is_shown_whatever_its_name(tools: Caller, fake: FakeSandbox, kind: str, named: str) -> None:
    data = SHOWN[kind]
    fake.files[named.replace("~", "/home/fake")] = data
    answer = await tools.ask("read_remote_file", remote_path=named)
    assert shown(answer) == [(f"image/{kind}", data)]
    fields = answer.structured_content or {}
    assert (fields["size"], fields["mime_type"], fields["truncated"]) == (len(data), f"image/{kind}", False)
    assert "content" not in fields
    assert base64.b64encode(data).decode()[:20] not in str(fields) + getattr(answer.content[0], "text", "")
    (taken,) = (await tools.call("download_files", sandbox_id="fake", paths=[named]))["files"]
    assert taken["mime_type"] == f"image/{kind}"
    assert shown(tools.answers[-1]) == [(f"image/{kind}", data)]


async def test_an_image_larger_than_a_text_may_be_is_shown_whole(tools: Caller, fake: FakeSandbox) -> None:
    fake.files[NOTES] = data = png(padding=1_400_000)
    assert shown(await tools.ask("read_remote_file", remote_path=NOTES)) == [("image/png", data)]
    assert shown(await tools.ask("download_files", sandbox_id="fake", paths=[NOTES])) == [("image/png", data)]


NOT_SHOWN = {
    "too large": (png(padding=1_500_000), "1500000 can be shown"),
    "too many pixels": (png(100_000, 100_000), "100000 x 100000 pixels"),
    "still being written": (png(padding=300_000)[:-20], "still being written"),
    "damaged": (b"\xff\xd8\xff\xe0\0\4\0\0\xff\xda", "damaged"),
}


@pytest.mark.parametrize(("data", "why"), NOT_SHOWN.values(), ids=NOT_SHOWN)
async def test_an_image_that_cannot_be_shown_is_told_with_what_to_do(
    tools: Caller, fake: FakeSandbox, data: bytes, why: str
) -> None:
    fake.files[NOTES] = data
    for tool, given in (
        ("read_remote_file", {"remote_path": NOTES, "max_bytes": 9_000_000}),
        ("read_remote_file", {"remote_path": NOTES}),
        ("download_files", {"sandbox_id": "fake", "paths": [NOTES]}),
    ):
        told = await tools.call(tool, **given)
        told = told.get("files", [told])[0]
        assert shown(tools.answers[-1]) == []
        assert why in told["problem"]
        assert "local_dir" in told["problem"]
        assert told["size"] == len(data)
        assert len(str(tools.answers[-1])) < 2000


async def test_a_result_shows_few_images_and_tells_the_rest(tools: Caller, fake: FakeSandbox) -> None:
    fake.files |= {f"/home/fake/{number}": png(number) for number in range(1, 7)}
    paths = [f"~/{number}" for number in range(1, 7)]
    files = (await tools.call("download_files", sandbox_id="fake", paths=paths))["files"]
    assert shown(tools.answers[-1]) == [("image/png", png(number)) for number in range(1, 5)]
    assert ["problem" in file for file in files] == [False] * 4 + [True] * 2
    fake.files |= {f"/home/fake/{number}": png(padding=1_200_000) for number in range(1, 4)}
    await tools.call("download_files", sandbox_id="fake", paths=paths[:3])
    assert len(shown(tools.answers[-1])) == 2


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("read_remote_file", {"remote_path": NOTES, "max_bytes": 16}),
        ("read_remote_file", {"remote_path": NOTES, "offset": 8}),
        ("read_remote_file", {"remote_path": NOTES, "start_line": 1}),
        ("download_files", {"sandbox_id": "fake", "paths": [NOTES], "encoding": "base64"}),
        ("download_files", {"sandbox_id": "fake", "paths": [NOTES], "max_bytes": 16}),
    ],
    ids=str,
)
async def test_the_bytes_of_an_image_come_as_base64_where_they_are_asked_for(
    tools: Caller, fake: FakeSandbox, tool: str, given: dict[str, Any]
) -> None:
    fake.files[NOTES] = data = png()
    told = await tools.call(tool, **given)
    assert shown(tools.answers[-1]) == []
    assert base64.b64decode(told.get("files", [told])[0]["content"]) in data


async def test_an_image_is_still_there_where_the_call_named_no_sandbox(tools: Caller, fake: FakeSandbox) -> None:
    fake.files[NOTES] = png()
    answer = await tools.ask("read_remote_file", remote_path=NOTES)
    assert (answer.structured_content or {})["sandbox"] == "fake"
    assert getattr(answer.content[0], "text", "").startswith("on fake: image/png, 3 x 2 pixels")
    assert len(shown(answer)) == 1


@pytest.mark.parametrize(
    ("client", "structured"), [("codex-mcp-client", False), ("claude-code", True), ("cursor", True)]
)
async def test_an_image_is_alone_for_a_client_that_drops_it_beside_a_structured_part(
    app: App, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch, client: str, structured: bool
) -> None:
    async def anything_goes(self: ClientSession, name: str, result: CallToolResult) -> None:
        """Codex compares no result with its tool's output schema."""

    monkeypatch.setattr(ClientSession, "validate_tool_result", anything_goes)
    fake.files[NOTES] = png()
    text = "x" * 3000
    fake.files["/home/fake/long"] = text.encode()
    who = Implementation(name=client, version="1")
    async with Client(build(app), client_info=who) as asking:
        for tool, given in (
            ("read_remote_file", {"remote_path": NOTES}),
            ("download_files", {"paths": [NOTES, "~/long"], "sandbox_id": "fake"}),
        ):
            answer = await asking.call_tool(tool, given)
            assert len(shown(answer)) == 1
            assert bool(answer.structured_content) is structured
        # The text then has to say everything.
        assert (text in getattr(answer.content[0], "text", "")) is (client != "claude-code")
        text_file = await asking.call_tool("read_remote_file", {"remote_path": "~/long"})
        assert (text_file.structured_content or {})["content"] == text
    await app.close()


async def test_an_image_of_a_real_sandbox_is_shown(local_tools: Caller) -> None:
    data = base64.b64encode(png()).decode()
    await local_tools.call("write_remote_file", remote_path="~/plot.dat", content=data, encoding="base64")
    assert shown(await local_tools.ask("read_remote_file", remote_path="~/plot.dat")) == [("image/png", png())]


@pytest.mark.parametrize("text", ["", "x", "a\r\nb\n", "äöü 🙂\n", '{"a": [1, 2]}', "[]", "null", '"quoted"', "12"])
async def test_text_makes_the_round_trip_as_it_is(tools: Caller, fake: FakeSandbox, text: str) -> None:
    await tools.call("write_remote_file", remote_path="~/t", content=text)
    assert fake.files["/home/fake/t"] == text.encode()
    assert (await tools.call("read_remote_file", remote_path="~/t"))["content"] == text


@pytest.mark.parametrize("content", ["?", "YQ", "YQ==YQ==x", "Y Q==", "ä"])
async def test_what_is_no_base64_is_refused(tools: Caller, fake: FakeSandbox, content: str) -> None:
    problem = await tools.fail("write_remote_file", remote_path="~/b", content=content, encoding="base64")
    assert problem["code"] == "bad_argument"
    assert "/home/fake/b" not in fake.files


async def test_an_unknown_encoding_is_refused(tools: Caller) -> None:
    problem = await tools.fail("write_remote_file", remote_path="~/b", content="x", encoding="rot13")
    assert problem["code"] == "bad_argument"
    assert "base64" in problem["error"]


async def test_a_write_that_is_too_large_is_refused_before_it_is_sent(tools: Caller, fake: FakeSandbox) -> None:
    problem = await tools.fail("write_remote_file", remote_path="~/b", content="x" * ((16 << 20) + 1))
    assert problem["code"] == "bad_argument"
    assert "16777217 bytes" in problem["error"]
    assert "/home/fake/b" not in fake.files


async def test_create_only_never_replaces(tools: Caller, fake: FakeSandbox) -> None:
    first = await tools.call("write_remote_file", remote_path="~/new", content="1", create_only=True)
    assert first == {"size": 1, "created": True}
    problem = await tools.fail("write_remote_file", remote_path="~/new", content="2", create_only=True)
    assert problem["code"] == "file"
    assert "exists already" in problem["error"]
    assert fake.files["/home/fake/new"] == b"1"


async def test_a_file_that_was_never_read_may_be_replaced(tools: Caller, fake: FakeSandbox) -> None:
    assert await tools.call("write_remote_file", remote_path=NOTES, content="new") == {"size": 3}
    assert fake.files[NOTES] == b"new"


STALE = {
    "write": ("write_remote_file", {"content": "mine\n"}, b"mine\n"),
    "edit": ("edit_remote_file", {"old_text": "their", "new_text": "my"}, b"mys\n"),
}


@pytest.mark.parametrize(("tool", "given", "result"), STALE.values(), ids=STALE)
async def test_a_file_changed_behind_our_back_is_refused_until_it_is_read_again(
    tools: Caller, fake: FakeSandbox, tool: str, given: dict[str, str], result: bytes
) -> None:
    await tools.call("read_remote_file", remote_path=NOTES)
    fake.files[NOTES] = b"theirs\n"
    problem = await tools.fail(tool, remote_path=NOTES, **given)
    assert problem["code"] == "file"
    assert "changed since it was read" in problem["error"]
    assert fake.files[NOTES] == b"theirs\n"
    assert (await tools.call("read_remote_file", remote_path=NOTES))["content"] == "theirs\n"
    await tools.call(tool, remote_path=NOTES, **given)
    assert fake.files[NOTES] == result


async def test_our_own_writes_do_not_make_a_file_stale(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("read_remote_file", remote_path=NOTES)
    await tools.call("edit_remote_file", remote_path=NOTES, old_text="one", new_text="1")
    await tools.call("edit_remote_file", remote_path=NOTES, old_text="two", new_text="2")
    await tools.call("write_remote_file", remote_path=NOTES, content="new")
    await tools.call("edit_remote_file", remote_path=NOTES, old_text="new", new_text="newer")
    assert fake.files[NOTES] == b"newer"


async def test_the_guard_is_for_each_sandbox_by_itself(tools: Caller, fake: FakeSandbox, other: FakeSandbox) -> None:
    await tools.call("read_remote_file", remote_path=NOTES)
    other.files[NOTES] = b"another file\n"
    await tools.call("write_remote_file", remote_path=NOTES, content="x", sandbox_name="other")
    assert other.files[NOTES] == b"x"


async def test_an_edit_replaces_exactly_what_is_named(tools: Caller, fake: FakeSandbox) -> None:
    done = await tools.call("edit_remote_file", remote_path=NOTES, old_text="two\n", new_text="zwei\n")
    assert done == {"size": 15, "replacements": 1}
    assert fake.files[NOTES] == b"one\nzwei\nthree\n"


async def test_an_edit_may_remove(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("edit_remote_file", remote_path=NOTES, old_text="two\n", new_text="")
    assert fake.files[NOTES] == b"one\nthree\n"


async def test_an_edit_that_fits_more_than_once_is_refused_or_replaces_all(tools: Caller, fake: FakeSandbox) -> None:
    problem = await tools.fail("edit_remote_file", remote_path=NOTES, old_text="t", new_text="T")
    assert problem["code"] == "file"
    assert "occurs 2 times" in problem["error"]
    assert "replace_all" in problem["error"]
    done = await tools.call("edit_remote_file", remote_path=NOTES, old_text="t", new_text="T", replace_all=True)
    assert done == {"size": 14, "replacements": 2}
    assert fake.files[NOTES] == b"one\nTwo\nThree\n"


@pytest.mark.parametrize("old", ["four", "one two", ".*", "Two"])
async def test_an_edit_that_fits_nowhere_is_refused(tools: Caller, fake: FakeSandbox, old: str) -> None:
    problem = await tools.fail("edit_remote_file", remote_path=NOTES, old_text=old, new_text="x", replace_all=True)
    assert problem["code"] == "file"
    assert "does not occur" in problem["error"]
    assert fake.files[NOTES] == b"one\ntwo\nthree\n"


async def test_an_edit_without_a_text_to_look_for_is_refused(tools: Caller) -> None:
    problem = await tools.fail("edit_remote_file", remote_path=NOTES, old_text="", new_text="x")
    assert problem["code"] == "bad_argument"


AT_FIRST = {"mtime": 0, "modified": "1970-01-01T00:00:00Z"}


async def test_a_folder_is_listed_in_the_order_of_names(tools: Caller) -> None:
    seen = await tools.call("list_remote_files")
    assert seen == {
        "truncated": False,
        "entries": [
            {"path": "/home/fake/notes.txt", "is_dir": False, "size": 14} | AT_FIRST,
            {"path": "/home/fake/src", "is_dir": True, "size": 0} | AT_FIRST,
        ],
    }


async def test_a_listing_goes_as_deep_and_as_far_as_asked_for(tools: Caller) -> None:
    deep = await tools.call("list_remote_files", recursive=True)
    assert [entry["path"] for entry in deep["entries"]][-1] == "/home/fake/src/main.py"
    short = await tools.call("list_remote_files", recursive=True, max_entries=1)
    assert short["truncated"] is True
    assert len(short["entries"]) == 1


async def test_a_search_finds_names_and_lines(tools: Caller) -> None:
    names = await tools.call("search_remote_files", glob="*.py")
    assert names == {"truncated": False, "matches": [{"path": "/home/fake/src/main.py"}]}
    lines = await tools.call("search_remote_files", pattern="T[hw]", ignore_case=True)
    assert [(match["line"], match["text"]) for match in lines["matches"]] == [(2, "two"), (3, "three")]
    first = await tools.call("search_remote_files", pattern=".", max_results=1)
    assert first["truncated"] is True
    assert len(first["matches"]) == 1
    assert await tools.call("search_remote_files", pattern="nowhere") == {"truncated": False, "matches": []}


@pytest.mark.parametrize(
    ("tool", "given", "code", "told"),
    [
        ("read_remote_file", {"remote_path": "~/nope"}, "file", "No such file"),
        ("read_remote_file", {"remote_path": "~/src"}, "file", "is a folder"),
        ("read_remote_file", {"remote_path": ""}, "bad_argument", "remote_path is empty"),
        ("read_remote_file", {"remote_path": "a\0b"}, "bad_argument", "NUL"),
        ("read_remote_file", {"remote_path": "x", "max_bytes": 0}, "bad_argument", "max_bytes"),
        ("read_remote_file", {"remote_path": "x", "max_bytes": 10**8}, "bad_argument", "max_bytes"),
        ("read_remote_file", {"remote_path": "x", "start_line": -1}, "bad_argument", "start_line"),
        ("read_remote_file", {"remote_path": "x", "line_count": -1}, "bad_argument", "line_count"),
        ("write_remote_file", {"remote_path": "~/src", "content": ""}, "file", "not a regular file"),
        ("write_remote_file", {"remote_path": "", "content": ""}, "bad_argument", "remote_path is empty"),
        ("edit_remote_file", {"remote_path": "~/nope", "old_text": "a", "new_text": "b"}, "file", "No such file"),
        ("edit_remote_file", {"remote_path": " ", "old_text": "a", "new_text": "b"}, "bad_argument", "is empty"),
        ("list_remote_files", {"remote_path": "~/nope"}, "file", "No such file"),
        ("list_remote_files", {"max_entries": 0}, "bad_argument", "max_entries is 0"),
        ("list_remote_files", {"max_entries": 10_001}, "bad_argument", "max_entries is 10001"),
        ("list_remote_files", {"remote_path": "a\0b"}, "bad_argument", "NUL"),
        ("search_remote_files", {}, "bad_argument", "give a glob"),
        ("search_remote_files", {"pattern": "("}, "file", "not a regular expression"),
        ("search_remote_files", {"pattern": "x", "max_results": 0}, "bad_argument", "max_results is 0"),
        ("search_remote_files", {"pattern": "a\0b"}, "bad_argument", "NUL"),
        ("search_remote_files", {"pattern": "x", "remote_path": "~/nope"}, "file", "No such file"),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_told_in_a_sentence(
    tools: Caller, tool: str, given: dict[str, Any], code: str, told: str
) -> None:
    problem = await tools.fail(tool, **given)
    assert problem["code"] == code
    assert told in problem["error"]


# What nobody sees


async def test_what_is_invisible_in_a_file_is_shown_counted_and_can_be_edited(tools: Caller, fake: FakeSandbox) -> None:
    source = "if access == 'user\u202e ⁦# admin⁩ ⁦':\x1b]0;x\x07\n"
    fake.files["/home/fake/code.py"] = source.encode()
    read = await tools.call("read_remote_file", remote_path="~/code.py")
    assert read["invisible_characters"] == 6
    assert read["content"].isascii()
    assert "\x1b" not in read["content"]
    old = read["content"].rstrip("\n")
    await tools.call("edit_remote_file", remote_path="~/code.py", old_text=old, new_text="if access == 'user':")
    assert fake.files["/home/fake/code.py"] == b"if access == 'user':\n"


async def test_an_edit_may_name_the_character_itself(tools: Caller, fake: FakeSandbox) -> None:
    fake.files["/home/fake/code.py"] = "'\\u0041' \u202e".encode()
    await tools.call("edit_remote_file", remote_path="~/code.py", old_text="'\\u0041' \u202e", new_text="A")
    assert fake.files["/home/fake/code.py"] == b"A"


async def test_what_people_write_comes_as_it_is(tools: Caller, fake: FakeSandbox) -> None:
    text = "数据 שלום مرحبا 👩\u200d🚀\r\n"
    fake.files["/home/fake/text"] = text.encode()
    read = await tools.call("read_remote_file", remote_path="~/text")
    assert read["content"] == text
    assert "invisible_characters" not in read
    await tools.call("edit_remote_file", remote_path="~/text", old_text="שלום", new_text="数")
    assert fake.files["/home/fake/text"] == text.replace("שלום", "数").encode()


async def test_names_lines_and_sentences_hide_nothing(tools: Caller, fake: FakeSandbox) -> None:
    fake.files["/home/fake/odd/photo\u202egpj.exe"] = "pass\u200bword \U000e0041\n".encode()
    listed = await tools.call("list_remote_files", remote_path="~/odd")
    found = await tools.call("search_remote_files", remote_path="~/odd", pattern="word")
    failed = await tools.fail("read_remote_file", remote_path="~/no\u202ething")
    told = f"{listed} {found} {failed}".replace("\\\\", "\\")
    assert told.isascii()
    for shown in ("photo\\u202egpj.exe", "pass\\u200bword \\U000e0041", "no\\u202ething"):
        assert shown in told


async def test_a_read_only_file_is_written_and_edited_only_by_force(local_tools: Caller) -> None:
    await local_tools.run("echo old > kept; chmod 444 kept")
    for tool, given in (
        ("write_remote_file", {"content": "new\n"}),
        ("edit_remote_file", {"old_text": "new", "new_text": "newer"}),
    ):
        problem = await local_tools.fail(tool, remote_path="~/kept", **given)
        assert problem["code"] == "file"
        assert "is read-only (mode 0444), so it is not replaced; pass force=true" in problem["error"]
        await local_tools.call(tool, remote_path="~/kept", force=True, **given)
    assert (await local_tools.run("cat kept; stat -c %a kept"))["stdout"] == "newer\n444\n"
