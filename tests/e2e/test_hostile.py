"""Hostile strings in every argument of every tool, through the real server and a real shell: nothing escapes."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.commands.shell import quote
from tests.fronts.mcp.pin import FILE
from tests.support.server import Server, check_answer, error_of
from tests.support.sshd import Sshd

pytestmark = [
    pytest.mark.anyio,
    # Both ways to run commands: by the outpost, and by plain shells where there is no Python.
    pytest.mark.parametrize("machine", [{}, {"python": False}], ids=["outpost", "plain"], indirect=True),
]

few = settings(
    # Each is a call or several to a real machine; every run draws others.
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

TAKES: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
MEGABYTE = "x" * (1 << 20) + "$(touch ~/pwned)"
# Longer than one word of a command may be on Linux.
LONG = "x" * (1 << 17) + "$(touch ~/pwned)"
LONGEST_NAME = 255
numbers = itertools.count()

# What has made other programs run it.
ATTACKS = [
    "$(touch ~/pwned)",
    "`touch ~/pwned`",
    "; touch ~/pwned",
    "'; touch ~/pwned; '",
    '"; touch ~/pwned; "',
    "| touch ~/pwned",
    "& touch ~/pwned &",
    "&& touch ~/pwned",
    "\ntouch ~/pwned\n",
    "\r\ntouch ~/pwned\r\n",
    "${IFS}$(touch${IFS}~/pwned)",
    "$'\\'';touch ~/pwned;'",
    "-rf",
    "--help",
    "-",
    "--",
    "!!",
    "%s%n%d",
    "{0}{x!r}",
    "~root",
    "../../../../etc/passwd",
    "*",
    "?",
    "[a-z",
    "\\",
    "'",
    '"',
    "''",
    "\\'",
    "#",
    " ",
    "\t",
    "\n",
    "\x1b[2J",
    "\x7f\x80\x9f",
    "\u202e\u2066",
    "é\u0301",
    "🙂",
    "null",
    '{"a": [1]}',
    "EOF\ntouch ~/pwned\nEOF",
]
# JSON cannot carry halves of surrogate pairs; those have a test of their own.
letters = st.characters(exclude_categories=["Cs"])
pieces = st.one_of(st.sampled_from(ATTACKS), st.text(letters, max_size=20))
hostile = st.one_of(st.lists(pieces, min_size=1, max_size=4).map("".join), st.just("a\0b"), st.just("'" * 10_000))
# What the file system takes for one name; a search without Python does not find a name with a \\1 in it.
names = (
    st.lists(pieces, min_size=1, max_size=4)
    .map(lambda parts: "".join(parts).replace("/", "_").replace("\0", "_").replace("\1", "_"))
    .filter(lambda name: name.strip() and name not in (".", "..") and len(name.encode()) <= LONGEST_NAME - 30)
)


def nothing_escaped(machine: Sshd, server: Server) -> bool:
    places = (machine.home, Path("/tmp"), Path.cwd(), server.home, Path.home())
    return not any((place / "pwned").exists() for place in places)


async def still_serves(server: Server) -> bool:
    return await server.output("echo on") == "on\n"


def decoded(text: str) -> str:
    return base64.b64decode(text).decode()


@few
@given(text=hostile.filter(lambda text: "\0" not in text))
@example(text=MEGABYTE)
async def test_a_quoted_word_reaches_the_command_exactly(server: Server, machine: Sshd, text: str) -> None:
    shown = await server.output(f"printf %s {quote(text)} | gzip | base64 -w0")
    assert gzip.decompress(base64.b64decode(shown)) == text.encode()
    assert nothing_escaped(machine, server)


@few
@given(text=hostile)
@example(text=MEGABYTE)
async def test_any_command_gives_a_result_or_one_sentence(server: Server, text: str) -> None:
    # Behind a word that ends the shell: it is read as a whole, but it does nothing.
    answer = await server.ask("exec_bash", command=f"exit 7\n{text}", timeout_s=20)
    told = answer.structured_content or error_of(answer)
    assert told.get("exit_code") == 7 or told["code"] == "bad_argument"


@few
@given(name=names)
async def test_a_file_of_any_name_is_written_read_edited_listed_and_found(
    server: Server, machine: Sshd, name: str
) -> None:
    folder = f"files/{next(numbers)}"
    path, content = f"{folder}/{name}", f"{name}\0{name}"
    await server.call("write_remote_file", remote_path=path, content=content)
    assert (machine.home / path).read_bytes() == content.encode()
    seen = await server.call("read_remote_file", remote_path=f"{machine.home}/{path}")
    assert decoded(seen["content"]) == content
    await server.call("write_remote_file", remote_path=path, content=name)
    await server.call("edit_remote_file", remote_path=path, old_text=name, new_text=f"<{name}>")
    assert (machine.home / path).read_bytes() == f"<{name}>".encode()
    listed = await server.call("list_remote_files", remote_path=folder)
    assert [entry["size"] for entry in listed["entries"]] == [len(name.encode()) + 2]
    found = await server.call("search_remote_files", remote_path=path, pattern="^<")
    assert len(found["matches"]) == 1
    assert nothing_escaped(machine, server)


@few
@given(name=names)
async def test_a_folder_of_any_name_is_entered(server: Server, machine: Sshd, name: str) -> None:
    folder = f"folders/{next(numbers)}/{name}"
    await server.call("write_remote_file", remote_path=f"{folder}/x", content="x")
    for cwd in (folder, f"~/{folder}", f"{machine.home}/{folder}"):
        assert decoded(await server.output('printf %s "$PWD" | base64 -w0', cwd=cwd)) == f"{machine.home}/{folder}"
    assert nothing_escaped(machine, server)


# The command and the code are left out: there it is right that it runs.
STRINGS = [
    (tool, name)
    for tool, takes in TAKES.items()
    for name, schema in takes.items()
    if schema.get("type") == "string" and name not in ("command", "code")
]
HARMLESS: dict[str, dict[str, Any]] = {
    "select_sandbox": {},
    "exec_bash": {"command": "true", "timeout_s": 20},
    "run_python": {"code": "1", "timeout_s": 20},
    "exec_bash_background": {"command": "true", "ensure_watchdog": False},
    "wait_background_task": {"tmux_session": "run-0123456789abcdef", "timeout_s": 1},
    "list_background_tasks": {},
    "send_background_input": {"tmux_session": "nobody", "text": "x"},
    "check_background_task": {"tmux_session": "run-0123456789abcdef"},
    "stop_background_task": {"tmux_session": "run-0123456789abcdef"},
    "list_remote_files": {"remote_path": "any"},
    "read_remote_file": {"remote_path": ".ssh/authorized_keys"},
    "write_remote_file": {"remote_path": "any/file", "content": "x"},
    "edit_remote_file": {"remote_path": "any/file", "old_text": "x", "new_text": "x"},
    "search_remote_files": {"remote_path": "any", "glob": "*"},
    "sync_local_to_remote": {"local_path": "/nowhere/at/all", "remote_path": "any", "dry_run": True},
    "sync_remote_to_local": {"remote_path": "any/file", "local_path": "/nowhere/at/all", "dry_run": True},
    "link_workspace": {"remote_path": "hostile:any", "local_path": "/nowhere/at/all", "dry_run": True},
    "create_sandbox": {"timeout": 60},
    "run_command": {"sandbox_id": "hostile", "command": "true", "timeout": 20},
    "upload_files": {"sandbox_id": "hostile", "files": []},
    "download_files": {"sandbox_id": "hostile", "paths": []},
    "delete_sandbox": {"sandbox_id": "nobody"},
    "run_tests": {"sandbox_id": "hostile", "command": "true", "timeout": 20},
    "deploy_app": {"sandbox_id": "hostile", "command": "true", "port": 1, "timeout": 1},
    "forward_port": {"sandbox_id": "hostile", "port": 1},
    "check_file_transfer_task": {"task_id": "tr-00000000"},
    "cancel_file_transfer_task": {"task_id": "tr-00000000"},
}


@settings(few, max_examples=30)
@given(where=st.sampled_from(STRINGS), text=hostile)
async def test_any_string_in_any_argument_gives_a_result_or_one_sentence(
    server: Server, machine: Sshd, where: tuple[str, str], text: str
) -> None:
    tool, argument = where
    # Checks that it keeps to its schema, or tells a short error without a stack.
    await server.ask(tool, **HARMLESS[tool] | {argument: text})
    assert nothing_escaped(machine, server)
    assert await still_serves(server)


@few
@given(argument=st.sampled_from(["network", "volumes"]), text=hostile)
@example(argument="network", text=MEGABYTE)
@example(argument="volumes", text=MEGABYTE)
async def test_any_string_in_a_list_of_an_order_is_refused_in_one_sentence(
    server: Server, machine: Sshd, argument: str, text: str
) -> None:
    # A word may be the name of a host.
    assume(argument != "network" or not re.fullmatch(r"[\w.*-]{1,253}(:\d+)?", text))
    await server.fail("create_sandbox", **{argument: [text]})
    assert nothing_escaped(machine, server)


@pytest.mark.parametrize(("tool", "argument"), STRINGS)
async def test_a_very_long_text_in_any_argument_gives_a_result_or_one_sentence(
    server: Server, machine: Sshd, tool: str, argument: str
) -> None:
    await server.ask(tool, **HARMLESS[tool] | {argument: LONG})
    assert nothing_escaped(machine, server)


@few
@given(tool=st.sampled_from(list(TAKES)), name=hostile, text=hostile)
@example(tool="exec_bash", name=MEGABYTE, text=MEGABYTE)
async def test_any_name_of_an_argument_is_refused(server: Server, tool: str, name: str, text: str) -> None:
    problem = await server.fail(tool, **{name: text})
    assert problem["code"] == "bad_argument"


@few
@given(tool=hostile, text=hostile)
@example(tool=MEGABYTE, text=MEGABYTE)
async def test_any_name_of_a_tool_is_refused(server: Server, tool: str, text: str) -> None:
    answer = await server.client.call_tool(tool, {"command": text})
    assert answer.is_error
    check_answer(answer, None)
