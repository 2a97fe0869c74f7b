"""The error tree: every branch has a code of its own, and the docstring draws them all."""

from __future__ import annotations

import doctest

from remote_sandbox_mcp.core import errors
from remote_sandbox_mcp.core.errors import LoginRefused, SandboxError
from remote_sandbox_mcp.core.sandboxes import disposable
from remote_sandbox_mcp.core.texts import text


def _branches(branch: type[SandboxError]) -> list[type[SandboxError]]:
    return [branch, *(leaf for below in branch.__subclasses__() for leaf in _branches(below))]


def test_every_branch_is_drawn_and_has_its_own_code() -> None:
    branches = [branch for branch in _branches(SandboxError) if branch.__module__ == errors.__name__]
    assert all(branch.__name__ in (errors.__doc__ or "") for branch in branches)
    assert len({branch.code for branch in branches}) == len(branches)


def test_the_examples_hold() -> None:
    assert [doctest.testmod(module).failed for module in (disposable, errors, text)] == [0, 0, 0]


def test_what_is_added_to_an_error_belongs_to_its_last_part() -> None:
    with_remedy = LoginRefused.of_parts("unable to open a", "it was refused", "check user", reason="x").with_more(
        "wait"
    )
    assert (str(with_remedy), with_remedy.cause) == (
        "unable to open a: it was refused; check user; wait",
        "it was refused; check user; wait",
    )
    assert (type(with_remedy), with_remedy.reason, with_remedy.remedy) == (LoginRefused, "x", "check user; wait")
    assert SandboxError.of_parts("unable", "no").with_more("wait").found == "no; wait"
    assert SandboxError("no").with_more("wait").cause == "no; wait"
