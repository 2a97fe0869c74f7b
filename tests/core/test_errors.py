"""The error tree: every branch has a code of its own, and the docstring draws them all."""

from __future__ import annotations

from remote_sandbox_mcp.core import errors
from remote_sandbox_mcp.core.errors import SandboxError


def _branches(branch: type[SandboxError]) -> list[type[SandboxError]]:
    return [branch, *(leaf for below in branch.__subclasses__() for leaf in _branches(below))]


def test_every_branch_is_drawn_and_has_its_own_code() -> None:
    branches = [branch for branch in _branches(SandboxError) if branch.__module__ == errors.__name__]
    assert all(branch.__name__ in (errors.__doc__ or "") for branch in branches)
    assert len({branch.code for branch in branches}) == len(branches)
