"""Arguments that are refused, and the sentence that says so."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core import check
from remote_sandbox_mcp.core.client import client_named
from remote_sandbox_mcp.core.commands.command import new_run_id
from remote_sandbox_mcp.core.errors import BadArgument


@pytest.mark.parametrize(
    ("value", "told"),
    [("", "empty"), ("  \n", "empty"), ("a\0b", "NUL"), ("\ud800", "surrogate")],
    ids=["empty", "blank", "NUL", "half a surrogate pair"],
)
def test_texts_that_no_shell_can_take_are_refused(value: str, told: str) -> None:
    with pytest.raises(BadArgument, match=told):
        check.text_argument("command", value)


def test_a_text_that_is_not_needed_may_be_empty() -> None:
    assert check.text_argument("cwd", "", required=False) == ""


@pytest.mark.parametrize("value", [0, -1, 1e9, float("nan"), float("inf")])
def test_numbers_outside_their_range_are_refused(value: float) -> None:
    with pytest.raises(BadArgument, match=r"timeout_s is .* but must be between 0.1 and 604800"):
        check.in_range("timeout_s", value, 0.1, check.LONGEST_TIMEOUT_S)


@pytest.mark.parametrize("value", ["", "run-", "run-../../etc", "main", "run-0123456789abcdef/..", "run-0123456789\n"])
def test_only_our_handles_are_looked_up(value: str) -> None:
    with pytest.raises(BadArgument, match="is not a handle"):
        check.run_handle(value)


def test_every_new_run_id_is_a_handle() -> None:
    assert len({check.run_handle(new_run_id()) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("client", "seconds", "chars", "drops_text"),
    [
        ("claude-code", 110, 45_000, True),
        ("Claude Code", 110, 45_000, True),
        ("codex-mcp-client", 280, 10_000, True),
        ("cursor", 50, 100_000, False),
        ("cursor-vscode", 50, 100_000, False),
        ("claude-ai (via mcp-remote 0.1.37)", 50, 100_000, False),
        ("Visual Studio Code - Insiders", 50, 100_000, False),
        ("mcp", 55, 100_000, False),
        ("customized-client", 55, 100_000, False),
        ("", 55, 100_000, False),
    ],
)
def test_limits_of_known_clients(client: str, seconds: float, chars: int, drops_text: bool) -> None:
    known = client_named(client)
    assert (known.patience_s, known.result_chars, known.drops_text) == (seconds, chars, drops_text)
    assert (known.is_stranger, known.text) == ((True, "json") if seconds == 55 else (False, "prose"))


@pytest.mark.parametrize(("client", "seconds"), [("claude-code", 110), ("cursor", 50), ("mcp", 110), ("", 110)])
def test_only_strangers_wait_longer_for_progress(client: str, seconds: float) -> None:
    assert client_named(client, hears_progress=True).patience_s == seconds
