"""remote-sandbox-mcp 0.7, README, section 7 文件操作: list_remote_files, read_remote_file."""

from __future__ import annotations

import base64

import pytest

from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller

FILE = "/home/fake/notes.txt"
ODD = "\N{REPLACEMENT CHARACTER}"
ONE_REPLACED = "utf-8, 1 byte replaced"


async def test_an_entry_has_path_is_dir_size_and_mtime(tools: Caller) -> None:
    for entry in (await tools.call("list_remote_files", remote_path="~/src"))["entries"]:
        assert entry.keys() >= {"path", "is_dir", "size", "mtime"}
        assert type(entry["mtime"]) is int
        assert entry["modified"].endswith("Z")
        read = await tools.call("read_remote_file", remote_path=entry["path"])
        assert read["size"] == entry["size"]


@pytest.mark.parametrize(
    ("data", "content", "encoding"),
    [
        (b"a line with one odd byte \xff\n", f"a line with one odd byte {ODD}\n", ONE_REPLACED),
        ("größer als α, für jeden\n".encode() + b"\xff", f"größer als α, für jeden\n{ODD}", ONE_REPLACED),
        ("训练完成,损失 0.1\n".encode("gbk"), "训练完成,损失 0.1\n", "gbk"),
        ("训练 done\n".encode("utf-16"), "训练 done\n", "utf-16"),
    ],
    ids=["an odd byte", "among letters with accents", "GBK", "UTF-16"],
)  # fmt: skip
async def test_a_text_is_content_whatever_its_encoding(
    tools: Caller, fake: FakeSandbox, data: bytes, content: str, encoding: str
) -> None:
    """0.7.6 decodes with errors="replace"."""
    fake.files[FILE] = data
    read = await tools.call("read_remote_file", remote_path=FILE)
    assert (read["content"], read["encoding"]) == (content, encoding)


@pytest.mark.parametrize("data", [bytes(range(256)), b"caf\xe9", b"\x7fELF\x02\x01", b"\x1f\x8b\x08\xb6\xd7\xb0\xa1"])
async def test_what_is_binary_comes_as_base64(tools: Caller, fake: FakeSandbox, data: bytes) -> None:
    fake.files[FILE] = data + b"\0" * (data[:4] == b"\x7fELF")
    read = await tools.call("read_remote_file", remote_path=FILE)
    assert (read["encoding"], base64.b64decode(read["content"])) == ("base64", fake.files[FILE])


async def test_the_parts_of_a_text_in_gbk_make_up_the_whole(tools: Caller, fake: FakeSandbox) -> None:
    text = "".join(f"第{number}行,损失 0.1\n" for number in range(40))
    fake.files[FILE] = text.encode("gbk")
    parts, offset = [], 0
    while offset is not None:
        read = await tools.call("read_remote_file", remote_path=FILE, offset=offset, max_bytes=64)
        parts.append(read["content"])
        offset = read.get("next_offset")
    assert "".join(parts) == text
